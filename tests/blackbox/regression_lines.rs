//! Failures that users of other lock systems reported about fair queues and about cancelling, one test each, named by
//! its number in the project's list of cases. The report is named above each test.

use std::time::Duration;

use crate::harness::line::{
    count, queue, release, send_acquire, stand_in_line, stand_with, still_waits, take, take_for, until_count, waiters,
};
use crate::harness::{cmd, eventually, grant, on_every_server, timed, Client, Clock, Cluster, Kind, Server, SECOND_US};

const SOON: Duration = Duration::from_secs(5);

on_every_server! {
    // redisson#2278, #2883: of 300 to 500 threads on a fair lock only about 100 complete.
    fn c17_five_hundred_waiters_finish_in_order(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "t0");
        let mut waiting: Vec<Client> = (0..500).map(|_| server.client()).collect();
        // In groups, since arrivals on two connections have no order of their own.
        for (n, waiter) in waiting.iter_mut().enumerate() {
            send_acquire(waiter, "k", &format!("t{}", n + 1), &["BLOCK", "0"]);
            until_count(&mut client, "waiting", n as i64 + 1);
        }
        let mut fence = 0;
        for (n, waiter) in waiting.iter_mut().enumerate() {
            release(&mut client, "k", &format!("t{n}"));
            let granted = grant(&waiter.recv());
            assert_eq!(granted.token, format!("t{}", n + 1).into_bytes());
            assert!(granted.fence > fence);
            fence = granted.fence;
        }
        release(&mut client, "k", "t500");
        assert_eq!((count(&mut client, "held"), count(&mut client, "handed_over")), (0, 500));
    }

    // redisson#3730: the holder's lease ends without an unlock, and the second thread waits its whole timeout.
    fn c19_a_line_of_two_outlives_holders_that_die(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take_for(&mut client, "k", "dead", 400);
        let mut first = stand_with(&server, "k", "dies too", &["PX", "300", "BLOCK", "0"]);
        let mut second = stand_in_line(&server, "k", "b");
        let first = grant(&first.recv());
        let (second, took) = timed(|| grant(&second.recv()));
        assert!(first.waited <= 500, "{first:?}");
        assert!(second.fence > first.fence && took < Duration::from_millis(500), "{second:?} after {took:?}");
        assert_eq!(count(&mut client, "leases_ended"), 2);
    }

    // redisson#5019, PR#7223: a client that gives up stays in the queue.
    fn c21_a_client_that_is_gone_is_out_of_the_line(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let mut waiting: Vec<Client> = (0..20).map(|n| stand_in_line(&server, "k", &format!("t{n}"))).collect();
        for left in (0..20).rev() {
            // From the head, the middle and the end.
            waiting.remove(left % (waiting.len()));
            let ((), took) = timed(|| until_count(&mut client, "waiting", left as i64));
            assert!(took < Duration::from_secs(1), "{took:?}");
        }
        assert_eq!(waiters(&mut client, "k"), 0);
        release(&mut client, "k", "a");
        assert!(cmd!(client, "LOCK.INFO", "k").is_null());
    }

    // Fair queues that judge waiters by a client's clock: one client 20 minutes ahead removes the others.
    fn c22_no_wall_clock_moves_anybody(kind: Kind) {
        let clock = Clock::new();
        let server = Server::builder(kind).clock(&clock).start();
        let mut client = server.client();
        take(&mut client, "k", "a");
        let stand = |token: &str| stand_with(&server, "k", token, &["BLOCK", "60000", "LABEL", token]);
        let mut waiting = ["b", "c", "d"].map(stand);
        for minutes in [20, -40, 20] {
            clock.step(minutes * 60 * SECOND_US);
            eventually(SOON, || if queue(&mut client, "k") == ["b", "c", "d"] { Ok(()) } else { Err("moved") });
            still_waits(&server, &mut waiting[0]);
        }
        for (waiter, (holder, token)) in waiting.iter_mut().zip([("a", "b"), ("b", "c"), ("c", "d")]) {
            release(&mut client, "k", holder);
            assert_eq!(grant(&waiter.recv()).token, token.as_bytes());
        }
    }

    // factcast#1794: the code ignored the longest wait and blocked for ever.
    fn c38_for_ever_has_to_be_asked_for(kind: Kind) {
        let server = Server::start(kind);
        let (mut client, mut waiter) = (server.client(), server.client());
        take(&mut client, "k", "a");
        // Nothing said: no wait. A time: that long. Only 0 is for ever.
        assert!(cmd!(waiter, "LOCK.ACQUIRE", "k", "TOKEN", "b").is_null());
        let (told, took) = timed(|| cmd!(waiter, "LOCK.ACQUIRE", "k", "TOKEN", "b", "BLOCK", 80));
        assert!(told.is_null() && took >= Duration::from_millis(80), "{told:?} after {took:?}");
        send_acquire(&mut waiter, "k", "b", &["BLOCK", "0"]);
        assert_eq!(waiter.try_recv(Duration::from_millis(400)), None);
        assert_eq!(waiters(&mut client, "k"), 1);
        release(&mut client, "k", "a");
        assert_eq!(grant(&waiter.recv()).token, b"b");
    }

    // coredis#222: leaving a lock hangs now and then in a cluster.
    fn c69_a_release_in_a_cluster_never_hangs(kind: Kind) {
        let cluster = Cluster::start(kind, 2);
        let mut nodes = [0, 1].map(|node| (cluster.client(node), cluster.client(node)));
        let keys: Vec<(String, usize)> = (0..8).map(|n| format!("k{n}")).map(|key| (key.clone(), cluster.owner(&key)))
            .collect();
        assert!(keys.iter().any(|(_, owner)| *owner == 0) && keys.iter().any(|(_, owner)| *owner == 1));
        for round in 0..400 {
            let (key, owner) = &keys[round % keys.len()];
            let (holder, waiter) = &mut nodes[*owner];
            take(holder, key, "a");
            send_acquire(waiter, key, "b", &["BLOCK", "0"]);
            release(holder, key, "a");
            assert_eq!(grant(&waiter.recv()).token, b"b");
            release(waiter, key, "b");
        }
    }

    // apache/curator#835, redisson#7272, spring#11049: an interrupt in the middle of an acquire breaks the lock.
    fn c82_a_cancel_at_any_moment_of_an_acquire_leaves_no_trace(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let mut fence = 0;
        for round in 0..200 {
            fence = take_after(&mut client, fence);
            let (mut cancelled, mut next) = (server.client(), server.client());
            let id = cancelled.id();
            send_acquire(&mut cancelled, "k", "c", &["BLOCK", "0"]);
            send_acquire(&mut next, "k", "n", &["BLOCK", "0"]);
            // Before, with and after the release; by the client itself, by its retry and by somebody else.
            let cancel = round % 5;
            if cancel == 0 {
                drop(cancelled);
                release(&mut client, "k", "a");
            } else {
                client.send(&["LOCK.RELEASE", "k", "a"]);
                match cancel {
                    1 => drop(cancelled),
                    2 => client.send(&["CLIENT", "KILL", "ID", &id.to_string()]),
                    3 => client.send(&["LOCK.RELEASE", "k", "c"]),
                    _ => client.send(&["CLIENT", "UNBLOCK", &id.to_string(), "ERROR"]),
                }
                assert_eq!(client.recv().int(), 1, "round {round}");
                if cancel > 1 {
                    client.recv().int();
                }
            }
            // Whoever cancelled gives back what it may have got without knowing, again if its command comes late.
            let told = eventually(SOON, || {
                assert!(!cmd!(client, "LOCK.RELEASE", "k", "c").is_error());
                next.try_recv(Duration::ZERO).ok_or(format!("round {round}, cancel {cancel}"))
            });
            assert_eq!(grant(&told).token, b"n", "round {round}, cancel {cancel}");
            release(&mut client, "k", "n");
            until_count(&mut client, "waiting", 0);
        }
        // A command of a connection that closed may have come only now.
        eventually(SOON, || match cmd!(client, "LOCK.RELEASE", "k", "c").int() {
            0 if count(&mut client, "held") == 0 => Ok(()),
            other => Err(other),
        });
    }
}

/// Takes the lock under a fence above the last one.
fn take_after(client: &mut Client, fence: i64) -> i64 {
    let granted = eventually(SOON, || {
        // An ACQUIRE that was on its way when its connection closed may have been granted meanwhile.
        cmd!(client, "LOCK.RELEASE", "k", "c");
        let reply = cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a");
        if reply.is_null() {
            Err("held")
        } else {
            Ok(grant(&reply))
        }
    });
    assert!(granted.fence > fence, "{} after {fence}", granted.fence);
    granted.fence
}
