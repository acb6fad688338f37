'use strict';
const amqp = require('amqplib');
const { assert, outside, run, unique, until } = require('./scenarios');

const URL = process.argv[2];

// A connection and a confirm channel of it for one scenario.
async function withChannel(action) {
  const connection = await amqp.connect(URL);
  connection.on('error', () => {});
  const channel = await connection.createConfirmChannel();
  channel.on('error', error => { channel.failure = error; });
  await action(channel, connection);
  await connection.close();
}

async function take(channel, queue, options = {}) {
  return until(() => channel.get(queue, options));
}

const bodies = messages => messages.map(message => message.content.toString());

run({
  'publish and consume': () => withChannel(async channel => {
    const queue = unique('jobs');
    await channel.assertQueue(queue, { durable: true });
    const given = {
      persistent: true, contentType: 'application/json', contentEncoding: 'utf-8', messageId: 'm1', correlationId: 'c1',
      type: 'order', appId: 'app', replyTo: 'answers', timestamp: 1700000000, priority: 3,
      headers: { text: 'ä', number: 7, half: 1.5, yes: true, nothing: null, list: [1, 'b'], inner: { a: 1 }, raw: Buffer.from([0, 255]) },
    };
    for (let number = 0; number < 50; number++) channel.sendToQueue(queue, Buffer.from(`job ${number}`), given);
    await channel.waitForConfirms();
    const seen = [];
    await channel.prefetch(7);
    const { consumerTag } = await channel.consume(queue, message => {
      seen.push(message);
      channel.ack(message);
    });
    await until(() => seen.length === 50);
    assert.deepStrictEqual(bodies(seen), Array.from({ length: 50 }, (_, number) => `job ${number}`));
    const { properties, fields } = seen[0];
    for (const name of ['contentType', 'contentEncoding', 'messageId', 'correlationId', 'type', 'appId', 'replyTo', 'timestamp', 'priority']) {
      assert.deepStrictEqual(properties[name], given[name], name);
    }
    assert.deepStrictEqual({ ...properties.headers }, given.headers);
    assert.strictEqual(properties.deliveryMode, 2);
    assert.deepStrictEqual([fields.exchange, fields.routingKey, fields.redelivered], ['', queue, false]);
    await channel.cancel(consumerTag);
    assert.strictEqual((await channel.deleteQueue(queue)).messageCount, 0);
  }),

  'large body': () => withChannel(async channel => {
    const { queue } = await channel.assertQueue('', { exclusive: true });
    const body = Buffer.alloc(3000000, 'x');
    channel.sendToQueue(queue, body);
    await channel.waitForConfirms();
    assert.ok((await take(channel, queue, { noAck: true })).content.equals(body));
  }),

  'nack to the dead letters': () => withChannel(async channel => {
    const [exchange, queue] = [unique('dead'), unique('work')];
    await channel.assertExchange(exchange, 'topic');
    const sink = (await channel.assertQueue('', { exclusive: true })).queue;
    await channel.bindQueue(sink, exchange, '#');
    await channel.assertQueue(queue, { deadLetterExchange: exchange, deadLetterRoutingKey: 'was.rejected', expires: 60000 });
    channel.sendToQueue(queue, Buffer.from('poison'), { headers: { a: 1 } });
    await channel.waitForConfirms();
    channel.nack(await take(channel, queue), false, false);
    const dead = await take(channel, sink);
    assert.strictEqual(dead.fields.routingKey, 'was.rejected');
    const [death] = dead.properties.headers['x-death'];
    assert.deepStrictEqual([death.reason, death.queue, death.count, death['routing-keys']], ['rejected', queue, 1, [queue]]);
    assert.strictEqual(dead.properties.headers.a, 1);
    channel.ack(dead);
    await channel.deleteExchange(exchange);
  }),

  'nack and come back': () => withChannel(async channel => {
    const { queue } = await channel.assertQueue('', { exclusive: true });
    for (const body of ['1', '2', '3']) channel.sendToQueue(queue, Buffer.from(body));
    await channel.waitForConfirms();
    const [, second] = [await take(channel, queue), await take(channel, queue)];
    channel.nack(second, true, true);
    const again = [await take(channel, queue), await take(channel, queue), await take(channel, queue)];
    assert.deepStrictEqual(again.map(message => [message.content.toString(), message.fields.redelivered]), [['1', true], ['2', true], ['3', false]]);
    channel.ackAll();
    assert.strictEqual((await channel.checkQueue(queue)).messageCount, 0);
  }),

  'mandatory return': () => withChannel(async channel => {
    const returned = [];
    channel.on('return', message => returned.push(message));
    channel.publish('amq.direct', unique('nobody'), Buffer.from('lost'), { mandatory: true, messageId: 'r1' });
    await channel.waitForConfirms();
    assert.strictEqual(returned.length, 1);
    assert.deepStrictEqual([returned[0].fields.replyCode, returned[0].fields.replyText], [312, 'NO_ROUTE']);
    assert.strictEqual(returned[0].properties.messageId, 'r1');
  }),

  'routing': () => withChannel(async channel => {
    const [topic, fanout, headers] = [unique('topic'), unique('fanout'), unique('headers')];
    await channel.assertExchange(topic, 'topic', { autoDelete: true });
    await channel.assertExchange(fanout, 'fanout', { autoDelete: true, alternateExchange: 'amq.fanout' });
    await channel.assertExchange(headers, 'headers', { autoDelete: true });
    const { queue } = await channel.assertQueue('', { exclusive: true });
    await channel.bindExchange(fanout, topic, 'a.*');
    await channel.bindQueue(queue, fanout, '');
    await channel.bindQueue(queue, headers, '', { 'x-match': 'all', kind: 'x', size: 2 });
    channel.publish(topic, 'a.b', Buffer.from('by topic'));
    channel.publish(topic, 'b.b', Buffer.from('not'));
    channel.publish(headers, '', Buffer.from('by headers'), { headers: { kind: 'x', size: 2 } });
    channel.publish(headers, '', Buffer.from('not'), { headers: { kind: 'x', size: 3 } });
    channel.publish(topic, 'c', Buffer.from('by CC'), { CC: ['a.x'], BCC: [] });
    await channel.waitForConfirms();
    const seen = [await take(channel, queue), await take(channel, queue), await take(channel, queue)];
    assert.deepStrictEqual(bodies(seen), ['by topic', 'by headers', 'by CC']);
    assert.strictEqual(await channel.get(queue), false);
  }),

  'queue options': () => withChannel(async channel => {
    const options = { exclusive: true, messageTtl: 60000, expires: 60000, maxLength: 2, overflow: 'drop-head', maxPriority: 4 };
    const { queue } = await channel.assertQueue('', options);
    for (const [body, priority] of [['low', 0], ['high', 4], ['middle', 2]]) channel.sendToQueue(queue, Buffer.from(body), { priority });
    await channel.waitForConfirms();
    assert.strictEqual((await channel.checkQueue(queue)).messageCount, 2);
    const quorum = unique('quorum');
    await channel.assertQueue(quorum, { arguments: { 'x-queue-type': 'quorum' } });
    channel.sendToQueue(quorum, Buffer.from('counted'));
    await channel.waitForConfirms();
    channel.nack(await take(channel, quorum));
    assert.strictEqual((await take(channel, quorum)).properties.headers['x-delivery-count'], 1);
    await channel.deleteQueue(quorum);
  }),

  'answers by direct reply-to': () => withChannel(async (channel, connection) => {
    const server = await connection.createChannel();
    const { queue } = await server.assertQueue('', { exclusive: true });
    await server.consume(queue, message => {
      server.sendToQueue(message.properties.replyTo, Buffer.from(`${message.content} answered`), { correlationId: message.properties.correlationId });
      server.ack(message);
    });
    const answers = [];
    await channel.consume('amq.rabbitmq.reply-to', message => answers.push(message), { noAck: true });
    channel.sendToQueue(queue, Buffer.from('question'), { replyTo: 'amq.rabbitmq.reply-to', correlationId: 'q1' });
    await until(() => answers.length);
    assert.deepStrictEqual([answers[0].content.toString(), answers[0].properties.correlationId], ['question answered', 'q1']);
  }),

  'errors close the channel only': () => withChannel(async (channel, connection) => {
    await assert.rejects(channel.checkQueue('no-such-queue'), /404 \(NOT-FOUND\) with message "NOT_FOUND - no queue 'no-such-queue' in vhost '\/'"/);
    const next = await connection.createChannel();
    next.on('error', () => {});
    const { queue } = await next.assertQueue('', { exclusive: true });
    await assert.rejects(next.assertQueue(queue, { exclusive: true, messageTtl: 5 }), /406 \(PRECONDITION-FAILED\).*inequivalent arg 'x-message-ttl'/);
    await assert.rejects(amqp.connect(URL.replace('guest:guest', 'guest:wrong')), /403 \(ACCESS-REFUSED\)/);
    await assert.rejects(amqp.connect(URL.replace('%2F', 'nowhere')), /ConnectionClose/);
  }),

  'consumers are told': () => withChannel(async (channel, connection) => {
    const queue = unique('short');
    await channel.assertQueue(queue);
    const seen = [];
    await channel.consume(queue, message => seen.push(message));
    await (await connection.createChannel()).deleteQueue(queue);
    await until(() => seen.length);
    assert.strictEqual(seen[0], null);
  }),

  'reconnect after a restart': async () => {
    const queue = unique('kept');
    const first = await amqp.connect(URL);
    const closed = new Promise(resolve => { first.on('close', resolve); });
    first.on('error', () => {});
    const channel = await first.createConfirmChannel();
    channel.on('error', () => {});
    await channel.assertQueue(queue);
    for (let number = 0; number < 20; number++) channel.sendToQueue(queue, Buffer.from(`${number}`), { persistent: true });
    await channel.waitForConfirms();
    channel.ack(await take(channel, queue));
    assert.strictEqual((await take(channel, queue)).content.toString(), '1');
    await channel.checkQueue(queue); // behind the acknowledgement
    await outside('restart');
    await closed;
    await withChannel(async again => {
      const seen = [];
      while (seen.length < 19) seen.push(await take(again, queue, { noAck: true }));
      assert.deepStrictEqual(bodies(seen), Array.from({ length: 19 }, (_, number) => `${number + 1}`));
      assert.strictEqual(seen[0].fields.redelivered, true);
      assert.strictEqual(await again.get(queue), false);
      await again.deleteQueue(queue);
    });
  },
});
