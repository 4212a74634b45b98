//! `EPHEMERAL`: a hold that ends with the connection that acquired it last, however that ends, and with no other. The
//! lease bounds it all the same, above all where the connection is not known any more: after a restart or a failover.

use std::time::Duration;

use crate::harness::hold::span;
use crate::harness::line::{
    ask, count, gain, held, holds, release, served, stand_in_line, stand_with, still_waits, take, until_count,
    until_held,
};
use crate::harness::{
    args, cmd, eventually, grant, let_pass, on_every_server, send, wait_in_sync, wait_until_free, Client, Kind, Server,
};

const SOON: Duration = Duration::from_secs(10);
/// Some turns of the pump, after which what was to happen has happened.
const A_MOMENT: Duration = Duration::from_millis(100);
const BOUND: &[&str] = &["EPHEMERAL"];

/// A connection that holds `k` as long as it lives, and its id.
fn bound(server: &Server, token: &str, options: &[&str]) -> (Client, i64) {
    let mut client = server.client();
    let id = client.id();
    gain(&mut client, "k", token, &[options, BOUND].concat());
    (client, id)
}

/// Whether LOCK.INFO says that the first holder of a lock is bound, and to which connection.
#[track_caller]
fn binding(client: &mut Client, key: &str) -> (i64, i64) {
    let info = cmd!(client, "LOCK.INFO", key);
    let holder = &info.get("holders").array()[0];
    (holder.get("ephemeral").int(), holder.get("client").int())
}

#[track_caller]
fn stays(client: &mut Client, key: &str, token: &str) {
    let_pass(A_MOMENT);
    assert!(holds(client, key, token), "{token} holds {key}");
}

/// Waits until the server knows this connection no more.
#[track_caller]
fn until_gone(client: &mut Client, id: i64) {
    eventually(SOON, || match cmd!(client, "CLIENT", "LIST", "ID", id).text() {
        list if list.trim().is_empty() => Ok(()),
        list => Err(list),
    });
}

on_every_server! {
    fn it_ends_with_its_connection_however_that_ends(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for way in ["close", "reset", "quit", "kill", "half a command", "deleted user"] {
            let mut owner = server.client();
            if way == "deleted user" {
                cmd!(client, "ACL", "SETUSER", "u", "on", "nopass", "+@all", "~*").ok();
                cmd!(owner, "AUTH", "u", "any").ok();
            }
            let id = owner.id();
            gain(&mut owner, "k", "a", BOUND);
            assert_eq!(binding(&mut client, "k"), (1, id), "{way}");
            let mut next = stand_in_line(&server, "k", "b");
            match way {
                "close" => drop(owner),
                "reset" => owner.reset(),
                "quit" => owner.cmd(&["QUIT"]).ok(),
                "kill" => assert_eq!(cmd!(client, "CLIENT", "KILL", "ID", id).int(), 1),
                "half a command" => {
                    owner.write(b"*2\r\n$3\r\nGE");
                    drop(owner);
                }
                _ => assert_eq!(cmd!(client, "ACL", "DELUSER", "u").int(), 1),
            }
            // Long before its lease of a minute is over.
            served(&mut next, "b");
            release(&mut client, "k", "b");
        }
        assert_eq!((count(&mut client, "released"), count(&mut client, "leases_ended")), (12, 0));
    }

    fn it_ends_when_the_server_finds_its_connection_idle(kind: Kind) {
        let server = Server::builder(kind).arg("timeout", 1).start();
        let (_owner, _) = bound(&server, "a", &[]);
        // This one is not idle.
        let mut client = server.client();
        wait_until_free(&mut client, "k");
        assert_eq!(count(&mut client, "leases_ended"), 0);
    }

    fn it_is_freed_with_nobody_in_line_and_nobody_asking(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let (owner, _) = bound(&server, "a", &[]);
        drop(owner);
        wait_until_free(&mut client, "k");
        assert_eq!((count(&mut client, "held"), count(&mut client, "released")), (0, 1));
    }

    fn it_is_found_in_whatever_database_it_was_taken(kind: Kind) {
        let server = Server::start(kind);
        let mut owner = server.client();
        for db in [0, 3, 15] {
            cmd!(owner, "SELECT", db).ok();
            gain(&mut owner, "k", "a", BOUND);
        }
        // Where it is when it closes does not matter.
        cmd!(owner, "SELECT", 7).ok();
        gain(&mut owner, "k", "plain", &[]);
        let mut client = server.client();
        assert_eq!(count(&mut client, "held"), 4);
        drop(owner);
        until_count(&mut client, "held", 1);
        cmd!(client, "SELECT", 7).ok();
        stays(&mut client, "k", "plain");
    }

    fn one_that_closes_during_a_pause_ends_after_it(kind: Kind) {
        let server = Server::builder(kind).arg("appendonly", "yes").start();
        let mut client = server.client();
        // While everything is paused nobody can be asked to end that.
        for (what, ms) in [("WRITE", 60_000), ("ALL", 1_000)] {
            let (owner, id) = bound(&server, "a", &[]);
            let mut next = stand_in_line(&server, "k", "b");
            cmd!(client, "CLIENT", "PAUSE", ms, what).ok();
            drop(owner);
            if what == "WRITE" {
                until_gone(&mut client, id);
                stays(&mut client, "k", "a");
                still_waits(&server, &mut next);
                cmd!(client, "CLIENT", "UNPAUSE").ok();
            }
            served(&mut next, "b");
            release(&mut client, "k", "b");
        }
    }

    fn one_that_was_taken_anew_during_a_pause_stays(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let (owner, id) = bound(&server, "a", &[]);
        let mut again = server.client();
        cmd!(client, "CLIENT", "PAUSE", 60_000, "WRITE").ok();
        drop(owner);
        until_gone(&mut client, id);
        send!(again, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000, "EPHEMERAL");
        cmd!(client, "CLIENT", "UNPAUSE").ok();
        // Whichever of the two comes first, the connection that asked last has the lock.
        grant(&again.recv());
        stays(&mut client, "k", "a");
        assert_eq!(binding(&mut client, "k").0, 1);
        drop(again);
        wait_until_free(&mut client, "k");
    }

    fn asking_again_moves_the_binding(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let (first, _) = bound(&server, "a", &[]);
        let (second, second_id) = bound(&server, "a", &[]);
        assert_eq!(binding(&mut client, "k"), (1, second_id));
        drop(first);
        stays(&mut client, "k", "a");
        drop(second);
        wait_until_free(&mut client, "k");
    }

    fn asking_again_without_the_word_removes_it(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let (mut owner, _) = bound(&server, "a", &[]);
        assert_eq!(gain(&mut owner, "k", "a", &[]).new, 0);
        assert_eq!(binding(&mut client, "k").0, 0);
        drop(owner);
        stays(&mut client, "k", "a");
        // By another connection too, and the other way round.
        let (owner, _) = bound(&server, "a", &[]);
        gain(&mut client, "k", "a", &[]);
        drop(owner);
        stays(&mut client, "k", "a");
        let (owner, _) = bound(&server, "a", &[]);
        // EXTEND, CHECK and GUARD say nothing about it.
        assert!(cmd!(client, "LOCK.EXTEND", "k", "a", "PX", 70_000).int() > 0 && holds(&mut client, "k", "a"));
        cmd!(client, "LOCK.GUARD", "k", "a", "SET", "data", 1).ok();
        assert_eq!(binding(&mut client, "k").0, 1);
        drop(owner);
        wait_until_free(&mut client, "k");
    }

    fn a_reset_connection_is_the_same_connection(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let (mut owner, id) = bound(&server, "a", &[]);
        assert!(cmd!(owner, "RESET").is("RESET"));
        stays(&mut client, "k", "a");
        assert_eq!(binding(&mut client, "k"), (1, id));
        drop(owner);
        wait_until_free(&mut client, "k");
    }

    fn it_ends_only_what_still_is_its_own(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        // Released, or freed by force, and taken by another token, or by the same over a connection that lives.
        for free in [args!["LOCK.RELEASE", "k", "a"], args!["DEL", "k"], args!["FLUSHALL"], args!["SET", "k", "data"]] {
            for token in ["b", "a"] {
                let (owner, id) = bound(&server, "a", &[]);
                assert!(!client.cmd(&free).is_error());
                cmd!(client, "DEL", "k").int();
                take(&mut client, "k", token);
                drop(owner);
                until_gone(&mut client, id);
                stays(&mut client, "k", token);
                release(&mut client, "k", token);
            }
        }
        // Its own lease ended before it did.
        let (mut owner, _) = bound(&server, "a", &["PX", "100"]);
        wait_until_free(&mut client, "k");
        take(&mut client, "k", "a");
        assert!(cmd!(owner, "PING").is("PONG"));
        drop(owner);
        stays(&mut client, "k", "a");
    }

    fn it_follows_its_lock_to_another_name_and_database(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for moves in [&["RENAME k m"][..], &["MOVE k 5"], &["SWAPDB 0 9"], &["RENAME k m", "MOVE m 5", "SWAPDB 5 6"]] {
            let (owner, _) = bound(&server, "a", &[]);
            for line in moves {
                assert!(!client.cmd(&line.split(' ').collect::<Vec<_>>()).is_error(), "{line}");
            }
            assert_eq!(count(&mut client, "held"), 1, "{moves:?}");
            drop(owner);
            until_count(&mut client, "held", 0);
        }
        assert_eq!((count(&mut client, "released"), count(&mut client, "leases_ended")), (4, 0));
    }

    fn of_a_shared_lock_one_hold_ends(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        gain(&mut client, "k", "plain", &["LIMIT", "2"]);
        let (owner, _) = bound(&server, "a", &["LIMIT", "2"]);
        let mut next = stand_with(&server, "k", "next", &["LIMIT", "2", "BLOCK", "0"]);
        drop(owner);
        served(&mut next, "next");
        assert!(holds(&mut client, "k", "plain") && held(&mut client, "k") == 2);
        // A thousand on one connection end with it, and nobody else's.
        let mut many = server.client();
        let acquire = |n: i32| args!["LOCK.ACQUIRE", "s", "TOKEN", n, "PX", 60_000, "SHARED", "EPHEMERAL"];
        assert!(many.pipeline((0..1000).map(acquire)).iter().all(|reply| grant(reply).new == 1));
        gain(&mut client, "s", "plain", &["SHARED"]);
        drop(many);
        until_held(&mut client, "s", 1);
        assert!(holds(&mut client, "s", "plain"));
    }

    /// Far more than the server is held up for at a time.
    fn thousands_on_one_connection_end_with_it(kind: Kind) {
        const COUNT: i32 = 3000;
        let server = Server::start(kind);
        let (mut client, mut owner) = (server.client(), server.client());
        let acquire = |n: i32| args!["LOCK.ACQUIRE", n, "TOKEN", "a", "PX", 60_000, "EPHEMERAL"];
        assert!(owner.pipeline((0..COUNT).map(acquire)).iter().all(|reply| grant(reply).new == 1));
        let give_back = |n: i32| args!["LOCK.RELEASE", n, "a"];
        assert!(owner.pipeline((0..COUNT / 2).map(give_back)).iter().all(|reply| reply.int() == 1));
        assert_eq!(count(&mut client, "held"), i64::from(COUNT / 2));
        drop(owner);
        until_count(&mut client, "held", 0);
        assert_eq!((count(&mut client, "released"), count(&mut client, "leases_ended")), (i64::from(COUNT), 0));
    }

    fn all_named_holds_of_the_token_end(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        gain(&mut client, "k", "a", &["HOLD", "outer"]);
        let (owner, _) = bound(&server, "a", &["HOLD", "inner"]);
        drop(owner);
        wait_until_free(&mut client, "k");
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a", "HOLD", "outer").int(), 0);
    }

    fn a_grant_after_a_wait_is_bound_to_the_connection_that_waited(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let mut waiter = server.client();
        let id = waiter.id();
        send!(waiter, "LOCK.ACQUIRE", "k", "TOKEN", "b", "PX", 60_000, "EPHEMERAL", "BLOCK", 0);
        until_count(&mut client, "waiting", 1);
        let mut next = stand_in_line(&server, "k", "c");
        release(&mut client, "k", "a");
        served(&mut waiter, "b");
        assert_eq!(binding(&mut client, "k"), (1, id));
        drop(waiter);
        served(&mut next, "c");
    }

    fn transactions_may_and_scripts_may_not(kind: Kind) {
        let server = Server::start(kind);
        let (mut client, mut owner) = (server.client(), server.client());
        let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'TOKEN', 'a', 'EPHEMERAL')";
        let told = cmd!(owner, "EVAL", script, 1, "k");
        assert!(told.err().contains("EPHEMERAL needs a connection: scripts and modules have none"), "{told:?}");
        assert_eq!(cmd!(owner, "EXISTS", "k").int(), 0);
        cmd!(owner, "MULTI").ok();
        assert!(cmd!(owner, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000, "EPHEMERAL").is("QUEUED"));
        assert_eq!(grant(&cmd!(owner, "EXEC").array()[0]).new, 1);
        let id = owner.id();
        assert_eq!(binding(&mut client, "k"), (1, id));
        drop(owner);
        wait_until_free(&mut client, "k");
    }

    fn it_ends_also_where_its_lock_went_before_that_was_seen_to(kind: Kind) {
        let server = Server::builder(kind).arg("maxmemory-policy", "allkeys-random").start();
        let (_owner, id) = bound(&server, "a", &[]);
        let mut client = server.client();
        // All in one turn of the event loop: the connection closes, the lock is evicted, its database changes.
        let lines = [&format!("CLIENT KILL ID {id}"), "CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "SWAPDB 0 1"];
        client.pipeline(lines.map(|line| line.split(' ').collect::<Vec<_>>()));
        cmd!(client, "SELECT", 1).ok();
        wait_until_free(&mut client, "k");
        assert_eq!((count(&mut client, "released"), count(&mut client, "evictions_undone")), (1, 1));
    }

    fn after_a_restart_the_lease_bounds_it(kind: Kind) {
        let mut server = Server::builder(kind).append_only("always").start();
        let mut owner = server.client();
        gain(&mut owner, "k", "a", &["EPHEMERAL", "PX", "3000"]);
        gain(&mut owner, "long", "a", BOUND);
        server.kill9();
        drop(owner);
        let ((), loaded) = span(|| server.restart());
        let mut client = server.client();
        assert!(ask(&mut client, "k", "b", &[]).is_null(), "its holder may not know yet");
        assert_eq!(binding(&mut client, "long"), (0, 0));
        loaded.ends(&mut client, "k", 3000);
        stays(&mut client, "long", "a");
    }

    fn after_a_failover_the_lease_bounds_it(kind: Kind) {
        let (mut primary, replica) = (Server::start(kind), Server::start(kind));
        replica.replica_of(&primary);
        let (_owner, _) = bound(&primary, "a", &["PX", "2500"]);
        wait_in_sync(&primary, &replica);
        let mut client = replica.client();
        assert_eq!(binding(&mut client, "k"), (0, 0), "a binding is not replicated");
        // A connection with the same number on the new primary has nothing to do with it.
        let others: Vec<Client> = (0..20).map(|_| replica.client()).collect();
        primary.kill9();
        let ((), promoted) = span(|| replica.promote());
        drop(others);
        stays(&mut client, "k", "a");
        promoted.ends(&mut client, "k", 2500);
        assert_eq!(count(&mut client, "leases_ended"), 1);
    }

    fn a_replica_that_was_a_primary_ends_no_hold_by_itself(kind: Kind) {
        let (first, second) = (Server::start(kind), Server::start(kind));
        second.replica_of(&first);
        let (owner, _) = bound(&first, "a", &[]);
        wait_in_sync(&first, &second);
        second.promote();
        first.replica_of(&second);
        drop(owner);
        stays(&mut second.client(), "k", "a");
        assert!(holds(&mut first.client(), "k", "a"));
        // And the holder binds it anew where it asks again.
        let (owner, _) = bound(&second, "a", &[]);
        drop(owner);
        wait_until_free(&mut second.client(), "k");
    }
}
