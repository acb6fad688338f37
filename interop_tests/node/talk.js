'use strict';
// Arguments: nameserver, topic, count. Sends with ali-ons and receives with its push consumer; prints what it saw as JSON.

const { Consumer, Message, Producer } = require('ali-ons');
const { patiently } = require('./patiently');

const [ , , nameSrv, topic, countText ] = process.argv;
const count = Number(countText);
const quiet = { debug() {}, info() {}, warn() {}, error: console.error };
const options = { nameSrv, logger: quiet, httpclient: { request() { throw new Error('no HTTP'); } }, accessKeyId: 'x', accessKeySecret: 'x' };

async function main() {
  const producer = new Producer({ ...options, producerGroup: 'node_producer' });
  producer.on('error', console.error);
  await producer.ready();
  const client = producer._mqClient; // its createTopic is not part of the producer's interface
  const route = await patiently(() => client.getDefaultTopicRouteInfoFromNameServer('TBW102', 60000));
  const config = {
    topicName: topic, readQueueNums: 4, writeQueueNums: 4, perm: 6, topicFilterType: 'SINGLE_TAG', topicSysFlag: 0, order: false,
  };
  await patiently(() => client.createTopic(route.brokerDatas[0].brokerAddrs['0'], 'TBW102', config, 60000));
  const end = Date.now() + 120000;
  // The nameserver is told a moment after the broker has answered.
  while (!await client.getTopicRouteInfoFromNameServer(topic, 60000).catch(() => undefined)) {
    if (Date.now() > end) throw new Error('the nameserver does not know the topic');
    await new Promise(resolve => setTimeout(resolve, 20));
  }
  const sent = [];
  for (let i = 0; i < count; i++) {
    const message = new Message(topic, i % 2 ? 'odd' : 'even', 'm' + i);
    message.keys = [ 'k' + i ];
    message.properties.device = 'd' + i;
    const result = await patiently(() => producer.send(message));
    sent.push(result.sendStatus + ' ' + Boolean(result.msgId));
  }
  const large = new Message(topic, 'even', 'x'.repeat(100000));
  await patiently(() => producer.send(large));

  const received = {};
  const consumer = new Consumer({ ...options, consumerGroup: 'node_consumer', consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET' });
  consumer.on('error', console.error);
  const all = new Promise(resolve => {
    consumer.subscribe(topic, 'even', async message => {
      const body = message.body.toString();
      received[body.length > 1000 ? 'large' + body.length : body] = [ message.tags, message.keys, message.properties.device ];
      if (Object.keys(received).length === Math.ceil(count / 2) + 1) resolve();
    });
  });
  await consumer.ready();
  await Promise.race([ all, new Promise(resolve => setTimeout(resolve, 200000)) ]);
  console.log(JSON.stringify({ sent, received }));
  process.exit(0);
}

main().catch(error => {
  console.error(error);
  process.exit(1);
});
