//! Leases end while the server must not write: during CLIENT PAUSE, FAILOVER and a SHUTDOWN that waits for a replica.
//! A module that writes then aborts the server. Here nothing is written before the pause is over, and nothing is late
//! after it.

use std::fs;
use std::time::Duration;

use crate::harness::hold::{self, ms_left, span, take};
use crate::harness::{
    cmd, eventually, info, info_int, let_pass, on_every_server, send, wait_in_sync, wait_until_heard, Client, Kind,
    Server,
};
use crate::replication::agree;

const SOON: Duration = Duration::from_secs(10);
const LONG_MS: u64 = 600_000;
/// Long enough to be still running when the pause begins, on a busy machine too.
const LEASE_MS: u64 = 500;
/// The pump's chances to go wrong once a lease is over.
const WELL_AFTER: Duration = Duration::from_millis(150);

/// A primary with everything that makes it write: an append-only file and a replica. No pings move its offset.
fn pair(kind: Kind) -> (Server, Server) {
    let primary = Server::builder(kind)
        .arg("appendonly", "yes")
        .arg("repl-ping-replica-period", 3600)
        .arg("shutdown-timeout", 60)
        .start();
    let replica = Server::start(kind);
    replica.replica_of(&primary);
    // A FAILOVER wants one that has answered.
    wait_until_heard(&primary);
    (primary, replica)
}

/// Size of the append-only file, which is the stream on disk.
fn written_bytes(server: &Server) -> u64 {
    let dir = fs::read_dir(server.dir().join("appendonlydir")).expect("an append-only directory");
    dir.map(|entry| entry.and_then(|file| file.metadata()).map_or(0, |file| file.len())).sum()
}

fn offset(client: &mut Client) -> i64 {
    info_int(client, "replication", "master_repl_offset")
}

#[track_caller]
fn gone(client: &mut Client, key: &str) {
    eventually(SOON, || match cmd!(client, "EXISTS", key).int() {
        0 => Ok(()),
        _ => Err("still there"),
    });
}

/// The lease ends: the key stands, nobody holds the lock, and the stream stands still.
#[track_caller]
fn stands_still(client: &mut Client, key: &str) {
    let before = offset(client);
    eventually(SOON, || match ms_left(client, key, "t") {
        0 => Ok(()),
        left => Err(left),
    });
    let_pass(WELL_AFTER);
    assert_eq!(cmd!(client, "EXISTS", key).int(), 1, "something was written during the pause");
    assert!(cmd!(client, "LOCK.INFO", key).is_null());
    assert_eq!(offset(client), before);
}

on_every_server! {
    fn a_lease_that_ends_during_a_pause_of_writes_is_ended_after_it(kind: Kind) {
        let (primary, replica) = pair(kind);
        let mut client = primary.client();
        take(&mut client, "k", "t", LEASE_MS);
        take(&mut client, "renamed", "t", LEASE_MS);
        cmd!(client, "CLIENT", "PAUSE", 60_000, "WRITE").ok();
        stands_still(&mut client, "k");
        // Writes of clients wait, and find the lock free.
        let mut other = primary.client();
        send!(other, "LOCK.ACQUIRE", "k", "TOKEN", "other", "PX", LONG_MS);
        assert_eq!(other.try_recv(Duration::from_millis(50)), None);
        cmd!(client, "CLIENT", "UNPAUSE").ok();
        assert_eq!(crate::harness::grant(&other.recv()).new, 1);
        gone(&mut client, "renamed");
        agree(&primary, &replica);
        assert!(ms_left(&mut replica.client(), "k", "other") > 0);
    }

    /// Even questions wait now, but the append-only file can be looked at.
    fn a_lease_that_ends_during_a_pause_of_everything_is_ended_after_it(kind: Kind) {
        let (primary, replica) = pair(kind);
        let mut client = primary.client();
        take(&mut client, "k", "t", LEASE_MS);
        let before = written_bytes(&primary);
        assert!(before > 0);
        cmd!(client, "CLIENT", "PAUSE", 1000, "ALL").ok();
        send!(client, "EXISTS", "k");
        assert_eq!(client.try_recv(Duration::from_millis(LEASE_MS) + WELL_AFTER), None);
        assert_eq!(written_bytes(&primary), before);
        client.recv().int();
        gone(&mut client, "k");
        assert!(written_bytes(&primary) > before);
        agree(&primary, &replica);
    }

    fn a_pause_that_ends_by_itself_ends_leases_too(kind: Kind) {
        let (primary, _replica) = pair(kind);
        let mut client = primary.client();
        let (_, start) = span(|| {
            take(&mut client, "k", "t", LEASE_MS);
            cmd!(client, "CLIENT", "PAUSE", 1000, "WRITE").ok();
        });
        start.ends(&mut client, "k", 1000);
    }

    /// The pause begins in the middle of a transaction that goes on writing.
    fn a_pause_inside_multi_does_no_harm(kind: Kind) {
        let (primary, replica) = pair(kind);
        let mut client = primary.client();
        take(&mut client, "ends", "t", LEASE_MS);
        take(&mut client, "released", "t", LONG_MS);
        cmd!(client, "MULTI").ok();
        for line in [
            "CLIENT PAUSE 60000 WRITE", "LOCK.ACQUIRE k TOKEN t PX 50", "LOCK.RELEASE released t",
            "LOCK.EXTEND k t PX 100", "PEXPIRE k 50",
        ] {
            assert!(client.cmd(&line.split(' ').collect::<Vec<&str>>()).is("QUEUED"));
        }
        assert!(cmd!(client, "EXEC").array().iter().all(|reply| !reply.is_error()));
        stands_still(&mut client, "ends");
        cmd!(client, "CLIENT", "UNPAUSE").ok();
        gone(&mut client, "ends");
        gone(&mut client, "k");
        agree(&primary, &replica);
    }

    /// The TTL of a stranger runs out during the pause, the lease does not.
    fn a_foreign_expire_before_a_pause_frees_no_lock(kind: Kind) {
        let (primary, replica) = pair(kind);
        let mut client = primary.client();
        let fence = take(&mut client, "k", "t", LONG_MS).fence;
        let lines = ["PEXPIRE k 50", "CLIENT PAUSE 60000 WRITE"];
        client.pipeline(lines.map(|line| line.split(' ').collect::<Vec<&str>>()));
        let mut other = primary.client();
        send!(other, "LOCK.ACQUIRE", "k", "TOKEN", "other", "PX", LONG_MS);
        assert_eq!(other.try_recv(Duration::from_millis(150)), None);
        cmd!(client, "CLIENT", "UNPAUSE").ok();
        assert!(other.recv().is_null());
        assert!(ms_left(&mut client, "k", "t") > 0);
        assert_eq!(hold::fence(&mut client, "k"), fence);
        eventually(SOON, || match cmd!(client, "PTTL", "k").int() {
            -1 => Ok(()),
            ttl => Err(ttl),
        });
        agree(&primary, &replica);
    }

    fn a_lease_that_ends_during_a_failover_that_fails_is_ended_after_it(kind: Kind) {
        let (primary, replica) = pair(kind);
        let mut client = primary.client();
        take(&mut client, "k", "t", LEASE_MS);
        replica.sigstop();
        // The replica has not heard of this, so the failover waits for it.
        cmd!(client, "SET", "unheard", "of").ok();
        cmd!(client, "FAILOVER", "TO", "127.0.0.1", replica.port(), "TIMEOUT", 60_000).ok();
        stands_still(&mut client, "k");
        cmd!(client, "FAILOVER", "ABORT").ok();
        gone(&mut client, "k");
        replica.sigcont();
        agree(&primary, &replica);
        assert_eq!(info(&mut client, "replication").text("role"), "master");
    }

    /// Leases end at every instant of failovers there and back.
    fn leases_that_end_during_failovers_do_no_harm(kind: Kind) {
        let (first, second) = pair(kind);
        let (mut above, mut below) = (&first, &second);
        for round in 0..4 {
            let mut client = above.client();
            for n in 0..200 {
                take(&mut client, &format!("{round} {n}"), "t", 1 + n);
            }
            let (_, start) = span(|| take(&mut client, "k", "t", LEASE_MS));
            wait_in_sync(above, below);
            cmd!(client, "FAILOVER", "TIMEOUT", 5000).ok();
            let mut next = below.client();
            eventually(SOON, || {
                let role = info(&mut next, "replication").text("role").to_owned();
                if role == "master" { Ok(()) } else { Err(role) }
            });
            start.ends_within(&mut next, "k", LEASE_MS, SOON);
            eventually(SOON, || match cmd!(next, "DBSIZE").int() {
                0 => Ok(()),
                keys => Err(keys),
            });
            (above, below) = (below, above);
            agree(above, below);
        }
    }

    fn a_shutdown_that_waits_for_a_replica_writes_nothing(kind: Kind) {
        let (mut primary, replica) = pair(kind);
        let mut client = primary.client();
        take(&mut client, "k", "t", LEASE_MS);
        replica.sigstop();
        cmd!(client, "SET", "unheard", "of").ok();
        let mut stopper = primary.client();
        send!(stopper, "SHUTDOWN");
        assert_eq!(stopper.try_recv(Duration::from_millis(50)), None);
        stands_still(&mut client, "k");
        cmd!(client, "SHUTDOWN", "ABORT").ok();
        assert!(stopper.recv().is_error());
        gone(&mut client, "k");
        // A connection whose SHUTDOWN was aborted is of no more use: another one from it fails an assertion.
        let mut stopper = primary.client();
        // And once more to the end: the lease is over while the server goes.
        take(&mut client, "k2", "t", LEASE_MS);
        cmd!(client, "SET", "unheard", "again").ok();
        send!(stopper, "SHUTDOWN");
        assert_eq!(stopper.try_recv(Duration::from_millis(LEASE_MS) + WELL_AFTER), None);
        primary.expect_crash();
        replica.sigcont();
        assert!(primary.wait_for_exit().success(), "{}", primary.log());
        assert!(!primary.log().contains("BUG REPORT"), "{}", primary.log());
        // The replica heard of everything before the end, but not of an end of that lease.
        assert_eq!(cmd!(replica.client(), "GET", "unheard").text(), "again");
        assert_eq!(cmd!(replica.client(), "EXISTS", "k2").int(), 1);
        primary.restart();
        gone(&mut primary.client(), "k2");
    }
}
