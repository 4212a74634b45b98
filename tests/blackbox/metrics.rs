//! The lines of `INFO lock`: every one is there, has a number, and moves by what its name says and by nothing else.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::harness::{cmd, eventually, grant, info, on_every_server, Client, Kind, Server};

const SOON: Duration = Duration::from_secs(5);
const LINES: [&str; 23] = [
    "lock_deadlocks",
    "lock_evictions_undone",
    "lock_expires_undone",
    "lock_fence",
    "lock_grace_left_ms",
    "lock_granted",
    "lock_grants_taken_back",
    "lock_guard_refused",
    "lock_handed_over",
    "lock_held",
    "lock_late_releases_free",
    "lock_late_releases_taken",
    "lock_leases_ended",
    "lock_polling",
    "lock_refused",
    "lock_released",
    "lock_repeated",
    "lock_wait_ms_max",
    "lock_wait_ms_sum",
    "lock_waited",
    "lock_waiting",
    "lock_waits_ended_empty",
    "lock_withdrawn",
];

type Lines = BTreeMap<String, i64>;

fn lines(client: &mut Client) -> Lines {
    let all = info(client, "lock");
    all.names().map(|name| (name.to_owned(), all.int(name))).collect()
}

/// What moved between two looks and by how much, the fence aside.
fn moved(before: &Lines, after: &Lines) -> Vec<(String, i64)> {
    let changes = after.iter().map(|(name, value)| (name.clone(), value - before[name]));
    changes.filter(|(name, by)| *by != 0 && name != "lock_fence").collect()
}

/// Does something and says which lines moved.
#[track_caller]
fn assert_moves(client: &mut Client, expected: &[(&str, i64)], action: impl FnOnce(&mut Client)) {
    let before = lines(client);
    action(client);
    let seen = moved(&before, &lines(client));
    let expected: Vec<(String, i64)> = expected.iter().map(|(name, by)| (format!("lock_{name}"), *by)).collect();
    assert_eq!(seen, expected);
}

on_every_server! {
    fn every_line_is_there_from_the_start(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let at_start = lines(&mut client);
        assert_eq!(at_start.keys().collect::<Vec<_>>(), LINES);
        assert!(at_start.iter().all(|(name, value)| *value == 0 || name == "lock_fence"), "{at_start:?}");
        for section in ["modules", "everything"] {
            assert!(info(&mut client, section).find("lock_held").is_some(), "{section}");
        }
    }

    fn each_counts_what_its_name_says(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let client = &mut client;
        assert_moves(client, &[("granted", 1), ("held", 1)], |client| {
            grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000));
        });
        assert_moves(client, &[("refused", 2)], |client| {
            assert!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b").is_null());
            assert!(cmd!(client, "LOCK.ACQUIRE", "k").is_null());
        });
        assert_moves(client, &[("repeated", 1)], |client| {
            grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 70_000));
        });
        assert_moves(client, &[("late_releases_taken", 1)], |client| {
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "b").int(), -1);
        });
        assert_moves(client, &[("held", -1), ("released", 1)], |client| {
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), 1);
        });
        assert_moves(client, &[("late_releases_free", 1)], |client| {
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), 0);
        });
        assert_moves(client, &[("granted", 1), ("leases_ended", 1)], |client| {
            grant(&cmd!(client, "LOCK.ACQUIRE", "k", "PX", 20));
            eventually(SOON, || match lines(client)["lock_held"] {
                0 => Ok(()),
                held => Err(held),
            });
        });
    }

    fn looking_extending_and_errors_move_nothing(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        cmd!(client, "SET", "data", 1).ok();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000));
        let fence = lines(&mut client)["lock_fence"];
        assert_moves(&mut client, &[], |client| {
            assert!(cmd!(client, "LOCK.CHECK", "k", "a").int() > 0);
            assert_eq!(cmd!(client, "LOCK.CHECK", "k", "b").int(), 0);
            assert!(!cmd!(client, "LOCK.INFO", "k").is_null());
            assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a", "PX", 70_000).int(), 70_000);
            assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "b").int(), 0);
            assert!(cmd!(client, "LOCK.ACQUIRE", "k", "PX", 0).is_error());
            assert!(cmd!(client, "LOCK.ACQUIRE", "data").is_error());
            assert!(cmd!(client, "LOCK.RELEASE", "data", "a").is_error());
            assert!(cmd!(client, "LOCK._SET", "k", "x").is_error());
        });
        assert_eq!(lines(&mut client)["lock_fence"], fence);
    }

    fn locks_that_leave_by_the_servers_own_commands_are_not_held(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for unlock in [&["DEL", "k"][..], &["UNLINK", "k"], &["FLUSHALL"], &["FLUSHALL", "ASYNC"], &["SET", "k", "x"]] {
            assert_moves(&mut client, &[("granted", 1)], |client| {
                grant(&cmd!(client, "LOCK.ACQUIRE", "k"));
                assert!(!client.cmd(unlock).is_error(), "{unlock:?}");
                // What another thread frees is counted until it is gone.
                eventually(SOON, || match lines(client)["lock_held"] {
                    0 => Ok(()),
                    held => Err((unlock, held)),
                });
            });
        }
    }

    fn an_expire_taken_back_is_counted(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000));
        assert_moves(&mut client, &[("expires_undone", 1)], |client| {
            assert_eq!(cmd!(client, "PEXPIRE", "k", 50_000).int(), 1);
            eventually(SOON, || match cmd!(client, "PTTL", "k").int() {
                -1 => Ok(()),
                ttl => Err(ttl),
            });
        });
        assert!(cmd!(client, "LOCK.CHECK", "k", "a").int() > 0);
    }

    fn an_eviction_undone_is_counted(kind: Kind) {
        let server = Server::builder(kind).arg("maxmemory-policy", "allkeys-random").start();
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000));
        // The lock is the only key, so it is what the server evicts.
        cmd!(client, "CONFIG", "SET", "maxmemory", 1).ok();
        let refused = cmd!(client, "SET", "x", 1);
        cmd!(client, "CONFIG", "SET", "maxmemory", 0).ok();
        assert!(refused.is_error(), "{refused:?}");
        eventually(SOON, || {
            let seen = lines(&mut client);
            if seen["lock_evictions_undone"] > 0 && seen["lock_held"] == 1 { Ok(()) } else { Err(seen) }
        });
        assert!(cmd!(client, "LOCK.CHECK", "k", "a").int() > 0);
    }
}
