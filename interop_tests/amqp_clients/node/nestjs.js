'use strict';
// A NestJS microservice and its clients. Decorators are called by hand: TypeScript's compiler does the same.
require('reflect-metadata');
const { Module, Controller } = require('@nestjs/common');
const { NestFactory } = require('@nestjs/core');
const {
  ClientProxyFactory, Ctx, EventPattern, MessagePattern, Payload, RmqRecordBuilder, RpcException, Transport,
} = require('@nestjs/microservices');
const amqplib = require('amqplib');
const { firstValueFrom, of, toArray } = require('rxjs');
const { assert, outside, run, unique, until } = require('./scenarios');

const urls = [process.argv[2]];

// An application of one controller with a handler for each pattern; [decorator of the pattern, function of (data, context)].
async function service(options, ...handlers) {
  class Handlers {}
  handlers.forEach(([decorator, handler], number) => {
    const name = `handler${number}`;
    Handlers.prototype[name] = handler;
    Payload()(Handlers.prototype, name, 0);
    Ctx()(Handlers.prototype, name, 1);
    Reflect.decorate([decorator], Handlers.prototype, name, Object.getOwnPropertyDescriptor(Handlers.prototype, name));
  });
  Controller()(Handlers);
  class Application {}
  Module({ controllers: [Handlers] })(Application);
  const app = await NestFactory.createMicroservice(Application, {
    transport: Transport.RMQ, options: { urls, ...options }, logger: false,
  });
  await app.listen();
  return app;
}

function client(options) {
  return ClientProxyFactory.create({ transport: Transport.RMQ, options: { urls, ...options } });
}

async function closed(...ends) {
  for (const end of ends) await end.close();
}

// What is in a queue, by a plain client.
async function taken(queue) {
  const connection = await amqplib.connect(urls[0]);
  const channel = await connection.createChannel();
  const message = await until(() => channel.get(queue, { noAck: true }));
  await connection.close();
  return message;
}

run({
  'questions and answers': async () => {
    const queue = unique('questions');
    const app = await service({ queue }, [MessagePattern({ cmd: 'sum' }), numbers => numbers.reduce((a, b) => a + b, 0)]);
    const asking = client({ queue });
    const sums = Array.from({ length: 50 }, (_, number) => firstValueFrom(asking.send({ cmd: 'sum' }, [number, 1])));
    assert.deepStrictEqual(await Promise.all(sums), Array.from({ length: 50 }, (_, number) => number + 1));
    await closed(asking, app);
  },

  'answers of many parts': async () => {
    const queue = unique('parts');
    const app = await service({ queue }, [MessagePattern('count'), () => of(1, 2, 3)]);
    const asking = client({ queue });
    assert.deepStrictEqual(await firstValueFrom(asking.send('count', {}).pipe(toArray())), [1, 2, 3]);
    await closed(asking, app);
  },

  'what a handler throws is the answer': async () => {
    const queue = unique('throws');
    const app = await service({ queue }, [MessagePattern('fail'), () => { throw new RpcException('no such order'); }]);
    const asking = client({ queue });
    const of = pattern => firstValueFrom(asking.send(pattern, {})).then(() => 'nothing', error => error.message ?? error);
    assert.strictEqual(await of('fail'), 'no such order');
    assert.match(await of('unknown'), /no matching message handler/);
    await closed(asking, app);
  },

  'events': async () => {
    const queue = unique('events');
    const seen = [];
    const app = await service({ queue }, [EventPattern('created'), data => { seen.push(data.number); }]);
    const telling = client({ queue });
    for (let number = 0; number < 50; number++) await firstValueFrom(telling.emit('created', { number }), { defaultValue: 0 });
    await until(() => seen.length === 50);
    assert.deepStrictEqual(seen, Array.from({ length: 50 }, (_, number) => number));
    await closed(telling, app);
  },

  'events wait for their service': async () => {
    const queue = unique('waiting');
    const telling = client({ queue, persistent: true });
    for (let number = 0; number < 5; number++) await firstValueFrom(telling.emit('late', number), { defaultValue: 0 });
    const seen = [];
    const app = await service({ queue }, [EventPattern('late'), number => { seen.push(number); }]);
    await until(() => seen.length === 5);
    await closed(telling, app);
  },

  'acknowledged by hand': async () => {
    const [queue, times] = [unique('by-hand'), []];
    const options = { queue, noAck: false, prefetchCount: 1, queueOptions: { durable: true } };
    const app = await service(options, [EventPattern('work'), (number, context) => {
      const [channel, message] = [context.getChannelRef(), context.getMessage()];
      times.push([number, message.fields.redelivered]);
      if (number === 1 && !message.fields.redelivered) channel.nack(message);
      else channel.ack(message);
    }]);
    const telling = client({ queue, queueOptions: { durable: true } });
    for (let number = 0; number < 3; number++) await firstValueFrom(telling.emit('work', number), { defaultValue: 0 });
    await until(() => times.length === 4);
    assert.deepStrictEqual(times, [[0, false], [1, false], [1, true], [2, false]]);
    await closed(telling, app);
    const connection = await amqplib.connect(urls[0]);
    assert.strictEqual((await (await connection.createChannel()).deleteQueue(queue)).messageCount, 0);
    await connection.close();
  },

  'refused to the dead letters': async () => {
    const [queue, sink] = [unique('work'), unique('sink')];
    const connection = await amqplib.connect(urls[0]);
    await (await connection.createChannel()).assertQueue(sink);
    await connection.close();
    const queueOptions = { durable: true, deadLetterExchange: '', deadLetterRoutingKey: sink };
    const app = await service({ queue, noAck: false, queueOptions }, [EventPattern('poison'), (_, context) => {
      context.getChannelRef().nack(context.getMessage(), false, false);
    }]);
    const telling = client({ queue, queueOptions });
    await firstValueFrom(telling.emit('poison', 'one'), { defaultValue: 0 });
    const refused = await taken(sink);
    assert.deepStrictEqual(JSON.parse(refused.content), { pattern: 'poison', data: 'one' });
    assert.strictEqual(refused.properties.headers['x-first-death-reason'], 'rejected');
    await firstValueFrom(telling.emit('nobody handles it', 'two'), { defaultValue: 0 }); // Nest refuses it by itself
    assert.strictEqual(JSON.parse((await taken(sink)).content).data, 'two');
    await closed(telling, app);
  },

  'time to live and headers': async () => {
    const [queue, sink] = [unique('short'), unique('sink')];
    const connection = await amqplib.connect(urls[0]);
    await (await connection.createChannel()).assertQueue(sink);
    await connection.close();
    const queueOptions = { durable: true, messageTtl: 50, arguments: { 'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': sink } };
    const telling = client({ queue, queueOptions, headers: { from: 'client' } });
    const record = new RmqRecordBuilder({ id: 7 }).setOptions({ headers: { 'x-version': '1.0' }, priority: 3 }).build();
    await firstValueFrom(telling.emit('record', record), { defaultValue: 0 });
    const { content, properties } = await taken(sink);
    assert.deepStrictEqual(JSON.parse(content), { pattern: 'record', data: { id: 7 } });
    assert.deepStrictEqual([properties.headers.from, properties.headers['x-version'], properties.priority], ['client', '1.0', 3]);
    assert.strictEqual(properties.headers['x-first-death-reason'], 'expired');
    await telling.close();
  },

  'wildcards of a topic exchange': async () => {
    const [queue, seen] = [unique('wild'), []];
    const options = { queue, wildcards: true };
    const app = await service(
      options,
      [EventPattern('cats.#'), (data, context) => { seen.push(`cats ${context.getPattern()} ${data}`); }],
      [EventPattern('dogs.*'), (data, context) => { seen.push(`dogs ${context.getPattern()} ${data}`); }],
    );
    const telling = client(options);
    for (const [pattern, data] of [['cats.big.black', 1], ['dogs.small', 2], ['dogs.small.white', 3], ['cats', 4]]) {
      await firstValueFrom(telling.emit(pattern, data), { defaultValue: 0 });
    }
    await until(() => seen.length === 3);
    assert.deepStrictEqual(seen.sort(), ['cats cats 4', 'cats cats.big.black 1', 'dogs dogs.small 2']);
    await closed(telling, app);
  },

  'a fanout of two services': async () => {
    const [exchange, seen] = [unique('everybody'), []];
    const options = { exchange, exchangeType: 'fanout' };
    const apps = [];
    for (const name of ['one', 'two']) {
      apps.push(await service({ ...options, queue: unique(name) }, [EventPattern('said'), data => { seen.push(`${name} ${data}`); }]));
    }
    const telling = client(options);
    await firstValueFrom(telling.emit('said', 'hello'), { defaultValue: 0 });
    await until(() => seen.length === 2);
    assert.deepStrictEqual(seen.sort(), ['one hello', 'two hello']);
    await closed(telling, ...apps);
  },

  'service goes on after a restart': async () => {
    const queue = unique('again');
    const app = await service({ queue, queueOptions: { durable: true } }, [MessagePattern('double'), number => number * 2]);
    const asking = client({ queue, queueOptions: { durable: true } });
    assert.strictEqual(await firstValueFrom(asking.send('double', 4)), 8);
    const states = [];
    for (const end of [asking, app]) end.status.subscribe(state => { states.push(state); });
    await outside('restart');
    await until(() => states.filter(state => state === 'disconnected').length >= 2);
    await until(() => states.filter(state => state === 'connected').length >= 4); // the first two are replayed
    assert.strictEqual(await firstValueFrom(asking.send('double', 21)), 42);
    await closed(asking, app);
  },
});
