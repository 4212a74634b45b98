//! A hand-over outside a command obeys whatever the server would refuse a command for: too few replicas, a snapshot that
//! failed. Waiters keep waiting, are served when the reason is gone, and one whose wait ends meanwhile is told it.

use std::fs;
use std::time::Duration;

use crate::harness::line::{
    count, release, send_acquire, stand_dying, stand_in_line, stand_with, take, until_count, waiters,
};
use crate::harness::{
    args, cmd, eventually, grant, info, let_pass, on_every_server, wait_in_sync, Client, Kind, Server,
};

const SOON: Duration = Duration::from_secs(10);

/// A primary that takes writes only while its replica is there.
fn pair(kind: Kind) -> (Server, Server) {
    let (primary, replica) = (Server::start(kind), Server::start(kind));
    replica.replica_of(&primary);
    cmd!(primary.client(), "CONFIG", "SET", "min-replicas-to-write", 1).ok();
    until_good_replicas(&primary, 1);
    (primary, replica)
}

/// Detaches the replica and waits until the primary counts none.
#[track_caller]
fn lose(primary: &Server, replica: &Server) {
    replica.promote();
    until_good_replicas(primary, 0);
}

#[track_caller]
fn until_good_replicas(primary: &Server, expected: i64) {
    let mut client = primary.client();
    eventually(SOON, || match info(&mut client, "replication").int("min_slaves_good_slaves") {
        seen if seen == expected => Ok(()),
        seen => Err(seen),
    });
}

#[track_caller]
fn until_lapsed(client: &mut Client, key: &str, token: &str) {
    eventually(SOON, || match cmd!(client, "LOCK.CHECK", key, token).int() {
        0 => Ok(()),
        left => Err(left),
    });
}

#[track_caller]
fn cpu_seconds(client: &mut Client) -> f64 {
    let cpu = info(client, "cpu");
    let seconds = |name| cpu.text(name).parse::<f64>().expect("seconds");
    seconds("used_cpu_user") + seconds("used_cpu_sys")
}

#[track_caller]
fn no_replicas(waiter: &mut Client) {
    let told = waiter.recv();
    assert!(told.err().starts_with("NOREPLICAS"), "{told:?}");
    assert!(cmd!(waiter, "PING").is("PONG"));
}

on_every_server! {
    fn a_hand_over_waits_until_replicas_are_back(kind: Kind) {
        let (primary, replica) = pair(kind);
        let mut client = primary.client();
        for key in ["k", "alone"] {
            take(&mut client, key, "a");
        }
        let _dying = ["k", "alone"].map(|key| stand_dying(&primary, key, 500));
        let mut heir = stand_in_line(&primary, "k", "b");
        let mut behind = stand_in_line(&primary, "k", "c");
        for key in ["k", "alone"] {
            release(&mut client, key, "a");
        }
        lose(&primary, &replica);
        until_lapsed(&mut client, "k", "dying");
        assert_eq!(heir.try_recv(Duration::from_millis(200)), None, "nothing is granted without replicas");
        assert_eq!((count(&mut client, "waiting"), count(&mut client, "handed_over")), (2, 2));
        let refused = cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "d");
        assert!(refused.err().starts_with("NOREPLICAS"), "{refused:?}");
        replica.replica_of(&primary);
        let granted = grant(&heir.recv());
        assert!((granted.token.as_slice(), granted.ttl) == (b"b", 60_000), "{granted:?}");
        wait_in_sync(&primary, &replica);
        assert_eq!(cmd!(replica.client(), "LOCK.INFO", "k").get("fence").int(), granted.fence);
        release(&mut client, "k", "b");
        assert_eq!(grant(&behind.recv()).token, b"c");
        until_count(&mut client, "held", 1);
    }

    /// However many lines there are: one is enough to see that the server still refuses.
    fn a_server_that_refuses_hand_overs_is_at_rest(kind: Kind) {
        const LINES: usize = 10_000;
        let (primary, replica) = pair(kind);
        let mut client = primary.client();
        take(&mut client, "k", "a");
        let _dying = stand_dying(&primary, "k", 3000);
        let mut heir = stand_in_line(&primary, "k", "b");
        for (token, option, ms) in [("a", "PX", 4000), ("b", "POLL", 10_000)] {
            client.pipeline((0..LINES).map(|n| args!["LOCK.ACQUIRE", format!("k{n}"), "TOKEN", token, option, ms]));
        }
        release(&mut client, "k", "a");
        lose(&primary, &replica);
        until_lapsed(&mut client, &format!("k{}", LINES - 1), "a");
        let before = cpu_seconds(&mut client);
        let_pass(Duration::from_millis(1500));
        let busy = cpu_seconds(&mut client) - before;
        assert!(busy < 0.15, "busy for {busy:.2} s");
        replica.replica_of(&primary);
        assert_eq!(grant(&heir.recv()).token, b"b");
    }

    fn a_wait_that_ends_without_replicas_says_so(kind: Kind) {
        let (primary, replica) = pair(kind);
        let mut client = primary.client();
        take(&mut client, "k", "a");
        take(&mut client, "held", "a");
        let _dying = stand_dying(&primary, "k", 500);
        let mut head = stand_with(&primary, "k", "b", &["BLOCK", "1200"]);
        let mut behind = stand_with(&primary, "k", "c", &["BLOCK", "900"]);
        let mut after = stand_with(&primary, "k", "d", &["BLOCK", "1400"]);
        let mut held = stand_with(&primary, "held", "b", &["BLOCK", "1000"]);
        release(&mut client, "k", "a");
        lose(&primary, &replica);
        // Another token is ahead, or holds the lock: that is null, whatever else is the matter.
        assert!(behind.recv().is_null());
        assert!(held.recv().is_null());
        no_replicas(&mut head);
        no_replicas(&mut after);
        assert_eq!((count(&mut client, "waiting"), count(&mut client, "handed_over")), (0, 1));
        replica.replica_of(&primary);
        // The server counts its good replicas once a second.
        let reply = eventually(SOON, || match cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b") {
            refused if refused.is_error() => Err(refused),
            reply => Ok(reply),
        });
        grant(&reply);
    }

    fn a_grant_in_vain_is_handed_on_when_replicas_are_back(kind: Kind) {
        let (primary, replica) = pair(kind);
        let mut client = primary.client();
        take(&mut client, "k", "a");
        let mut killed = primary.client();
        let id = killed.id();
        send_acquire(&mut killed, "k", "b", &["BLOCK", "0"]);
        until_count(&mut client, "waiting", 1);
        let mut next = stand_in_line(&primary, "k", "c");
        client.pipeline([
            args!["LOCK.RELEASE", "k", "a"],
            args!["CLIENT", "KILL", "ID", id],
            args!["CONFIG", "SET", "min-replicas-to-write", 2],
        ]);
        assert_eq!(next.try_recv(Duration::from_millis(150)), None, "nothing is granted without replicas");
        until_lapsed(&mut client, "k", "b");
        cmd!(client, "CONFIG", "SET", "min-replicas-to-write", 1).ok();
        assert_eq!(grant(&next.recv()).token, b"c");
        assert_eq!(count(&mut client, "grants_taken_back"), 1);
        wait_in_sync(&primary, &replica);
    }

    fn an_unfetched_grant_is_handed_on_when_replicas_are_back(kind: Kind) {
        let (primary, replica) = pair(kind);
        let mut client = primary.client();
        take(&mut client, "k", "a");
        send_acquire(&mut client, "k", "p", &["POLL", "800"]);
        assert!(client.recv().is_null());
        let mut next = stand_in_line(&primary, "k", "c");
        release(&mut client, "k", "a");
        lose(&primary, &replica);
        until_lapsed(&mut client, "k", "p");
        assert_eq!(next.try_recv(Duration::from_millis(150)), None);
        replica.replica_of(&primary);
        assert_eq!(grant(&next.recv()).token, b"c");
        assert_eq!(count(&mut client, "grants_taken_back"), 1);
    }

    fn deletions_and_moves_wait_for_replicas_too(kind: Kind) {
        let (primary, replica) = pair(kind);
        let mut client = primary.client();
        for key in ["k", "l"] {
            take(&mut client, key, "a");
        }
        let mut on_k = stand_in_line(&primary, "k", "b");
        let mut on_l = stand_in_line(&primary, "l", "b");
        // Allowed as they come in; by the time the line may move on, the server refuses writes.
        client.pipeline([
            args!["DEL", "k"],
            args!["RENAME", "l", "m"],
            args!["CONFIG", "SET", "min-replicas-to-write", 2],
        ]);
        assert_eq!(on_k.try_recv(Duration::from_millis(100)), None);
        assert_eq!(on_l.try_recv(Duration::ZERO), None);
        cmd!(client, "CONFIG", "SET", "min-replicas-to-write", 1).ok();
        assert_eq!(grant(&on_k.recv()).token, b"b");
        assert_eq!(grant(&on_l.recv()).token, b"b");
        wait_in_sync(&primary, &replica);
    }

    fn a_hand_over_waits_until_snapshots_work_again(kind: Kind) {
        let server = Server::builder(kind).arg("save", "3600 1000000").start();
        let mut client = server.client();
        // A snapshot cannot be renamed to a directory.
        fs::create_dir(server.dir().join("taken.rdb")).expect("make a directory");
        take(&mut client, "k", "a");
        let _dying = stand_dying(&server, "k", 700);
        let mut head = stand_with(&server, "k", "b", &["BLOCK", "1500"]);
        let mut heir = stand_in_line(&server, "k", "c");
        release(&mut client, "k", "a");
        for (name, status) in [("taken.rdb", "err"), ("dump.rdb", "ok")] {
            cmd!(client, "CONFIG", "SET", "dbfilename", name).ok();
            assert!(!cmd!(client, "BGSAVE").is_error());
            eventually(SOON, || {
                let seen = info(&mut client, "persistence");
                let done = seen.int("rdb_bgsave_in_progress") == 0 && seen.text("rdb_last_bgsave_status") == status;
                if done { Ok(()) } else { Err(format!("{seen:?}")) }
            });
            if status == "err" {
                until_lapsed(&mut client, "k", "dying");
                let told = head.recv();
                assert!(told.err().starts_with("MISCONF"), "{told:?}");
                assert_eq!(heir.try_recv(Duration::from_millis(100)), None);
                let refused = cmd!(client, "LOCK.ACQUIRE", "l");
                assert!(refused.err().starts_with("MISCONF"), "{refused:?}");
            }
        }
        assert_eq!(grant(&heir.recv()).token, b"c");
        assert_eq!(waiters(&mut client, "k"), 0);
    }
}
