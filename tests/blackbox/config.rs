//! `lock.default-ttl` and `lock.max-ttl`: set, read, kept over a rewrite, and never a judge of locks that are held.
//! And the warning about eviction policies that pick locks. Arguments of loadmodule are in `load`.

use crate::harness::{cmd, grant, on_every_server, Client, Kind, Server};

const LEASE_MS_MAX: i64 = 10 * 365 * 24 * 3_600 * 1_000;
const WARNING: &str = "evicts locks too";

#[track_caller]
fn config(client: &mut Client, name: &str) -> String {
    cmd!(client, "CONFIG", "GET", name).get(name).text()
}

#[track_caller]
fn set(client: &mut Client, name: &str, value: i64) {
    cmd!(client, "CONFIG", "SET", name, value).ok();
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
        assert_eq!(names, ["lock.default-ttl", "lock.max-ttl"]);
        assert_eq!(all.get("lock.default-ttl").text(), "30000");
        assert_eq!(all.get("lock.max-ttl").text(), "86400000");
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
        for name in ["lock.default-ttl", "lock.max-ttl"] {
            let before = config(&mut client, name);
            for value in ["0", "-1", "315360000001", "9223372036854775808", "", "x", "1.5", "10s", "1 2"] {
                let refused = cmd!(client, "CONFIG", "SET", name, value);
                assert!(refused.is_error(), "{name} {value}: {refused:?}");
                assert_eq!(config(&mut client, name), before);
            }
            for value in [1, LEASE_MS_MAX] {
                set(&mut client, name, value);
                assert_eq!(config(&mut client, name), value.to_string());
            }
        }
        assert!(cmd!(client, "CONFIG", "SET", "lock.grace", 1).is_error());
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
        cmd!(client, "CONFIG", "REWRITE").ok();
        server.shutdown_nosave();
        server.restart();
        let mut client = server.client();
        assert_eq!(config(&mut client, "lock.default-ttl"), "8000");
        assert_eq!(config(&mut client, "lock.max-ttl"), "70000");
        assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", "k")).ttl, 8_000);
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
                .arg("appendonly", "yes")
                .arg("appendfsync", "always")
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
