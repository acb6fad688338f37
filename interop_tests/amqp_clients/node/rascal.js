'use strict';
const { BrokerAsPromised, withDefaultConfig } = require('rascal');
const { assert, outside, run, unique, until } = require('./scenarios');

const NAME = unique('rascal');

const broker = BrokerAsPromised.create(withDefaultConfig({
  vhosts: {
    '/': {
      connection: { url: process.argv[2] },
      exchanges: { [`${NAME}-work`]: { type: 'topic' }, [`${NAME}-dead`]: { type: 'topic' }, [`${NAME}-delay`]: { type: 'topic' } },
      queues: {
        [`${NAME}-jobs`]: { options: { arguments: { 'x-dead-letter-exchange': `${NAME}-dead` } } },
        [`${NAME}-sink`]: {},
        [`${NAME}-wait`]: { options: { arguments: { 'x-message-ttl': 50, 'x-dead-letter-exchange': `${NAME}-work` } } },
      },
      bindings: {
        jobs: { source: `${NAME}-work`, destination: `${NAME}-jobs`, bindingKey: 'job.#' },
        sink: { source: `${NAME}-dead`, destination: `${NAME}-sink`, bindingKey: '#' },
        wait: { source: `${NAME}-delay`, destination: `${NAME}-wait`, bindingKey: '#' },
      },
      publications: {
        work: { exchange: `${NAME}-work` },
        later: { exchange: `${NAME}-delay` },
      },
      subscriptions: {
        jobs: { queue: `${NAME}-jobs`, prefetch: 3 },
        sink: { queue: `${NAME}-sink` },
      },
    },
  },
})).then(made => {
  made.on('error', () => {}); // the connection is lost at the restart; it comes back by itself
  return made;
});

// Publishes, and waits until the broker has it.
async function publish(name, body, key, options = {}) {
  const publication = await (await broker).publish(name, body, { routingKey: key, ...options });
  return new Promise((resolve, reject) => {
    let returned;
    publication.on('return', message => { returned = message; });
    publication.on('success', id => resolve({ id, returned }));
    publication.on('error', reject);
  });
}

// Calls `take(message, content, ackOrNack)` for what comes.
async function subscribe(name, take) {
  const subscription = await (await broker).subscribe(name);
  subscription.on('message', take).on('error', () => {}).on('invalid_content', (error, message, ackOrNack) => ackOrNack(error));
  return subscription;
}

run({
  'publish and consume': async () => {
    const seen = [];
    const subscription = await subscribe('jobs', (message, content, ackOrNack) => {
      seen.push(content);
      ackOrNack();
    });
    for (let number = 0; number < 20; number++) await publish('work', { number }, `job.${number}`);
    await until(() => seen.length === 20);
    assert.deepStrictEqual(seen.map(each => each.number), Array.from({ length: 20 }, (_, number) => number));
    await subscription.cancel();
  },

  'nack to the dead letters': async () => {
    const dead = [];
    const work = await subscribe('jobs', (message, content, ackOrNack) => ackOrNack(new Error('no')));
    const sink = await subscribe('sink', (message, content, ackOrNack) => {
      dead.push(message);
      ackOrNack();
    });
    await publish('work', 'poison', 'job.bad');
    await until(() => dead.length);
    assert.strictEqual(dead[0].properties.headers['x-death'][0].reason, 'rejected');
    await work.cancel();
    await sink.cancel();
  },

  'republished until it works': async () => {
    let attempts = 0;
    const work = await subscribe('jobs', (message, content, ackOrNack) => {
      attempts += 1;
      if (attempts < 4) ackOrNack(new Error('not yet'), { strategy: 'republish', defer: 20, attempts: 10 });
      else ackOrNack();
    });
    await publish('work', 'again', 'job.again');
    await until(() => attempts === 4);
    await work.cancel();
  },

  'later, by a queue that nobody reads': async () => {
    const seen = [];
    const work = await subscribe('jobs', (message, content, ackOrNack) => {
      seen.push(content);
      ackOrNack();
    });
    await publish('later', 'waited', 'job.later');
    await until(() => seen.includes('waited'));
    await work.cancel();
  },

  'mandatory return': async () => {
    const { returned } = await publish('work', 'lost', 'nobody.wants.it', { options: { mandatory: true } });
    assert.strictEqual(returned.fields.replyCode, 312);
  },

  'reconnect after a restart': async () => {
    const seen = new Set();
    await subscribe('jobs', (message, content, ackOrNack) => {
      seen.add(content.number);
      ackOrNack();
    });
    await publish('work', { number: 1 }, 'job.1');
    await until(() => seen.has(1));
    await outside('restart');
    await until(() => publish('work', { number: 2 }, 'job.2').catch(() => false));
    await until(() => seen.has(2));
  },
});
