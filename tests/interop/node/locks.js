// Drives `redlock`, in the version most use and in the newest, for the tests of interop: `locks.js LIBRARY PORT`, then
// an order a line, and a line in answer. The orders and what is answered are described in tests/blackbox/interop.rs.
'use strict';

const readline = require('node:readline');
const Redis = require('ioredis');

const LONG_LEASE_MS = 60_000;
const LONG_WAIT_MS = 60_000;
const RETRY_MS = 2;

const retries = (waitMs) => ({ retryCount: Math.floor(waitMs / RETRY_MS), retryDelay: RETRY_MS, retryJitter: RETRY_MS });

// Each takes a lock and gives back how to release and to extend it.
const KINDS = {
  redlock: async (connection, name, leaseMs, waitMs) => {
    const Redlock = require('redlock');
    let lock = await new Redlock([connection], retries(waitMs)).lock(name, leaseMs);
    return { release: () => lock.unlock(), extend: async (ms) => void (lock = await lock.extend(ms)) };
  },
  'redlock-5': async (connection, name, leaseMs, waitMs) => {
    const { default: Redlock } = require('redlock-5');
    let lock = await new Redlock([connection], retries(waitMs)).acquire([name], leaseMs);
    return { release: () => lock.release(), extend: async (ms) => void (lock = await lock.extend(ms)) };
  },
};

const connect = (port) => new Redis({ host: '127.0.0.1', port });

// What only one may be in at a time: a counter that loses steps if two are.
async function section(connection, name) {
  const inside = await connection.incr(`${name}:inside`);
  if (inside !== 1) throw new Error(`${inside} hold ${name} at once`);
  const count = Number((await connection.get(`${name}:count`)) ?? 0);
  await connection.set(`${name}:count`, count + 1);
  await connection.rpush(`${name}:history`, 'theirs');
  await connection.decr(`${name}:inside`);
}

async function contend(acquire, port, name, workers, rounds) {
  const work = async () => {
    const connection = connect(port);
    for (let round = 0; round < rounds; round++) {
      const lock = await acquire(connection, name, LONG_LEASE_MS, LONG_WAIT_MS);
      await section(connection, name);
      await lock.release();
    }
    connection.disconnect();
  };
  await Promise.all(Array.from({ length: workers }, work));
}

async function main(library, port) {
  const acquire = KINDS[library];
  const connection = connect(port);
  const locks = {};

  const obey = async (order, name, ...numbers) => {
    if (order === 'contend') return await contend(acquire, port, name, ...numbers).then(() => 'done');
    if (order === 'acquire') locks[name] = await acquire(connection, name, ...numbers);
    else await locks[name][order](...numbers);
    return 'True';
  };

  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [order, name, ...numbers] = line.split(' ');
    const answer = await obey(order, name, ...numbers.map(Number)).catch((error) => {
      if (order === 'contend') throw error;
      return `${error.name}: ${error.message}`.split('\n')[0];
    });
    process.stdout.write(answer + '\n');
  }
  process.exit(0);
}

main(process.argv[2], Number(process.argv[3])).catch((error) => {
  console.error(error);
  process.exit(1);
});
