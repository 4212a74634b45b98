"""Drives redis-py's `Lock` and `python-redis-lock` for the contention benchmark: a thread and a connection per client.

What is said to it and what it prints is described in ../../foreign.rs.
"""

import os
import sys
import threading
import time

import redis
import redis_lock

LONG_LEASE_MS = 10_000


class RedisPy:
    """The lock that comes with redis-py, with its own defaults."""

    @staticmethod
    def shortest_lease_ms(wanted_ms):
        return wanted_ms

    @staticmethod
    def lock(connection, name, lease_ms):
        return connection.lock(name, timeout=lease_ms / 1000)


class PythonRedisLock:
    """python-redis-lock, with its own defaults. Its leases are whole seconds."""

    @staticmethod
    def shortest_lease_ms(wanted_ms):
        return max(wanted_ms, 1000)

    @staticmethod
    def lock(connection, name, lease_ms):
        return redis_lock.Lock(connection, name, expire=lease_ms // 1000)


KINDS = {"redis-py": RedisPy, "python-redis-lock": PythonRedisLock}


def now_us():
    return time.monotonic_ns() // 1000


def connect(port):
    connection = redis.Redis(host="127.0.0.1", port=port)
    connection.ping()
    return connection


def contend(kind, port, clients, seconds):
    grants = [[] for _ in range(clients)]
    waits_since = [None] * clients
    begin = threading.Event()

    def work(client, connection):
        begin.wait()
        while True:
            asked = waits_since[client] = now_us()
            lock = kind.lock(connection, "contended", LONG_LEASE_MS)
            if lock.acquire():
                grants[client].append((asked, now_us()))
                waits_since[client] = None
                lock.release()

    for client in range(clients):
        threading.Thread(target=work, args=(client, connect(port)), daemon=True).start()
    say("ready")
    sys.stdin.readline()
    start = now_us()
    begin.set()
    time.sleep(seconds)
    end = now_us()
    say("done", start, end)
    for client in range(clients):
        since = waits_since[client]
        if since is not None and since < end:
            print("cut", client, since)
        for asked, granted in list(grants[client]):
            if granted < end:
                print("grant", client, asked, granted)
    say("end")
    # The threads wait for locks that nobody will release.
    os._exit(0)


def orphan(kind, port, rounds, wanted_ms):
    lease_ms = kind.shortest_lease_ms(wanted_ms)
    waiter = connect(port)
    for turn in range(rounds):
        name = f"orphaned-{turn}"
        holder = connect(port)
        asked = now_us()
        kind.lock(holder, name, lease_ms).acquire()
        holder.close()
        # Those that poll get every phase of their sleep against the end of the lease.
        time.sleep(lease_ms / 1000 * turn / rounds)
        lock = kind.lock(waiter, name, lease_ms)
        if not lock.acquire():
            raise RuntimeError("the lock was not granted")
        say("lag", lease_ms, now_us() - asked - lease_ms * 1000)
        lock.release()
    say("end")


def say(*words):
    print(*words, flush=True)


def main():
    name, port, mode, count, span = sys.argv[1:]
    if mode == "contend":
        contend(KINDS[name], int(port), int(count), float(span))
    else:
        orphan(KINDS[name], int(port), int(count), int(span))


main()
