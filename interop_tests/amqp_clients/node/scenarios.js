'use strict';
// Runs scenarios one after the other, and says how they ended; see program.py.
const assert = require('node:assert');
const readline = require('node:readline');
const { randomUUID } = require('node:crypto');

const LIMIT_MS = 100000;
const waiting = [];
readline.createInterface({ input: process.stdin }).on('line', () => waiting.shift()());

// Ask the test for something; comes back when it is done.
function outside(what) {
  return new Promise(resolve => {
    waiting.push(resolve);
    console.log(`DO ${what}`);
  });
}

function pause(ms) {
  return new Promise(resolve => setTimeout(resolve, ms));
}

async function until(condition) {
  const end = Date.now() + LIMIT_MS / 2;
  while (true) {
    const found = await condition();
    if (found) return found;
    if (Date.now() > end) throw new Error(`not in time: ${condition}`);
    await pause(20);
  }
}

function within(promise, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: not within ${LIMIT_MS} ms`)), LIMIT_MS);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

async function run(scenarios) {
  for (const [name, action] of Object.entries(scenarios)) {
    let result = 'ok';
    try {
      await within(action(), name);
    } catch (error) {
      result = String(error.stack || error).replaceAll('\n', ' | ');
    }
    console.log(`RESULT ${name.replaceAll(',', '').replaceAll(' ', '-')} ${result}`);
  }
  console.log('END');
  process.exit(0);
}

const unique = name => `${name}-${randomUUID()}`;

module.exports = { assert, outside, run, unique, until };
