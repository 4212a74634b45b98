//! How punctual waiting is: hand-overs at lease end, waits that end, what `ttl` and `waited` say. The machine may be
//! busy, so lateness is judged by the best and the middle one of several rounds, never by a single one; nothing is ever
//! allowed to be early.

use std::time::Duration;

use crate::harness::line::{
    count, release, send_acquire, stand_in_line, stand_with, take, take_for, until_count, waiters,
};
use crate::harness::{cmd, grant, on_every_server, send, timed, Client, Clock, Kind, Server, HOUR_US};

const ROUNDS: usize = 9;
/// What the timer and the way back take on an idle machine.
const BEST_LATE: Duration = Duration::from_millis(4);
/// The server's own block timeouts are 50 ms late in the middle; a busy machine must not reach that.
const MIDDLE_LATE: Duration = Duration::from_millis(25);

/// Runs `action` several times; each run lasts `due` and then little more.
#[track_caller]
fn punctual(due: Duration, mut action: impl FnMut(usize)) {
    let mut late: Vec<Duration> = (0..ROUNDS)
        .map(|round| {
            let ((), took) = timed(|| action(round));
            took.checked_sub(due).unwrap_or_else(|| panic!("early: {took:?}, due after {due:?}"))
        })
        .collect();
    late.sort_unstable();
    assert!(late[0] <= BEST_LATE && late[ROUNDS / 2] <= MIDDLE_LATE, "late by {late:?}");
}

on_every_server! {
    fn a_lease_that_ends_goes_to_the_next_on_time(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        punctual(Duration::from_millis(120), |round| {
            let key = format!("k{round}");
            let mut waiter = server.client();
            take_for(&mut client, &key, "dead", 120);
            send_acquire(&mut waiter, &key, "b", &["BLOCK", "0"]);
            assert_eq!(grant(&waiter.recv()).token, b"b");
        });
    }

    fn a_wait_ends_on_time_and_with_null(kind: Kind) {
        let server = Server::start(kind);
        let (mut client, mut waiter) = (server.client(), server.client());
        take(&mut client, "k", "a");
        punctual(Duration::from_millis(70), |_| {
            send_acquire(&mut waiter, "k", "b", &["BLOCK", "70"]);
            assert!(waiter.recv().is_null());
        });
        assert_eq!(waiters(&mut client, "k"), 0);
        assert_eq!(count(&mut client, "waits_ended_empty"), ROUNDS as i64);
    }

    fn waits_end_in_the_order_of_their_own_ends(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let mut long = stand_with(&server, "k", "long", &["BLOCK", "1500"]);
        let mut short = stand_with(&server, "k", "short", &["BLOCK", "60"]);
        assert!(short.recv().is_null());
        assert_eq!(long.try_recv(Duration::ZERO), None);
        assert_eq!(waiters(&mut client, "k"), 1);
        assert!(long.recv().is_null());
    }

    fn a_thousand_waits_that_end_at_once_all_end(kind: Kind) {
        let server = Server::builder(kind).arg("maxclients", 3000).start();
        let mut client = server.client();
        take(&mut client, "k", "a");
        let mut waiting: Vec<Client> = (0..1000).map(|_| server.client()).collect();
        for (n, waiter) in waiting.iter_mut().enumerate() {
            send_acquire(waiter, "k", &format!("t{n}"), &["BLOCK", "300"]);
        }
        assert!(waiting.iter_mut().all(|waiter| waiter.recv().is_null()));
        assert_eq!((count(&mut client, "waiting"), count(&mut client, "waits_ended_empty")), (0, 1000));
    }

    fn a_wait_for_ever_outlasts_other_waits(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let mut forever = stand_in_line(&server, "k", "b");
        for n in 0..3 {
            assert!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", format!("t{n}"), "BLOCK", 120).is_null());
        }
        assert_eq!(forever.try_recv(Duration::ZERO), None);
        release(&mut client, "k", "a");
        assert_eq!(grant(&forever.recv()).token, b"b");
    }

    fn the_lease_starts_at_the_grant(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take_for(&mut client, "k", "a", 600);
        let ((granted, left), took) = timed(|| {
            let mut waiter = server.client();
            send_acquire(&mut waiter, "k", "b", &["PX", "800", "BLOCK", "0"]);
            let granted = grant(&waiter.recv());
            (granted, cmd!(client, "LOCK.CHECK", "k", "b").int())
        });
        assert_eq!((granted.ttl, granted.new), (800, 1));
        let took = i64::try_from(took.as_millis()).expect("a short time");
        assert!(granted.waited <= took && granted.waited > 300, "waited {} of {took}", granted.waited);
        // Had it started when the command came, less than 500 ms were left.
        assert!(left > 500 && left <= 800, "{left} ms left");
        // Its own lease ends it.
        until_count(&mut client, "held", 0);
        assert_eq!(count(&mut client, "leases_ended"), 2);
    }

    fn waited_is_the_time_from_receipt_to_grant(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for wait_ms in [0_i64, 40, 150] {
            take(&mut client, "k", "a");
            let mut waiter = server.client();
            let (granted, took) = timed(|| {
                send_acquire(&mut waiter, "k", "b", &["BLOCK", "0"]);
                until_count(&mut client, "waiting", 1);
                assert_eq!(waiter.try_recv(Duration::from_millis(wait_ms.unsigned_abs())), None);
                release(&mut client, "k", "a");
                grant(&waiter.recv())
            });
            let took = i64::try_from(took.as_millis()).expect("a short time");
            assert!((wait_ms..=took).contains(&granted.waited), "waited {}, {wait_ms} to {took}", granted.waited);
            release(&mut client, "k", "b");
        }
    }

    fn the_own_clock_of_a_client_suffices(kind: Kind) {
        let server = Server::start(kind);
        let (mut client, mut waiter) = (server.client(), server.client());
        take_for(&mut client, "k", "a", 100);
        // The contract, but for the rounding of three numbers: the lock is the client's until the time it sent its command, plus waited, plus ttl.
        let ((granted, left), elapsed) = timed(|| {
            let granted = grant(&cmd!(waiter, "LOCK.ACQUIRE", "k", "TOKEN", "b", "PX", 500, "BLOCK", 0));
            (granted, cmd!(waiter, "LOCK.CHECK", "k", "b").int())
        });
        // Rounded up, as the server rounds what is left down.
        let elapsed = i64::try_from(elapsed.as_micros().div_ceil(1_000)).expect("a short time");
        let mine_for = granted.waited + granted.ttl - elapsed;
        assert!(mine_for <= left + 1, "by its own clock {mine_for} ms are left, by the server's {left}");
    }

    fn waits_and_leases_end_on_time_while_the_wall_clock_steps(kind: Kind) {
        let clock = Clock::new();
        let server = Server::builder(kind).clock(&clock).start();
        let mut client = server.client();
        take(&mut client, "held", "a");
        for step in [HOUR_US, -2 * HOUR_US, HOUR_US] {
            take_for(&mut client, "k", "a", 300);
            let mut heir = stand_in_line(&server, "k", "b");
            let mut patient = stand_with(&server, "held", "c", &["BLOCK", "300"]);
            clock.step(step);
            // Timers that were set by the old time are made anew by the server's cron, ten times a second.
            let (granted, took) = timed(|| grant(&heir.recv()));
            assert!(took < Duration::from_millis(1500), "took {took:?} at a step of {step}");
            assert!((150..1500).contains(&granted.waited), "waited {} at a step of {step}", granted.waited);
            assert!(patient.recv().is_null());
            release(&mut client, "k", "b");
        }
    }

    fn a_hand_over_needs_no_timer(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let mut waiter = stand_in_line(&server, "k", "b");
        let mut late: Vec<Duration> = Vec::new();
        for round in 0..ROUNDS {
            let (holder, next) = if round % 2 == 0 { ("a", "b") } else { ("b", "a") };
            let ((), took) = timed(|| {
                release(&mut client, "k", holder);
                assert_eq!(grant(&waiter.recv()).token, next.as_bytes());
            });
            late.push(took);
            send!(waiter, "LOCK.ACQUIRE", "k", "TOKEN", holder, "PX", 60_000, "BLOCK", 0);
            until_count(&mut client, "waiting", 1);
        }
        late.sort_unstable();
        assert!(late[0] < Duration::from_millis(2), "{late:?}");
    }
}
