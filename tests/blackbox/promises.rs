//! Statements of docs/guarantees.md that nothing else shows: what a crash and a failover forget and what closes the gap,
//! what becomes of holds whose connection goes or hangs, who sees tokens, what an uninstall rests on.

use std::time::Duration;

use crate::harness::hold::{acquire, ms_left, take};
use crate::harness::line::{holds, stand_in_line};
use crate::harness::{
    cmd, eventually, grant, info, on_every_server, send, wait_in_sync, wait_until_free, Client, Kind, Server,
};

const SOON: Duration = Duration::from_secs(10);
const LONG_MS: u64 = 600_000;
/// Leases that end within a test, and survive a stall before they do.
const LEASE_MS: u64 = 3_000;

/// A primary, a connection to it, and a replica that it lost before its last grant.
fn cut_off_before_the_last_grant(kind: Kind) -> (Server, Client, Server) {
    let (primary, replica) = (Server::start(kind), Server::start(kind));
    replica.replica_of(&primary);
    let mut client = primary.client();
    take(&mut client, "known", "ann", LONG_MS);
    wait_in_sync(&primary, &replica);
    replica.sigstop();
    // It is not let in again.
    cmd!(client, "CONFIG", "SET", "requirepass", "secret").ok();
    assert_eq!(cmd!(client, "CLIENT", "KILL", "TYPE", "replica").int(), 1);
    take(&mut client, "lost", "ann", LONG_MS);
    replica.sigcont();
    (primary, client, replica)
}

fn frees(client: &mut Client, key: &str) {
    eventually(SOON, || match cmd!(client, "EXISTS", key).int() {
        0 => Ok(()),
        held => Err(held),
    });
}

on_every_server! {
    fn a_crash_forgets_what_is_not_in_the_file(kind: Kind) {
        for (appendonly, fsync, kept) in [("yes", "always", true), ("yes", "everysec", true), ("no", "no", false)] {
            let builder = Server::builder(kind).arg("appendonly", appendonly).arg("appendfsync", fsync);
            let mut server = builder.start();
            take(&mut server.client(), "k", "ann", LONG_MS);
            server.kill9();
            server.restart();
            let mut client = server.client();
            assert_eq!(ms_left(&mut client, "k", "ann") > 0, kept, "{appendonly} {fsync}");
            assert_eq!(acquire(&mut client, "k", "bob", LONG_MS).is_null(), kept, "{appendonly} {fsync}");
        }
    }

    /// The lease of a grant that a restart forgot is over before the lock is another's.
    fn grace_outlasts_a_lease_that_was_forgotten(kind: Kind) {
        let mut server = Server::start(kind);
        let mut client = server.client();
        cmd!(client, "CONFIG", "SET", "lock.grace", LEASE_MS).ok();
        cmd!(client, "CONFIG", "REWRITE").ok();
        cmd!(client, "CONFIG", "SET", "lock.grace", 0).ok();
        let sent = std::time::Instant::now();
        let ours = take(&mut client, "k", "ann", LEASE_MS);
        server.kill9();
        server.restart();
        let mut waiter = server.client();
        send!(waiter, "LOCK.ACQUIRE", "k", "TOKEN", "bob", "BLOCK", 60_000);
        let next = grant(&waiter.recv());
        assert!(sent.elapsed() >= Duration::from_millis(LEASE_MS), "{next:?} while {ours:?} may be at it");
        assert!(next.fence > ours.fence && next.waited > 0, "{next:?}");
    }

    fn a_failover_that_lost_a_grant_makes_two_owners_unless_there_is_grace(kind: Kind) {
        for grace_ms in [0, 600_000] {
            let (_primary, mut old, replica) = cut_off_before_the_last_grant(kind);
            let mut client = replica.client();
            cmd!(client, "CONFIG", "SET", "lock.grace", grace_ms).ok();
            replica.promote();
            let second = acquire(&mut client, "lost", "bob", LONG_MS);
            assert!(holds(&mut old, "lost", "ann"), "the first owner has reason to go on");
            if grace_ms == 0 {
                grant(&second);
            } else {
                assert!(second.err().starts_with("GRACE "), "{second:?}");
            }
            assert!(acquire(&mut client, "known", "bob", LONG_MS).is_null(), "what it knows is nobody else's");
        }
    }

    fn a_primary_without_replicas_stops_granting(kind: Kind) {
        let (primary, replica) = (Server::start(kind), Server::start(kind));
        replica.replica_of(&primary);
        let mut client = primary.client();
        cmd!(client, "CONFIG", "SET", "min-replicas-to-write", 1, "min-replicas-max-lag", 1).ok();
        eventually(SOON, || match acquire(&mut client, "k", "ann", LONG_MS) {
            reply if reply.is_error() => Err(reply),
            _ => Ok(()),
        });
        replica.sigstop();
        eventually(SOON, || match info(&mut client, "replication").int("min_slaves_good_slaves") {
            0 => Ok(()),
            good => Err(good),
        });
        for refused in [
            acquire(&mut client, "other", "ann", LONG_MS),
            acquire(&mut client, "k", "ann", LONG_MS),
            cmd!(client, "LOCK.EXTEND", "k", "ann"),
            cmd!(client, "LOCK.RELEASE", "k", "ann"),
            cmd!(client, "LOCK.GUARD", "k", "ann", "SET", "data", 1),
        ] {
            assert!(refused.err().starts_with("NOREPLICAS"), "{refused:?}");
        }
        replica.sigcont();
    }

    fn a_closed_connection_frees_its_lock_at_once(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for killed in [false, true] {
            let mut owner = server.client();
            let id = owner.id();
            grant(&cmd!(owner, "LOCK.ACQUIRE", "k", "TOKEN", "ann", "PX", LONG_MS, "EPHEMERAL"));
            let mut waiter = stand_in_line(&server, "k", "bob");
            if killed {
                assert_eq!(cmd!(client, "CLIENT", "KILL", "ID", id).int(), 1);
            } else {
                drop(owner);
            }
            assert_eq!(grant(&waiter.recv()).token, b"bob");
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "bob").int(), 1);
        }
    }

    fn a_connection_that_hangs_is_bounded_by_the_lease(kind: Kind) {
        let server = Server::start(kind);
        let mut owner = server.client();
        grant(&cmd!(owner, "LOCK.ACQUIRE", "k", "TOKEN", "ann", "PX", 500, "EPHEMERAL"));
        // It stays open and says nothing.
        wait_until_free(&mut server.client(), "k");
        assert!(!owner.is_closed());
    }

    fn a_token_is_seen_by_those_who_see_inside_the_server(kind: Kind) {
        let server = Server::start(kind);
        let (mut client, mut monitor) = (server.client(), server.client());
        cmd!(monitor, "MONITOR").ok();
        cmd!(client, "CONFIG", "SET", "slowlog-log-slower-than", 0).ok();
        take(&mut client, "k", "tell-tale", LONG_MS);
        eventually(SOON, || match monitor.recv().text() {
            line if line.contains("tell-tale") => Ok(()),
            line => Err(line),
        });
        assert!(format!("{:?}", cmd!(client, "SLOWLOG", "GET", 100)).contains("tell-tale"));
        let dump = cmd!(client, "DUMP", "k");
        assert!(dump.bulk().windows(9).any(|window| window == b"tell-tale"), "{dump:?}");
        assert!(!format!("{:?}", cmd!(client, "LOCK.INFO", "k")).contains("tell-tale"));
        assert_eq!(cmd!(server.client(), "LOCK.RELEASE", "k", "tell-tale").int(), 1, "by somebody else");
    }

    fn a_file_rewritten_without_locks_needs_no_module(kind: Kind) {
        for preamble in ["yes", "no"] {
            let builder = Server::builder(kind).arg("appendonly", "yes").arg("aof-use-rdb-preamble", preamble);
            let mut server = builder.start();
            let mut client = server.client();
            cmd!(client, "SET", "data", 1).ok();
            take(&mut client, "k", "ann", LONG_MS);
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "ann").int(), 1);
            frees(&mut client, "k");
            cmd!(client, "BGREWRITEAOF").text();
            eventually(SOON, || {
                let state = info(&mut client, "persistence");
                match (state.int("aof_rewrite_in_progress"), state.int("aof_rewrite_scheduled")) {
                    (0, 0) => Ok(()),
                    busy => Err(busy),
                }
            });
            server.shutdown_nosave();
            let builder = Server::builder(kind).without_module().dir(server.dir());
            let plain = builder.arg("appendonly", "yes").arg("aof-use-rdb-preamble", preamble).start();
            assert_eq!(cmd!(plain.client(), "GET", "data").text(), "1");
        }
    }
}
