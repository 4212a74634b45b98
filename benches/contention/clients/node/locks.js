// Drives `redis-semaphore` and `redlock` for the contention benchmark: one process, a connection per client.
// What is said to it and what it prints is described in ../../foreign.rs.
'use strict';

const readline = require('node:readline');
const { setTimeout: sleep } = require('node:timers/promises');
const Redis = require('ioredis');
const { Mutex } = require('redis-semaphore');
const Redlock = require('redlock');

const LONG_LEASE_MS = 10_000;

// Each takes a connection and a name, waits for the lock, and gives back how to release it. Options are the library's
// own defaults, except that a wait goes on until it succeeds and a lease that is to end is not renewed.
const KINDS = {
  'redis-semaphore': async (connection, name, leaseMs, renew) => {
    const options = { lockTimeout: leaseMs, acquireTimeout: 1e9 };
    const mutex = new Mutex(connection, name, renew ? options : { ...options, refreshInterval: 0 });
    await mutex.acquire();
    return () => mutex.release();
  },
  redlock: async (connection, name, leaseMs) => {
    connection.redlock ??= new Redlock([connection], { retryCount: -1 });
    const lock = await connection.redlock.lock(name, leaseMs);
    return () => lock.unlock();
  },
};

const nowUs = () => Number(process.hrtime.bigint() / 1000n);
const say = (...words) => process.stdout.write(words.join(' ') + '\n');

async function connect(port) {
  const connection = new Redis({ host: '127.0.0.1', port, lazyConnect: true });
  await connection.connect();
  return connection;
}

async function contend(acquire, port, clients, seconds) {
  const connections = [];
  for (let client = 0; client < clients; client++) connections.push(await connect(port));
  const grants = [];
  const waitsSince = new Array(clients).fill(null);
  let running = true;

  const work = async (connection, client) => {
    while (running) {
      const asked = (waitsSince[client] = nowUs());
      const release = await acquire(connection, 'contended', LONG_LEASE_MS, true);
      grants.push([client, asked, nowUs()]);
      waitsSince[client] = null;
      await release();
    }
  };

  say('ready');
  await new Promise((resolve) => readline.createInterface({ input: process.stdin }).once('line', resolve));
  const start = nowUs();
  connections.forEach((connection, client) => work(connection, client));
  await sleep(seconds * 1000);
  running = false;
  const end = nowUs();
  say('done', start, end);
  const lines = [];
  waitsSince.forEach((since, client) => since !== null && lines.push(`cut ${client} ${since}`));
  grants.forEach(([client, asked, granted]) => lines.push(`grant ${client} ${asked} ${granted}`));
  lines.push('end');
  // The others wait for a lock that nobody will release.
  process.stdout.write(lines.join('\n') + '\n', () => process.exit(0));
}

async function orphan(acquire, port, rounds, leaseMs) {
  const waiter = await connect(port);
  for (let turn = 0; turn < rounds; turn++) {
    const name = `orphaned-${turn}`;
    const holder = await connect(port);
    const asked = nowUs();
    await acquire(holder, name, leaseMs, false);
    holder.disconnect();
    // Those that poll get every phase of their sleep against the end of the lease.
    await sleep((leaseMs * turn) / rounds);
    const release = await acquire(waiter, name, leaseMs, false);
    say('lag', leaseMs, nowUs() - asked - leaseMs * 1000);
    await release();
  }
  say('end');
  process.exit(0);
}

const [name, port, mode, count, span] = process.argv.slice(2);
(mode === 'contend' ? contend : orphan)(KINDS[name], Number(port), Number(count), Number(span)).catch((error) => {
  console.error(error);
  process.exit(1);
});
