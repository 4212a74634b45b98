//! The wall clock is set under a running server, a year forward and back, in the middle of leases: each ends when its
//! time is over, no earlier and hardly later, and no fence ever goes back.

use std::time::Duration;

use crate::harness::hold::{self, ms_left, repeat, span, take};
use crate::harness::{cmd, let_pass, on_every_server, wait_in_sync, Clock, Kind, Server, DAY_US, YEAR_US};
use crate::replication::agree;

const LEASE_MS: u64 = 900;
const LONG_MS: u64 = 600_000;
const GUARD_TICKS: i64 = 1_000_000;

const LATE: Duration = Duration::from_millis(800);

/// Steps of years within leases; each has its own lock, and one lock sees them all.
#[track_caller]
fn leases_ignore(kind: Kind, steps_years: &[i64]) {
    let clock = Clock::new();
    let server = Server::builder(kind).clock(&clock).arg("appendonly", "yes").start();
    let mut client = server.client();
    take(&mut client, "throughout", "t", LONG_MS);
    for &years in steps_years {
        let (_, start) = span(|| take(&mut client, "k", "t", LEASE_MS));
        clock.step(years * YEAR_US);
        let left = ms_left(&mut client, "k", "t");
        assert!((1..=900).contains(&left), "{left} ms left after {years} years");
        assert!(hold::acquire(&mut client, "k", "other", LONG_MS).is_null());
        start.ends_within(&mut client, "k", LEASE_MS, LATE);
        let left = ms_left(&mut client, "throughout", "t");
        assert!((500_000..600_000).contains(&left), "{left} ms left after {years} years");
    }
    let extended = cmd!(client, "LOCK.EXTEND", "throughout", "t", "PX", 2 * LONG_MS).int();
    assert!((1_199_000..=1_200_000).contains(&extended), "{extended} ms");
}

on_every_server! {
    // redis#416, redis#217, valkey#2651: a jump of the wall clock ends every lock.
    fn c62_a_step_forward_ends_no_lease(kind: Kind) {
        leases_ignore(kind, &[1]);
    }

    // valkey#4345: while the clock goes back or stands, nothing ends.
    fn c62_a_step_back_prolongs_no_lease(kind: Kind) {
        leases_ignore(kind, &[-1]);
    }

    fn steps_there_and_back_leave_leases_alone(kind: Kind) {
        leases_ignore(kind, &[1, -2, 2]);
    }

    /// Back and forth within one lease, while nothing but the cron runs in between.
    fn many_steps_in_one_lease(kind: Kind) {
        let clock = Clock::new();
        let server = Server::builder(kind).clock(&clock).start();
        let mut client = server.client();
        let (_, start) = span(|| take(&mut client, "k", "t", 1500));
        for years in [1, -2, 1, -1, 2, -1] {
            clock.step(years * YEAR_US);
            let_pass(Duration::from_millis(100));
        }
        assert!(ms_left(&mut client, "k", "t") > 0);
        start.ends_within(&mut client, "k", 1500, LATE);
    }

    fn fences_never_go_back_with_the_clock(kind: Kind) {
        let clock = Clock::new();
        let server = Server::builder(kind).clock(&clock).start();
        let mut client = server.client();
        let mut last = take(&mut client, "k", "t", LONG_MS).fence;
        for step in [YEAR_US, -YEAR_US, -YEAR_US, DAY_US, -DAY_US, -YEAR_US] {
            clock.step(step);
            assert_eq!(repeat(&mut client, "k", "t", 1000).fence, last, "a repeat keeps its fence");
            for _ in 0..3 {
                assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "t").int(), 1);
                let next = take(&mut client, "k", "t", LONG_MS).fence;
                assert!(next > last, "{next} after {last}, step {step}");
                last = next;
            }
        }
    }

    /// Each server has a clock of its own, and they disagree by years.
    fn a_promoted_replica_with_another_clock_keeps_leases_and_fences(kind: Kind) {
        for years in [1, -1] {
            let clock = Clock::new();
            let mut primary = Server::start(kind);
            let replica = Server::builder(kind).clock(&clock).start();
            clock.step(years * YEAR_US);
            replica.replica_of(&primary);
            let mut client = primary.client();
            let taken = take(&mut client, "k", "t", 2 * LEASE_MS);
            let other = take(&mut client, "other", "t", LONG_MS);
            agree(&primary, &replica);
            clock.step(-2 * years * YEAR_US);
            wait_in_sync(&primary, &replica);
            primary.kill9();
            let mut client = replica.client();
            let ((), promoted) = span(|| replica.promote());
            assert!(ms_left(&mut client, "k", "t") > 0, "{years} years");
            promoted.ends_within(&mut client, "k", 2 * LEASE_MS, LATE);
            let next = take(&mut client, "k", "t", LONG_MS);
            assert!(next.fence > taken.fence.max(other.fence) + GUARD_TICKS, "{years} years: {next:?}");
        }
    }

    fn a_restart_on_a_clock_a_year_off_keeps_leases(kind: Kind) {
        let clock = Clock::new();
        let mut server = Server::builder(kind).clock(&clock).arg("appendonly", "yes").start();
        let mut last = 0;
        for years in [1, -2] {
            let taken = take(&mut server.client(), "k", "t", LEASE_MS);
            assert!(taken.fence > last, "{taken:?} after {last}");
            server.shutdown_nosave();
            clock.step(years * YEAR_US);
            let ((), loaded) = span(|| server.restart());
            let mut client = server.client();
            assert!(ms_left(&mut client, "k", "t") > 0, "{years} years");
            assert_eq!(hold::fence(&mut client, "k"), taken.fence);
            loaded.ends_within(&mut client, "k", LEASE_MS, LATE);
            let next = take(&mut client, "k2", "t", 1);
            assert!(next.fence > taken.fence + GUARD_TICKS, "{next:?} after {taken:?}");
            last = next.fence;
        }
    }
}
