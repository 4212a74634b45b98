//! The options for waiting, for modes and for nested, capped and connection-bound holds, as they are typed: which
//! values they take, what excludes what, and what an option needs beside it. What they do is tested elsewhere.

use crate::harness::{args, cmd, grant, on_every_server, Client, Kind, Server};

const LEASE_MS_MAX: &str = "315360000000";

/// An option with a number: its bounds, and the option that is there in any case.
const NUMBERS: &[(&str, &str, &str)] = &[
    ("BLOCK", "0", LEASE_MS_MAX),
    ("POLL", "1", "10000"),
    ("LIMIT", "1", "4294967295"),
    ("MAXHOLD", "1", LEASE_MS_MAX),
];

const NO_NUMBERS: &[&str] =
    &["", " ", "x", "-1", "-", "+1", "01", "1.0", "1e3", "0x10", "1 ", "1\0", "9223372036854775808", "\u{661}"];

/// What may not be combined or repeated, behind `LOCK.ACQUIRE k TOKEN a`, and the error.
const CONFLICTS: &[(&[&str], &str)] = &[
    (&["BLOCK", "1", "BLOCK", "1"], "ERR syntax error at argument 6: give BLOCK or POLL only once"),
    (&["BLOCK", "1", "POLL", "1"], "ERR syntax error at argument 6: give BLOCK or POLL only once"),
    (&["POLL", "1", "SHARED", "BLOCK", "0"], "ERR syntax error at argument 7: give BLOCK or POLL only once"),
    (&["SHARED", "SHARED"], "ERR syntax error at argument 5: give SHARED or LIMIT only once"),
    (&["SHARED", "LIMIT", "3"], "ERR syntax error at argument 5: give SHARED or LIMIT only once"),
    (&["LIMIT", "3", "SHARED"], "ERR syntax error at argument 6: give SHARED or LIMIT only once"),
    (&["LIMIT", "3", "LIMIT", "3"], "ERR syntax error at argument 6: give SHARED or LIMIT only once"),
    (&["UPGRADE", "UPGRADE"], "ERR syntax error at argument 5: give UPGRADE or DOWNGRADE only once"),
    (&["SHARED", "DOWNGRADE", "UPGRADE"], "ERR syntax error at argument 6: give UPGRADE or DOWNGRADE only once"),
    (&["HOLD", "h", "HOLD", "i"], "ERR syntax error at argument 6: give HOLD only once"),
    (&["EPHEMERAL", "ephemeral"], "ERR syntax error at argument 5: give EPHEMERAL only once"),
    (&["MAXHOLD", "9", "MAXHOLD", "9"], "ERR syntax error at argument 6: give MAXHOLD only once"),
    (&["UPGRADE", "SHARED"], "ERR UPGRADE makes a hold exclusive: leave SHARED and LIMIT out"),
    (&["LIMIT", "3", "UPGRADE"], "ERR UPGRADE makes a hold exclusive: leave SHARED and LIMIT out"),
    (&["DOWNGRADE"], "ERR DOWNGRADE makes a hold shared: add SHARED or LIMIT n"),
    (&["DOWNGRADE", "BLOCK", "0"], "ERR DOWNGRADE makes a hold shared: add SHARED or LIMIT n"),
    (&["EPHEMERAL", "POLL", "9"], "ERR EPHEMERAL goes with BLOCK, not with POLL: a poll keeps no connection"),
    (&["POLL", "9", "EPHEMERAL"], "ERR EPHEMERAL goes with BLOCK, not with POLL: a poll keeps no connection"),
    // SET's words stay what they are beside the new ones.
    (&["BLOCK", "0", "NX"], "ERR NX is implied, leave it out"),
    (&["SHARED", "XX"], "ERR XX is what LOCK.EXTEND does, use that"),
];

const WAIT_NEEDS_TOKEN: &str = "ERR BLOCK and POLL need TOKEN token, a random one: sent again, it keeps its place";
const TURN_NEEDS_TOKEN: &str = "ERR UPGRADE and DOWNGRADE need TOKEN token: that of the hold";

/// Behind `LOCK.ACQUIRE k`, without a token.
const TOKENLESS: &[(&[&str], &str)] = &[
    (&["BLOCK", "0"], WAIT_NEEDS_TOKEN),
    (&["BLOCK", "5000", "PX", "9"], WAIT_NEEDS_TOKEN),
    (&["POLL", "100"], WAIT_NEEDS_TOKEN),
    (&["UPGRADE"], TURN_NEEDS_TOKEN),
    (&["SHARED", "DOWNGRADE"], TURN_NEEDS_TOKEN),
];

#[track_caller]
fn assert_refused(client: &mut Client, args: &[&str], expected: &str) {
    let reply = client.cmd(args);
    assert_eq!(reply.err(), expected, "{args:?}");
}

fn acquire<'a>(options: &[&'a str]) -> Vec<&'a str> {
    [&["LOCK.ACQUIRE", "k", "TOKEN", "a"], options].concat()
}

on_every_server! {
    fn numbers_are_whole_and_within_bounds(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for (option, min, max) in NUMBERS {
            let min_number: i64 = min.parse().expect("a number");
            let max_number: i64 = max.parse().expect("a number");
            let (below, above) = ((min_number - 1).to_string(), (max_number + 1).to_string());
            let expected = format!("ERR {option} at argument 5 takes a number from {min} to {max}");
            for wrong in NO_NUMBERS.iter().copied().chain([&*below, &*above]) {
                assert_refused(&mut client, &acquire(&[option, wrong]), &expected);
            }
            let bare = format!("ERR syntax error at argument 4: {option} needs a value");
            assert_refused(&mut client, &acquire(&[option]), &bare);
            assert_eq!(cmd!(client, "DBSIZE").int(), 0);
            for right in [min, max] {
                assert_eq!(grant(&client.cmd(&acquire(&[option, right]))).new, 1, "{option} {right}");
                // A hold of one ms can be over by now.
                cmd!(client, "DEL", "k").int();
            }
        }
    }

    fn a_floor_is_a_fence(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let held = grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a")).fence;
        let expected = "ERR FENCE at argument 4 takes a number from 1 to 9007199254740991";
        for wrong in NO_NUMBERS.iter().copied().chain(["0", "9007199254740992"]) {
            assert_refused(&mut client, &["LOCK.EXTEND", "k", "a", "FENCE", wrong], expected);
        }
        let ahead = "ERR the floor is more than a day ahead of the clock";
        assert_refused(&mut client, &["LOCK.EXTEND", "k", "a", "FENCE", "9007199254740991"], ahead);
        for (floor, fence) in [(1, held), (held, held), (held + 5, held + 5), (held + 4, held + 5)] {
            assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a", "fence", floor, "PX", 60_000).int(), 60_000);
            assert_eq!(cmd!(client, "LOCK.INFO", "k").get("fence").int(), fence, "floor {floor}");
        }
    }

    fn the_name_of_a_hold_has_1_to_64_bytes(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for wrong in [vec![], vec![b'h'; 65]] {
            let reply = cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "HOLD", &wrong);
            assert_eq!(reply.err(), "ERR hold at argument 5 must have 1 to 64 bytes");
            let reply = cmd!(client, "LOCK.RELEASE", "k", "a", "HOLD", wrong);
            assert_eq!(reply.err(), "ERR hold at argument 4 must have 1 to 64 bytes");
        }
        for right in [b"\0".to_vec(), vec![0xff; 64]] {
            grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "HOLD", &right));
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a", "HOLD", right).int(), 1);
        }
        assert_eq!(cmd!(client, "DBSIZE").int(), 0);
    }

    fn what_excludes_each_other_is_refused(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for (options, expected) in CONFLICTS {
            assert_refused(&mut client, &acquire(options), expected);
        }
        for (options, expected) in TOKENLESS {
            assert_refused(&mut client, &[&["LOCK.ACQUIRE", "k"], *options].concat(), expected);
        }
        assert_eq!(cmd!(client, "DBSIZE").int(), 0);
    }

    fn all_options_that_go_together_do_in_any_order_and_case(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let options: [&[&str]; 8] = [
            &["tOkEn", "a"], &["pX", "60000"], &["bLoCk", "0"], &["lImIt", "3"], &["hOlD", "h"], &["ePhEmErAl"],
            &["mAxHoLd", "5000"], &["lAbEl", "BLOCK"],
        ];
        for first in 0..options.len() {
            for step in [1, 3, 5, 7] {
                let order = (0..options.len()).map(|n| options[(first + n * step) % options.len()]);
                let words = [vec!["LOCK.ACQUIRE", "k"], order.flatten().copied().collect()].concat();
                let granted = grant(&client.cmd(&words));
                assert_eq!((&granted.token[..], granted.ttl, granted.new), (&b"a"[..], 5_000, 1), "{words:?}");
                let info = cmd!(client, "LOCK.INFO", "k");
                assert_eq!((info.get("mode").text(), info.get("limit").int()), ("shared".to_owned(), 3), "{words:?}");
                let holder = &info.get("holders").array()[0];
                assert_eq!((holder.get("holds").int(), holder.get("ephemeral").int()), (1, 1), "{words:?}");
                assert_eq!(holder.get("label").text(), "BLOCK");
                assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a", "hold", "h").int(), 1, "{words:?}");
            }
        }
    }

    fn a_mode_is_changed_by_its_holder_only_and_when_said(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let not_held = "NOTHELD this token does not hold the lock: acquire it first";
        let down: [&[&str]; 2] = [&["SHARED", "DOWNGRADE"], &["LIMIT", "3", "DOWNGRADE"]];
        for turn in [&["UPGRADE"][..], &["UPGRADE", "BLOCK", "0"], down[0], down[1]] {
            assert_refused(&mut client, &acquire(turn), not_held);
            grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "other"));
            assert_refused(&mut client, &acquire(turn), not_held);
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "other").int(), 1);
        }
        grant(&client.cmd(&acquire(&["SHARED"])));
        let shares = "ERR this token shares the lock: add UPGRADE to have it alone";
        assert_refused(&mut client, &acquire(&[]), shares);
        assert_refused(&mut client, &acquire(&["BLOCK", "0"]), shares);
        assert_eq!(cmd!(client, "LOCK.INFO", "k").get("mode").text(), "shared");
        assert_eq!(grant(&client.cmd(&acquire(&["UPGRADE"]))).new, 1);
        assert_eq!(grant(&client.cmd(&acquire(&["SHARED"]))).new, 0, "stays exclusive");
        assert_eq!(cmd!(client, "LOCK.INFO", "k").get("mode").text(), "exclusive");
        grant(&client.cmd(&acquire(&["SHARED", "DOWNGRADE"])));
        assert_eq!(cmd!(client, "LOCK.INFO", "k").get("mode").text(), "shared");
    }

    fn a_hold_is_bound_to_a_connection_where_there_is_one(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let no_connection = "ERR EPHEMERAL needs a connection: scripts and modules have none";
        let script = "return redis.pcall('LOCK.ACQUIRE', KEYS[1], 'TOKEN', 'a', 'EPHEMERAL').err";
        let told = cmd!(client, "EVAL", script, 1, "k");
        assert_eq!(told.text(), no_connection);
        assert_eq!(cmd!(client, "DBSIZE").int(), 0);
        cmd!(client, "MULTI").ok();
        assert!(client.cmd(&acquire(&["EPHEMERAL"])).is("QUEUED"));
        let done = cmd!(client, "EXEC");
        assert_eq!(grant(&done.array()[0]).new, 1);
        assert_eq!(cmd!(client, "LOCK.INFO", "k").get("holders").array()[0].get("ephemeral").int(), 1);
    }

    fn a_token_names_at_most_a_thousand_holds(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let holds = (0..1_000).map(|n| args!["LOCK.ACQUIRE", "k", "TOKEN", "a", "HOLD", n.to_string()]);
        assert!(client.pipeline(holds).iter().all(|reply| grant(reply).new == 1));
        let full = "ERR a token may have at most 1000 named holds of one lock";
        assert_refused(&mut client, &acquire(&["HOLD", "one more"]), full);
        assert_eq!(grant(&client.cmd(&acquire(&["HOLD", "999"]))).new, 0);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a", "HOLD", "7").int(), 1);
        assert_eq!(grant(&client.cmd(&acquire(&["HOLD", "one more"]))).new, 1);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), 1);
        assert_eq!(cmd!(client, "DBSIZE").int(), 0);
    }
}
