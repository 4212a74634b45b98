//! The configs: set, read, kept over a rewrite, and never a judge of locks that are held or of those who wait already.
//! And the warning about eviction policies that pick locks. Arguments of loadmodule are in `load`.

use std::time::Duration;

use crate::harness::{cmd, eventually, grant, info_int, on_every_server, send, Client, Kind, Server};

const LEASE_MS_MAX: i64 = 10 * 365 * 24 * 3_600 * 1_000;
const BOUNDS: [(&str, i64, i64); 4] = [
    ("lock.default-ttl", 1, LEASE_MS_MAX),
    ("lock.grace", 0, LEASE_MS_MAX),
    ("lock.max-ttl", 1, LEASE_MS_MAX),
    ("lock.max-waiters", 0, 1_000_000),
];
const SOON: Duration = Duration::from_secs(5);
const WARNING: &str = "evicts locks too";

#[track_caller]
fn config(client: &mut Client, name: &str) -> String {
    cmd!(client, "CONFIG", "GET", name).get(name).text()
}

#[track_caller]
fn set(client: &mut Client, name: &str, value: i64) {
    cmd!(client, "CONFIG", "SET", name, value).ok();
}

/// A connection that waits in line for `k`, as the server has it.
#[track_caller]
fn stand_in_line(server: &Server, token: &str) -> Client {
    let (mut client, mut watcher) = (server.client(), server.client());
    let before = info_int(&mut watcher, "lock", "lock_waiting");
    send!(client, "LOCK.ACQUIRE", "k", "TOKEN", token, "BLOCK", 0);
    eventually(SOON, || match info_int(&mut watcher, "lock", "lock_waiting") {
        waiting if waiting == before + 1 => Ok(()),
        waiting => Err(waiting),
    });
    client
}

fn warnings(server: &Server) -> usize {
    server.log().lines().filter(|line| line.contains(WARNING)).count()
}

on_every_server! {
    fn these_are_all_and_their_defaults(kind: Kind) {
        let server = Server::start(kind);
        let all = cmd!(server.client(), "CONFIG", "GET", "lock.*");
        let mut names = all.fields();
        names.sort();
        assert_eq!(names, ["lock.default-ttl", "lock.grace", "lock.max-ttl", "lock.max-waiters"]);
        assert_eq!(all.get("lock.default-ttl").text(), "30000");
        assert_eq!(all.get("lock.grace").text(), "0");
        assert_eq!(all.get("lock.max-ttl").text(), "86400000");
        assert_eq!(all.get("lock.max-waiters").text(), "1000");
    }

    fn the_default_is_the_lease_of_those_who_name_none(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for ms in [1, 1_234, 86_400_000] {
            set(&mut client, "lock.default-ttl", ms);
            let key = format!("k{ms}");
            assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", key)).ttl, ms);
            assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", key.clone() + "px", "PX", 500)).ttl, 500);
        }
    }

    fn the_maximum_is_the_longest_lease_to_ask_for(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        set(&mut client, "lock.max-ttl", LEASE_MS_MAX);
        assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", "years", "TOKEN", "a", "PX", LEASE_MS_MAX)).ttl, LEASE_MS_MAX);
        assert_eq!(cmd!(client, "LOCK.EXTEND", "years", "a", "EX", LEASE_MS_MAX / 1_000).int(), LEASE_MS_MAX);
        set(&mut client, "lock.max-ttl", 500);
        assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 500)).ttl, 500);
        let over = "ERR lease of 501 ms is above lock.max-ttl 500";
        assert_eq!(cmd!(client, "LOCK.ACQUIRE", "k2", "PX", 501).err(), over);
        assert_eq!(cmd!(client, "LOCK.EXTEND", "years", "a", "PX", 501).err(), over);
        // A default above the maximum gives what is allowed instead of an error about what nobody typed.
        assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", "default")).ttl, 500);
    }

    fn values_out_of_range_are_refused(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for (name, min, max) in BOUNDS {
            let before = config(&mut client, name);
            let (below, above) = ((min - 1).to_string(), (max + 1).to_string());
            for value in [&below, &above, "-1", "9223372036854775808", "", "x", "1.5", "10s", "1 2"] {
                let refused = cmd!(client, "CONFIG", "SET", name, value);
                assert!(refused.is_error(), "{name} {value}: {refused:?}");
                assert_eq!(config(&mut client, name), before);
            }
            for value in [min, max] {
                set(&mut client, name, value);
                assert_eq!(config(&mut client, name), value.to_string());
            }
        }
        assert!(cmd!(client, "CONFIG", "SET", "default-ttl", 1).is_error());
    }

    fn lines_of_the_configuration_win_over_arguments(kind: Kind) {
        let server = Server::builder(kind)
            .module_args(&["default-ttl", "7000", "max-ttl", "9000"])
            .arg("lock.default-ttl", 8_000)
            .start();
        let mut client = server.client();
        assert_eq!(config(&mut client, "lock.default-ttl"), "8000");
        assert_eq!(config(&mut client, "lock.max-ttl"), "9000");
        assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", "k")).ttl, 8_000);
    }

    fn a_rewritten_configuration_keeps_them(kind: Kind) {
        let mut server = Server::start(kind);
        let mut client = server.client();
        set(&mut client, "lock.default-ttl", 8_000);
        set(&mut client, "lock.max-ttl", 70_000);
        set(&mut client, "lock.max-waiters", 7);
        cmd!(client, "CONFIG", "REWRITE").ok();
        server.shutdown_nosave();
        server.restart();
        let mut client = server.client();
        assert_eq!(config(&mut client, "lock.default-ttl"), "8000");
        assert_eq!(config(&mut client, "lock.max-ttl"), "70000");
        assert_eq!(config(&mut client, "lock.max-waiters"), "7");
        assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", "k")).ttl, 8_000);
    }

    fn only_so_many_wait_and_those_who_do_stay(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        set(&mut client, "lock.max-waiters", 2);
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a"));
        let mut first = stand_in_line(&server, "b");
        let second = stand_in_line(&server, "c");
        let full = |client: &mut Client, token: &str, wait: &str| {
            let refused = cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", token, wait, 5_000);
            assert!(refused.err().starts_with("MAXWAITERS "), "{refused:?}");
        };
        full(&mut client, "d", "BLOCK");
        // A try waits for nothing, a poll is counted apart and ten times as many are kept.
        assert!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "d").is_null());
        for n in 0..20 {
            assert!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", format!("p{n}"), "POLL", 10_000).is_null());
        }
        full(&mut client, "d", "POLL");
        assert!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "p0", "POLL", 10_000).is_null(), "a place it has already");
        // A lower limit ends no wait, and nobody joins until there is room.
        set(&mut client, "lock.max-waiters", 1);
        drop(second);
        eventually(SOON, || match info_int(&mut client, "lock", "lock_waiting") {
            1 => Ok(()),
            waiting => Err(waiting),
        });
        full(&mut client, "d", "BLOCK");
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), 1);
        assert_eq!(grant(&first.recv()).token, b"b");
        set(&mut client, "lock.max-waiters", 0);
        full(&mut client, "d", "BLOCK");
    }

    fn a_lower_maximum_leaves_held_locks_alone(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let held = grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 3_600_000));
        set(&mut client, "lock.max-ttl", 1_000);
        assert!(cmd!(client, "LOCK.CHECK", "k", "a").int() > 3_500_000);
        // A repeat asks for less than is left, and gets what it has.
        let again = grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a"));
        assert!(again.fence == held.fence && again.ttl > 3_500_000, "{again:?}");
        // Its own length again is nothing that was typed.
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a").int(), 3_600_000);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), 1);
    }

    fn a_lower_maximum_leaves_locks_of_a_snapshot_alone(kind: Kind) {
        let mut server = Server::start(kind);
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 3_600_000));
        set(&mut client, "lock.max-ttl", 1_000);
        cmd!(client, "CONFIG", "REWRITE").ok();
        server.shutdown_save();
        server.restart();
        let mut client = server.client();
        assert_eq!(config(&mut client, "lock.max-ttl"), "1000");
        assert!(cmd!(client, "LOCK.CHECK", "k", "a").int() > 3_500_000);
        assert!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b").is_null());
    }

    fn a_lower_maximum_leaves_locks_of_an_append_only_file_alone(kind: Kind) {
        for preamble in ["yes", "no"] {
            let mut server = Server::builder(kind)
                .append_only("always")
                .arg("aof-use-rdb-preamble", preamble)
                .start();
            let mut client = server.client();
            grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 3_600_000));
            set(&mut client, "lock.max-ttl", 1_000);
            cmd!(client, "CONFIG", "REWRITE").ok();
            server.kill9();
            server.restart();
            let mut client = server.client();
            assert_eq!(config(&mut client, "lock.max-ttl"), "1000");
            assert!(cmd!(client, "LOCK.CHECK", "k", "a").int() > 3_500_000);
        }
    }

    fn policies_that_evict_locks_are_warned_of_when_set(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for policy in ["volatile-lru", "volatile-ttl", "volatile-random", "noeviction"] {
            cmd!(client, "CONFIG", "SET", "maxmemory-policy", policy).ok();
            assert_eq!(warnings(&server), 0, "{policy}");
        }
        for (count, policy) in ["allkeys-lru", "allkeys-lfu", "allkeys-random"].iter().enumerate() {
            cmd!(client, "CONFIG", "SET", "maxmemory-policy", policy).ok();
            assert_eq!(warnings(&server), count + 1, "{policy}");
            assert!(server.log().contains(&format!("maxmemory-policy {policy} {WARNING}")), "{}", server.log());
        }
        // Other configs are none of its business.
        cmd!(client, "CONFIG", "SET", "maxmemory", 0).ok();
        assert_eq!(warnings(&server), 3);
    }

    fn policies_that_evict_locks_are_warned_of_at_load(kind: Kind) {
        let warned = Server::builder(kind).arg("maxmemory-policy", "allkeys-lru").start();
        assert_eq!(warnings(&warned), 1, "{}", warned.log());
        let silent = Server::builder(kind).arg("maxmemory-policy", "volatile-lru").start();
        assert_eq!(warnings(&silent), 0, "{}", silent.log());
    }
}
