//! `POLL ms`: a place in line without a blocked connection. It is kept while the token polls, served in turn with
//! blocked waiters, and a grant that nobody fetches is handed on.

use std::time::{Duration, Instant};

use crate::harness::line::{
    count, holds, queue, release, send_acquire, stand_in_line, stand_with, take, take_for, until_count, waiters,
};
use crate::harness::{cmd, eventually, grant, info_int, on_every_server, timed, Client, Kind, Reply, Server};

const SOON: Duration = Duration::from_secs(5);

/// Asks once; the place is kept for `ms` from now.
fn poll(client: &mut Client, key: &str, token: &str, ms: u64) -> Reply {
    cmd!(client, "LOCK.ACQUIRE", key, "TOKEN", token, "PX", 60_000, "LABEL", token, "POLL", ms)
}

#[track_caller]
fn not_yet(client: &mut Client, key: &str, token: &str, ms: u64) {
    let reply = poll(client, key, token, ms);
    assert!(reply.is_null(), "{reply:?}");
}

on_every_server! {
    fn a_poll_keeps_its_place_and_fetches_the_grant(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let fence = take(&mut client, "k", "a").fence;
        for _ in 0..3 {
            not_yet(&mut client, "k", "b", 10_000);
        }
        assert_eq!((count(&mut client, "polling"), count(&mut client, "waiting")), (1, 0));
        assert_eq!((waiters(&mut client, "k"), count(&mut client, "waited")), (1, 1));
        release(&mut client, "k", "a");
        assert!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "c").is_null(), "it is b's, fetched or not");
        let granted = grant(&poll(&mut client, "k", "b", 10_000));
        assert_eq!((granted.ttl, granted.waited, granted.new), (60_000, 0, 1));
        assert!(granted.fence > fence);
        let again = grant(&poll(&mut client, "k", "b", 10_000));
        assert_eq!((again.fence, again.new), (granted.fence, 0));
        assert_eq!((count(&mut client, "polling"), count(&mut client, "handed_over")), (0, 1));
    }

    fn a_poll_of_a_free_lock_takes_it(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let granted = grant(&poll(&mut client, "k", "a", 1));
        assert_eq!((granted.ttl, granted.waited, granted.new), (60_000, 0, 1));
        // It is fetched already: the end of the poll does not matter.
        assert!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b", "BLOCK", 50).is_null());
        assert!(holds(&mut client, "k", "a"));
    }

    fn a_place_that_is_not_polled_is_lost(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let ((), took) = timed(|| {
            not_yet(&mut client, "k", "b", 150);
            not_yet(&mut client, "k", "c", 10_000);
            until_count(&mut client, "waits_ended_empty", 1);
        });
        assert!(took > Duration::from_millis(150), "it was kept for only {took:?}");
        assert_eq!(queue(&mut client, "k"), ["c"]);
        not_yet(&mut client, "k", "b", 10_000);
        assert_eq!(queue(&mut client, "k"), ["c", "b"], "who comes late stands behind");
    }

    fn each_poll_keeps_the_place_longer(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        not_yet(&mut client, "k", "b", 800);
        not_yet(&mut client, "k", "c", 10_000);
        // Far longer than one of them keeps it.
        let first = Instant::now();
        eventually(SOON, || {
            not_yet(&mut client, "k", "b", 800);
            if first.elapsed() > Duration::from_millis(1200) { Ok(()) } else { Err("too early") }
        });
        assert_eq!(queue(&mut client, "k"), ["b", "c"]);
    }

    fn polled_and_blocked_waiters_are_served_in_turn(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        not_yet(&mut client, "k", "b", 10_000);
        let mut blocked = stand_in_line(&server, "k", "c");
        not_yet(&mut client, "k", "d", 10_000);
        let mut last = stand_in_line(&server, "k", "e");
        release(&mut client, "k", "a");
        assert!(poll(&mut client, "k", "d", 10_000).is_null());
        assert_eq!(blocked.try_recv(Duration::ZERO), None);
        assert_eq!(grant(&poll(&mut client, "k", "b", 10_000)).token, b"b");
        release(&mut client, "k", "b");
        assert_eq!(grant(&blocked.recv()).token, b"c");
        release(&mut client, "k", "c");
        assert_eq!(last.try_recv(Duration::ZERO), None);
        assert_eq!(grant(&poll(&mut client, "k", "d", 10_000)).token, b"d");
        release(&mut client, "k", "d");
        assert_eq!(grant(&last.recv()).token, b"e");
    }

    fn the_lease_starts_at_the_fetch(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let poll = |client: &mut Client| cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b", "PX", 250, "POLL", 5000);
        assert!(poll(&mut client).is_null());
        release(&mut client, "k", "a");
        // Longer than the lease, shorter than the poll.
        assert!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "c", "BLOCK", 350).is_null());
        let granted = grant(&poll(&mut client));
        assert_eq!((granted.ttl, granted.new), (250, 1));
        // From now on it is a lease like any other.
        let next = grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "c", "BLOCK", 0));
        assert!((150..500).contains(&next.waited), "waited {}", next.waited);
        assert_eq!((count(&mut client, "leases_ended"), count(&mut client, "grants_taken_back")), (1, 0));
    }

    fn a_grant_nobody_fetches_is_handed_on_in_time(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let ((granted, after_poll), from_poll) = timed(|| {
            not_yet(&mut client, "k", "b", 600);
            timed(|| {
                let mut next = stand_in_line(&server, "k", "c");
                release(&mut client, "k", "a");
                grant(&next.recv())
            })
        });
        assert_eq!(granted.token, b"c");
        // The poll arrived between its sending and its answer.
        assert!(from_poll >= Duration::from_millis(600), "early: {from_poll:?}");
        assert!(after_poll < Duration::from_millis(800), "late: {after_poll:?}");
        assert_eq!((count(&mut client, "grants_taken_back"), count(&mut client, "leases_ended")), (1, 0));
        assert!(!holds(&mut client, "k", "b"));
        not_yet(&mut client, "k", "b", 1000);
    }

    fn a_grant_nobody_fetches_frees_the_lock_if_nobody_else_waits(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        not_yet(&mut client, "k", "b", 80);
        release(&mut client, "k", "a");
        until_count(&mut client, "held", 0);
        assert_eq!(cmd!(client, "EXISTS", "k").int(), 0);
        assert_eq!(count(&mut client, "grants_taken_back"), 1);
    }

    fn an_extend_fetches(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for (options, expected) in [(&[][..], 700), (&["PX", "900"], 900), (&["PX", "10"], 700)] {
            take(&mut client, "k", "a");
            assert!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b", "PX", 700, "POLL", 400).is_null());
            release(&mut client, "k", "a");
            let left = client.cmd(&[&["LOCK.EXTEND", "k", "b"][..], options].concat()).int();
            assert_eq!(left, expected, "{options:?}");
            // The end of the poll does not matter any more.
            assert!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "c", "BLOCK", 450).is_null());
            release(&mut client, "k", "b");
        }
        assert_eq!(count(&mut client, "grants_taken_back"), 0);
    }

    fn a_check_tells_the_time_to_fetch_and_does_not_fetch(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        not_yet(&mut client, "k", "b", 500);
        release(&mut client, "k", "a");
        let left = cmd!(client, "LOCK.CHECK", "k", "b").int();
        assert!((1..=500).contains(&left), "{left}");
        let next = grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "c", "BLOCK", 0));
        assert!(next.waited <= 600, "{next:?}");
    }

    fn a_release_of_an_unfetched_grant_serves_the_next(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        not_yet(&mut client, "k", "b", 10_000);
        let mut next = stand_in_line(&server, "k", "c");
        release(&mut client, "k", "a");
        release(&mut client, "k", "b");
        assert_eq!(grant(&next.recv()).token, b"c");
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "b").int(), -1);
    }

    fn a_release_withdraws_a_polled_place(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        not_yet(&mut client, "k", "b", 10_000);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "b").int(), -1);
        assert_eq!((waiters(&mut client, "k"), count(&mut client, "withdrawn")), (0, 1));
    }

    fn a_blocked_wait_becomes_a_polled_one_and_back(kind: Kind) {
        let server = Server::start(kind);
        let (mut client, mut other) = (server.client(), server.client());
        take(&mut client, "k", "a");
        let mut first = stand_with(&server, "k", "b", &["BLOCK", "0", "LABEL", "b"]);
        let _behind = stand_with(&server, "k", "c", &["BLOCK", "0", "LABEL", "c"]);
        not_yet(&mut client, "k", "b", 10_000);
        assert!(first.recv().err().starts_with("ERR superseded"));
        assert_eq!((count(&mut client, "waiting"), count(&mut client, "polling")), (1, 1));
        send_acquire(&mut other, "k", "b", &["BLOCK", "0", "LABEL", "b"]);
        until_count(&mut client, "waiting", 2);
        assert_eq!(count(&mut client, "polling"), 0);
        assert_eq!(queue(&mut client, "k"), ["b", "c"], "it kept its place");
        release(&mut client, "k", "a");
        assert_eq!(grant(&other.recv()).token, b"b");
    }

    fn a_wait_that_became_polled_ends_with_its_poll(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let mut blocked = stand_in_line(&server, "k", "b");
        not_yet(&mut client, "k", "b", 60);
        assert!(blocked.recv().err().starts_with("ERR superseded"));
        until_count(&mut client, "polling", 0);
        // And a polled place that became blocked does not end with the poll.
        not_yet(&mut client, "k", "b", 60);
        send_acquire(&mut blocked, "k", "b", &["BLOCK", "0"]);
        assert_eq!(blocked.try_recv(Duration::from_millis(150)), None);
        release(&mut client, "k", "a");
        assert_eq!(grant(&blocked.recv()).token, b"b");
    }

    fn a_place_outlives_the_connection_that_polled(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let mut gone = server.client();
        let id = gone.id();
        not_yet(&mut gone, "k", "b", 10_000);
        cmd!(client, "CLIENT", "KILL", "ID", id).int();
        release(&mut client, "k", "a");
        assert_eq!(grant(&poll(&mut client, "k", "b", 10_000)).token, b"b");
    }

    fn a_poll_works_where_nothing_may_block(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        cmd!(client, "MULTI").ok();
        assert!(poll(&mut client, "k", "b", 10_000).is("QUEUED"));
        assert!(cmd!(client, "EXEC").array()[0].is_null());
        let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'TOKEN', 'c', 'POLL', '10000')";
        assert!(cmd!(client, "EVAL", script, 1, "k").is_null());
        assert_eq!(waiters(&mut client, "k"), 2);
        for (holder, next) in [("a", "b"), ("b", "c")] {
            release(&mut client, "k", holder);
            assert_eq!(grant(&poll(&mut client, "k", next, 10_000)).token, next.as_bytes());
        }
    }

    fn a_polled_place_costs_bytes(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let used = |client: &mut Client| info_int(client, "memory", "used_memory");
        let before = used(&mut client);
        let places = 5_000;
        let poll = |n: i64| ["LOCK.ACQUIRE", "k", "TOKEN", &format!("token-{n}"), "POLL", "10000"].map(str::to_owned);
        assert!(client.pipeline((0..places).map(poll)).iter().all(Reply::is_null));
        assert_eq!(count(&mut client, "polling"), places);
        let each = (used(&mut client) - before) / places;
        assert!(each < 1000, "{each} bytes each");
        // And they are given back with the places.
        let withdraw = |n: i64| ["LOCK.RELEASE", "k", &format!("token-{n}")].map(str::to_owned);
        assert!(client.pipeline((0..places).map(withdraw)).iter().all(|reply| reply.int() == -1));
        let left = used(&mut client) - before;
        assert!(left < places * 100, "{left} bytes kept");
    }

    fn an_unfetched_grant_outlives_neither_del_nor_overwriting(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take_for(&mut client, "k", "a", 60_000);
        not_yet(&mut client, "k", "b", 10_000);
        not_yet(&mut client, "k", "c", 10_000);
        release(&mut client, "k", "a");
        assert_eq!(cmd!(client, "DEL", "k").int(), 1);
        assert!(poll(&mut client, "k", "b", 10_000).is_null(), "the next in line has it");
        assert_eq!(grant(&poll(&mut client, "k", "c", 10_000)).token, b"c");
    }
}
