'use strict';
const { connect } = require('amqp-connection-manager');
const { assert, outside, run, unique, until } = require('./scenarios');

const manager = connect([process.argv[2]]);

function channel(options) {
  const wrapper = manager.createChannel(options);
  wrapper.on('error', () => {}); // said of what was under way when the connection was lost; it is sent again
  return wrapper;
}

run({
  'publish and consume': async () => {
    const queue = unique('jobs');
    const seen = [];
    const wrapper = channel({
      json: true,
      setup: async raw => {
        await raw.assertQueue(queue, { durable: true });
        await raw.prefetch(2);
      },
    });
    await wrapper.waitForConnect();
    await wrapper.consume(queue, message => {
      seen.push(JSON.parse(message.content));
      wrapper.ack(message);
    });
    await Promise.all(Array.from({ length: 30 }, (_, number) => wrapper.sendToQueue(queue, { number })));
    await until(() => seen.length === 30);
    assert.deepStrictEqual(seen.map(each => each.number), Array.from({ length: 30 }, (_, number) => number));
    await wrapper.deleteQueue(queue);
    await wrapper.close();
  },

  'nack to the dead letters': async () => {
    const [queue, sink] = [unique('work'), unique('sink')];
    const wrapper = channel({
      setup: async raw => {
        await raw.assertQueue(sink, { durable: true });
        await raw.assertQueue(queue, { durable: true, deadLetterExchange: '', deadLetterRoutingKey: sink });
      },
    });
    await wrapper.waitForConnect();
    await wrapper.sendToQueue(queue, Buffer.from('poison'));
    wrapper.nack(await until(() => wrapper.get(queue)), false, false);
    const dead = await until(() => wrapper.get(sink));
    assert.strictEqual(dead.properties.headers['x-first-death-reason'], 'rejected');
    wrapper.ack(dead);
    await wrapper.close();
  },

  'mandatory return': async () => {
    const returned = [];
    const wrapper = channel({ setup: async raw => { raw.on('return', message => returned.push(message)); } });
    await wrapper.waitForConnect();
    await wrapper.publish('amq.topic', unique('nobody'), Buffer.from('lost'), { mandatory: true });
    assert.strictEqual(returned[0].fields.replyCode, 312);
    await wrapper.close();
  },

  'what is published while away comes later': async () => {
    const queue = unique('kept');
    const seen = new Set();
    const wrapper = channel({ setup: raw => raw.assertQueue(queue, { durable: true }) });
    await wrapper.waitForConnect();
    await wrapper.consume(queue, message => {
      seen.add(message.content.toString());
      wrapper.ack(message);
    });
    const sent = [];
    const send = number => sent.push(wrapper.sendToQueue(queue, Buffer.from(`${number}`), { persistent: true }));
    for (let number = 0; number < 10; number++) send(number);
    await Promise.all(sent);
    const lost = new Promise(resolve => { manager.once('disconnect', resolve); });
    const restarted = outside('restart');
    await lost;
    for (let number = 10; number < 20; number++) send(number);
    await restarted;
    await Promise.all(sent);
    await until(() => seen.size === 20);
    await wrapper.deleteQueue(queue);
    await wrapper.close();
  },
});
