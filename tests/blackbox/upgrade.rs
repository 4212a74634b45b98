//! From shared to exclusive with `UPGRADE`, and back with `DOWNGRADE`. A mode never changes by itself, an upgrade that
//! comes to nothing leaves the shared hold, and two that would wait for each other are told so.

use std::time::Duration;

use crate::harness::line::{
    ask, count, gain, held, holds, mode, release, served, stand_with, still_waits, take, until_count, until_held,
    waiters,
};
use crate::harness::{args, assert_left, cmd, eventually, grant, on_every_server, Client, Kind, Server};

const SOON: Duration = Duration::from_secs(5);
const READER: &[&str] = &["SHARED", "BLOCK", "0"];
const WRITER: &[&str] = &["BLOCK", "0"];
const UPGRADER: &[&str] = &["UPGRADE", "BLOCK", "0"];

/// A server where `a` and `b` share `k`.
fn shared_by_two(kind: Kind) -> (Server, Client, i64) {
    let server = Server::start(kind);
    let mut client = server.client();
    gain(&mut client, "k", "a", &["SHARED"]);
    let fence = gain(&mut client, "k", "b", &["SHARED"]).fence;
    (server, client, fence)
}

/// A connection whose upgrade waits, and its id.
fn upgrading(server: &Server, token: &str, options: &[&str]) -> (Client, i64) {
    let mut waiter = server.client();
    let id = waiter.id();
    let mut watcher = server.client();
    let before = waiters(&mut watcher, "k");
    waiter.send(&[&["LOCK.ACQUIRE", "k", "TOKEN", token, "PX", "60000"], options].concat());
    eventually(SOON, || match waiters(&mut watcher, "k") {
        now if now == before + 1 => Ok(()),
        now => Err(now),
    });
    (waiter, id)
}

#[track_caller]
fn shared_still(client: &mut Client, tokens: &[&str]) {
    assert_eq!((mode(client, "k"), held(client, "k")), ("shared".to_owned(), tokens.len() as i64));
    tokens.iter().for_each(|token| assert!(holds(client, "k", token), "{token}"));
}

on_every_server! {
    fn a_mode_never_changes_by_itself(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let alone = take(&mut client, "k", "a");
        for options in [&["SHARED"][..], &["LIMIT", "9"], READER] {
            let again = gain(&mut client, "k", "a", options);
            assert_eq!((again.fence, again.new), (alone.fence, 0), "{options:?}");
            assert_eq!(mode(&mut client, "k"), "exclusive");
        }
        release(&mut client, "k", "a");
        gain(&mut client, "k", "a", &["SHARED"]);
        for options in [&[][..], WRITER, &["POLL", "100"]] {
            let told = ask(&mut client, "k", "a", options);
            assert_eq!(told.err(), "ERR this token shares the lock: add UPGRADE to have it alone");
        }
        shared_still(&mut client, &["a"]);
        assert_eq!(waiters(&mut client, "k"), 0);
    }

    fn the_only_holder_is_upgraded_at_once_under_a_new_fence(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for (n, options) in [&["UPGRADE"][..], UPGRADER, &["UPGRADE", "POLL", "100"]].into_iter().enumerate() {
            let key = format!("k{n}");
            let shared = gain(&mut client, &key, "a", &["LIMIT", "3", "PX", "90000"]);
            let alone = gain(&mut client, &key, "a", options);
            assert!(alone.fence > shared.fence, "{alone:?} after {shared:?}");
            assert_eq!((alone.new, alone.waited), (1, 0));
            assert_left(alone.ttl, 90_000);
            assert_eq!(mode(&mut client, &key), "exclusive");
            assert!(ask(&mut client, &key, "b", &["SHARED"]).is_null());
            let again = gain(&mut client, &key, "a", options);
            assert_eq!((again.fence, again.new), (alone.fence, 0), "sent again");
            release(&mut client, &key, "a");
        }
    }

    fn beside_others_a_try_is_null_and_the_hold_stays(kind: Kind) {
        let (server, mut client, _) = shared_by_two(kind);
        let mut reader = server.client();
        for _ in 0..3 {
            assert!(ask(&mut client, "k", "a", &["UPGRADE"]).is_null());
        }
        shared_still(&mut client, &["a", "b"]);
        assert_eq!(waiters(&mut client, "k"), 0, "a try joins no line");
        assert_eq!(gain(&mut reader, "k", "c", &["SHARED"]).new, 1);
    }

    fn beside_others_it_waits_at_the_head_of_the_line(kind: Kind) {
        let (server, mut client, fence) = shared_by_two(kind);
        let mut writer = stand_with(&server, "k", "w", WRITER);
        let mut reader = stand_with(&server, "k", "r", READER);
        let (mut upgrader, _) = upgrading(&server, "a", UPGRADER);
        assert!(ask(&mut client, "k", "late", &["SHARED"]).is_null());
        shared_still(&mut client, &["a", "b"]);
        release(&mut client, "k", "b");
        let alone = served(&mut upgrader, "a");
        assert!(alone.fence > fence && alone.ttl == 60_000, "{alone:?} after {fence}");
        assert_eq!((mode(&mut client, "k"), waiters(&mut client, "k")), ("exclusive".to_owned(), 2));
        still_waits(&server, &mut writer);
        release(&mut client, "k", "a");
        served(&mut writer, "w");
        release(&mut client, "k", "w");
        served(&mut reader, "r");
    }

    fn two_that_upgrade_are_a_deadlock_and_the_second_keeps_its_hold(kind: Kind) {
        let (server, mut client, _) = shared_by_two(kind);
        let (mut upgrader, _) = upgrading(&server, "a", UPGRADER);
        for options in [UPGRADER, &["UPGRADE", "BLOCK", "10"], &["UPGRADE", "POLL", "1000"]] {
            let told = ask(&mut client, "k", "b", options);
            assert!(told.err().starts_with("DEADLOCK "), "{options:?}: {told:?}");
        }
        assert!(ask(&mut client, "k", "b", &["UPGRADE"]).is_null(), "a try waits for nothing");
        shared_still(&mut client, &["a", "b"]);
        still_waits(&server, &mut upgrader);
        assert_eq!((count(&mut client, "deadlocks"), waiters(&mut client, "k")), (3, 1));
        // It does as it is told, and the first one has it.
        release(&mut client, "k", "b");
        served(&mut upgrader, "a");
    }

    fn one_that_fails_leaves_the_shared_hold(kind: Kind) {
        let (server, mut client, _) = shared_by_two(kind);
        let (mut upgrader, _) = upgrading(&server, "a", &["UPGRADE", "BLOCK", "300"]);
        assert!(upgrader.recv().is_null());
        shared_still(&mut client, &["a", "b"]);
        // Its connection is killed, with a reader behind it.
        let (_gone, id) = upgrading(&server, "a", UPGRADER);
        let mut reader = stand_with(&server, "k", "r", READER);
        assert_eq!(cmd!(client, "CLIENT", "KILL", "ID", id).int(), 1);
        served(&mut reader, "r");
        shared_still(&mut client, &["a", "b", "r"]);
        // Its connection closes.
        let (gone, _) = upgrading(&server, "a", UPGRADER);
        drop(gone);
        until_count(&mut client, "waiting", 0);
        shared_still(&mut client, &["a", "b", "r"]);
        // A release ends both the wait and the hold.
        let (mut upgrader, _) = upgrading(&server, "a", UPGRADER);
        release(&mut client, "k", "a");
        assert!(upgrader.recv().is_null());
        shared_still(&mut client, &["b", "r"]);
    }

    fn one_whose_hold_ends_meanwhile_is_told_and_holds_nobody_up(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        gain(&mut client, "k", "b", &["SHARED"]);
        gain(&mut client, "k", "a", &["SHARED", "PX", "2500"]);
        let (mut upgrader, _) = upgrading(&server, "a", UPGRADER);
        let mut reader = stand_with(&server, "k", "r", READER);
        let told = upgrader.recv();
        assert_eq!(told.err(), "NOTHELD this token does not hold the lock: acquire it first");
        served(&mut reader, "r");
        shared_still(&mut client, &["b", "r"]);
    }

    fn the_others_lease_that_ends_makes_way(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        gain(&mut client, "k", "a", &["SHARED"]);
        gain(&mut client, "k", "dies", &["SHARED", "PX", "2500"]);
        let (mut upgrader, _) = upgrading(&server, "a", UPGRADER);
        served(&mut upgrader, "a");
        assert_eq!((mode(&mut client, "k"), count(&mut client, "leases_ended")), ("exclusive".to_owned(), 1));
    }

    fn a_polled_upgrade_is_fetched_or_falls_back(kind: Kind) {
        let (server, mut client, fence) = shared_by_two(kind);
        assert!(ask(&mut client, "k", "a", &["UPGRADE", "POLL", "10000"]).is_null());
        let mut reader = stand_with(&server, "k", "r", READER);
        release(&mut client, "k", "b");
        still_waits(&server, &mut reader);
        let fetched = gain(&mut client, "k", "a", &["UPGRADE", "POLL", "10000"]);
        assert!(fetched.fence > fence && fetched.new == 1, "{fetched:?}");
        assert_left(fetched.ttl, 60_000);
        gain(&mut client, "k", "a", &["SHARED", "DOWNGRADE"]);
        served(&mut reader, "r");
        // This one is not fetched. When its time is over the token shares the lock as before.
        assert!(ask(&mut client, "k", "a", &["UPGRADE", "POLL", "1000"]).is_null());
        release(&mut client, "k", "r");
        assert_eq!(mode(&mut client, "k"), "exclusive");
        until_count(&mut client, "grants_taken_back", 1);
        shared_still(&mut client, &["a"]);
        assert_left(cmd!(client, "LOCK.CHECK", "k", "a").int(), 60_000);
    }

    fn one_nobody_was_told_of_falls_back_to_the_shared_hold(kind: Kind) {
        let (server, mut client, _) = shared_by_two(kind);
        let before = cmd!(client, "LOCK.INFO", "k").get("holders").array()[0].get("fence").int();
        let (_gone, id) = upgrading(&server, "a", &["UPGRADE", "HOLD", "inner", "BLOCK", "0"]);
        let mut reader = stand_with(&server, "k", "r", READER);
        // In one turn: the release grants, and the reply finds nobody.
        client.pipeline([args!["LOCK.RELEASE", "k", "b"], args!["CLIENT", "KILL", "ID", id]]);
        served(&mut reader, "r");
        shared_still(&mut client, &["a", "r"]);
        assert_eq!(count(&mut client, "grants_taken_back"), 1);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a", "HOLD", "inner").int(), 0, "nor the hold that came with it");
        let info = cmd!(client, "LOCK.INFO", "k");
        assert_eq!(info.get("holders").array()[0].get("fence").int(), before);
        // Told in another way in the same turn, it stays.
        let (_gone, id) = upgrading(&server, "a", UPGRADER);
        let told = client.pipeline([
            args!["LOCK.RELEASE", "k", "r"], args!["CLIENT", "KILL", "ID", id], args!["LOCK.CHECK", "k", "a"],
        ]);
        assert!(told[2].int() > 0);
        assert!(ask(&mut client, "k", "late", &["SHARED", "BLOCK", "200"]).is_null());
        assert_eq!(mode(&mut client, "k"), "exclusive");
    }

    fn a_downgrade_keeps_the_fence_and_lets_readers_in(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let alone = take(&mut client, "k", "a");
        let mut readers = ["r1", "r2"].map(|token| stand_with(&server, "k", token, READER));
        let mut writer = stand_with(&server, "k", "w", WRITER);
        let mut last = stand_with(&server, "k", "r3", READER);
        let shared = gain(&mut client, "k", "a", &["SHARED", "DOWNGRADE"]);
        assert_eq!((shared.fence, shared.new), (alone.fence, 0));
        assert_left(shared.ttl, 60_000);
        assert_eq!((held(&mut client, "k"), waiters(&mut client, "k")), (3, 2), "in the same command");
        for (token, waiter) in ["r1", "r2"].iter().zip(&mut readers) {
            served(waiter, token);
        }
        still_waits(&server, &mut writer);
        still_waits(&server, &mut last);
        let again = gain(&mut client, "k", "a", &["SHARED", "DOWNGRADE"]);
        assert_eq!((again.fence, again.new), (alone.fence, 0), "sent again");
        for token in ["a", "r1", "r2"] {
            release(&mut client, "k", token);
        }
        served(&mut writer, "w");
    }

    fn a_downgrade_to_a_limit_lets_as_many_in_as_fit(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let alone = take(&mut client, "k", "a");
        let mut line = ["b", "c"].map(|token| stand_with(&server, "k", token, &["LIMIT", "5", "BLOCK", "0"]));
        assert_eq!(gain(&mut client, "k", "a", &["LIMIT", "2", "DOWNGRADE"]).fence, alone.fence);
        served(&mut line[0], "b");
        still_waits(&server, &mut line[1]);
        let info = cmd!(client, "LOCK.INFO", "k");
        assert_eq!((info.get("mode").text(), info.get("held").int(), info.get("limit").int()), ("shared".into(), 2, 2));
        // All the way round: alone again, under a fence above the other's.
        release(&mut client, "k", "b");
        served(&mut line[1], "c");
        release(&mut client, "k", "c");
        assert!(gain(&mut client, "k", "a", &["UPGRADE"]).fence > alone.fence);
    }

    fn who_waits_for_more_may_settle_for_less(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        gain(&mut client, "k", "a", &["SHARED"]);
        let mut writer = stand_with(&server, "k", "w", WRITER);
        let mut reader = stand_with(&server, "k", "r", READER);
        // First in line, and the lock would have admitted it all along: so do those behind it come in.
        assert_eq!(gain(&mut client, "k", "w", READER).new, 1);
        assert!(writer.recv().err().starts_with("ERR superseded"));
        served(&mut reader, "r");
        until_held(&mut client, "k", 3);
    }

    fn both_work_in_transactions_and_scripts(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let shared = gain(&mut client, "k", "a", &["SHARED"]);
        cmd!(client, "MULTI").ok();
        for turn in [&["UPGRADE", "BLOCK", "0"][..], &["SHARED", "DOWNGRADE"]] {
            let words = [&["LOCK.ACQUIRE", "k", "TOKEN", "a"], turn].concat();
            assert!(client.cmd(&words).is("QUEUED"));
        }
        let done = cmd!(client, "EXEC");
        let [up, down] = [0, 1].map(|index| grant(&done.array()[index]));
        assert!(up.fence > shared.fence && down.fence == up.fence, "{up:?} {down:?}");
        gain(&mut client, "k", "b", &["SHARED"]);
        let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'TOKEN', 'a', 'UPGRADE', 'BLOCK', '0')";
        assert!(cmd!(client, "EVAL", script, 1, "k").is_null(), "at once: b is there");
        shared_still(&mut client, &["a", "b"]);
        assert_eq!(waiters(&mut client, "k"), 0);
    }
}
