'use strict';
// Arguments: nameserver, topic. ali-ons consumes one message in vain until it is dead, and prints what it saw as JSON; ends when its standard
// input does, as the last answer of the listener has to go back.

const { Consumer, Message, Producer } = require('ali-ons');
const { patiently } = require('./patiently');

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
      const one = JSON.stringify([ message.body.toString(), message.reconsumeTimes, message.originMessageId !== undefined ]);
      if (!seen.includes(one)) seen.push(one);
      if (message.reconsumeTimes) resolve();
      throw new Error('in vain');
    });
  });
  await patiently(() => producer.send(new Message(topic, 'red', 'vain')));
  await consumer.ready();
  await Promise.race([ twice, new Promise(resolve => setTimeout(resolve, 200000)) ]);
  console.log('[' + seen + ']');
  process.stdin.on('end', () => process.exit(0)).resume();
}

main().catch(error => {
  console.error(error);
  process.exit(1);
});
