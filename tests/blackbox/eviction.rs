//! Memory runs out: what is refused, and that no policy of eviction ever frees a lock.

use std::time::Duration;

use crate::harness::hold::{self, ms_left, span, take};
use crate::harness::{cmd, eventually, info_int, on_every_server, Client, Kind, Server};
use crate::replication::agree;

const SOON: Duration = Duration::from_secs(10);
const LONG_MS: u64 = 600_000;
const LOCKS: usize = 40;
/// Not the database that the flood goes to.
const LOCK_DB: i32 = 3;
const FLOOD_KEYS: usize = 4000;
const FLOOD_VALUE_BYTES: usize = 2000;
/// Room for about a quarter of the flood.
const ROOM_BYTES: i64 = 2_000_000;

/// Writes far more than there is room for. Each key has a TTL, so every policy finds something to evict.
fn flood(client: &mut Client, value: &str) {
    for first in (0..FLOOD_KEYS).step_by(200) {
        let commands = (first..first + 200)
            .map(|n| ["SET".to_owned(), format!("flood {n}"), value.to_owned(), "EX".to_owned(), "1000".to_owned()]);
        client.pipeline(commands);
    }
}

#[track_caller]
fn leave_room(client: &mut Client, bytes: i64) {
    let used = info_int(client, "memory", "used_memory");
    cmd!(client, "CONFIG", "SET", "maxmemory", used + bytes).ok();
}

/// Locks under a flood: each is held to the end, and its fence never changes hands.
#[track_caller]
fn no_lock_is_lost(kind: Kind, policy: &str) {
    // Valkey's backlog of 10 MB would be all the memory there is.
    let primary = Server::builder(kind).arg("repl-backlog-size", 100_000).start();
    let replica = Server::start(kind);
    replica.replica_of(&primary);
    let mut client = primary.client();
    cmd!(client, "SELECT", LOCK_DB).ok();
    let name = |n: usize| format!("lock {n}");
    let fences: Vec<i64> = (0..LOCKS).map(|n| take(&mut client, &name(n), "t", LONG_MS).fence).collect();
    cmd!(client, "CONFIG", "SET", "maxmemory-policy", policy).ok();
    leave_room(&mut client, ROOM_BYTES);
    let mut flooder = primary.client();
    let value = "x".repeat(FLOOD_VALUE_BYTES);
    let (_, start) = span(|| take(&mut client, "short", "t", 300));
    for round in 0..3 {
        flood(&mut flooder, &value);
        for (n, &fence) in fences.iter().enumerate() {
            // The try itself may be what evicts the lock.
            let stolen = hold::acquire(&mut client, &name(n), "other", LONG_MS);
            assert!(stolen.is_null() || stolen.err().starts_with("OOM"), "{policy}, round {round}: {stolen:?}");
            assert!(ms_left(&mut client, &name(n), "t") > 0, "{policy}, round {round}: {} is lost", name(n));
            assert_eq!(hold::fence(&mut client, &name(n)), fence, "{policy}, round {round}");
        }
    }
    assert!(info_int(&mut client, "stats", "evicted_keys") > 1000);
    let undone = info_int(&mut client, "lock", "lock_evictions_undone");
    assert_eq!(undone > 0, policy.starts_with("allkeys-"), "{policy}: {undone} evictions undone");
    // To ask whether the key exists may be what evicts it, and that command still finds it gone.
    cmd!(client, "CONFIG", "SET", "maxmemory", 0).ok();
    start.ends_within(&mut client, "short", 300, SOON);
    assert_eq!(info_int(&mut client, "lock", "lock_held"), 40);
    let selected = cmd!(flooder, "CLIENT", "INFO").text();
    assert!(selected.contains(" db=0 "), "a client is in the database of an evicted key: {selected}");
    agree(&primary, &replica);
    let mut below = replica.client();
    cmd!(below, "SELECT", LOCK_DB).ok();
    assert_eq!(cmd!(below, "DBSIZE").int(), 40);
    assert_eq!(info_int(&mut below, "lock", "lock_held"), 40);
    for n in 0..LOCKS {
        assert_eq!(cmd!(client, "LOCK.RELEASE", name(n), "t").int(), 1);
    }
    assert_eq!(cmd!(client, "DBSIZE").int(), 0);
}

on_every_server! {
    fn without_memory_locks_are_not_taken_but_released_and_extended(kind: Kind) {
        let server = Server::builder(kind).arg("maxmemory-policy", "noeviction").start();
        let mut client = server.client();
        let taken = take(&mut client, "k", "t", 400);
        take(&mut client, "k2", "t", LONG_MS);
        let (_, start) = span(|| take(&mut client, "ends", "t", 400));
        cmd!(client, "CONFIG", "SET", "maxmemory", 1).ok();
        assert!(hold::acquire(&mut client, "new", "t", LONG_MS).err().starts_with("OOM"));
        assert!(hold::acquire(&mut client, "k", "t", LONG_MS).err().starts_with("OOM"));
        assert_eq!(cmd!(client, "EXISTS", "new").int(), 0);
        assert!(cmd!(client, "LOCK.EXTEND", "k", "t", "PX", LONG_MS).int() > 60_000);
        assert!(ms_left(&mut client, "k", "t") > 0);
        assert_eq!(hold::fence(&mut client, "k"), taken.fence);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k2", "t").int(), 1);
        start.ends(&mut client, "ends", 400);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "t").int(), 1);
        cmd!(client, "CONFIG", "SET", "maxmemory", 0).ok();
        assert!(take(&mut client, "k", "t", LONG_MS).fence > taken.fence);
    }

    fn volatile_lru_evicts_no_lock(kind: Kind) {
        no_lock_is_lost(kind, "volatile-lru");
    }

    fn volatile_lfu_evicts_no_lock(kind: Kind) {
        no_lock_is_lost(kind, "volatile-lfu");
    }

    fn volatile_random_evicts_no_lock(kind: Kind) {
        no_lock_is_lost(kind, "volatile-random");
    }

    fn volatile_ttl_evicts_no_lock(kind: Kind) {
        no_lock_is_lost(kind, "volatile-ttl");
    }

    fn allkeys_lru_loses_no_lock(kind: Kind) {
        no_lock_is_lost(kind, "allkeys-lru");
    }

    fn allkeys_lfu_loses_no_lock(kind: Kind) {
        no_lock_is_lost(kind, "allkeys-lfu");
    }

    fn allkeys_random_loses_no_lock(kind: Kind) {
        no_lock_is_lost(kind, "allkeys-random");
    }

    /// Nothing but locks to evict: the server must neither lose one nor spin.
    fn a_server_full_of_locks_keeps_them_all(kind: Kind) {
        let server = Server::builder(kind).arg("maxmemory-policy", "allkeys-random").start();
        let mut client = server.client();
        for n in 0..500 {
            take(&mut client, &format!("k{n}"), "t", LONG_MS);
        }
        cmd!(client, "CONFIG", "SET", "maxmemory", 1).ok();
        for n in 0..500 {
            let stolen = hold::acquire(&mut client, &format!("k{n}"), "other", LONG_MS);
            assert!(stolen.is_null() || stolen.err().starts_with("OOM"), "{stolen:?}");
            assert!(ms_left(&mut client, &format!("k{n}"), "t") > 0, "k{n} is lost");
        }
        assert!(info_int(&mut client, "lock", "lock_evictions_undone") > 0);
        cmd!(client, "CONFIG", "SET", "maxmemory", 0).ok();
        eventually(SOON, || match cmd!(client, "DBSIZE").int() {
            500 => Ok(()),
            keys => Err(keys),
        });
        assert_eq!(info_int(&mut client, "lock", "lock_held"), 500);
    }

    /// The command that saves is itself preceded by evictions: what they took is in the snapshot all the same.
    fn a_snapshot_in_the_middle_of_an_eviction_has_every_lock(kind: Kind) {
        for save in ["SAVE", "BGSAVE", "SHUTDOWN SAVE"] {
            let mut server = Server::builder(kind).arg("maxmemory-policy", "allkeys-random").start();
            let mut client = server.client();
            for n in 0..50 {
                take(&mut client, &format!("k{n}"), "t", LONG_MS);
            }
            // One turn of the event loop: nothing puts locks back between the two.
            let lines = ["CONFIG SET maxmemory 1", save].map(|line| line.split(' ').collect::<Vec<&str>>());
            for line in lines {
                let mut wire = format!("*{}\r\n", line.len());
                for word in line {
                    wire.push_str(&format!("${}\r\n{word}\r\n", word.len()));
                }
                client.write(wire.as_bytes());
            }
            if save == "SHUTDOWN SAVE" {
                server.expect_crash();
                assert!(server.wait_for_exit().success());
            } else {
                client.recv().ok();
                assert!(!client.recv().is_error());
                eventually(SOON, || match info_int(&mut client, "persistence", "rdb_bgsave_in_progress") {
                    0 => Ok(()),
                    _ => Err("saving"),
                });
                server.kill9();
            }
            server.restart();
            let mut client = server.client();
            for n in 0..50 {
                assert!(ms_left(&mut client, &format!("k{n}"), "t") > 0, "{save}: k{n} is lost");
            }
        }
    }

    /// A lock that is evicted while it waits to be put back ends, moves and goes like any other.
    fn an_evicted_lock_is_released_flushed_and_overwritten(kind: Kind) {
        let server = Server::builder(kind).arg("maxmemory-policy", "allkeys-random").start();
        let mut client = server.client();
        for line in ["LOCK.RELEASE k t", "FLUSHALL", "FLUSHDB", "LOCK.EXTEND k t", "LOCK.CHECK k t", "LOCK.INFO k"] {
            take(&mut client, "k", "t", LONG_MS);
            // One turn of the event loop: the command that evicts, the one under test, and no more evictions.
            let commands = ["CONFIG SET maxmemory 1", "SET x y", line, "CONFIG SET maxmemory 0", "EXISTS k"];
            let replies = client.pipeline(commands.map(|line| line.split(' ').collect::<Vec<&str>>()));
            assert!(!replies[2].is_error(), "{line}: {replies:?}");
            let kept = !["LOCK.RELEASE k t", "FLUSHALL", "FLUSHDB"].contains(&line);
            if line == "LOCK.RELEASE k t" {
                assert_eq!(replies[2].int(), 1);
            }
            let expected = i64::from(kept);
            eventually(SOON, || {
                let found = (cmd!(client, "EXISTS", "k").int(), info_int(&mut client, "lock", "lock_held"));
                if found == (expected, expected) { Ok(()) } else { Err((line, found)) }
            });
            assert_eq!(ms_left(&mut client, "k", "t") > 0, kept, "{line}");
            cmd!(client, "DEL", "k").int();
        }
        assert!(info_int(&mut client, "lock", "lock_evictions_undone") > 0);
    }
}
