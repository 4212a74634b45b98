//! `lock.grace`: after a start or a promotion a server gives no locks out for so long. What is held goes on, who waits
//! goes on waiting, and lines move when it is over. The configured ones are far longer than a test; it is ended by
//! `CONFIG SET`, which moves the end.

use std::time::Duration;

use crate::harness::hold::{acquire, ms_left, repeat, take};
use crate::harness::line::{count, release, send_acquire, still_waits, until_count};
use crate::harness::{
    args, cmd, eventually, grant, info_int, module, on_every_server, until_failed_over, wait_in_sync, Client, Clock,
    Cluster, Kind, Reply, Server, YEAR_US,
};
use crate::leave::unblocks;

const GRACE_MS: i64 = 600_000;
const LONG_MS: u64 = 500_000;
const SOON: Duration = Duration::from_secs(10);
const BEGINS: &str = "lock.grace: no new locks for";
const ENDS: &str = "lock.grace is over";

/// Fails unless this is the error, with a time that can be.
#[track_caller]
fn refused(reply: &Reply) {
    let words: Vec<&str> = reply.err().split(' ').collect();
    let ["GRACE", "no", "new", "locks", "for", ms, "ms", "more"] = words[..] else { panic!("{reply:?}") };
    assert!((1..=GRACE_MS).contains(&ms.parse().expect("a number")), "{reply:?}");
}

fn left_ms(client: &mut Client) -> i64 {
    info_int(client, "lock", "lock_grace_left_ms")
}

#[track_caller]
fn set(client: &mut Client, ms: i64) {
    cmd!(client, "CONFIG", "SET", "lock.grace", ms).ok();
}

/// Lets the grace end by itself in a moment.
#[track_caller]
fn end_soon(client: &mut Client) {
    let elapsed_ms = GRACE_MS - left_ms(client);
    set(client, elapsed_ms + 500);
}

/// How often the log says this.
fn logged(server: &Server, text: &str) -> usize {
    server.log().lines().filter(|line| line.contains(text)).count()
}

#[track_caller]
fn until_logged(server: &Server, text: &str, times: usize) {
    eventually(SOON, || match logged(server, text) {
        seen if seen == times => Ok(()),
        seen => Err(seen),
    });
}

/// A server that has just begun its grace.
fn graced(kind: Kind) -> Server {
    Server::builder(kind).arg("lock.grace", GRACE_MS).start()
}

/// A server in its grace on which this token holds `k`: the grace began anew when its length was set.
fn graced_with(kind: Kind, options: &[&str]) -> Server {
    let server = Server::start(kind);
    let mut client = server.client();
    send_acquire(&mut client, "k", "ann", options);
    grant(&client.recv());
    set(&mut client, GRACE_MS);
    server
}

/// A connection that waits in line.
#[track_caller]
fn stand(server: &Server, key: &str, token: &str, options: &[&str]) -> Client {
    let (mut waiter, mut watcher) = (server.client(), server.client());
    let before = count(&mut watcher, "waiting");
    send_acquire(&mut waiter, key, token, options);
    until_count(&mut watcher, "waiting", before + 1);
    waiter
}

#[track_caller]
fn gives_out_nothing(server: &Server) {
    let mut client = server.client();
    refused(&acquire(&mut client, "free", "ann", LONG_MS));
    assert!((1..=GRACE_MS).contains(&left_ms(&mut client)));
    assert_eq!((logged(server, ENDS), cmd!(client, "EXISTS", "free").int()), (0, 0));
}

#[track_caller]
fn fail_over(primary: &Server, replica: &Server) {
    cmd!(primary.client(), "FAILOVER", "TIMEOUT", 10_000).ok();
    until_failed_over(primary, replica);
}

on_every_server! {
    fn a_line_of_the_configuration_begins_it_at_the_start(kind: Kind) {
        let server = graced(kind);
        gives_out_nothing(&server);
        assert_eq!(logged(&server, BEGINS), 1);
        let mut client = server.client();
        set(&mut client, 0);
        until_logged(&server, ENDS, 1);
        assert_eq!(left_ms(&mut client), 0);
        take(&mut client, "free", "ann", LONG_MS);
    }

    fn an_argument_of_loadmodule_begins_it_at_the_load(kind: Kind) {
        let args = ["grace", &GRACE_MS.to_string()];
        gives_out_nothing(&Server::builder(kind).module_args(&args).start());
        let later = Server::builder(kind).without_module().start();
        let path = module().to_str().expect("the module's path is text");
        cmd!(later.client(), "MODULE", "LOAD", path, args[0], args[1]).ok();
        gives_out_nothing(&later);
    }

    fn no_way_to_ask_gets_a_free_lock(kind: Kind) {
        let server = graced(kind);
        let mut client = server.client();
        for options in [&["SHARED"][..], &["LIMIT", "2"], &["EPHEMERAL"], &["HOLD", "h"], &["POLL", "5000"]] {
            send_acquire(&mut client, "k", "ann", options);
            refused(&client.recv());
        }
        let queued = client.pipeline([
            args!["MULTI"], args!["LOCK.ACQUIRE", "m", "TOKEN", "ann", "BLOCK", 0], args!["SET", "x", 1], args!["EXEC"],
        ]);
        refused(&queued[3].array()[0]);
        queued[3].array()[1].ok();
        let script = "return redis.pcall('LOCK.ACQUIRE', KEYS[1], 'TOKEN', 'ann', 'BLOCK', 0)";
        refused(&cmd!(client, "EVAL", script, 1, "s"));
        assert_eq!(cmd!(client, "DBSIZE").int(), 1);
        assert_eq!((count(&mut client, "granted"), count(&mut client, "refused")), (0, 0));
    }

    fn what_is_held_is_kept_and_weakened_but_not_repeated(kind: Kind) {
        let server = graced_with(kind, &[]);
        let mut client = server.client();
        assert!(acquire(&mut client, "k", "bob", LONG_MS).is_null());
        refused(&acquire(&mut client, "k", "ann", LONG_MS));
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "ann", "PX", LONG_MS).int(), LONG_MS as i64);
        assert!(ms_left(&mut client, "k", "ann") > 60_000);
        cmd!(client, "LOCK.GUARD", "k", "ann", "SET", "data", 1).ok();
        assert_eq!(cmd!(client, "LOCK.INFO", "k").get("mode").text(), "exclusive");
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "ann", "SHARED", "DOWNGRADE"));
        refused(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "bob", "SHARED"));
        refused(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "ann", "UPGRADE"));
        assert_eq!(cmd!(client, "LOCK.INFO", "k").get("held").int(), 1);
        release(&mut client, "k", "ann");
        refused(&acquire(&mut client, "k", "ann", LONG_MS));
    }

    fn who_waits_goes_on_waiting_and_is_served_in_turn(kind: Kind) {
        let server = graced_with(kind, &[]);
        let mut client = server.client();
        let mut first = stand(&server, "k", "bob", &["BLOCK", "0"]);
        release(&mut client, "k", "ann");
        let mut second = stand(&server, "k", "cid", &["BLOCK", "0"]);
        let mut other = stand(&server, "free", "dan", &["BLOCK", "0"]);
        refused(&acquire(&mut client, "k", "eve", LONG_MS));
        assert_eq!(cmd!(client, "EXISTS", "k", "free").int(), 0);
        for waiter in [&mut first, &mut second, &mut other] {
            still_waits(&server, waiter);
        }
        // Now it ends by itself, and nobody has to ask.
        end_soon(&mut client);
        assert_eq!(grant(&other.recv()).token, b"dan");
        assert_eq!(grant(&first.recv()).token, b"bob");
        until_logged(&server, ENDS, 1);
        still_waits(&server, &mut second);
        release(&mut client, "k", "bob");
        assert_eq!(grant(&second.recv()).token, b"cid");
    }

    fn a_wait_that_ends_meanwhile_is_told_why(kind: Kind) {
        let server = graced_with(kind, &[]);
        let mut free = server.client();
        send_acquire(&mut free, "free", "bob", &["BLOCK", "300"]);
        let mut held = server.client();
        send_acquire(&mut held, "k", "bob", &["BLOCK", "300"]);
        refused(&free.recv());
        refused(&held.recv());
        let mut client = server.client();
        assert_eq!(count(&mut client, "waiting"), 0);
        if unblocks(kind) {
            let mut waiter = server.client();
            let id = waiter.id();
            send_acquire(&mut waiter, "free", "cid", &["BLOCK", "0"]);
            until_count(&mut client, "waiting", 1);
            assert_eq!(cmd!(client, "CLIENT", "UNBLOCK", id).int(), 1);
            refused(&waiter.recv());
            assert!(cmd!(waiter, "PING").is("PONG"));
        }
        // A token that takes its own wait back asked for the end of it.
        let mut waiter = stand(&server, "free", "cid", &["BLOCK", "0"]);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "free", "cid").int(), 0);
        assert!(waiter.recv().is_null());
    }

    fn a_lease_that_ends_gives_the_lock_to_nobody(kind: Kind) {
        let server = graced_with(kind, &["PX", "1000"]);
        let mut client = server.client();
        let mut waiter = stand(&server, "k", "bob", &["BLOCK", "0"]);
        until_count(&mut client, "leases_ended", 1);
        assert_eq!(cmd!(client, "EXISTS", "k").int(), 0);
        still_waits(&server, &mut waiter);
        set(&mut client, 0);
        assert_eq!(grant(&waiter.recv()).token, b"bob");
    }

    fn an_upgrade_and_a_poll_wait_through_it(kind: Kind) {
        let server = graced_with(kind, &["SHARED"]);
        let mut client = server.client();
        let mut upgrade = stand(&server, "k", "ann", &["UPGRADE", "BLOCK", "0"]);
        send_acquire(&mut client, "polled", "bob", &["POLL", "10000"]);
        refused(&client.recv());
        assert_eq!(count(&mut client, "polling"), 1);
        still_waits(&server, &mut upgrade);
        set(&mut client, 0);
        assert_eq!(grant(&upgrade.recv()).new, 1);
        assert_eq!(cmd!(client, "LOCK.INFO", "k").get("mode").text(), "exclusive");
        send_acquire(&mut client, "polled", "bob", &["POLL", "10000"]);
        assert_eq!(grant(&client.recv()).new, 1);
    }

    fn a_lock_of_another_library_is_handed_over_after_it(kind: Kind) {
        let server = graced(kind);
        let mut client = server.client();
        cmd!(client, "SET", "k", "theirs", "NX", "PX", LONG_MS).ok();
        assert!(acquire(&mut client, "k", "bob", LONG_MS).is_null());
        let mut waiter = stand(&server, "k", "bob", &["BLOCK", "0"]);
        assert!(cmd!(client, "LOCK.EXTEND", "k", "theirs").int() > 60_000);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "theirs").int(), 1);
        assert_eq!(cmd!(client, "EXISTS", "k").int(), 0);
        still_waits(&server, &mut waiter);
        set(&mut client, 0);
        assert_eq!(grant(&waiter.recv()).token, b"bob");
    }

    fn another_length_moves_the_end_and_counts_from_the_start(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let mut above = take(&mut client, "k", "ann", LONG_MS).fence;
        for round in 1..4 {
            set(&mut client, GRACE_MS);
            let left = left_ms(&mut client);
            assert!(left < GRACE_MS, "{left}: it began before this was set");
            refused(&acquire(&mut client, "k", "ann", LONG_MS));
            set(&mut client, 2 * GRACE_MS);
            assert!((left + 1..=left + GRACE_MS).contains(&left_ms(&mut client)));
            // Any other config, and the same value again, say nothing new.
            cmd!(client, "CONFIG", "SET", "lock.max-ttl", 86_400_000, "lock.grace", 2 * GRACE_MS).ok();
            assert_eq!(logged(&server, BEGINS), 2 * round);
            set(&mut client, 1);
            assert_eq!(left_ms(&mut client), 0);
            let again = repeat(&mut client, "k", "ann", LONG_MS).fence;
            assert!(again >= above);
            above = again;
            until_logged(&server, ENDS, round);
        }
    }

    // Redis documentation, distributed locks: after a crash without fsync=always an instance must stay out for the longest
    // lease ("delayed restarts"), and no implementation does.
    fn c59_a_server_that_forgot_everything_gives_nothing_out(kind: Kind) {
        let mut server = graced(kind);
        set(&mut server.client(), 0);
        take(&mut server.client(), "k", "ann", LONG_MS);
        server.kill9();
        server.restart();
        let mut client = server.client();
        refused(&acquire(&mut client, "k", "bob", LONG_MS));
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "ann").int(), 0);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "ann").int(), 0);
        assert_eq!(logged(&server, BEGINS), 2);
    }

    fn a_restart_keeps_what_it_knows(kind: Kind) {
        let mut server = Server::builder(kind)
            .append_only("always")
            .arg("lock.grace", GRACE_MS)
            .start();
        set(&mut server.client(), 0);
        let fence = take(&mut server.client(), "k", "ann", LONG_MS).fence;
        server.kill9();
        server.restart();
        let mut client = server.client();
        assert!(acquire(&mut client, "k", "bob", LONG_MS).is_null());
        refused(&acquire(&mut client, "k", "ann", LONG_MS));
        refused(&acquire(&mut client, "free", "bob", LONG_MS));
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "ann").int(), LONG_MS as i64);
        assert_eq!(cmd!(client, "LOCK.INFO", "k").get("fence").int(), fence);
        // Loading once more is neither a start nor a promotion.
        let before = left_ms(&mut client);
        cmd!(client, "DEBUG", "RELOAD").ok();
        assert!((1..=before).contains(&left_ms(&mut client)));
        release(&mut client, "k", "ann");
        refused(&acquire(&mut client, "k", "bob", LONG_MS));
        set(&mut client, 0);
        assert!(take(&mut client, "k", "bob", LONG_MS).fence > fence);
    }

    fn a_promotion_begins_it_anew(kind: Kind) {
        let (mut primary, replica) = (Server::start(kind), graced(kind));
        replica.replica_of(&primary);
        let (mut client, mut below) = (primary.client(), replica.client());
        assert_eq!(left_ms(&mut below), 0, "a replica gives nothing out anyway");
        take(&mut client, "k", "ann", LONG_MS);
        wait_in_sync(&primary, &replica);
        primary.kill9();
        assert_eq!(logged(&replica, BEGINS), 1);
        replica.promote();
        assert_eq!(logged(&replica, BEGINS), 2);
        gives_out_nothing(&replica);
        assert!(acquire(&mut below, "k", "bob", LONG_MS).is_null());
        refused(&acquire(&mut below, "k", "ann", LONG_MS));
        assert_eq!(cmd!(below, "LOCK.EXTEND", "k", "ann").int(), LONG_MS as i64);
        let mut waiter = stand(&replica, "k", "bob", &["BLOCK", "0"]);
        release(&mut below, "k", "ann");
        still_waits(&replica, &mut waiter);
        end_soon(&mut below);
        assert_eq!(grant(&waiter.recv()).token, b"bob");
    }

    fn a_failover_begins_it_on_the_new_primary_only(kind: Kind) {
        let (first, second) = (graced(kind), graced(kind));
        set(&mut first.client(), 0);
        second.replica_of(&first);
        take(&mut first.client(), "k", "ann", LONG_MS);
        let mut lost = stand(&first, "k", "bob", &["BLOCK", "0"]);
        wait_in_sync(&first, &second);
        fail_over(&first, &second);
        assert!(lost.recv().err().starts_with("UNBLOCKED"));
        gives_out_nothing(&second);
        let mut again = stand(&second, "k", "bob", &["BLOCK", "0"]);
        release(&mut second.client(), "k", "ann");
        still_waits(&second, &mut again);
        let mut old = first.client();
        assert_eq!(left_ms(&mut old), 0);
        assert!(acquire(&mut old, "k", "cid", LONG_MS).err().starts_with("READONLY"));
        set(&mut second.client(), 0);
        assert_eq!(grant(&again.recv()).token, b"bob");
        // And back: the length of the one that is promoted counts.
        wait_in_sync(&second, &first);
        fail_over(&second, &first);
        assert_eq!(left_ms(&mut first.client()), 0);
        take(&mut first.client(), "free", "cid", LONG_MS);
    }

    fn a_failover_in_a_cluster_begins_it(kind: Kind) {
        let mut cluster = Cluster::start(kind, 1);
        let replica = cluster.add_replica(0);
        let (mut above, mut below) = (cluster.client(0), cluster.client(replica));
        set(&mut below, GRACE_MS);
        assert_eq!(left_ms(&mut below), 0);
        take(&mut above, "k", "ann", LONG_MS);
        wait_in_sync(&cluster.nodes[0], &cluster.nodes[replica]);
        cmd!(below, "CLUSTER", "FAILOVER").ok();
        eventually(SOON, || match acquire(&mut below, "free", "bob", LONG_MS) {
            Reply::Error(text) if text.starts_with("GRACE ") => Ok(()),
            other => Err(other),
        });
        assert!(acquire(&mut below, "k", "bob", LONG_MS).is_null());
        let mut waiter = stand(&cluster.nodes[replica], "k", "bob", &["BLOCK", "0"]);
        release(&mut below, "k", "ann");
        still_waits(&cluster.nodes[replica], &mut waiter);
        set(&mut below, 0);
        assert_eq!(grant(&waiter.recv()).token, b"bob");
    }

    fn the_wall_clock_neither_ends_nor_prolongs_it(kind: Kind) {
        let clock = Clock::new();
        let server = Server::builder(kind).clock(&clock).arg("lock.grace", GRACE_MS).start();
        let mut client = server.client();
        let mut before = left_ms(&mut client);
        for years in [1, -2, 1] {
            clock.step(years * YEAR_US);
            refused(&acquire(&mut client, "k", "ann", LONG_MS));
            let left = left_ms(&mut client);
            assert!((before - 120_000..=before).contains(&left), "{left} after {before}");
            before = left;
        }
        let mut waiter = stand(&server, "k", "ann", &["BLOCK", "0"]);
        end_soon(&mut client);
        assert_eq!(grant(&waiter.recv()).token, b"ann");
    }
}
