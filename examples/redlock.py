#!/usr/bin/env python3
"""One lock over several independent servers, none of which replicates another: held by whoever has a majority of them.
Raw commands, the standard library, and a thing to protect that checks fences.

    python3 examples/redlock.py 127.0.0.1:7001 127.0.0.1:7002 127.0.0.1:7003

Some clients take the lock in turn and write to the resource under it. Every line is a turn, the last one a summary;
two owners at once, or a fence that did not rise, are an error. Options: clients=3 rounds=5 lease=10000 deadline=500.
examples/redlock.rs is the same in Rust.
"""

import random
import secrets
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

# What two clocks may drift apart within a lease: a hundredth of it, and two ms for their rounding.
DRIFT_PART = 0.01
DRIFT_MIN_S = 0.002


def now():
    """Seconds since the machine started. It cannot be set, and goes on while the machine sleeps: a lease does, too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class NotHeld(Exception):
    """There is no lock: others hold it, or too few servers answered in time. Nothing is held."""


class Lost(Exception):
    """The lock was held, and is no more on a majority: stop the work."""


class MaxHold(Exception):
    """The lock is not held longer than was said at the start. It is until `until`: finish before."""


class ServerError(Exception):
    """The server refused: GRACE, READONLY, LOADING and the like."""


class Server:
    """A server and the connection to it. After any trouble the connection is given up: a late reply must not be taken
    for that to a later command."""

    def __init__(self, host, port):
        self.address = (host, port)
        self.connection = None

    def ask(self, words, deadline):
        """The reply, or None for nil; raises whatever went wrong."""
        connection, self.connection = self.connection, None
        try:
            if connection is None:
                connection = socket.create_connection(self.address, timeout=self._left(deadline))
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(self._left(deadline))
            command = b"*%d\r\n" % len(words)
            for word in words:
                word = str(word).encode()
                command += b"$%d\r\n%s\r\n" % (len(word), word)
            connection.sendall(command)
            connection.settimeout(self._left(deadline))
            with connection.makefile("rb") as stream:
                reply = self._read(stream)
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        self.connection = connection
        if isinstance(reply, ServerError):
            raise reply
        return reply

    @staticmethod
    def _left(deadline):
        left = deadline - now()
        if left <= 0:
            raise TimeoutError
        return left

    def _read(self, stream):
        line = stream.readline().rstrip(b"\r\n")
        kind, rest = line[:1], line[1:]
        if kind == b":":
            return int(rest)
        if kind == b"+":
            return rest
        if kind == b"-":
            return ServerError(rest.decode(errors="replace"))
        if kind == b"$" and int(rest) >= 0:
            return stream.read(int(rest) + 2)[:-2]
        if kind == b"*" and int(rest) >= 0:
            return [self._read(stream) for _ in range(int(rest))]
        if kind in (b"$", b"*", b"_"):
            return None
        raise ConnectionError("no reply")


class Held:
    """What a client knows of the lock that it holds: show `fence` to what the lock protects, stop at `until`."""

    def __init__(self, key, token, fence, until, cap):
        self.key, self.token, self.fence, self.until, self.cap = key, token, fence, until, cap


class Quorum:
    """A lock service of several servers. Times in seconds; `patience` is what a server may take for one answer, far
    below the lease, and `max_hold` how long a lock may be held, renewals included."""

    def __init__(self, servers, lease=10.0, patience=0.5, max_hold=60.0):
        self.servers = [Server(host, port) for host, port in servers]
        self.lease, self.patience, self.max_hold = lease, patience, max_hold
        self.majority = len(self.servers) // 2 + 1
        self.pool = ThreadPoolExecutor(len(self.servers))

    def ask_all(self, *words):
        """Asks every server at once: reply, or the exception in its place."""
        deadline = now() + self.patience

        def ask(server):
            try:
                return server.ask(words, deadline)
            except (OSError, ValueError, ServerError) as trouble:
                return trouble

        return list(self.pool.map(ask, self.servers))

    def until(self, asked, left_ms):
        """The instant until which a majority holds, of what the servers had left when they were asked; None if none."""
        left_ms = sorted((left for left in left_ms if left > 0), reverse=True)
        if len(left_ms) < self.majority:
            return None
        left = left_ms[self.majority - 1] / 1000
        until = asked + left - left * DRIFT_PART - DRIFT_MIN_S
        return until if now() < until else None

    def lock(self, key, token, wait):
        """Takes the lock, trying for `wait` seconds. The token is the same in every try, so a server that granted one
        whose reply was lost grants it again."""
        end = now() + wait
        while True:
            held = self._try_lock(key, token)
            if held is not None:
                return held
            self.release(key, token)
            # At random, or two that met once would meet for ever.
            pause = random.uniform(0, self.patience)
            if now() + pause >= end:
                raise NotHeld
            time.sleep(pause)

    def _try_lock(self, key, token):
        lease_ms, asked = int(self.lease * 1000), now()
        replies = self.ask_all(
            "LOCK.ACQUIRE", key, "TOKEN", token, "PX", lease_ms, "MAXHOLD", int(self.max_hold * 1000)
        )
        grants = [reply if isinstance(reply, list) else None for reply in replies]
        if self.until(asked, [grant[2] for grant in grants if grant]) is None:
            return None
        fence = max(grant[1] for grant in grants if grant)
        # Held only once a majority has the highest fence. Of those that granted, and while that grant runs: another may
        # have granted later than this waited for, under a fence that is higher still.
        confirmed = now()
        written = self.ask_all("LOCK.EXTEND", key, token, "PX", lease_ms, "FENCE", fence)
        counted = [
            left
            for grant, left in zip(grants, written)
            if grant and isinstance(left, int) and now() < asked + grant[2] / 1000
        ]
        until = self.until(confirmed, counted)
        return until and Held(key, token, fence, until, asked + self.max_hold)

    def renew(self, held):
        """Makes the lease whole again; due when a third of it is over. A server that came back empty is asked for the
        lock again, which counts from the next time on."""
        asked, lease_ms = now(), int(self.lease * 1000)
        if asked + self.lease > held.cap:
            raise MaxHold
        extended = self.ask_all("LOCK.EXTEND", held.key, held.token, "PX", lease_ms, "FENCE", held.fence)
        until = self.until(asked, [left for left in extended if isinstance(left, int)])
        if until is None:
            raise Lost
        held.until = until
        if 0 in extended:
            cap_ms = int((held.cap - now()) * 1000)
            self.ask_all("LOCK.ACQUIRE", held.key, "TOKEN", held.token, "PX", lease_ms, "MAXHOLD", cap_ms)

    def release(self, key, token):
        """Gives the lock back on every server, those included that did not answer before."""
        self.ask_all("LOCK.RELEASE", key, token)


class Resource:
    """What the lock protects. It takes no write with a lower fence than the last: whoever comes too late finds out."""

    def __init__(self):
        self.last, self.mutex = 0, threading.Lock()

    def write(self, fence):
        with self.mutex:
            accepted = fence >= self.last
            self.last = max(fence, self.last)
            return accepted


def take_turn(quorum, key, resource, wait):
    """Takes the lock, writes to the resource a few times, gives the lock back: fence, begin and end of the turn."""
    held = quorum.lock(key, secrets.token_hex(16), wait)
    begin = now()
    for _ in range(5):
        if now() + quorum.lease * 2 / 3 > held.until:
            try:
                quorum.renew(held)
            except MaxHold:
                pass
        if now() >= held.until or not resource.write(held.fence):
            raise Lost
        time.sleep(0.002)
    end = min(now(), held.until)
    quorum.release(key, held.token)
    return held.fence, begin, end


def check(turns):
    """Raises unless never two held the lock at once, and each had a higher fence than the one before."""
    turns = sorted(turns, key=lambda turn: turn[1])
    for one, following in zip(turns, turns[1:]):
        if following[1] < one[2]:
            raise AssertionError(f"two owners at once: {one} and {following}")
        if following[0] <= one[0]:
            raise AssertionError(f"a fence that did not rise: {one} and {following}")


def main(args):
    options = {"clients": 3, "rounds": 5, "lease": 10_000, "deadline": 500}
    servers = []
    for arg in args:
        name, _, value = arg.partition("=")
        if name in options:
            options[name] = int(value)
        else:
            host, _, port = arg.rpartition(":")
            servers.append((host, int(port)))
    if not servers:
        sys.exit("give the servers: host:port host:port host:port")
    lease = options["lease"] / 1000
    resource = Resource()

    def client(number):
        quorum = Quorum(servers, lease, options["deadline"] / 1000, lease * 6)
        turns = []
        for _ in range(options["rounds"]):
            turns.append(take_turn(quorum, "redlock:example", resource, lease * 6))
            fence, begin, end = turns[-1]
            print(f"client {number} fence {fence} worked {(end - begin) * 1000:.0f} ms", flush=True)
        return turns

    with ThreadPoolExecutor(options["clients"]) as clients:
        turns = [turn for turns in clients.map(client, range(options["clients"])) for turn in turns]
    check(turns)
    print(f"{len(turns)} turns, one owner at a time, every fence higher than the last")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (NotHeld, Lost, AssertionError) as reason:
        sys.exit(f"{type(reason).__name__}: {reason}")
