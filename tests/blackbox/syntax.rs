//! Wrong things people type, and what they are told: what is wrong, where, and how to put it right, never the value.
//! And the right things in every order and case. The values of waiting and of the modes, and what goes together, are in
//! `options`.

use crate::harness::{cmd, grant, on_every_server, Client, Kind, Reply, Server};

/// A command line and its error.
type Wrong = (&'static [&'static str], &'static str);

const ACQUIRE_OPTIONS: &str =
    "options are TOKEN, PX, EX, BLOCK, POLL, SHARED, LIMIT, HOLD, UPGRADE, DOWNGRADE, EPHEMERAL, MAXHOLD and LABEL";
const EXTEND_OPTIONS: &str = "after the key and the token come PX ms, EX s or FENCE floor";
const RELEASE_OPTIONS: &str = "after the key and the token, without the word TOKEN, comes HOLD id";
const NUMBERS: &str = "numbers need their word, as in PX ms, EX s or BLOCK ms, and tokens are given as TOKEN token";
const NOT_INTEGER: &str = "is not an integer or out of range";

const WRONG_ACQUIRES: &[Wrong] = &[
    (&["LOCK.ACQUIRE", "k", "tok"], "ERR syntax error at argument 2: tokens are given as TOKEN token"),
    (&["LOCK.ACQUIRE", "k", "tok", "PX", "9"], "ERR syntax error at argument 2: tokens are given as TOKEN token"),
    (&["LOCK.ACQUIRE", "k", ""], "ERR syntax error at argument 2: tokens are given as TOKEN token"),
    (&["LOCK.ACQUIRE", "k", "TOKEN"], "ERR syntax error at argument 2: TOKEN needs a value"),
    (&["LOCK.ACQUIRE", "k", "PX"], "ERR syntax error at argument 2: PX needs a value"),
    (&["LOCK.ACQUIRE", "k", "TOKEN", "a", "ex"], "ERR syntax error at argument 4: EX needs a value"),
    (&["LOCK.ACQUIRE", "k", "TOKEN", "a", "LABEL"], "ERR syntax error at argument 4: LABEL needs a value"),
    (&["LOCK.ACQUIRE", "k", "TOKEN", ""], "ERR token at argument 3 must have 1 to 128 bytes"),
    (&["LOCK.ACQUIRE", "k", "PX", "9", "TOKEN", ""], "ERR token at argument 5 must have 1 to 128 bytes"),
    (&["LOCK.ACQUIRE", "k", "NX", "PX", "9"], "ERR NX is implied, leave it out"),
    (&["LOCK.ACQUIRE", "k", "TOKEN", "a", "nx"], "ERR NX is implied, leave it out"),
    (&["LOCK.ACQUIRE", "k", "TOKEN", "a", "XX"], "ERR XX is what LOCK.EXTEND does, use that"),
    (&["LOCK.ACQUIRE", "k", "TOKEN", "a", "TOKEN", "b"], "ERR syntax error at argument 4: give TOKEN only once"),
    (&["LOCK.ACQUIRE", "k", "token", "a", "Token", "a"], "ERR syntax error at argument 4: give TOKEN only once"),
    (&["LOCK.ACQUIRE", "k", "LABEL", "a", "LABEL", "b"], "ERR syntax error at argument 4: give LABEL only once"),
    (&["LOCK.ACQUIRE", "k", "PX", "9", "PX", "9"], "ERR syntax error at argument 4: give PX or EX only once"),
    (&["LOCK.ACQUIRE", "k", "PX", "9", "EX", "1"], "ERR syntax error at argument 4: give PX or EX only once"),
    (&["LOCK.ACQUIRE", "k", "EX", "1", "PX", "9"], "ERR syntax error at argument 4: give PX or EX only once"),
];

/// Options of other commands, and words that are almost one.
const NO_OPTIONS: &[&[&str]] = &[
    &["TIMEOUT", "5"],
    &["WAIT", "5"],
    &["BLOCKED", "0"],
    &["BLOCK0"],
    &["SHARE"],
    &["UPGRADE\0"],
    &["GRACE"],
    &["MINHOLD", "1000"],
    &["KEEPTTL"],
    &["GET"],
    &["PXAT", "1"],
    &["EXAT", "1"],
    &["P"],
    &["PXX", "9"],
    &["TOKENS", "a"],
    &["TOKEN\0", "a"],
];

/// Options of LOCK.ACQUIRE alone.
const ACQUIRES_OWN: &[&[&str]] = &[
    &["TOKEN", "b"],
    &["BLOCK", "0"],
    &["POLL", "10"],
    &["SHARED"],
    &["LIMIT", "3"],
    &["UPGRADE"],
    &["DOWNGRADE"],
    &["EPHEMERAL"],
    &["MAXHOLD", "1000"],
    &["LABEL", "x"],
];

/// Lines on a lock `k` that `a` holds, with the position of what is wrong.
const WRONG_EXTENDS: &[(&[&str], usize)] = &[
    (&["LOCK.EXTEND", "k", "a", "5000"], 3),
    (&["LOCK.EXTEND", "k", "token", "a"], 3),
    (&["LOCK.EXTEND", "k", "TOKEN", "a", "PX", "9"], 3),
    (&["LOCK.EXTEND", "k", "PX", "5000"], 3),
    (&["LOCK.EXTEND", "k", "a", "NX"], 3),
    (&["LOCK.EXTEND", "k", "a", "XX"], 3),
    (&["LOCK.EXTEND", "k", "a", "HOLD", "h"], 3),
    (&["LOCK.EXTEND", "k", "a", "PX", "9", "LABEL", "x"], 5),
    (&["LOCK.EXTEND", "k", "a", "FENCE", "9", "9"], 5),
];

const WRONG_RELEASES: &[(&[&str], usize)] = &[
    (&["LOCK.RELEASE", "k", "token", "a"], 3),
    (&["LOCK.RELEASE", "k", "TOKEN", "a", "HOLD", "h"], 3),
    (&["LOCK.RELEASE", "k", "a", "b"], 3),
    (&["LOCK.RELEASE", "k", "a", "PX", "9"], 3),
    (&["LOCK.RELEASE", "k", "a", "FENCE", "9"], 3),
    (&["LOCK.RELEASE", "k", "a", "HOLD", "h", "LABEL", "x"], 5),
];

/// Numbers without a word, with their position.
const BARE_NUMBERS: &[(&[&str], usize)] = &[
    (&["LOCK.ACQUIRE", "k", "30000"], 2),
    (&["LOCK.ACQUIRE", "k", "30000", "TOKEN", "a"], 2),
    (&["LOCK.ACQUIRE", "k", "TOKEN", "a", "30000"], 4),
    (&["LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", "9", "0"], 6),
    (&["LOCK.ACQUIRE", "k", "TOKEN", "a", "SHARED", "-1"], 5),
];

const WRONG_LEASES: &[&str] = &[
    "",
    " ",
    "x",
    "1.0",
    "1e3",
    "0x10",
    " 1",
    "1 ",
    "+1",
    "--1",
    "-",
    "-0",
    "00",
    "010",
    "1\0",
    "1_000",
    "1ms",
    "\u{661}",
    "9223372036854775808",
    "-9223372036854775809",
    "99999999999999999999999999999999",
];

#[track_caller]
fn assert_refused(client: &mut Client, args: &[&str], expected: &str) {
    let reply = client.cmd(args);
    assert_eq!(reply.err(), expected, "{args:?}");
}

/// Whatever stood in the table, no lock was taken by it.
#[track_caller]
fn assert_nothing_taken(client: &mut Client) {
    assert_eq!(cmd!(client, "DBSIZE").int(), 0);
}

on_every_server! {
    fn wrong_acquires_are_told_what_where_and_how(kind: Kind) {
        let server = Server::start(kind);
        for mut client in [server.client(), server.resp3_client()] {
            for (args, expected) in WRONG_ACQUIRES {
                assert_refused(&mut client, args, expected);
            }
            assert_nothing_taken(&mut client);
        }
    }

    fn options_that_do_not_exist_are_syntax_errors_in_every_place(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        // FENCE is of LOCK.EXTEND alone.
        for option in [NO_OPTIONS, &[&["FENCE", "7"]]].concat() {
            let first = [&["LOCK.ACQUIRE", "k"], option, &["TOKEN", "a"]].concat();
            assert_refused(&mut client, &first, "ERR syntax error at argument 2: tokens are given as TOKEN token");
            let last = [&["LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", "60000"], option].concat();
            assert_refused(&mut client, &last, &format!("ERR syntax error at argument 6: {ACQUIRE_OPTIONS}"));
        }
        for option in [NO_OPTIONS, ACQUIRES_OWN].concat() {
            let extend = [&["LOCK.EXTEND", "k", "a"], option].concat();
            assert_refused(&mut client, &extend, &format!("ERR syntax error at argument 3: {EXTEND_OPTIONS}"));
            let release = [&["LOCK.RELEASE", "k", "a"], option].concat();
            assert_refused(&mut client, &release, &format!("ERR syntax error at argument 3: {RELEASE_OPTIONS}"));
        }
        assert_nothing_taken(&mut client);
    }

    fn a_number_needs_its_word(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for (args, at) in BARE_NUMBERS {
            assert_refused(&mut client, args, &format!("ERR syntax error at argument {at}: {NUMBERS}"));
        }
        assert_nothing_taken(&mut client);
    }

    fn wrong_extends_and_releases_and_their_fix(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000));
        for (wrong, hint) in [(WRONG_EXTENDS, EXTEND_OPTIONS), (WRONG_RELEASES, RELEASE_OPTIONS)] {
            for (args, at) in wrong {
                assert_refused(&mut client, args, &format!("ERR syntax error at argument {at}: {hint}"));
            }
        }
        for option in ["PX", "EX", "FENCE"] {
            let bare = ["LOCK.EXTEND", "k", "a", option];
            assert_refused(&mut client, &bare, &format!("ERR syntax error at argument 3: {option} needs a value"));
        }
        let bare = ["LOCK.RELEASE", "k", "a", "HOLD"];
        assert_refused(&mut client, &bare, "ERR syntax error at argument 3: HOLD needs a value");
        let twice = ["LOCK.EXTEND", "k", "a", "PX", "90000", "EX", "90"];
        assert_refused(&mut client, &twice, "ERR syntax error at argument 5: give PX or EX only once");
        let twice = ["LOCK.EXTEND", "k", "a", "FENCE", "9", "PX", "90000", "FENCE", "9"];
        assert_refused(&mut client, &twice, "ERR syntax error at argument 7: give FENCE only once");
        let twice = ["LOCK.RELEASE", "k", "a", "HOLD", "h", "HOLD", "h"];
        assert_refused(&mut client, &twice, "ERR syntax error at argument 5: give HOLD only once");
        assert!(cmd!(client, "LOCK.CHECK", "k", "a").int() <= 60_000);
    }

    fn a_lease_is_a_whole_number_above_zero(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for unit in ["PX", "EX"] {
            for lease in WRONG_LEASES {
                let acquire = ["LOCK.ACQUIRE", "k", unit, lease];
                assert_refused(&mut client, &acquire, &format!("ERR lease at argument 3 {NOT_INTEGER}"));
                let extend = ["LOCK.EXTEND", "k", "a", unit, lease];
                assert_refused(&mut client, &extend, &format!("ERR lease at argument 4 {NOT_INTEGER}"));
            }
            for lease in ["0", "-1", "-9223372036854775808"] {
                let reply = cmd!(client, "LOCK.ACQUIRE", "k", unit, lease);
                assert!(reply.err().ends_with(" ms is not above 0"), "{unit} {lease}: {reply:?}");
                let reply = cmd!(client, "LOCK.EXTEND", "k", "a", unit, lease);
                assert!(reply.err().ends_with(" ms is not above 0"), "{unit} {lease}: {reply:?}");
            }
            // Seconds that do not fit in 64 bits of milliseconds are still above the maximum, not negative.
            for lease in ["86400001", "9223372036854775", "9223372036854775807"] {
                let reply = cmd!(client, "LOCK.ACQUIRE", "k", unit, lease);
                assert!(reply.err().ends_with(" ms is above lock.max-ttl 86400000"), "{unit} {lease}: {reply:?}");
                let reply = cmd!(client, "LOCK.EXTEND", "k", "a", unit, lease);
                assert!(reply.err().ends_with(" ms is above lock.max-ttl 86400000"), "{unit} {lease}: {reply:?}");
            }
        }
        assert_nothing_taken(&mut client);
    }

    fn options_come_in_any_order_and_case(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let options = [["tOkEn", "a"], ["pX", "60000"], ["lAbEl", "a label"]];
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut args = vec!["lock.Acquire", "k"];
            args.extend(order.iter().flat_map(|&option: &usize| options[option]));
            let granted = grant(&client.cmd(&args));
            assert_eq!((&granted.token[..], granted.ttl, granted.new), (&b"a"[..], 60_000, 1), "{args:?}");
            let info = cmd!(client, "lock.info", "k");
            assert_eq!(info.get("holders").array()[0].get("label").bulk(), b"a label", "{args:?}");
            assert_eq!(cmd!(client, "Lock.Release", "k", "a").int(), 1);
        }
    }

    fn an_options_value_may_look_like_an_option(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let words = ["LOCK.ACQUIRE", "TOKEN", "TOKEN", "SHARED", "LABEL", "PX", "HOLD", "HOLD", "PX", "60000"];
        let granted = grant(&client.cmd(&words));
        assert_eq!((&granted.token[..], granted.ttl), (&b"SHARED"[..], 60_000));
        assert_eq!(cmd!(client, "LOCK.EXTEND", "TOKEN", "SHARED", "PX", 70_000).int(), 70_000);
        let info = cmd!(client, "LOCK.INFO", "TOKEN");
        assert_eq!(info.get("mode").text(), "exclusive");
        assert_eq!(info.get("holders").array()[0].get("label").bulk(), b"PX");
        assert_eq!(cmd!(client, "LOCK.RELEASE", "TOKEN", "SHARED", "HOLD", "HOLD").int(), 1);
        // A token is bytes, whatever they spell.
        for token in ["NX", "token", "TOKEN", "HOLD", "PX"] {
            assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", token)).token, token.as_bytes());
            assert_eq!(cmd!(client, "LOCK.EXTEND", "k", token, "PX", 60_000).int(), 60_000);
            assert!(cmd!(client, "LOCK.CHECK", "k", token).int() > 0);
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", token).int(), 1);
        }
    }

    fn too_few_or_too_many_arguments_are_the_servers_own_error(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let wrong: [&[&str]; 11] = [
            &["LOCK.ACQUIRE"], &["LOCK.RELEASE"], &["LOCK.RELEASE", "k"],
            &["LOCK.EXTEND"], &["LOCK.EXTEND", "k"], &["LOCK.CHECK", "k"], &["LOCK.CHECK", "k", "TOKEN", "a"],
            &["LOCK.INFO"], &["LOCK.INFO", "k", "k2"], &["LOCK._SET", "k"], &["LOCK._SET", "k", "a", "b"],
        ];
        for args in wrong {
            let reply = client.cmd(args);
            assert!(reply.err().starts_with("ERR wrong number of arguments for '"), "{args:?}: {reply:?}");
        }
    }

    fn commands_of_later_versions_are_unknown(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for name in ["LOCK.WAIT", "LOCK.LIST", "LOCK", "LOCK."] {
            let reply = cmd!(client, name, "k", "a", "GET", "k");
            assert!(reply.err().starts_with("ERR unknown command"), "{name}: {reply:?}");
        }
    }

    fn an_error_never_shows_a_value(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let secret = "s3cr3t";
        let long = secret.repeat(30);
        cmd!(client, "SET", "data", "x").ok();
        let wrong: [&[&str]; 23] = [
            &["LOCK.ACQUIRE", "k", secret],
            &["LOCK.ACQUIRE", "k", "TOKEN", secret, "BLOCK", secret],
            &["LOCK.ACQUIRE", "k", "TOKEN", secret, "LIMIT", secret],
            &["LOCK.ACQUIRE", "k", "TOKEN", secret, "HOLD", &long],
            &["LOCK.ACQUIRE", "k", "TOKEN", secret, "DOWNGRADE"],
            &["LOCK.ACQUIRE", "k", "TOKEN", secret, "UPGRADE"],
            &["LOCK.ACQUIRE", "k", "PX", secret],
            &["LOCK.ACQUIRE", "k", "TOKEN", &long],
            &["LOCK.ACQUIRE", "k", "LABEL", &long],
            &["LOCK.ACQUIRE", "k", "TOKEN", secret, secret],
            &["LOCK.ACQUIRE", "k", "TOKEN", secret, "TOKEN", secret],
            &["LOCK.ACQUIRE", "data", "TOKEN", secret],
            &["LOCK.RELEASE", "k", &long],
            &["LOCK.RELEASE", "data", secret],
            &["LOCK.RELEASE", "k", secret, secret],
            &["LOCK.EXTEND", "k", secret, "FENCE", secret],
            &["LOCK.EXTEND", "k", &long],
            &["LOCK.EXTEND", "k", "TOKEN", secret],
            &["LOCK.EXTEND", "k", "PX", secret],
            &["LOCK.EXTEND", "data", secret],
            &["LOCK.CHECK", "k", &long],
            &["LOCK.CHECK", "data", secret],
            &["LOCK._SET", "k", secret],
        ];
        for args in wrong {
            let reply = client.cmd(args);
            assert!(!reply.err().contains(secret), "{reply:?}");
        }
    }

    fn data_is_not_a_lock(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        cmd!(client, "SET", "string", "a").ok();
        cmd!(client, "RPUSH", "list", "a").int();
        cmd!(client, "PEXPIRE", "list", 60_000).int();
        cmd!(client, "HSET", "hash", "a", 1).int();
        cmd!(client, "SADD", "set", "a").int();
        cmd!(client, "XADD", "stream", "*", "a", 1).text();
        let before = cmd!(client, "DEBUG", "DIGEST").text();
        for key in ["string", "list", "hash", "set", "stream"] {
            let wrong: [&[&str]; 11] = [
                &["LOCK.ACQUIRE", key], &["LOCK.ACQUIRE", key, "TOKEN", "a"], &["LOCK.RELEASE", key, "a"],
                &["LOCK.ACQUIRE", key, "TOKEN", "a", "BLOCK", "0"], &["LOCK.ACQUIRE", key, "TOKEN", "a", "POLL", "9"],
                &["LOCK.ACQUIRE", key, "TOKEN", "a", "SHARED"], &["LOCK.RELEASE", key, "a", "HOLD", "h"],
                &["LOCK.EXTEND", key, "a"], &["LOCK.EXTEND", key, "a", "PX", "9"], &["LOCK.CHECK", key, "a"],
                &["LOCK.INFO", key],
            ];
            for args in wrong {
                assert_refused(&mut client, args, "WRONGTYPE key holds data, not a lock: use another name");
            }
        }
        assert_eq!(cmd!(client, "DEBUG", "DIGEST").text(), before);
        assert_eq!(cmd!(client, "DBSIZE").int(), 5);
    }

    fn a_wrong_request_is_wrong_even_for_a_key_of_another_type(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        cmd!(client, "SET", "data", "a").ok();
        // What is typed is judged before the key is looked at.
        assert_refused(&mut client, &["LOCK.ACQUIRE", "data", "PX", "0"], "ERR lease of 0 ms is not above 0");
        assert_refused(&mut client, &["LOCK.CHECK", "data", ""], "ERR token at argument 2 must have 1 to 128 bytes");
        assert_eq!(cmd!(client, "GET", "data"), Reply::Bulk(b"a".to_vec()));
    }
}
