//! Standing in line: first come, first served; a release hands over in its own command and nothing barges past a line.
//! How waits end otherwise is in the files beside this one, how punctual they are in `waiting_time.rs`.

use std::time::Duration;

use crate::harness::line::{
    count, holds, queue, release, send_acquire, stand_in_line, stand_with, still_waits, take, take_for, until_count,
    waiters,
};
use crate::harness::{args, cmd, eventually, grant, on_every_server, send, Kind, Server};

const SOON: Duration = Duration::from_secs(5);
/// Long enough for a reply that must not come to come.
const A_MOMENT: Duration = Duration::from_millis(60);

on_every_server! {
    fn waiters_are_served_in_order_of_arrival(kind: Kind) {
        let server = Server::start(kind);
        let mut admin = server.client();
        let mut fence = take(&mut admin, "k", "first").fence;
        let tokens: Vec<String> = (0..20).map(|n| format!("t{n}")).collect();
        let waiting: Vec<_> = tokens.iter().map(|token| stand_in_line(&server, "k", token)).collect();
        let mut holder = "first".to_owned();
        for (token, mut waiter) in tokens.into_iter().zip(waiting) {
            still_waits(&server, &mut waiter);
            release(&mut admin, "k", &holder);
            let granted = grant(&waiter.recv());
            assert_eq!((granted.token, granted.new), (token.clone().into_bytes(), 1));
            assert!(granted.fence > fence, "{} after {fence}", granted.fence);
            (fence, holder) = (granted.fence, token);
        }
        release(&mut admin, "k", &holder);
        assert!(cmd!(admin, "LOCK.INFO", "k").is_null());
    }

    fn a_release_hands_over_in_its_own_command(kind: Kind) {
        let server = Server::start(kind);
        let mut admin = server.client();
        take(&mut admin, "k", "a");
        let mut waiter = stand_in_line(&server, "k", "b");
        // All of it is one read of the server, and no pump can run in between.
        let replies = admin.pipeline([
            args!["LOCK.RELEASE", "k", "a"],
            args!["LOCK.CHECK", "k", "b"],
            args!["EXISTS", "k"],
            args!["LOCK.ACQUIRE", "k", "TOKEN", "c"],
            args!["LOCK.RELEASE", "k", "a"],
        ]);
        assert_eq!(replies[0].int(), 1);
        assert!(replies[1].int() > 0, "{replies:?}");
        assert_eq!(replies[2].int(), 1, "the lock is never free in between");
        assert!(replies[3].is_null(), "{replies:?}");
        assert_eq!(replies[4].int(), -1);
        assert_eq!(grant(&waiter.recv()).token, b"b");
    }

    fn nothing_barges_past_a_line_in_multi(kind: Kind) {
        let server = Server::start(kind);
        let mut admin = server.client();
        take(&mut admin, "k", "a");
        let mut waiter = stand_in_line(&server, "k", "b");
        cmd!(admin, "MULTI").ok();
        for command in [
            args!["LOCK.RELEASE", "k", "a"],
            args!["LOCK.ACQUIRE", "k", "TOKEN", "c", "BLOCK", 0],
            args!["LOCK.CHECK", "k", "b"],
        ] {
            assert!(admin.cmd(&command).is("QUEUED"));
        }
        let done = cmd!(admin, "EXEC");
        assert_eq!(done.array()[0].int(), 1);
        assert!(done.array()[1].is_null(), "{done:?}");
        assert!(done.array()[2].int() > 0, "{done:?}");
        assert_eq!(grant(&waiter.recv()).token, b"b");
    }

    fn nothing_barges_past_a_line_in_a_script(kind: Kind) {
        let server = Server::start(kind);
        let mut admin = server.client();
        let script = "local freed = redis.call('LOCK.RELEASE', KEYS[1], 'a') \
            local got = redis.call('LOCK.ACQUIRE', KEYS[1], 'TOKEN', 'c') \
            return {freed, got and 'barged' or 'refused', redis.call('LOCK.CHECK', KEYS[1], 'b')}";
        take(&mut admin, "k", "a");
        let mut waiter = stand_in_line(&server, "k", "b");
        let done = cmd!(admin, "EVAL", script, 1, "k");
        assert_eq!((done.array()[0].int(), done.array()[1].text()), (1, "refused".into()));
        assert!(done.array()[2].int() > 0, "{done:?}");
        assert_eq!(grant(&waiter.recv()).token, b"b");
    }

    fn nothing_barges_past_a_line_from_another_connection(kind: Kind) {
        let server = Server::start(kind);
        let (mut admin, mut barger) = (server.client(), server.client());
        take(&mut admin, "k", "a");
        let mut waiter = stand_in_line(&server, "k", "b");
        // What came in while it was stopped, the server reads in one turn of its loop.
        server.sigstop();
        send!(admin, "LOCK.RELEASE", "k", "a");
        send_acquire(&mut barger, "k", "c", &[]);
        server.sigcont();
        assert_eq!(admin.recv().int(), 1);
        assert!(barger.recv().is_null());
        assert_eq!(grant(&waiter.recv()).token, b"b");
    }

    fn a_lapsed_lease_goes_to_the_head_of_the_line_not_to_who_comes(kind: Kind) {
        let server = Server::start(kind);
        let (mut admin, mut comer) = (server.client(), server.client());
        take_for(&mut admin, "k", "a", 500);
        let mut waiter = stand_in_line(&server, "k", "b");
        // The lease ends while the server is stopped: commands come before timers in the next turn.
        server.sigstop();
        send_acquire(&mut comer, "k", "c", &[]);
        assert_eq!(waiter.try_recv(Duration::from_millis(550)), None);
        server.sigcont();
        assert!(comer.recv().is_null());
        assert_eq!(grant(&waiter.recv()).token, b"b");
    }

    fn a_command_on_another_key_hands_nothing_over_early(kind: Kind) {
        let server = Server::start(kind);
        let mut admin = server.client();
        for key in ["k", "l"] {
            take(&mut admin, key, "a");
        }
        let mut on_k = stand_in_line(&server, "k", "b");
        let mut on_l = stand_in_line(&server, "l", "c");
        release(&mut admin, "l", "a");
        assert_eq!(grant(&on_l.recv()).token, b"c");
        assert_eq!(on_k.try_recv(A_MOMENT), None);
        release(&mut admin, "k", "a");
        assert_eq!(grant(&on_k.recv()).token, b"b");
    }

    fn databases_have_lines_of_their_own(kind: Kind) {
        let server = Server::start(kind);
        let (mut zero, mut one) = (server.client(), server.client());
        cmd!(one, "SELECT", 1).ok();
        take(&mut zero, "k", "a");
        take(&mut one, "k", "a2");
        let mut waiter = server.client();
        cmd!(waiter, "SELECT", 1).ok();
        send_acquire(&mut waiter, "k", "b", &["BLOCK", "0"]);
        eventually(SOON, || if waiters(&mut one, "k") == 1 { Ok(()) } else { Err("not in line") });
        assert_eq!(waiters(&mut zero, "k"), 0);
        release(&mut zero, "k", "a");
        assert_eq!(waiter.try_recv(A_MOMENT), None);
        release(&mut one, "k", "a2");
        assert_eq!(grant(&waiter.recv()).token, b"b");
    }

    fn a_transaction_over_databases_hands_over_in_each(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        cmd!(client, "SELECT", 3).ok();
        take(&mut client, "k", "a");
        let mut waiting = ["0", "3"].map(|db| {
            let mut waiter = server.client();
            cmd!(waiter, "SELECT", db).ok();
            send_acquire(&mut waiter, "k", &format!("in {db}"), &["BLOCK", "0"]);
            waiter
        });
        until_count(&mut client, "waiting", 2);
        // Queued with one database selected, run with another.
        client.pipeline([
            args!["MULTI"],
            args!["SELECT", 0],
            args!["LOCK.RELEASE", "k", "a"],
            args!["LOCK.ACQUIRE", "k", "TOKEN", "c"],
            args!["SELECT", 3],
            args!["LOCK.RELEASE", "k", "a"],
            args!["LOCK.ACQUIRE", "free", "TOKEN", "in 3", "PX", 150],
            args!["SELECT", 7],
            args!["EXEC"],
        ]);
        for (waiter, token) in waiting.iter_mut().zip(["in 0", "in 3"]) {
            assert_eq!(grant(&waiter.recv()).token, token.as_bytes());
            assert_eq!(cmd!(waiter, "LOCK.RELEASE", "k", token).int(), 1);
        }
        // What was taken there ends there.
        until_count(&mut client, "held", 0);
        assert!(!cmd!(client, "INFO", "keyspace").text().contains("keys="));
    }

    fn a_lock_that_is_moved_in_a_transaction_ends_where_it_went(kind: Kind) {
        let server = Server::start(kind);
        let (mut client, mut there) = (server.client(), server.client());
        cmd!(there, "SELECT", 1).ok();
        take_for(&mut client, "k", "a", 300);
        client.pipeline([args!["MULTI"], args!["MOVE", "k", 1], args!["EXEC"]]);
        assert!(holds(&mut there, "k", "a"));
        let mut waiter = server.client();
        cmd!(waiter, "SELECT", 1).ok();
        send_acquire(&mut waiter, "k", "b", &["BLOCK", "0"]);
        assert_eq!(grant(&waiter.recv()).token, b"b");
        assert_eq!(cmd!(client, "EXISTS", "k").int(), 0);
    }

    fn keys_and_tokens_of_any_bytes_wait(kind: Kind) {
        let server = Server::start(kind);
        let mut admin = server.client();
        let (key, holder, token) = (b"k\0\xff\r\n%n", b"\0\xfe", b"%s\0\x80\n");
        grant(&cmd!(admin, "LOCK.ACQUIRE", key, "TOKEN", holder));
        let mut waiter = server.client();
        send!(waiter, "LOCK.ACQUIRE", key, "TOKEN", token, "BLOCK", 0);
        let in_line = |seen: i64| if seen == 1 { Ok(()) } else { Err(seen) };
        eventually(SOON, || in_line(cmd!(admin, "LOCK.INFO", key).get("waiters").int()));
        assert_eq!(cmd!(admin, "LOCK.RELEASE", key, holder).int(), 1);
        assert_eq!(grant(&waiter.recv()).token, token);
        assert_eq!(cmd!(admin, "LOCK.RELEASE", key, token).int(), 1);
    }

    fn a_try_joins_no_line_and_a_free_lock_needs_none(kind: Kind) {
        let server = Server::start(kind);
        let mut admin = server.client();
        let granted = grant(&cmd!(admin, "LOCK.ACQUIRE", "k", "TOKEN", "a", "BLOCK", 0));
        assert_eq!((granted.waited, granted.new), (0, 1));
        assert!(cmd!(admin, "LOCK.ACQUIRE", "k", "TOKEN", "b").is_null());
        assert_eq!((waiters(&mut admin, "k"), count(&mut admin, "waited")), (0, 0));
        // A holder that asks with BLOCK has its grant again.
        let again = grant(&cmd!(admin, "LOCK.ACQUIRE", "k", "TOKEN", "a", "BLOCK", 0));
        assert_eq!((again.fence, again.waited, again.new), (granted.fence, 0, 0));
    }

    fn a_try_by_a_waiting_token_changes_nothing(kind: Kind) {
        let server = Server::start(kind);
        let mut admin = server.client();
        take(&mut admin, "k", "a");
        let mut waiter = stand_with(&server, "k", "b", &["BLOCK", "0", "LABEL", "b"]);
        let _behind = stand_with(&server, "k", "c", &["BLOCK", "0", "LABEL", "c"]);
        assert!(cmd!(admin, "LOCK.ACQUIRE", "k", "TOKEN", "b").is_null());
        assert_eq!(queue(&mut admin, "k"), ["b", "c"]);
        release(&mut admin, "k", "a");
        assert_eq!(grant(&waiter.recv()).token, b"b");
        assert!(!holds(&mut admin, "k", "c"));
    }

    fn commands_behind_a_wait_run_after_it(kind: Kind) {
        let server = Server::start(kind);
        let mut admin = server.client();
        take(&mut admin, "k", "a");
        let mut waiter = stand_in_line(&server, "k", "b");
        send!(waiter, "LOCK.RELEASE", "k", "b");
        send!(waiter, "PING");
        assert_eq!(waiter.try_recv(A_MOMENT), None);
        release(&mut admin, "k", "a");
        assert_eq!(grant(&waiter.recv()).token, b"b");
        assert_eq!(waiter.recv().int(), 1);
        assert!(waiter.recv().is("PONG"));
    }

    fn a_waiting_resp3_connection_gets_its_own_types(kind: Kind) {
        let server = Server::start(kind);
        let (mut admin, mut waiter) = (server.client(), server.resp3_client());
        take(&mut admin, "k", "a");
        send_acquire(&mut waiter, "k", "b", &["BLOCK", "30"]);
        assert_eq!(format!("{:?}", waiter.recv()), "_");
        send_acquire(&mut waiter, "k", "b", &["BLOCK", "0"]);
        eventually(SOON, || if waiters(&mut admin, "k") == 1 { Ok(()) } else { Err("not in line") });
        release(&mut admin, "k", "a");
        assert_eq!(grant(&waiter.recv()).token, b"b");
        let mut old = server.client();
        send_acquire(&mut old, "k", "c", &["BLOCK", "30"]);
        assert_eq!(format!("{:?}", old.recv()), "*-1");
    }

    fn waits_that_make_no_sense_are_refused(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        for (words, error) in [
            (args!["BLOCK", 0], "ERR BLOCK and POLL need TOKEN"),
            (args!["POLL", 100], "ERR BLOCK and POLL need TOKEN"),
            (args!["TOKEN", "b", "BLOCK", -1], "ERR BLOCK at argument 5 takes a number from 0 to "),
            (args!["TOKEN", "b", "BLOCK", "9223372036854775808"], "ERR BLOCK at argument 5 takes a number from 0 to "),
            (args!["TOKEN", "b", "BLOCK", "soon"], "ERR BLOCK at argument 5 takes a number from 0 to "),
            (args!["TOKEN", "b", "POLL", 0], "ERR POLL at argument 5 takes a number from 1 to 10000"),
            (args!["TOKEN", "b", "POLL", 10_001], "ERR POLL at argument 5 takes a number from 1 to 10000"),
            (args!["TOKEN", "b", "BLOCK", 1, "POLL", 1], "ERR syntax error at argument 6"),
            (args!["TOKEN", "b", "BLOCK", 1, "BLOCK", 1], "ERR syntax error at argument 6"),
            (args!["TOKEN", "b", "BLOCK"], "ERR syntax error at argument 4: BLOCK needs a value"),
        ] {
            let reply = client.cmd(&[args!["LOCK.ACQUIRE", "k"], words].concat());
            assert!(reply.err().starts_with(error), "{reply:?}, expected {error}");
        }
        assert_eq!(waiters(&mut client, "k"), 0);
    }

    fn a_hand_over_is_seen_by_watch_and_a_wait_is_not(kind: Kind) {
        let server = Server::start(kind);
        let (mut admin, mut watcher) = (server.client(), server.client());
        take(&mut admin, "k", "a");
        let mut transact = || {
            cmd!(watcher, "MULTI").ok();
            assert!(cmd!(watcher, "SET", "seen", 1).is("QUEUED"));
            let committed = !cmd!(watcher, "EXEC").is_null();
            cmd!(watcher, "WATCH", "k").ok();
            committed
        };
        transact();
        let _waiter = stand_in_line(&server, "k", "b");
        assert!(cmd!(admin, "LOCK.ACQUIRE", "k", "TOKEN", "c").is_null());
        assert!(transact(), "nobody's hold changed");
        release(&mut admin, "k", "a");
        assert!(!transact(), "the holder changed");
    }

    /// In RESP3 a connection that is subscribed may send any command.
    fn a_subscribed_connection_waits_or_is_told_that_it_cannot(kind: Kind) {
        let server = Server::start(kind);
        let mut admin = server.client();
        take(&mut admin, "k", "a");
        for subscribe in ["SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"] {
            let mut waiter = server.resp3_client();
            send!(waiter, subscribe, "news");
            assert_eq!(waiter.recv_push().array()[0].text(), subscribe.to_lowercase());
            send_acquire(&mut waiter, "k", "b", &["BLOCK", "0"]);
            if kind.is_valkey() {
                let refused = "ERR this server lets no subscribed connection wait: BLOCK on another one, or POLL";
                assert_eq!(waiter.recv().err(), refused);
            } else {
                until_count(&mut admin, "waiting", 1);
                release(&mut admin, "k", "a");
                assert_eq!(grant(&waiter.recv()).token, b"b");
                release(&mut admin, "k", "b");
                take(&mut admin, "k", "a");
            }
            assert_eq!((count(&mut admin, "waiting"), waiters(&mut admin, "k")), (0, 0));
            assert!(cmd!(waiter, "LOCK.ACQUIRE", "k", "TOKEN", "b", "POLL", 1).is_null());
            assert_eq!(cmd!(waiter, "LOCK.RELEASE", "k", "b").int(), -1);
        }
    }

    fn a_hand_over_publishes_both_its_sides(kind: Kind) {
        let server = Server::builder(kind).arg("notify-keyspace-events", "Kd").start();
        let (mut admin, mut listener) = (server.client(), server.resp3_client());
        send!(listener, "SUBSCRIBE", "__keyspace@0__:k");
        assert_eq!(listener.recv_push().array()[0].text(), "subscribe");
        take(&mut admin, "k", "a");
        let _waiting = [stand_with(&server, "k", "b", &["PX", "50", "BLOCK", "0"]), stand_in_line(&server, "k", "c")];
        release(&mut admin, "k", "a");
        let events = ["acquired", "released", "acquired", "expired", "acquired"];
        for event in events {
            assert_eq!(listener.recv_push().array()[2].text(), format!("lock.{event}"), "of {events:?}");
        }
    }
}
