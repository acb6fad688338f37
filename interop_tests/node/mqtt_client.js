'use strict';
// MQTT.js does what lines of words on standard input say: interop_tests/mqtt_clients/driver.py has the words.
const readline = require('readline');
const mqtt = require('mqtt');

const clients = new Map();
const say = (...words) => process.stdout.write(words.join(' ') + '\n');

function connect(name, url, version, id, clean, will) {
  return new Promise((resolve, reject) => {
    const level = Number(version);
    const options = {
      clientId: id,
      clean: clean === '1',
      protocolVersion: level,
      protocolId: level === 3 ? 'MQIsdp' : 'MQTT',
      reconnectPeriod: 0,
      resubscribe: false,
    };
    if (level === 5) options.properties = { sessionExpiryInterval: clean === '1' ? 0 : 3600 };
    if (will !== '-') options.will = { topic: will, payload: 'gone', qos: 1, retain: false };
    const client = mqtt.connect(url, options);
    clients.set(name, client);
    client.on('message', (topic, payload, packet) =>
      say('message', name, topic, packet.qos, packet.retain ? 1 : 0, payload.length ? payload : '-'));
    client.on('connect', packet => resolve(packet.sessionPresent ? 1 : 0));
    client.on('error', reject);
    client.on('close', () => reject(new Error('closed')));
  });
}

async function subscribe(name, filter, qos) {
  const granted = await clients.get(name).subscribeAsync(filter, { qos: Number(qos) });
  return granted[0].qos;
}

async function publish(name, topic, qos, retain, count, text) {
  const sent = [];
  for (let i = 0; i < Number(count); i++) {
    const body = text === '-' ? '' : `${text}.${i}`;
    sent.push(clients.get(name).publishAsync(topic, body, { qos: Number(qos), retain: retain === '1' }));
  }
  await Promise.all(sent);
}

const disconnect = name => clients.get(name).endAsync();

const words = { connect, subscribe, publish, disconnect };
let last = Promise.resolve();
readline.createInterface({ input: process.stdin })
  .on('line', line => {
    const [word, ...given] = line.split(' ');
    last = last.then(() => words[word](...given)).then(said => say('ok', said ?? ''), why => say('failed', String(why)));
  })
  .on('close', () => process.exit(0));
