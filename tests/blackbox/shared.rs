//! `SHARED`: many hold a lock, each with a token, a fence and a lease of its own. Readers in line come in together, and
//! no reader gets past a writer that waits.

use std::time::{Duration, Instant};

use crate::harness::hold::span;
use crate::harness::line::{
    ask, count, gain, held, holds, mode, queue, release, served, stand_with, still_waits, take, until_count,
    until_held, waiters,
};
use crate::harness::{args, assert_left, cmd, grant, on_every_server, Client, Kind, Reply, Server};

const READER: &[&str] = &["SHARED", "BLOCK", "0"];
const WRITER: &[&str] = &["BLOCK", "0"];

#[track_caller]
fn refused(client: &mut Client, token: &str) {
    let reply = ask(client, "k", token, &["SHARED"]);
    assert!(reply.is_null(), "{token}: {reply:?}");
}

on_every_server! {
    fn each_has_a_token_a_fence_and_a_lease_of_its_own(kind: Kind) {
        let server = Server::start(kind);
        for (mut client, key) in [(server.client(), "two"), (server.resp3_client(), "three")] {
            let leases = [("a", "60000"), ("b", "90000"), ("c", "70000")];
            let fences: Vec<i64> =
                leases.iter().map(|(token, ms)| gain(&mut client, key, token, &["SHARED", "PX", ms]).fence).collect();
            assert!(fences.is_sorted_by(|before, after| before < after), "{fences:?}");
            let info = cmd!(client, "LOCK.INFO", key);
            assert_eq!((info.get("mode").text(), info.get("held").int()), ("shared".to_owned(), 3));
            assert_eq!((info.get("limit").int(), info.get("fence").int()), (0, fences[2]));
            assert_left(info.get("ttl-ms").int(), 90_000);
            let shown: Vec<i64> = info.get("holders").array().iter().map(|holder| holder.get("fence").int()).collect();
            assert_eq!(shown, fences);
            for (token, ms) in leases {
                assert_left(cmd!(client, "LOCK.CHECK", key, token).int(), ms.parse().expect("a number"));
            }
            // EXTEND and RELEASE act on one of them.
            assert_eq!(cmd!(client, "LOCK.EXTEND", key, "a", "PX", 80_000).int(), 80_000);
            assert_left(cmd!(client, "LOCK.CHECK", key, "c").int(), 70_000);
            release(&mut client, key, "b");
            assert_eq!((held(&mut client, key), holds(&mut client, key, "b")), (2, false));
            assert_left(cmd!(client, "LOCK.INFO", key).get("ttl-ms").int(), 80_000);
            assert_eq!(cmd!(client, "LOCK.RELEASE", key, "b").int(), -1, "the others hold it");
            release(&mut client, key, "a");
            release(&mut client, key, "c");
            assert_eq!(cmd!(client, "EXISTS", key).int(), 0);
        }
    }

    fn a_short_reader_never_shortens_a_long_one(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for (key, first, second) in [("short first", "short", "long"), ("long first", "long", "short")] {
            for token in [first, second] {
                gain(&mut client, key, token, &["SHARED", "PX", if token == "short" { "200" } else { "60000" }]);
            }
            until_held(&mut client, key, 1);
            assert_left(cmd!(client, "LOCK.CHECK", key, "long").int(), 60_000);
            assert_eq!(cmd!(client, "LOCK.EXTEND", key, "short").int(), 0, "what lapsed stays lapsed");
            assert!(ask(&mut client, key, "writer", &[]).is_null());
        }
        // Without a command that would see to it: two ended by themselves, and both locks are there.
        until_count(&mut client, "leases_ended", 2);
        assert_eq!(count(&mut client, "held"), 2);
    }

    fn the_lock_frees_itself_when_the_last_lease_ends(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let (_, start) = span(|| gain(&mut client, "k", "long", &["SHARED", "PX", "900"]));
        gain(&mut client, "k", "short", &["SHARED", "PX", "200"]);
        start.ends(&mut client, "k", 900);
        assert_eq!(count(&mut client, "leases_ended"), 2);
    }

    fn a_writer_that_waits_stops_readers_that_come_later(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let readers: Vec<String> = (0..10).map(|n| format!("r{n}")).collect();
        for reader in &readers {
            gain(&mut client, "k", reader, &["SHARED"]);
        }
        let mut writer = stand_with(&server, "k", "w", WRITER);
        let mut late = stand_with(&server, "k", "late", READER);
        // Each comes back at once, as a service under load would: the lock is never free by luck.
        for reader in &readers {
            refused(&mut client, "stranger");
            release(&mut client, "k", reader);
            refused(&mut client, reader);
        }
        let granted = served(&mut writer, "w");
        still_waits(&server, &mut late);
        refused(&mut client, "stranger");
        release(&mut client, "k", "w");
        assert!(served(&mut late, "late").fence > granted.fence);
    }

    fn readers_at_the_head_of_the_line_are_let_in_together(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let mut together = ["r1", "r2", "r3"].map(|token| stand_with(&server, "k", token, READER));
        let mut writer = stand_with(&server, "k", "w", WRITER);
        let mut last = ["r4", "r5"].map(|token| stand_with(&server, "k", token, READER));
        release(&mut client, "k", "a");
        // One release let all three in, before anything else was done.
        assert_eq!((held(&mut client, "k"), waiters(&mut client, "k")), (3, 3));
        let fences: Vec<i64> =
            ["r1", "r2", "r3"].iter().zip(&mut together).map(|(token, waiter)| served(waiter, token).fence).collect();
        assert!(fences.is_sorted_by(|before, after| before < after), "in order of arrival: {fences:?}");
        for reader in ["r2", "r1"] {
            release(&mut client, "k", reader);
            still_waits(&server, &mut writer);
        }
        release(&mut client, "k", "r3");
        served(&mut writer, "w");
        last.iter_mut().for_each(|waiter| still_waits(&server, waiter));
        release(&mut client, "k", "w");
        assert_eq!((held(&mut client, "k"), waiters(&mut client, "k")), (2, 0));
        for (token, waiter) in ["r4", "r5"].iter().zip(&mut last) {
            served(waiter, token);
        }
    }

    fn a_writer_that_leaves_lets_the_readers_behind_it_in(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for way in ["it closes", "it is killed", "it withdraws", "its wait ends"] {
            gain(&mut client, "k", "a", &["SHARED"]);
            let mut writer = server.client();
            let id = writer.id();
            let wait = ["BLOCK", if way == "its wait ends" { "1500" } else { "0" }];
            writer.send(&[&["LOCK.ACQUIRE", "k", "TOKEN", "w"], &wait[..]].concat());
            until_count(&mut client, "waiting", 1);
            let mut behind = ["r1", "r2"].map(|token| stand_with(&server, "k", token, READER));
            match way {
                "it closes" => drop(writer),
                "it is killed" => assert_eq!(cmd!(client, "CLIENT", "KILL", "ID", id).int(), 1),
                "it withdraws" => assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "w").int(), -1),
                _ => assert!(writer.recv().is_null()),
            }
            for (token, waiter) in ["r1", "r2"].iter().zip(&mut behind) {
                served(waiter, token);
            }
            assert_eq!(held(&mut client, "k"), 3, "{way}");
            assert_eq!(cmd!(client, "DEL", "k").int(), 1);
        }
    }

    fn the_last_lease_that_ends_lets_the_writer_in(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "before");
        let mut dies = stand_with(&server, "k", "dies", &["SHARED", "PX", "700", "BLOCK", "0"]);
        let mut long = stand_with(&server, "k", "long", READER);
        let mut writer = stand_with(&server, "k", "w", WRITER);
        let start = Instant::now();
        release(&mut client, "k", "before");
        served(&mut dies, "dies");
        served(&mut long, "long");
        release(&mut client, "k", "long");
        assert_eq!(served(&mut writer, "w").ttl, 60_000);
        assert!(start.elapsed() >= Duration::from_millis(700), "before the lease was over: {:?}", start.elapsed());
        assert_eq!((count(&mut client, "leases_ended"), count(&mut client, "handed_over")), (1, 3));
    }

    fn a_holder_is_served_ahead_of_any_line(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let first = gain(&mut client, "k", "a", &["SHARED", "PX", "20000"]);
        let mut writer = stand_with(&server, "k", "w", WRITER);
        for options in [&["SHARED"][..], READER, &["SHARED", "POLL", "100"], &["LIMIT", "7"]] {
            let again = gain(&mut client, "k", "a", options);
            assert_eq!((again.fence, again.new, again.waited), (first.fence, 0, 0), "{options:?}");
        }
        assert_eq!((waiters(&mut client, "k"), cmd!(client, "LOCK.INFO", "k").get("limit").int()), (1, 0));
        still_waits(&server, &mut writer);
        // Sent again and again it still is one hold.
        release(&mut client, "k", "a");
        served(&mut writer, "w");
    }

    fn readers_that_poll_stand_in_the_same_line(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        assert!(ask(&mut client, "k", "p", &["SHARED", "POLL", "10000", "LABEL", "p"]).is_null());
        let mut blocked = stand_with(&server, "k", "r", &["SHARED", "BLOCK", "0", "LABEL", "r"]);
        let mut writer = stand_with(&server, "k", "w", &["BLOCK", "0", "LABEL", "w"]);
        assert!(ask(&mut client, "k", "q", &["SHARED", "POLL", "10000", "LABEL", "q"]).is_null());
        assert_eq!(queue(&mut client, "k"), ["p", "r", "w", "q"]);
        release(&mut client, "k", "a");
        served(&mut blocked, "r");
        let fetched = gain(&mut client, "k", "p", &["SHARED", "POLL", "10000"]);
        assert_eq!((fetched.ttl, fetched.new), (60_000, 1));
        assert!(ask(&mut client, "k", "q", &["SHARED", "POLL", "10000"]).is_null(), "behind the writer");
        release(&mut client, "k", "p");
        release(&mut client, "k", "r");
        served(&mut writer, "w");
        release(&mut client, "k", "w");
        assert_eq!(gain(&mut client, "k", "q", &["SHARED", "POLL", "10000"]).new, 1);
    }

    fn releasing_what_one_does_not_hold_changes_nothing(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        gain(&mut client, "k", "a", &["SHARED"]);
        gain(&mut client, "k", "b", &["SHARED"]);
        let mut writer = stand_with(&server, "k", "w", WRITER);
        let before = cmd!(client, "DEBUG", "DIGEST").text();
        for _ in 0..3 {
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "stranger").int(), -1);
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a", "HOLD", "none").int(), 0);
            assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "stranger", "PX", 80_000).int(), 0);
        }
        assert_eq!((held(&mut client, "k"), cmd!(client, "DEBUG", "DIGEST").text()), (2, before));
        still_waits(&server, &mut writer);
    }

    fn a_thousand_readers_come_and_go(kind: Kind) {
        const COUNT: usize = 1000;
        let server = Server::start(kind);
        let mut client = server.client();
        let token = |n: usize| [b"\0\xff", n.to_string().as_bytes()].concat();
        let acquire = |n| args!["LOCK.ACQUIRE", "k", "TOKEN", token(n), "PX", 60_000, "SHARED"];
        assert!(client.pipeline((0..COUNT).map(acquire)).iter().all(|reply| grant(reply).new == 1));
        let info = cmd!(client, "LOCK.INFO", "k");
        assert_eq!((info.get("held").int(), info.get("holders").array().len()), (1000, 10));
        let mut writer = stand_with(&server, "k", "w", WRITER);
        // In an order that is neither that of the grants nor the reverse: 7 and 1000 have no divisor in common.
        let leave = |n: usize| args!["LOCK.RELEASE", "k", token(n * 7 % COUNT)];
        assert!(client.pipeline((0..COUNT - 1).map(leave)).iter().all(|reply| reply.int() == 1));
        still_waits(&server, &mut writer);
        assert_eq!(client.cmd(&leave(COUNT - 1)).int(), 1);
        served(&mut writer, "w");
        assert_eq!((mode(&mut client, "k"), held(&mut client, "k")), ("exclusive".to_owned(), 1));
    }

    fn they_are_shared_in_transactions_and_scripts_too(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'TOKEN', ARGV[1], 'SHARED', 'BLOCK', '0')";
        gain(&mut client, "k", "a", &["SHARED"]);
        assert_eq!(grant(&cmd!(client, "EVAL", script, 1, "k", "b")).new, 1);
        cmd!(client, "MULTI").ok();
        for words in [&["LOCK.ACQUIRE", "k", "TOKEN", "c", "SHARED"][..], &["LOCK.RELEASE", "k", "a"]] {
            assert!(client.cmd(words).is("QUEUED"));
        }
        let done = cmd!(client, "EXEC");
        assert_eq!((grant(&done.array()[0]).new, done.array()[1].int()), (1, 1));
        let _writer = stand_with(&server, "k", "w", WRITER);
        assert!(cmd!(client, "EVAL", script, 1, "k", "d").is_null(), "not past the writer");
        assert_eq!(held(&mut client, "k"), 2);
    }

    fn each_holder_has_its_events(kind: Kind) {
        let server = Server::builder(kind).arg("notify-keyspace-events", "Ed").start();
        let mut listener = server.client();
        assert_eq!(cmd!(listener, "PSUBSCRIBE", "__keyevent@0__:*").array().len(), 3);
        let mut client = server.client();
        gain(&mut client, "k", "a", &["SHARED"]);
        gain(&mut client, "k", "b", &["SHARED", "PX", "100"]);
        assert!(ask(&mut client, "k", "w", &[]).is_null());
        until_count(&mut client, "leases_ended", 1);
        assert_eq!(held(&mut client, "k"), 1);
        release(&mut client, "k", "a");
        for expected in ["acquired", "acquired", "expired", "released"] {
            let heard: Reply = listener.recv();
            assert_eq!(heard.array()[2].text(), format!("__keyevent@0__:lock.{expected}"));
        }
    }
}
