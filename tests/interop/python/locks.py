"""Drives redis-py's `Lock` and `python-redis-lock` for the tests of interop: `locks.py LIBRARY PORT`, then an order a
line, and a line in answer. The orders and what is answered are described in tests/blackbox/interop.rs.
"""

import os
import sys
import threading
import traceback

import redis
import redis_lock


class RedisPy:
    @staticmethod
    def lock(connection, name, lease_ms):
        return connection.lock(name, timeout=lease_ms / 1000, sleep=0.002, thread_local=False)

    @staticmethod
    def acquire(lock, wait_ms):
        return lock.acquire(blocking=wait_ms > 0, blocking_timeout=wait_ms / 1000 if wait_ms > 0 else None)

    @staticmethod
    def extend(lock, lease_ms):
        return lock.extend(lease_ms / 1000, replace_ttl=True)

    @staticmethod
    def owned(lock):
        return lock.owned()


class PythonRedisLock:
    """Its key is `lock:` and the name, its leases are whole seconds."""

    @staticmethod
    def lock(connection, name, lease_ms):
        return redis_lock.Lock(connection, name, expire=lease_ms // 1000)

    @staticmethod
    def acquire(lock, wait_ms):
        return lock.acquire(blocking=True, timeout=wait_ms // 1000) if wait_ms > 0 else lock.acquire(blocking=False)

    @staticmethod
    def extend(lock, lease_ms):
        return lock.extend(lease_ms // 1000) is None

    @staticmethod
    def owned(lock):
        return lock.get_owner_id() == lock.id


KINDS = {"redis-py": RedisPy, "python-redis-lock": PythonRedisLock}
LONG_LEASE_MS = 60_000
LONG_WAIT_MS = 60_000


def connect(port):
    return redis.Redis(host="127.0.0.1", port=port, single_connection_client=True)


def section(connection, name):
    """What only one may be in at a time: a counter that loses steps if two are."""
    inside = connection.incr(f"{name}:inside")
    if inside != 1:
        raise RuntimeError(f"{inside} hold {name} at once")
    count = int(connection.get(f"{name}:count") or 0)
    connection.set(f"{name}:count", count + 1)
    connection.rpush(f"{name}:history", "theirs")
    connection.decr(f"{name}:inside")


def contend(kind, port, name, workers, rounds):
    def work():
        try:
            connection = connect(port)
            for _ in range(rounds):
                lock = kind.lock(connection, name, LONG_LEASE_MS)
                if not kind.acquire(lock, LONG_WAIT_MS):
                    raise RuntimeError(f"{name} was not granted within {LONG_WAIT_MS} ms")
                section(connection, name)
                lock.release()
        except Exception:
            traceback.print_exc()
            os._exit(1)

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main():
    library, port = sys.argv[1], int(sys.argv[2])
    kind, connection = KINDS[library], connect(port)
    locks = {}

    def obey(order, name, *numbers):
        if order == "contend":
            contend(kind, port, name, *numbers)
            return "done"
        if order == "acquire":
            lease_ms, wait_ms = numbers
            locks[name] = kind.lock(connection, name, lease_ms)
            return kind.acquire(locks[name], wait_ms)
        if order == "release":
            return locks[name].release() is None
        return {"extend": kind.extend, "owned": kind.owned}[order](locks[name], *numbers)

    for line in sys.stdin:
        order, name, *numbers = line.split()
        try:
            answer = obey(order, name, *map(int, numbers))
        except (redis.RedisError, redis.exceptions.LockError, RuntimeError) as error:
            answer = f"{type(error).__name__}: {error}".splitlines()[0]
        print(answer, flush=True)


main()
