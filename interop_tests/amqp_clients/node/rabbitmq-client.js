'use strict';
const { Connection, ConsumerStatus } = require('rabbitmq-client');
const { assert, outside, run, unique, until } = require('./scenarios');

const rabbit = new Connection(process.argv[2]);
rabbit.on('error', () => {}); // it connects again by itself

function consume(options, take) {
  const consumer = rabbit.createConsumer(options, take);
  consumer.on('error', () => {});
  return new Promise(resolve => { consumer.on('ready', () => resolve(consumer)); });
}

run({
  'publish and consume': async () => {
    const [exchange, queue] = [unique('events'), unique('jobs')];
    const seen = [];
    const consumer = await consume({
      queue, queueOptions: { durable: true }, qos: { prefetchCount: 2 },
      exchanges: [{ exchange, type: 'topic' }], queueBindings: [{ exchange, routingKey: 'users.*' }],
    }, async message => { seen.push(message); });
    const publisher = rabbit.createPublisher({ confirm: true, maxAttempts: 2, exchanges: [{ exchange, type: 'topic' }] });
    for (let number = 0; number < 20; number++) {
      await publisher.send({ exchange, routingKey: `users.${number}`, messageId: `m${number}`, headers: { number, nested: { list: [1, 2] } } }, { number });
    }
    await until(() => seen.length === 20);
    assert.deepStrictEqual(seen.map(each => each.body.number), Array.from({ length: 20 }, (_, number) => number));
    assert.deepStrictEqual([seen[3].messageId, seen[3].headers, seen[3].contentType], ['m3', { number: 3, nested: { list: [1, 2] } }, 'application/json']);
    await consumer.close();
    await publisher.close();
    await rabbit.queueDelete(queue);
    await rabbit.exchangeDelete({ exchange });
  },

  'dropped to the dead letters': async () => {
    const [queue, sink] = [unique('work'), unique('sink')];
    await rabbit.queueDeclare({ queue: sink, durable: true });
    const consumer = await consume({
      queue, queueOptions: { durable: true, arguments: { 'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': sink } }, requeue: false,
    }, async () => ConsumerStatus.DROP);
    const publisher = rabbit.createPublisher({ confirm: true });
    await publisher.send(queue, 'poison');
    const dead = await until(() => rabbit.basicGet({ queue: sink, noAck: true }));
    assert.deepStrictEqual([dead.body, dead.headers['x-death'][0].reason], ['poison', 'rejected']);
    await consumer.close();
    await publisher.close();
    await rabbit.queueDelete(queue);
    await rabbit.queueDelete(sink);
  },

  'mandatory return': async () => {
    const publisher = rabbit.createPublisher({ confirm: true });
    const returned = [];
    publisher.on('basic.return', message => returned.push(message));
    await publisher.send({ exchange: 'amq.direct', routingKey: unique('nobody'), mandatory: true }, 'lost');
    await until(() => returned.length);
    assert.deepStrictEqual([returned[0].replyCode, returned[0].replyText], [312, 'NO_ROUTE']);
    await publisher.close();
  },

  'questions and answers': async () => {
    const queue = unique('rpc');
    const server = await consume({ queue }, async (request, reply) => { await reply({ doubled: request.body.number * 2 }); });
    const client = rabbit.createRPCClient({ confirm: true });
    const answers = await Promise.all([1, 2, 3].map(number => client.send(queue, { number })));
    assert.deepStrictEqual(answers.map(each => each.body.doubled), [2, 4, 6]);
    await client.close();
    await server.close();
    await rabbit.queueDelete(queue);
  },

  'a queue that is not there': async () => {
    await assert.rejects(rabbit.queueDeclare({ queue: 'no-such-queue', passive: true }), error => error.code === 'NOT_FOUND');
  },

  'reconnect after a restart': async () => {
    const queue = unique('kept');
    const seen = new Set();
    await consume({ queue, queueOptions: { durable: true } }, async message => { seen.add(message.body); });
    const publisher = rabbit.createPublisher({ confirm: true, maxAttempts: 5 });
    await publisher.send({ routingKey: queue, durable: true }, 'before');
    await until(() => seen.has('before'));
    await outside('restart');
    await until(() => publisher.send({ routingKey: queue, durable: true }, 'after').then(() => true, () => false));
    await until(() => seen.has('after'));
    await publisher.close();
  },
});
