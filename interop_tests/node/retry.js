'use strict';
// Arguments: nameserver, topic. ali-ons consumes one message in vain until it is dead, and prints what it saw as JSON.

const { Consumer, Message, Producer } = require('ali-ons');

const [ , , nameSrv, topic ] = process.argv;
const quiet = { debug() {}, info() {}, warn() {}, error() {} };
const options = { nameSrv, logger: quiet, httpclient: { request() { throw new Error('no HTTP'); } }, accessKeyId: 'x', accessKeySecret: 'x' };

async function main() {
  const producer = new Producer({ ...options, producerGroup: 'node_retry_producer' });
  producer.on('error', () => {});
  await producer.ready();
  const seen = [];
  const consumer = new Consumer({
    ...options, consumerGroup: 'node_retry', consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET', maxReconsumeTimes: 1, delayLevelWhenNextConsume: 1,
  });
  consumer.on('error', () => {});
  const twice = new Promise(resolve => {
    consumer.subscribe(topic, '*', async message => {
      seen.push([ message.body.toString(), message.reconsumeTimes, message.originMessageId !== undefined ]);
      if (seen.length === 2) resolve();
      throw new Error('in vain');
    });
  });
  await producer.send(new Message(topic, 'red', 'vain'));
  await consumer.ready();
  await Promise.race([ twice, new Promise(resolve => setTimeout(resolve, 60000)) ]);
  console.log(JSON.stringify(seen));
  await new Promise(resolve => setTimeout(resolve, 1000)); // the last answer of the listener goes back
  process.exit(0);
}

main().catch(error => {
  console.error(error);
  process.exit(1);
});
