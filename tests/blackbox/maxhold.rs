//! `MAXHOLD ms`: no extension and no repeat carries a hold past its grant + ms. The replies tell what is left, and
//! neither a restart nor a failover starts it anew.

use std::time::{Duration, Instant};

use crate::harness::hold::{span, Span};
use crate::harness::line::{
    ask, count, gain, held, release, served, stand_in_line, stand_with, take, until_count, until_held,
};
use crate::harness::{assert_left, cmd, let_pass, on_every_server, wait_in_sync, Client, Kind, Reply, Server};

const LONG: u64 = 600_000;

/// What is left if everything is asked for.
#[track_caller]
fn most(client: &mut Client, key: &str, token: &str) -> i64 {
    cmd!(client, "LOCK.EXTEND", key, token, "PX", LONG).int()
}

/// Extends all the time until the hold is over. Each reply tells that it got less than it asked for.
#[track_caller]
fn heartbeat(client: &mut Client, key: &str, token: &str, cap_ms: i64) {
    let start = Instant::now();
    let mut last = cap_ms;
    loop {
        match most(client, key, token) {
            0 => return,
            left => {
                assert!(left <= last, "{left} ms left after {last}");
                last = left;
            }
        }
        assert!(start.elapsed() < Duration::from_secs(20), "it goes on for ever");
        let_pass(Duration::from_millis(20));
    }
}

#[track_caller]
fn over(client: &mut Client, span: &Span, cap_ms: u64) {
    let held = span.0.start().elapsed();
    assert!(held >= Duration::from_millis(cap_ms - 1), "it was over after {held:?}");
    assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a").int(), 0);
}

on_every_server! {
    fn no_extension_and_no_repeat_carries_it_further(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let granted = gain(&mut client, "k", "a", &["PX", "10000", "MAXHOLD", "40000"]);
        assert_eq!(granted.ttl, 10_000, "the lease is what was asked for");
        assert_left(most(&mut client, "k", "a"), 40_000);
        for options in [&["PX", "60000"][..], &["PX", "60000", "MAXHOLD", "90000"], &["PX", "80000", "SHARED"]] {
            let again = gain(&mut client, "k", "a", options);
            assert_left(again.ttl, 40_000);
            assert_eq!(again.new, 0);
        }
        // A lease longer than the cap is cut at the grant.
        assert_eq!(gain(&mut client, "cut", "a", &["PX", "60000", "MAXHOLD", "20000"]).ttl, 20_000);
        assert_left(cmd!(client, "LOCK.INFO", "cut").get("ttl-ms").int(), 20_000);
        // A repeat can make it tighter, not so far as to take back what was promised.
        assert_left(gain(&mut client, "k", "a", &["MAXHOLD", "1"]).ttl, 40_000);
        gain(&mut client, "tight", "a", &["PX", "10000", "MAXHOLD", "90000"]);
        assert_left(gain(&mut client, "tight", "a", &["MAXHOLD", "30000"]).ttl, 30_000);
        assert_left(most(&mut client, "tight", "a"), 30_000);
        // One that had none gets one.
        take(&mut client, "plain", "a");
        gain(&mut client, "plain", "a", &["MAXHOLD", "70000"]);
        assert_left(most(&mut client, "plain", "a"), 70_000);
    }

    // RedLock.net#68, redisson#5115: a watchdog that lives extends the lock of a worker that does not, for ever.
    fn c34_no_heartbeat_carries_a_hold_past_its_cap(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "before");
        let mut hangs = stand_with(&server, "k", "a", &["PX", "1200", "MAXHOLD", "2000", "BLOCK", "0"]);
        let mut next = stand_in_line(&server, "k", "b");
        let ((), start) = span(|| release(&mut client, "k", "before"));
        assert_eq!(served(&mut hangs, "a").ttl, 1200);
        heartbeat(&mut client, "k", "a", 2000);
        over(&mut client, &start, 2000);
        served(&mut next, "b");
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a").int(), 0);
        assert_eq!(count(&mut client, "leases_ended"), 1);
    }

    fn it_counts_from_the_grant_not_from_the_request(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "before");
        let mut next = stand_with(&server, "k", "a", &["PX", "600000", "MAXHOLD", "30000", "BLOCK", "0"]);
        let_pass(Duration::from_millis(200));
        release(&mut client, "k", "before");
        let granted = served(&mut next, "a");
        assert!(granted.waited >= 200 && granted.ttl == 30_000, "{granted:?}");
    }

    fn each_of_those_who_share_has_its_own(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        gain(&mut client, "k", "a", &["SHARED", "PX", "10000", "MAXHOLD", "20000"]);
        gain(&mut client, "k", "b", &["SHARED", "PX", "10000"]);
        gain(&mut client, "k", "c", &["SHARED", "PX", "10000", "MAXHOLD", "300"]);
        assert_left(most(&mut client, "k", "a"), 20_000);
        assert_eq!(most(&mut client, "k", "b"), 600_000);
        until_held(&mut client, "k", 2);
        assert_eq!(most(&mut client, "k", "c"), 0);
        // In its last ms a hold is lapsed for its holder, and still stands in the way of an upgrade.
        until_count(&mut client, "leases_ended", 1);
        // Neither a change of mode nor a further hold is a way around it.
        release(&mut client, "k", "b");
        for options in [&["UPGRADE"][..], &["SHARED", "DOWNGRADE"], &["SHARED", "HOLD", "more"]] {
            let again = gain(&mut client, "k", "a", &[options, &["PX", "90000"]].concat());
            assert_left(again.ttl, 20_000);
        }
        assert_left(most(&mut client, "k", "a"), 20_000);
    }

    fn a_restart_does_not_start_it_anew(kind: Kind) {
        for save in ["snapshot", "append-only file", "rewritten"] {
            let aof = if save == "snapshot" { "no" } else { "yes" };
            let preamble = if save == "rewritten" { "no" } else { "yes" };
            let mut server = Server::builder(kind).arg("appendonly", aof).arg("appendfsync", "always")
                .arg("aof-use-rdb-preamble", preamble).start();
            let mut client = server.client();
            gain(&mut client, "k", "a", &["PX", "600000", "MAXHOLD", "60000"]);
            gain(&mut client, "short", "a", &["PX", "600000", "MAXHOLD", "4000"]);
            let_pass(Duration::from_millis(1000));
            match save {
                "snapshot" => server.shutdown_save(),
                "rewritten" => {
                    crate::restart::rewrite_aof(&mut client);
                    server.kill9();
                }
                _ => {
                    // The file has what was left at the last change of the holder.
                    gain(&mut client, "k", "a", &["HOLD", "one more"]);
                    gain(&mut client, "short", "a", &["HOLD", "one more"]);
                    server.kill9();
                }
            }
            let ((), loaded) = span(|| server.restart());
            let mut client = server.client();
            let left = most(&mut client, "k", "a");
            assert!((40_000..=59_000).contains(&left), "{save}: {left} ms left of the cap");
            // Of four seconds at least one is gone.
            loaded.ends_within(&mut client, "short", 1, Duration::from_millis(3000 + 700));
        }
    }

    fn a_failover_does_not_start_it_anew(kind: Kind) {
        let (mut primary, replica) = (Server::start(kind), Server::start(kind));
        replica.replica_of(&primary);
        let mut client = primary.client();
        gain(&mut client, "k", "a", &["PX", "600000", "MAXHOLD", "60000"]);
        gain(&mut client, "k2", "a", &["SHARED", "PX", "600000", "MAXHOLD", "60000"]);
        wait_in_sync(&primary, &replica);
        let_pass(Duration::from_millis(1000));
        let mut below = replica.client();
        for key in ["k", "k2"] {
            let left = cmd!(below, "LOCK.CHECK", key, "a").int();
            assert!((40_000..=59_000).contains(&left), "no more is left on a replica than the cap allows: {left}");
        }
        primary.kill9();
        replica.promote();
        for key in ["k", "k2"] {
            let left = most(&mut below, key, "a");
            assert!((40_000..=59_000).contains(&left), "{key}: {left} ms left of the cap");
            assert!(ask(&mut below, key, "b", &[]).is_null());
        }
        assert_eq!((held(&mut below, "k"), count(&mut below, "held")), (1, 2));
    }

    fn a_cap_that_is_over_ends_the_hold_on_the_new_primary(kind: Kind) {
        let (mut primary, replica) = (Server::start(kind), Server::start(kind));
        replica.replica_of(&primary);
        gain(&mut primary.client(), "k", "a", &["PX", "600000", "MAXHOLD", "1500"]);
        gain(&mut primary.client(), "seen", "x", &[]);
        wait_in_sync(&primary, &replica);
        primary.kill9();
        let_pass(Duration::from_millis(1700));
        let mut client = replica.client();
        assert!(cmd!(client, "LOCK.INFO", "k").is_null(), "nothing of it is left");
        assert_eq!(cmd!(client, "EXISTS", "k"), Reply::Int(1), "but a replica ends nothing by itself");
        let (_, promoted) = span(|| replica.promote());
        promoted.ends(&mut client, "k", 0);
        assert_eq!(gain(&mut client, "k", "b", &[]).new, 1);
    }
}
