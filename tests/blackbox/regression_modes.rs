//! Failures that users of other lock systems reported about read-write locks, semaphores, caps and locks that belong to a
//! connection, one test each, named by its number in the project's list of cases. The report is named above each test.

use std::time::{Duration, Instant};

use crate::harness::hold::span;
use crate::harness::line::{
    ask, count, gain, held, holds, mode, release, served, stand_in_line, stand_with, still_waits, take, until_count,
    until_held, waiters,
};
use crate::harness::{
    assert_left, cmd, eventually, let_pass, on_every_server, wait_until_free, Clock, Kind, Server, YEAR_US,
};

const SOON: Duration = Duration::from_secs(10);
const WRITER: &[&str] = &["BLOCK", "0"];
const READER: &[&str] = &["SHARED", "BLOCK", "0"];
const PERMIT: &[&str] = &["LIMIT", "2"];

on_every_server! {
    // etcd#10811, redisson#3636, #3187: a holder cut off from the server works on after another got the lock.
    fn c37_a_holder_that_was_cut_off_writes_nothing_more(kind: Kind) {
        let server = Server::start(kind);
        let (mut cut_off, mut client) = (server.client(), server.client());
        let old = gain(&mut cut_off, "k", "a", &["PX", "200"]).fence;
        let mut next = stand_with(&server, "k", "b", WRITER);
        let new = served(&mut next, "b").fence;
        assert!(new > old);
        cmd!(next, "LOCK.GUARD", "k", "b", "SET", "data", "new").ok();
        assert!(cmd!(cut_off, "LOCK.GUARD", "k", "a", "SET", "data", "old").err().starts_with("NOTHELD "));
        assert_eq!(cmd!(client, "GET", "data").text(), "new");
    }

    // redisson#1604, PR#7098, #1458: one watchdog renewed the lock and not each reader, or the keys of dead instances.
    fn c49_a_dead_reader_is_kept_by_nobody_and_keeps_nobody(kind: Kind) {
        let server = Server::start(kind);
        let (mut dead, mut alive) = (server.client(), server.client());
        gain(&mut dead, "k", "a", &["SHARED", "PX", "1000"]);
        drop(dead);
        gain(&mut alive, "k", "b", &["SHARED", "PX", "20000"]);
        let mut writer = stand_with(&server, "k", "w", WRITER);
        eventually(SOON, || {
            assert_eq!(cmd!(alive, "LOCK.EXTEND", "k", "b").int(), 20_000);
            if held(&mut alive, "k") == 1 { Ok(()) } else { Err("both") }
        });
        // It goes on renewing well past the dead one's time; the writer waits for it alone.
        assert_eq!(cmd!(alive, "LOCK.EXTEND", "k", "b").int(), 20_000);
        still_waits(&server, &mut writer);
        assert_eq!(cmd!(alive, "LOCK.CHECK", "k", "a").int(), 0);
        let released = Instant::now();
        release(&mut alive, "k", "b");
        served(&mut writer, "w");
        assert!(released.elapsed() < Duration::from_secs(10), "with the release, not with a lease of 20 s");
    }

    // redisson#4217: after a downgrade renewals were lost. #4796: an upgrade was a silent deadlock.
    fn c50_an_upgrade_succeeds_waits_or_says_that_it_never_would(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let write = gain(&mut client, "k", "a", &["PX", "20000"]);
        let read = gain(&mut client, "k", "a", &["SHARED", "DOWNGRADE", "PX", "1000"]);
        assert_eq!(read.fence, write.fence);
        assert_left(read.ttl, 20_000);
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a", "PX", 90_000).int(), 90_000, "and is renewed as before");
        // The only reader: at once.
        assert!(gain(&mut client, "k", "a", &["UPGRADE"]).fence > write.fence);
        gain(&mut client, "k", "a", &["SHARED", "DOWNGRADE"]);
        gain(&mut client, "k", "b", &["SHARED"]);
        // One of two: for as long as it likes, and it reads on.
        assert!(ask(&mut client, "k", "a", &["UPGRADE", "BLOCK", "100"]).is_null());
        assert_eq!((mode(&mut client, "k"), holds(&mut client, "k", "a")), ("shared".to_owned(), true));
        // Both: the second is told so, at once.
        let mut first = stand_with(&server, "k", "a", &["UPGRADE", "BLOCK", "0"]);
        let told = ask(&mut client, "k", "b", &["UPGRADE", "BLOCK", "0"]);
        assert!(told.err().starts_with("DEADLOCK "), "{told:?}");
        release(&mut client, "k", "b");
        served(&mut first, "a");
    }

    // redisson#1542: readers behind a writer are let in one by one.
    fn c51_readers_behind_a_writer_are_let_in_together(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "w");
        let tokens: Vec<String> = (0..20).map(|n| format!("r{n}")).collect();
        let mut readers: Vec<_> = tokens.iter().map(|token| stand_with(&server, "k", token, READER)).collect();
        let _second = stand_with(&server, "k", "w2", WRITER);
        release(&mut client, "k", "w");
        assert_eq!((held(&mut client, "k"), waiters(&mut client, "k")), (20, 1));
        for (token, reader) in tokens.iter().zip(&mut readers) {
            served(reader, token);
        }
    }

    // redisson#2045, #2213: the permits of a dead client never come back. #604: nobody can tell whose a permit is.
    fn c53_a_permit_has_a_holder_and_a_lease_and_comes_back(kind: Kind) {
        let server = Server::start(kind);
        let (mut dead, mut client) = (server.client(), server.client());
        gain(&mut client, "k", "alive", &["LIMIT", "2", "LABEL", "web 3"]);
        gain(&mut dead, "k", "dead", &["LIMIT", "2", "PX", "3000", "LABEL", "web 4"]);
        let info = cmd!(client, "LOCK.INFO", "k");
        let holders = info.get("holders").array();
        let labels: Vec<String> = holders.iter().map(|holder| holder.get("label").text()).collect();
        assert_eq!(labels, ["web 3", "web 4"]);
        assert!(holders[0].get("ttl-ms").int() > 3_000 && holders[1].get("ttl-ms").int() <= 3_000);
        assert!(holders[0].get("fence").int() < holders[1].get("fence").int());
        let mut next = stand_with(&server, "k", "next", &["LIMIT", "2", "BLOCK", "0"]);
        drop(dead);
        served(&mut next, "next");
        assert_eq!((held(&mut client, "k"), holds(&mut client, "k", "alive")), (2, true));
    }

    // dv/redis-semaphore#13, redis-semaphore, Redisson: a client whose clock is a minute ahead evicts live holders.
    fn c55_no_clock_takes_a_permit_from_its_holder(kind: Kind) {
        let clock = Clock::new();
        let server = Server::builder(kind).clock(&clock).start();
        let mut client = server.client();
        for token in ["a", "b"] {
            gain(&mut client, "k", token, PERMIT);
        }
        // No command carries a time of the client's; and the server's own wall clock is not asked.
        for years in [1, -2, 1] {
            clock.step(years * YEAR_US);
            let_pass(Duration::from_millis(150));
            assert!(ask(&mut client, "k", "c", PERMIT).is_null(), "{years} years");
            assert_eq!(held(&mut client, "k"), 2, "{years} years");
        }
        let (_, start) = span(|| gain(&mut client, "short", "a", &["LIMIT", "2", "PX", "600"]));
        clock.step(-YEAR_US);
        start.ends_within(&mut client, "short", 600, Duration::from_secs(2));
    }

    // redisson#1395: a permit that is held could not be extended. #3224: its time to live was -1.
    fn c56_a_permit_can_be_extended(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        gain(&mut client, "k", "a", &["LIMIT", "2", "PX", "20000"]);
        gain(&mut client, "k", "b", &["LIMIT", "2", "PX", "20000"]);
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a", "EX", 3_600).int(), 3_600_000);
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "b").int(), 20_000);
        // The key has no time to live of the server's: LOCK.INFO tells how long it is held, and by whom for how long.
        assert_eq!(cmd!(client, "PTTL", "k").int(), -1);
        let info = cmd!(client, "LOCK.INFO", "k");
        assert_left(info.get("ttl-ms").int(), 3_600_000);
        assert_left(info.get("holders").array()[1].get("ttl-ms").int(), 20_000);
    }

    // Curator#1112 (CURATOR-595): permits are not given back when the connection is lost.
    fn c57_a_permit_bound_to_a_lost_connection_comes_back_at_once(kind: Kind) {
        let server = Server::start(kind);
        let (mut lost, mut client) = (server.client(), server.client());
        gain(&mut client, "k", "stays", PERMIT);
        gain(&mut lost, "k", "lost", &["LIMIT", "2", "EPHEMERAL"]);
        let mut next = stand_with(&server, "k", "next", &["LIMIT", "2", "BLOCK", "0"]);
        lost.reset();
        served(&mut next, "next");
        assert_eq!(held(&mut client, "k"), 2);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "lost").int(), -1, "the client finds out when it is back");
        assert_eq!(count(&mut client, "leases_ended"), 0);
    }

    // portalocker#137: killing the holder's connection did not revoke its lock, since the library reconnected and never
    // said so. pgbouncer#102, #418, authentik#23876, pgdog#1407: poolers keep the connection and with it the lock.
    fn c77_a_bound_lock_ends_with_its_connection_and_a_reconnect_is_told(kind: Kind) {
        let server = Server::start(kind);
        let (mut owner, mut client) = (server.client(), server.client());
        gain(&mut owner, "k", "a", &["EPHEMERAL"]);
        gain(&mut owner, "plain", "a", &[]);
        assert_eq!(cmd!(client, "CLIENT", "KILL", "ID", owner.id()).int(), 1);
        wait_until_free(&mut client, "k");
        // The library reconnects and goes on: each of its next commands says that the lock is gone.
        let mut back = server.client();
        assert_eq!(cmd!(back, "LOCK.EXTEND", "k", "a").int(), 0);
        assert!(cmd!(back, "LOCK.GUARD", "k", "a", "SET", "data", 1).err().starts_with("NOTHELD "));
        assert_eq!(cmd!(back, "LOCK.RELEASE", "k", "a").int(), 0);
        // Only where it was asked for.
        assert!(holds(&mut back, "plain", "a"));
        until_count(&mut client, "held", 1);
        until_held(&mut client, "plain", 1);
    }

    // redis-semaphore#127, coditory/sherlock#78, simple-redis-mutex#15, live-mutex#106, bsm#93, redisson#4684: a number
    // that grows with each holder was asked for, to tell late writes from new ones.
    fn c81_every_way_to_get_a_lock_comes_with_a_higher_fence(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let mut last = 0;
        let mut next = |what: &str, fence: i64| {
            assert!(fence > last, "{what}: {fence} after {last}");
            last = fence;
        };
        next("a try", take(&mut client, "k", "a").fence);
        let mut waiter = stand_in_line(&server, "k", "b");
        release(&mut client, "k", "a");
        next("a wait", served(&mut waiter, "b").fence);
        assert!(ask(&mut client, "k", "c", &["POLL", "10000"]).is_null());
        release(&mut client, "k", "b");
        next("a poll", gain(&mut client, "k", "c", &["POLL", "10000"]).fence);
        release(&mut client, "k", "c");
        next("a permit", gain(&mut client, "k", "d", PERMIT).fence);
        next("an upgrade", gain(&mut client, "k", "d", &["UPGRADE"]).fence);
        assert_eq!(cmd!(client, "DEL", "k").int(), 1);
        next("after a forced unlock", take(&mut client, "k", "a").fence);
        cmd!(client, "FLUSHALL").ok();
        next("after a flush", take(&mut client, "k", "a").fence);
    }
}
