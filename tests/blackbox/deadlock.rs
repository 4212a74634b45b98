//! A BLOCK or POLL that would wait for itself is refused with DEADLOCK, however long the circle, and nothing else is
//! ever refused with it. `lock.max-waiters` bounds how many may wait.

use std::time::Duration;

use crate::harness::line::{
    count, queue, release, send_acquire, stand_in_line, stand_with, take, take_for, until_count, waiters,
};
use crate::harness::{args, cmd, eventually, grant, on_every_server, Client, Kind, Reply, Server};

const SOON: Duration = Duration::from_secs(5);

fn acquire(client: &mut Client, key: &str, token: &str, options: &[&str]) -> Reply {
    send_acquire(client, key, token, options);
    client.recv()
}

#[track_caller]
fn deadlock(reply: &Reply) {
    assert!(reply.err().starts_with("DEADLOCK "), "{reply:?}");
}

on_every_server! {
    fn a_circle_of_any_length_is_refused_and_goes_on(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for length in [2, 3, 10] {
            let (key, token) = (|n: usize| format!("k{}", n % length), |n: usize| format!("t{}", n % length));
            for n in 0..length {
                take(&mut client, &key(n), &token(n));
            }
            let mut waiting: Vec<_> =
                (0..length - 1).map(|n| stand_in_line(&server, &key(n + 1), &token(n))).collect();
            // Each waits for the next one's lock; the last one would close the circle.
            let last = length - 1;
            deadlock(&acquire(&mut client, &key(0), &token(last), &["BLOCK", "0"]));
            deadlock(&acquire(&mut client, &key(0), &token(last), &["BLOCK", "10"]));
            deadlock(&acquire(&mut client, &key(0), &token(last), &["POLL", "1000"]));
            assert_eq!(waiters(&mut client, &key(0)), 0);
            // A try waits for nothing.
            assert!(acquire(&mut client, &key(0), &token(last), &[]).is_null());
            // Once it gives way, everyone is served.
            for n in (1..length).rev() {
                release(&mut client, &key(n), &token(n));
                let mut waiter = waiting.pop().expect("one each");
                assert_eq!(grant(&waiter.recv()).token, token(n - 1).as_bytes());
                release(&mut client, &key(n), &token(n - 1));
            }
            release(&mut client, &key(0), &token(0));
        }
        assert_eq!((count(&mut client, "deadlocks"), count(&mut client, "held")), (9, 0));
    }

    fn who_is_ahead_in_line_counts(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        // a holds k; b is ahead in line for k and c behind it. c holds l, so b cannot wait for it: c waits for b.
        take(&mut client, "k", "a");
        take(&mut client, "l", "c");
        let mut ahead = stand_in_line(&server, "k", "b");
        let mut behind = stand_in_line(&server, "k", "c");
        deadlock(&acquire(&mut client, "l", "b", &["BLOCK", "0"]));
        // d is behind nobody who waits for it, so it may.
        let mut outsider = stand_in_line(&server, "l", "d");
        release(&mut client, "k", "a");
        assert_eq!(grant(&ahead.recv()).token, b"b");
        release(&mut client, "k", "b");
        assert_eq!(grant(&behind.recv()).token, b"c");
        release(&mut client, "l", "c");
        assert_eq!(grant(&outsider.recv()).token, b"d");
    }

    fn a_circle_through_lines_alone_is_seen(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        // Nobody in the circle holds anything: b is ahead of c for k, so c must not be ahead of b for l.
        take(&mut client, "k", "x");
        take(&mut client, "l", "y");
        let _first = [stand_in_line(&server, "k", "b"), stand_in_line(&server, "l", "c")];
        let _second = stand_in_line(&server, "k", "c");
        deadlock(&acquire(&mut client, "l", "b", &["BLOCK", "0"]));
        assert_eq!(waiters(&mut client, "l"), 1);
    }

    /// Each holder of a full semaphore waits for one who waits for it: only with the last of them nobody can move.
    fn a_circle_through_every_holder_of_a_semaphore_is_seen(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for wait in [["BLOCK", "0"], ["POLL", "10000"]] {
            for token in ["d", "f"] {
                grant(&acquire(&mut client, "permits", token, &["LIMIT", "2"]));
            }
            take(&mut client, "l", "a");
            let (mut a, mut d) = (server.client(), server.client());
            send_acquire(&mut a, "permits", "a", &["BLOCK", "0", "LIMIT", "2"]);
            until_count(&mut client, "waiting", 1);
            send_acquire(&mut d, "l", "d", &["BLOCK", "0"]);
            until_count(&mut client, "waiting", 2);
            deadlock(&acquire(&mut client, "l", "f", &wait));
            // One permit given back lets everybody go on.
            release(&mut client, "permits", "f");
            assert_eq!(grant(&a.recv()).token, b"a");
            release(&mut client, "l", "a");
            assert_eq!(grant(&d.recv()).token, b"d");
            for (key, token) in [("permits", "a"), ("permits", "d"), ("l", "d")] {
                release(&mut client, key, token);
            }
        }
        assert_eq!((count(&mut client, "deadlocks"), count(&mut client, "held")), (2, 0));
    }

    /// Who is ahead in line is not in the way of one who can share the lock with it, wherever else it waits.
    fn who_can_come_in_beside_those_ahead_waits_for_none_of_them(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for mode in [&["SHARED"][..], &["LIMIT", "2"]] {
            take(&mut client, "k", "w");
            take(&mut client, "l", "b");
            let polled = |client: &mut Client, key: &str, token: &str, mode: &[&str]| {
                acquire(client, key, token, &[&["POLL", "10000"], mode].concat())
            };
            assert!(polled(&mut client, "k", "a", mode).is_null());
            assert!(polled(&mut client, "l", "a", &[]).is_null());
            assert!(polled(&mut client, "k", "b", mode).is_null());
            // One that wants it alone does wait for those who share it.
            take(&mut client, "m", "c");
            assert!(polled(&mut client, "m", "a", &[]).is_null());
            deadlock(&polled(&mut client, "k", "c", &[]));
            release(&mut client, "k", "w");
            grant(&polled(&mut client, "k", "a", mode));
            grant(&polled(&mut client, "k", "b", mode));
            release(&mut client, "l", "b");
            grant(&polled(&mut client, "l", "a", &[]));
            release(&mut client, "m", "c");
            grant(&polled(&mut client, "m", "a", &[]));
            for (key, token) in [("k", "a"), ("k", "b"), ("l", "a"), ("m", "a")] {
                release(&mut client, key, token);
            }
        }
        assert_eq!((count(&mut client, "deadlocks"), count(&mut client, "held")), (2, 0));
    }

    /// RENAME brought a lock to a line in which one of its holders stands: that wait is over whoever else holds it.
    fn a_holder_that_stands_in_its_own_line_is_in_nobodys_way(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let polled = |client: &mut Client, key: &str, token: &str, mode: &[&str]| {
            acquire(client, key, token, &[&["POLL", "10000"], mode].concat())
        };
        take(&mut client, "to", "x");
        for token in ["t", "s", "v"] {
            grant(&acquire(&mut client, "from", token, &["SHARED"]));
        }
        assert!(polled(&mut client, "to", "u", &["LIMIT", "3"]).is_null());
        assert!(polled(&mut client, "to", "t", &[]).is_null());
        cmd!(client, "RENAME", "from", "to").ok();
        take(&mut client, "of n", "n");
        take(&mut client, "of t", "t");
        assert!(polled(&mut client, "of n", "s", &[]).is_null());
        // n waits for t, t for u, u for v, and v for nobody.
        assert!(polled(&mut client, "of t", "n", &[]).is_null());
        release(&mut client, "to", "v");
        grant(&polled(&mut client, "to", "u", &["LIMIT", "3"]));
        release(&mut client, "of t", "t");
        grant(&polled(&mut client, "of t", "n", &[]));
        release(&mut client, "of n", "n");
        grant(&polled(&mut client, "of n", "s", &[]));
        assert_eq!(count(&mut client, "deadlocks"), 0);
    }

    /// It goes to the head of the line, ahead of one whose lock the same token waits for.
    fn an_upgrade_that_closes_a_circle_behind_it_is_refused(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for token in ["a", "b"] {
            grant(&acquire(&mut client, "permits", token, &["LIMIT", "2"]));
        }
        take(&mut client, "l", "f");
        let mut f = server.client();
        send_acquire(&mut f, "permits", "f", &["BLOCK", "0", "LIMIT", "2"]);
        until_count(&mut client, "waiting", 1);
        // As long as b may give its permit back, this leads nowhere.
        assert!(acquire(&mut client, "l", "a", &["POLL", "10000"]).is_null());
        for wait in [["BLOCK", "0"], ["POLL", "10000"]] {
            deadlock(&acquire(&mut client, "permits", "a", &[&wait[..], &["UPGRADE"]].concat()));
        }
        release(&mut client, "permits", "b");
        assert_eq!(grant(&f.recv()).token, b"f");
        release(&mut client, "l", "f");
        assert_eq!(grant(&acquire(&mut client, "l", "a", &["POLL", "10000"])).token, b"a");
        // Now f waits for nothing that a has, so a may go ahead of everybody.
        let mut g = server.client();
        send_acquire(&mut g, "permits", "g", &["BLOCK", "0", "LIMIT", "2"]);
        until_count(&mut client, "waiting", 1);
        assert!(acquire(&mut client, "permits", "a", &["POLL", "10000", "UPGRADE"]).is_null());
        release(&mut client, "permits", "f");
        assert_eq!(grant(&acquire(&mut client, "permits", "a", &["POLL", "10000", "UPGRADE"])).token, b"a");
        release(&mut client, "permits", "a");
        assert_eq!(grant(&g.recv()).token, b"g");
    }

    fn an_outsider_on_the_same_locks_is_not_refused(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        take(&mut client, "l", "b");
        let mut waiter = stand_in_line(&server, "l", "a");
        let mut on_k = stand_in_line(&server, "k", "outsider");
        let mut on_l = stand_in_line(&server, "l", "outsider");
        deadlock(&acquire(&mut client, "k", "b", &["BLOCK", "0"]));
        release(&mut client, "l", "b");
        assert_eq!(grant(&waiter.recv()).token, b"a");
        for key in ["k", "l"] {
            release(&mut client, key, "a");
        }
        assert_eq!(grant(&on_k.recv()).token, b"outsider");
        assert_eq!(grant(&on_l.recv()).token, b"outsider");
        assert_eq!(count(&mut client, "deadlocks"), 1);
    }

    fn a_polled_place_is_part_of_a_circle(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        take(&mut client, "l", "b");
        assert!(acquire(&mut client, "l", "a", &["POLL", "10000"]).is_null());
        deadlock(&acquire(&mut client, "k", "b", &["BLOCK", "0"]));
        // The place is gone, and with it the circle.
        assert_eq!(cmd!(client, "LOCK.RELEASE", "l", "a").int(), -1);
        let mut waiter = stand_in_line(&server, "k", "b");
        release(&mut client, "k", "a");
        assert_eq!(grant(&waiter.recv()).token, b"b");
    }

    fn a_circle_spans_databases(kind: Kind) {
        let server = Server::start(kind);
        let (mut client, mut other) = (server.client(), server.client());
        cmd!(other, "SELECT", 9).ok();
        take(&mut client, "k", "a");
        take(&mut other, "k", "b");
        let _waiter = stand_in_line(&server, "k", "b");
        deadlock(&acquire(&mut other, "k", "a", &["BLOCK", "0"]));
    }

    fn a_circle_that_ended_is_no_circle(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        // By the end of a lease.
        take(&mut client, "k", "a");
        take_for(&mut client, "l", "b", 1000);
        let mut waiter = stand_in_line(&server, "l", "a");
        deadlock(&acquire(&mut client, "k", "b", &["BLOCK", "0"]));
        assert_eq!(grant(&waiter.recv()).token, b"a");
        let next = stand_in_line(&server, "k", "b");
        // By a waiter that leaves, or that a resend turned into a try.
        take(&mut client, "m", "b");
        deadlock(&acquire(&mut client, "m", "a", &["BLOCK", "0"]));
        drop(next);
        until_count(&mut client, "waiting", 0);
        let mut waiter = stand_in_line(&server, "m", "a");
        release(&mut client, "m", "b");
        assert_eq!(grant(&waiter.recv()).token, b"a");
    }

    fn a_resend_is_never_a_deadlock(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        take(&mut client, "l", "b");
        let mut old = stand_in_line(&server, "l", "a");
        let mut new = server.client();
        send_acquire(&mut new, "l", "a", &["BLOCK", "0"]);
        assert!(old.recv().err().starts_with("ERR superseded"));
        // Nor is a wait for a lock that the token holds itself.
        assert_eq!(grant(&acquire(&mut client, "k", "a", &["BLOCK", "0"])).new, 0);
        release(&mut client, "l", "b");
        assert_eq!(grant(&new.recv()).token, b"a");
        assert_eq!(count(&mut client, "deadlocks"), 0);
    }

    fn max_waiters_bounds_blocked_and_polled_waits(kind: Kind) {
        let server = Server::builder(kind).arg("lock.max-waiters", 2).start();
        let (mut client, mut extra) = (server.client(), server.client());
        take(&mut client, "k", "a");
        take(&mut client, "l", "a");
        let mut first = stand_in_line(&server, "k", "b");
        let mut second = stand_in_line(&server, "l", "c");
        let full = acquire(&mut extra, "k", "d", &["BLOCK", "0"]);
        assert!(full.err().starts_with("MAXWAITERS "), "{full:?}");
        // Tries and resends are no more waiters.
        assert!(acquire(&mut extra, "k", "d", &[]).is_null());
        let mut again = server.client();
        send_acquire(&mut again, "k", "b", &["BLOCK", "0"]);
        assert!(first.recv().err().starts_with("ERR superseded"));
        // Polled places are counted for themselves, ten times as many.
        for n in 0..20 {
            assert!(acquire(&mut extra, "k", &format!("p{n}"), &["POLL", "10000"]).is_null());
        }
        let full = acquire(&mut extra, "k", "p20", &["POLL", "10000"]);
        assert!(full.err().starts_with("MAXWAITERS "), "{full:?}");
        assert!(acquire(&mut extra, "k", "p7", &["POLL", "10000"]).is_null(), "a place that is kept");
        // A polled place that would block now is one blocked connection more. The place is not lost by asking.
        let full = acquire(&mut extra, "k", "p7", &["BLOCK", "0"]);
        assert!(full.err().starts_with("MAXWAITERS "), "{full:?}");
        assert_eq!((count(&mut client, "waiting"), count(&mut client, "polling")), (2, 20));
        // Room comes back when somebody is served.
        release(&mut client, "l", "a");
        assert_eq!(grant(&second.recv()).token, b"c");
        send_acquire(&mut extra, "k", "p7", &["BLOCK", "0"]);
        until_count(&mut client, "waiting", 2);
        assert_eq!(count(&mut client, "polling"), 19);
        assert_eq!(waiters(&mut client, "k"), 21);
        release(&mut client, "k", "a");
        assert_eq!(grant(&again.recv()).token, b"b");
    }

    fn max_waiters_can_be_set_at_any_time(kind: Kind) {
        let server = Server::builder(kind).arg("lock.max-waiters", 0).start();
        let mut client = server.client();
        take(&mut client, "k", "a");
        for options in [["BLOCK", "0"], ["POLL", "100"]] {
            let full = acquire(&mut client, "k", "b", &options);
            assert!(full.err().starts_with("MAXWAITERS "), "{full:?}");
        }
        cmd!(client, "CONFIG", "SET", "lock.max-waiters", 3).ok();
        let stand = |token: &str| stand_with(&server, "k", token, &["BLOCK", "0", "LABEL", token]);
        let mut waiting = ["b", "c", "d"].map(stand);
        // Who waits already is not sent away.
        cmd!(client, "CONFIG", "SET", "lock.max-waiters", 1).ok();
        assert_eq!(queue(&mut client, "k"), ["b", "c", "d"]);
        let replies = client.pipeline([args!["LOCK.RELEASE", "k", "a"], args!["LOCK.RELEASE", "k", "b"]]);
        assert_eq!((replies[0].int(), replies[1].int()), (1, 1));
        let full = acquire(&mut client, "k", "e", &["BLOCK", "0"]);
        assert!(full.err().starts_with("MAXWAITERS "), "{full:?}");
        assert_eq!(grant(&waiting[1].recv()).token, b"c");
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "d").int(), -1);
        let mut last = stand_in_line(&server, "k", "e");
        eventually(SOON, || if count(&mut client, "waiting") == 1 { Ok(()) } else { Err("more") });
        release(&mut client, "k", "c");
        assert_eq!(grant(&last.recv()).token, b"e");
    }
}
