//! A replica becomes the primary: every lease is whole again, every fence from then on is higher, and no holder is
//! forgotten. The old primary dies, is demoted, or comes back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::harness::hold::{self, ms_left, repeat, span, take};
use crate::harness::{
    cmd, eventually, grant, info, info_int, let_pass, on_every_server, wait_in_sync, wait_until_heard, Client, Kind,
    Server,
};
use crate::replication::agree;

const SOON: Duration = Duration::from_secs(20);
const GUARD_TICKS: i64 = 1_000_000;
const LONG_MS: u64 = 600_000;
/// It looks for replicas every ten seconds, and waits before it acts.
const SENTINEL_WAIT: Duration = Duration::from_secs(60);

fn pair(kind: Kind) -> (Server, Server) {
    let (primary, replica) = (Server::start(kind), Server::start(kind));
    replica.replica_of(&primary);
    (primary, replica)
}

/// What LOCK.INFO says of the first holder of `k`.
#[track_caller]
fn shown_ephemeral(server: &Server) -> i64 {
    cmd!(server.client(), "LOCK.INFO", "k").get("holders").array()[0].get("ephemeral").int()
}

on_every_server! {
    fn every_lease_is_whole_again_and_then_ends(kind: Kind) {
        let (mut primary, replica) = pair(kind);
        wait_until_heard(&primary);
        let mut client = primary.client();
        take(&mut client, "k", "t", 1500);
        assert_eq!(cmd!(client, "WAIT", 1, 1400).int(), 1);
        primary.kill9();
        let_pass(Duration::from_millis(1600));
        let mut client = replica.client();
        let ((), promoted) = span(|| replica.promote());
        assert!(ms_left(&mut client, "k", "t") > 0);
        assert!(hold::acquire(&mut client, "k", "other", LONG_MS).is_null());
        assert_eq!(cmd!(client, "LOCK.INFO", "k").get("role").text(), "primary");
        promoted.ends(&mut client, "k", 1500);
    }

    /// Shared, counted, capped and nested ones: each token's lease by itself.
    fn every_kind_of_hold_is_whole_again(kind: Kind) {
        let (mut primary, replica) = pair(kind);
        let mut client = primary.client();
        let long = LONG_MS.to_string();
        for (key, token, options) in [
            ("shared", "ann", &["PX", "3000", "SHARED"][..]),
            ("shared", "bob", &["PX", long.as_str(), "SHARED"]),
            ("permits", "ann", &["PX", long.as_str(), "LIMIT", "1"]),
            ("capped", "ann", &["PX", "3000", "MAXHOLD", "200000"]),
            ("nested", "ann", &["PX", long.as_str(), "HOLD", "outer"]),
            ("nested", "ann", &["PX", long.as_str(), "HOLD", "inner"]),
        ] {
            grant(&client.cmd(&[&["LOCK.ACQUIRE", key, "TOKEN", token], options].concat()));
        }
        wait_in_sync(&primary, &replica);
        primary.kill9();
        let_pass(Duration::from_millis(3200));
        let mut client = replica.client();
        replica.promote();
        for key in ["shared", "capped"] {
            assert!(ms_left(&mut client, key, "ann") > 0, "{key}: whole again");
        }
        assert_eq!(cmd!(client, "LOCK.INFO", "shared").get("held").int(), 2);
        assert!(cmd!(client, "LOCK.ACQUIRE", "permits", "TOKEN", "bob", "LIMIT", "5").is_null());
        let capped = cmd!(client, "LOCK.EXTEND", "capped", "ann", "PX", LONG_MS).int();
        assert!((1..=200_000).contains(&capped), "{capped} ms: the cap goes on");
        assert_eq!(cmd!(client, "LOCK.RELEASE", "nested", "ann", "HOLD", "inner").int(), 1);
        assert!(ms_left(&mut client, "nested", "ann") > 0);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "nested", "ann", "HOLD", "outer").int(), 1);
        eventually(SOON, || match cmd!(client, "LOCK.INFO", "shared").get("held").int() {
            1 => Ok(()),
            held => Err(held),
        });
        assert!(ms_left(&mut client, "shared", "bob") > 0, "a short lease ends no other's");
    }

    /// The connection is the old primary's: over a promotion, and over a demotion and back, only the lease is left.
    fn a_hold_of_a_connection_ends_with_its_lease(kind: Kind) {
        let (first, second) = pair(kind);
        let mut owner = first.client();
        grant(&cmd!(owner, "LOCK.ACQUIRE", "k", "TOKEN", "ann", "PX", 3000, "EPHEMERAL"));
        assert_eq!(shown_ephemeral(&first), 1);
        wait_in_sync(&first, &second);
        assert_eq!(shown_ephemeral(&second), 0);
        second.promote();
        first.replica_of(&second);
        drop(owner);
        agree(&second, &first);
        assert!(ms_left(&mut second.client(), "k", "ann") > 0);
        // Back, on the server that knew the connection.
        let ((), promoted) = span(|| first.promote());
        assert_eq!(shown_ephemeral(&first), 0);
        promoted.ends(&mut first.client(), "k", 3000);
    }

    /// Grants that the dead primary acknowledged and lost may have had any fence up to its clock.
    fn fences_after_a_promotion_leave_ten_seconds_to_the_dead_primary(kind: Kind) {
        let (mut primary, replica) = pair(kind);
        let mut client = primary.client();
        let held = take(&mut client, "k", "t", LONG_MS);
        wait_in_sync(&primary, &replica);
        // Cut off, and stopped so that it does not come back for more.
        replica.sigstop();
        assert_eq!(cmd!(client, "CLIENT", "KILL", "TYPE", "replica").int(), 1);
        let lost = (0..20).map(|n| take(&mut client, &format!("lost {n}"), "t", LONG_MS).fence).max().expect("some");
        primary.kill9();
        replica.sigcont();
        replica.promote();
        let mut client = replica.client();
        let next = take(&mut client, "lost 19", "other", LONG_MS);
        assert!(next.fence > lost, "{next:?} after {lost}");
        let repeated = repeat(&mut client, "k", "t", 1000);
        assert!(repeated.fence > lost && repeated.fence > held.fence + GUARD_TICKS, "{repeated:?} after {held:?}");
        assert!(repeated.ttl > 60_000);
        assert_eq!(repeat(&mut client, "k", "t", 1000).fence, repeated.fence, "once is enough");
    }

    fn a_demoted_primary_follows_and_is_promoted_again(kind: Kind) {
        let (first, second) = pair(kind);
        let mut fence = take(&mut first.client(), "k", "t", 3000).fence;
        wait_in_sync(&first, &second);
        let (mut above, mut below) = (&first, &second);
        for _ in 0..3 {
            below.promote();
            above.replica_of(below);
            (above, below) = (below, above);
            let mut client = below.client();
            assert!(hold::acquire(&mut client, "k", "t", 1000).err().starts_with("READONLY"));
            assert_eq!(ms_left(&mut client, "k", "t"), 3000, "a lease stands still on a demoted primary");
            let repeated = repeat(&mut above.client(), "k", "t", 1000);
            assert!(repeated.fence > fence + GUARD_TICKS, "{repeated:?} after {fence}");
            fence = repeated.fence;
            agree(above, below);
            assert_eq!(hold::fence(&mut client, "k"), fence);
        }
        let ((), promoted) = span(|| below.promote());
        promoted.ends(&mut below.client(), "k", 3000);
        assert_eq!(info_int(&mut below.client(), "lock", "lock_leases_ended"), 1);
    }

    /// The old primary went on alone and granted what the new one never heard of.
    fn an_old_primary_that_comes_back_gives_up_its_own_grants(kind: Kind) {
        let (old, new) = pair(kind);
        take(&mut old.client(), "shared", "t", LONG_MS);
        wait_in_sync(&old, &new);
        new.promote();
        take(&mut new.client(), "k", "new side", LONG_MS);
        take(&mut old.client(), "k", "old side", LONG_MS);
        let stray = take(&mut old.client(), "only old", "t", LONG_MS);
        assert_eq!(cmd!(new.client(), "LOCK.RELEASE", "shared", "t").int(), 1);
        old.replica_of(&new);
        agree(&new, &old);
        let mut client = old.client();
        assert!(ms_left(&mut client, "k", "new side") > 0);
        assert_eq!(ms_left(&mut client, "k", "old side"), 0);
        assert!(cmd!(client, "LOCK.INFO", "only old").is_null());
        assert_eq!(cmd!(client, "DBSIZE").int(), 1);
        old.promote();
        assert!(take(&mut client, "only old", "t2", LONG_MS).fence > stray.fence, "its own fences are not forgotten");
    }

    /// The primary dies while its data is half loaded here. Nothing of it is kept, but this server's own fences are.
    fn an_aborted_full_sync_leaves_a_server_that_works(kind: Kind) {
        let mut primary = Server::builder(kind).arg("repl-diskless-sync", "yes").arg("rdbcompression", "no").start();
        let replica = Server::builder(kind).arg("repl-diskless-load", "on-empty-db").start();
        let mut client = primary.client();
        cmd!(client, "DEBUG", "POPULATE", 20_000, "filler", 1000).ok();
        for n in 0..100 {
            take(&mut client, &format!("k{n}"), "t", LONG_MS);
        }
        let mut below = replica.client();
        let own = take(&mut below, "own", "t", LONG_MS);
        assert_eq!(cmd!(below, "LOCK.RELEASE", "own", "t").int(), 1);
        cmd!(below, "CONFIG", "SET", "key-load-delay", 500, "loading-process-events-interval-bytes", 1024).ok();
        cmd!(below, "REPLICAOF", "127.0.0.1", primary.port()).ok();
        eventually(SOON, || match info(&mut below, "persistence").text("loading") {
            "1" => Ok(()),
            _ => Err("not loading"),
        });
        assert!(cmd!(below, "LOCK.INFO", "k1").err().starts_with("LOADING"));
        // The server looks at the role first.
        assert!(hold::acquire(&mut below, "k1", "other", LONG_MS).err().starts_with("READONLY"));
        primary.kill9();
        eventually(SOON, || match info(&mut below, "persistence").text("loading") {
            "0" => Ok(()),
            _ => Err("loading"),
        });
        replica.promote();
        assert_eq!(cmd!(below, "DBSIZE").int(), 0);
        assert!(take(&mut below, "k1", "other", LONG_MS).fence > own.fence);
        let (_, start) = span(|| take(&mut below, "k2", "t", 300));
        start.ends(&mut below, "k2", 300);
        eventually(SOON, || match info_int(&mut below, "lock", "lock_held") {
            1 => Ok(()),
            held => Err(held),
        });
    }

    fn grants_made_while_a_replica_loads_reach_it(kind: Kind) {
        let (primary, replica) = (Server::start(kind), Server::start(kind));
        let (mut client, mut below) = (primary.client(), replica.client());
        cmd!(client, "DEBUG", "POPULATE", 5000, "filler", 100).ok();
        take(&mut client, "released meanwhile", "t", LONG_MS);
        cmd!(below, "CONFIG", "SET", "key-load-delay", 100, "loading-process-events-interval-bytes", 1024).ok();
        cmd!(below, "REPLICAOF", "127.0.0.1", primary.port()).ok();
        eventually(SOON, || match info(&mut below, "persistence").text("loading") {
            "1" => Ok(()),
            _ => Err("not loading"),
        });
        take(&mut client, "taken meanwhile", "t", LONG_MS);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "released meanwhile", "t").int(), 1);
        agree(&primary, &replica);
        assert!(ms_left(&mut below, "taken meanwhile", "t") > 0);
        assert!(cmd!(below, "LOCK.INFO", "released meanwhile").is_null());
    }

    fn every_way_to_load_a_full_sync_brings_the_locks(kind: Kind) {
        let primary = Server::start(kind);
        let mut client = primary.client();
        take(&mut client, "k", "t", LONG_MS);
        let ways: &[(&str, &str, &str)] = &[
            ("no", "disabled", "no"), ("yes", "disabled", "no"), ("yes", "on-empty-db", "no"), ("yes", "swapdb", "no"),
            ("yes", "swapdb", "yes"),
        ];
        for (diskless, load, dual) in ways {
            if *dual == "yes" && !kind.is_valkey() {
                continue;
            }
            cmd!(client, "CONFIG", "SET", "repl-diskless-sync", diskless).ok();
            let mut builder = Server::builder(kind).arg("repl-diskless-load", load);
            if kind.is_valkey() {
                cmd!(client, "CONFIG", "SET", "dual-channel-replication-enabled", dual).ok();
                builder = builder.arg("dual-channel-replication-enabled", dual);
            }
            let replica = builder.start();
            take(&mut replica.client(), "own", "t", LONG_MS);
            replica.replica_of(&primary);
            take(&mut client, "later", "t", LONG_MS);
            agree(&primary, &replica);
            let mut below = replica.client();
            assert!(ms_left(&mut below, "k", "t") > 0, "{diskless} {load} {dual}");
            assert!(cmd!(below, "LOCK.INFO", "own").is_null());
            replica.promote();
            assert!(hold::acquire(&mut below, "k", "other", LONG_MS).is_null());
            assert_eq!(cmd!(client, "LOCK.RELEASE", "later", "t").int(), 1);
        }
    }

    /// The primary dies, and Sentinel alone decides what becomes of it.
    fn sentinel_promotes_a_replica_that_keeps_what_was_promised(kind: Kind) {
        let (mut primary, replica) = pair(kind);
        let sentinel = Server::builder(kind).sentinel_of(primary.port(), 1).start();
        let (mut above, mut below, mut judge) = (primary.client(), replica.client(), sentinel.client());
        let held = take(&mut above, "k", "t", LONG_MS);
        take(&mut above, "ends", "t", 8000);
        cmd!(below, "CONFIG", "SET", "lock.grace", 600_000).ok();
        wait_in_sync(&primary, &replica);
        eventually(SENTINEL_WAIT, || match cmd!(judge, "SENTINEL", "REPLICAS", "watched") {
            found if found.array().len() == 1 && found.array()[0].get("flags").text() == "slave" => Ok(()),
            found => Err(found),
        });
        primary.kill9();
        let port = replica.port().to_string();
        eventually(SENTINEL_WAIT, || match cmd!(judge, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "watched") {
            found if found.array()[1].text() == port => Ok(()),
            found => Err(found),
        });
        // It closes every connection of a server that it promotes.
        let mut below = replica.client();
        assert!(ms_left(&mut below, "k", "t") > 0);
        assert!(hold::acquire(&mut below, "k", "other", LONG_MS).is_null());
        assert!(hold::acquire(&mut below, "free", "other", LONG_MS).err().starts_with("GRACE "));
        let ((), asked) = span(|| assert!(cmd!(below, "LOCK.EXTEND", "ends", "t").int() > 0, "whole again"));
        asked.ends(&mut below, "ends", 8000);
        cmd!(below, "CONFIG", "SET", "lock.grace", 0).ok();
        let next = take(&mut below, "free", "other", LONG_MS);
        assert!(next.fence > held.fence + GUARD_TICKS, "{next:?} after {held:?}");
    }

    /// FAILOVER to and fro while a client takes locks: what was granted is held on whoever is the primary then, under
    /// fences that leap, and each lease is whole again.
    fn a_planned_failover_loses_nothing_that_was_granted(kind: Kind) {
        let (first, second) = pair(kind);
        let (mut above, mut below) = (&first, &second);
        let mut fence = take(&mut above.client(), "throughout", "t", 10_000).fence;
        for round in 0..3 {
            let (port, running) = (above.port(), &AtomicBool::new(true));
            let before = info_int(&mut above.client(), "lock", "lock_held");
            let granted = thread::scope(|scope| {
                let taker = scope.spawn(move || {
                    let mut client = Client::connect(port);
                    let mut granted = Vec::new();
                    while running.load(Ordering::Relaxed) {
                        let key = format!("{round} {}", granted.len());
                        match client.try_send(&["LOCK.ACQUIRE", &key, "TOKEN", "t", "PX", "600000"]) {
                            Ok(()) => match client.try_recv(Duration::from_secs(10)) {
                                Some(reply) if !reply.is_error() => granted.push((key, grant(&reply).fence)),
                                // Told that this is no primary any more, or cut off.
                                _ => break,
                            },
                            Err(_) => break,
                        }
                    }
                    granted
                });
                eventually(SOON, || match info_int(&mut above.client(), "lock", "lock_held") {
                    held if held >= before + 20 => Ok(()),
                    held => Err(held),
                });
                cmd!(above.client(), "FAILOVER", "TIMEOUT", 20_000).ok();
                for (server, role) in [(above, "slave"), (below, "master")] {
                    eventually(SOON, || match info(&mut server.client(), "replication").text("role") {
                        seen if seen == role => Ok(()),
                        seen => Err(seen.to_owned()),
                    });
                }
                running.store(false, Ordering::Relaxed);
                taker.join().expect("the taker")
            });
            (above, below) = (below, above);
            let mut client = above.client();
            for (key, _) in &granted {
                assert!(ms_left(&mut client, key, "t") > 0, "{key} was granted");
            }
            let highest = granted.iter().map(|(_, fence)| *fence).max().expect("some were");
            assert!(highest > fence);
            let left = ms_left(&mut client, "throughout", "t");
            assert!((1..=10_000).contains(&left), "{left}: held on");
            fence = repeat(&mut client, "throughout", "t", 10_000).fence;
            assert!(fence > highest + GUARD_TICKS, "{fence} after {highest}");
            wait_in_sync(above, below);
        }
    }

    /// Kill and promote over and over: no acknowledged and replicated hold is lost, no fence is issued twice.
    fn a_chain_of_dead_primaries_loses_no_replicated_hold(kind: Kind) {
        let mut primary = Server::start(kind);
        let mut fence = take(&mut primary.client(), "held throughout", "t", LONG_MS).fence;
        for round in 0..5 {
            let replica = Server::start(kind);
            replica.replica_of(&primary);
            let mut client = primary.client();
            for n in 0..50 {
                let taken = take(&mut client, &format!("{round} {n}"), "t", LONG_MS);
                assert!(taken.fence > fence, "{taken:?} after {fence}");
                fence = taken.fence;
            }
            assert_eq!(cmd!(client, "WAIT", 1, 5000).int(), 1);
            primary.kill9();
            replica.promote();
            primary = replica;
            let mut client = primary.client();
            for n in 0..50 {
                assert!(ms_left(&mut client, &format!("{round} {n}"), "t") > 0);
            }
            let repeated = repeat(&mut client, "held throughout", "t", 1000);
            assert!(repeated.fence > fence, "{repeated:?} after {fence}");
            fence = repeated.fence;
        }
        assert_eq!(info_int(&mut primary.client(), "lock", "lock_held"), 251);
    }
}
