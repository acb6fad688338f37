'use strict';
// MQTT.js over a WebSocket: node websocket.js URL PROTOCOL_VERSION COUNT
const mqtt = require('mqtt');

const [url, version, count] = process.argv.slice(2);
const options = version === '3' ? { protocolVersion: 3, protocolId: 'MQIsdp' } : { protocolVersion: Number(version) };
const client = mqtt.connect(url, { clientId: `js${version}`, reconnectPeriod: 0, ...options });
const got = [];
client.on('error', error => { console.error(error); process.exit(1); });
client.on('message', (topic, payload) => {
  got.push(payload.length);
  if (got.length === Number(count)) {
    console.log(JSON.stringify(got));
    client.end();
  }
});
client.on('connect', () => client.subscribe(`js/${version}/#`, { qos: 1 }, () => {
  for (let i = 0; i < Number(count); i++) client.publish(`js/${version}/x`, 'x'.repeat(i * i), { qos: 1 });
}));
