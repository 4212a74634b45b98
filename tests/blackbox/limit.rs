//! `LIMIT n`: at most n hold a lock, each permit with a token, a fence and a lease of its own. What is held and what is
//! free add up to the limit whatever happens, and the head of the line is not overtaken by somebody who would fit.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::line::{
    ask, gain, held, holds, release, served, stand_with, still_waits, take, until_count, waiters,
};
use crate::harness::{assert_left, cmd, on_every_server, Client, Kind, Server};

/// Asks for a permit with this limit, or to share, or alone, in line for ever.
fn wait<'a>(options: &[&'a str]) -> Vec<&'a str> {
    [options, &["BLOCK", "0"]].concat()
}

#[track_caller]
fn full(client: &mut Client, token: &str, options: &[&str]) {
    let reply = ask(client, "k", token, options);
    assert!(reply.is_null(), "{token} {options:?}: {reply:?}");
}

/// Numbers that look random and are the same in every run.
fn dice() -> impl FnMut(usize) -> usize {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    move |sides| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 33).expect("31 bits") % sides
    }
}

on_every_server! {
    fn held_and_free_are_the_limit_whatever_happens(kind: Kind) {
        const LIMIT: usize = 3;
        let server = Server::start(kind);
        let mut client = server.client();
        let mut roll = dice();
        let mut holders: BTreeSet<usize> = BTreeSet::new();
        for step in 0..600 {
            let (action, n) = (roll(5), roll(8));
            let token = format!("t{n}");
            match action {
                0 | 1 => {
                    let reply = ask(&mut client, "k", &token, &["LIMIT", "3"]);
                    let fits = holders.contains(&n) || holders.len() < LIMIT;
                    assert_eq!(!reply.is_null(), fits, "step {step}: {token} among {holders:?}: {reply:?}");
                    if fits {
                        holders.insert(n);
                    }
                }
                2 | 3 => {
                    // Nothing is given back that was not had: neither by a stranger nor by a second release.
                    let expected = match (holders.remove(&n), holders.is_empty()) {
                        (true, _) => 1,
                        (false, true) => 0,
                        (false, false) => -1,
                    };
                    assert_eq!(cmd!(client, "LOCK.RELEASE", "k", &token).int(), expected, "step {step}");
                }
                _ => {
                    let left = cmd!(client, "LOCK.EXTEND", "k", &token, "PX", 70_000).int();
                    assert_eq!(left > 0, holders.contains(&n), "step {step}");
                }
            }
            assert_eq!(held(&mut client, "k"), holders.len() as i64, "step {step}");
        }
    }

    fn never_more_than_the_limit_at_once(kind: Kind) {
        const LIMIT: usize = 3;
        let server = Server::start(kind);
        let (inside, rounds) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for worker in 0..8 {
                let mut client = server.client();
                let (inside, rounds) = (&inside, &rounds);
                scope.spawn(move || {
                    for round in 0..40 {
                        let token = format!("{worker}-{round}");
                        gain(&mut client, "k", &token, &["LIMIT", "3", "BLOCK", "0"]);
                        let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                        assert!(now <= LIMIT, "{now} at once");
                        // A round trip inside, so that the others come by.
                        assert!(holds(&mut client, "k", &token));
                        inside.fetch_sub(1, Ordering::SeqCst);
                        release(&mut client, "k", &token);
                        rounds.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(rounds.load(Ordering::SeqCst), 320);
        assert_eq!(cmd!(server.client(), "EXISTS", "k").int(), 0);
    }

    fn a_lapsed_permit_comes_back_by_itself_and_wakes_the_line(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        // Its lease starts when the lock is released to it, with everybody in line already.
        take(&mut client, "k", "before");
        let mut first = ["long", "dies"].map(|token| {
            let lease = if token == "dies" { "700" } else { "60000" };
            stand_with(&server, "k", token, &wait(&["LIMIT", "2", "PX", lease]))
        });
        let mut next = stand_with(&server, "k", "next", &wait(&["LIMIT", "2"]));
        let mut behind = stand_with(&server, "k", "behind", &wait(&["LIMIT", "2"]));
        let start = Instant::now();
        release(&mut client, "k", "before");
        served(&mut first[0], "long");
        served(&mut first[1], "dies");
        let granted = served(&mut next, "next");
        assert!(start.elapsed() >= Duration::from_millis(700), "its lease still ran: {:?}", start.elapsed());
        assert_eq!((granted.ttl, held(&mut client, "k")), (60_000, 2));
        still_waits(&server, &mut behind);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "dies").int(), -1, "gives back nobody's permit");
        still_waits(&server, &mut behind);
        // With nobody in line it comes back as well, without a command that asks for it.
        gain(&mut client, "idle", "long", &["LIMIT", "2"]);
        gain(&mut client, "idle", "dies", &["LIMIT", "2", "PX", "100"]);
        until_count(&mut client, "leases_ended", 2);
        assert_eq!(gain(&mut client, "idle", "next", &["LIMIT", "2"]).new, 1);
    }

    fn releasing_what_one_does_not_hold_changes_nothing(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        gain(&mut client, "k", "a", &["LIMIT", "2"]);
        gain(&mut client, "k", "b", &["LIMIT", "2"]);
        let mut next = stand_with(&server, "k", "c", &wait(&["LIMIT", "2"]));
        for _ in 0..5 {
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "stranger").int(), -1);
        }
        assert_eq!((held(&mut client, "k"), waiters(&mut client, "k")), (2, 1));
        still_waits(&server, &mut next);
        release(&mut client, "k", "a");
        served(&mut next, "c");
        for _ in 0..5 {
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), -1, "given back already");
        }
        full(&mut client, "d", &["LIMIT", "2"]);
    }

    fn the_head_of_the_line_is_not_overtaken(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for token in ["a", "b"] {
            gain(&mut client, "k", token, &["SHARED"]);
        }
        // The head wants to be the only one. Those behind it, and those who come now, would fit.
        let mut head = stand_with(&server, "k", "head", &wait(&["LIMIT", "1"]));
        let mut behind = stand_with(&server, "k", "behind", &wait(&["LIMIT", "5"]));
        release(&mut client, "k", "a");
        full(&mut client, "late", &["LIMIT", "5"]);
        full(&mut client, "late", &["SHARED"]);
        still_waits(&server, &mut behind);
        still_waits(&server, &mut head);
        release(&mut client, "k", "b");
        served(&mut head, "head");
        still_waits(&server, &mut behind);
        release(&mut client, "k", "head");
        served(&mut behind, "behind");
        assert_eq!(gain(&mut client, "k", "late", &["LIMIT", "5"]).new, 1);
    }

    fn the_smallest_limit_of_holders_and_request_counts(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let limit = |client: &mut Client| cmd!(client, "LOCK.INFO", "k").get("limit").int();
        gain(&mut client, "k", "a", &["LIMIT", "5"]);
        gain(&mut client, "k", "b", &["LIMIT", "2"]);
        assert_eq!(limit(&mut client), 2);
        for options in [&["LIMIT", "5"][..], &["SHARED"], &["LIMIT", "2"], &["LIMIT", "1"]] {
            full(&mut client, "c", options);
        }
        release(&mut client, "k", "b");
        assert_eq!(limit(&mut client), 5);
        full(&mut client, "c", &["LIMIT", "1"]);
        assert_eq!(gain(&mut client, "k", "c", &["LIMIT", "3"]).new, 1);
        assert_eq!(gain(&mut client, "k", "d", &["SHARED"]).new, 1, "SHARED is no limit");
        full(&mut client, "e", &["SHARED"]);
        release(&mut client, "k", "c");
        assert_eq!((limit(&mut client), held(&mut client, "k")), (5, 2));
        // Its own limit is that of the grant: asking again changes neither mode nor limit.
        assert_eq!(gain(&mut client, "k", "a", &["LIMIT", "1"]).new, 0);
        assert_eq!(gain(&mut client, "k", "d", &["LIMIT", "2"]).new, 0);
        assert_eq!(limit(&mut client), 5);
        // And one that takes the lock alone, one at a time, is the smallest there is.
        full(&mut client, "e", &[]);
        gain(&mut client, "alone", "a", &["LIMIT", "1"]);
        assert!(ask(&mut client, "alone", "b", &["SHARED"]).is_null());
    }

    fn a_small_limit_that_lapses_admits_more(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "before");
        let mut narrow = stand_with(&server, "k", "narrow", &wait(&["LIMIT", "2", "PX", "500"]));
        let mut wide = stand_with(&server, "k", "wide", &wait(&["LIMIT", "4"]));
        let mut line = ["c", "d", "e", "f"].map(|token| stand_with(&server, "k", token, &wait(&["LIMIT", "4"])));
        release(&mut client, "k", "before");
        served(&mut narrow, "narrow");
        served(&mut wide, "wide");
        for (token, waiter) in ["c", "d", "e"].iter().zip(&mut line) {
            served(waiter, token);
        }
        still_waits(&server, &mut line[3]);
        assert_eq!((held(&mut client, "k"), waiters(&mut client, "k")), (4, 1));
    }

    fn one_release_admits_as_many_as_fit(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "alone");
        let tokens = ["a", "b", "c", "d", "e"];
        let mut line = tokens.map(|token| stand_with(&server, "k", token, &wait(&["LIMIT", "3"])));
        release(&mut client, "k", "alone");
        assert_eq!((held(&mut client, "k"), waiters(&mut client, "k")), (3, 2));
        for n in 0..3 {
            served(&mut line[n], tokens[n]);
        }
        for (n, leaves) in [(3, "b"), (4, "a")] {
            still_waits(&server, &mut line[n]);
            release(&mut client, "k", leaves);
            served(&mut line[n], tokens[n]);
        }
        // A forced unlock ends all permits, and as many come in as fit.
        let late = ["f", "g"].map(|token| stand_with(&server, "k", token, &wait(&["LIMIT", "3"])));
        assert_eq!(cmd!(client, "DEL", "k").int(), 1);
        for (token, mut waiter) in ["f", "g"].into_iter().zip(late) {
            served(&mut waiter, token);
        }
        assert_eq!(held(&mut client, "k"), 2);
    }

    fn a_permit_is_extended_and_checked_like_any_hold(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let first = gain(&mut client, "k", "a", &["LIMIT", "2", "PX", "20000"]);
        gain(&mut client, "k", "b", &["LIMIT", "2", "PX", "30000"]);
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a").int(), 20_000);
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a", "PX", 90_000).int(), 90_000);
        assert_left(cmd!(client, "LOCK.EXTEND", "k", "a", "PX", 10).int(), 90_000);
        assert_left(cmd!(client, "LOCK.CHECK", "k", "b").int(), 30_000);
        assert_eq!(gain(&mut client, "k", "a", &["LIMIT", "2"]).fence, first.fence);
        release(&mut client, "k", "a");
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a", "PX", 90_000).int(), 0);
    }
}
