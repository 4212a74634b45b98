//! Every kind of hold through whatever keeps, carries or copies locks: snapshot, both kinds of append-only file, a
//! resync, the stream, MIGRATE, DUMP and RESTORE, promotion. Afterwards there are the same holders in the same mode,
//! with the same limits, named holds and caps; only what bound a hold to a connection is gone.

use std::time::Duration;

use crate::harness::line::{ask, count, gain, holds, release, take, until_count, until_held};
use crate::harness::{cmd, eventually, on_every_server, wait_in_sync, wait_until_free, Builder, Client, Kind, Server};
use crate::replication::agree;
use crate::restart::{durable, rewrite_aof};

const SOON: Duration = Duration::from_secs(10);
const LONG: &str = "600000";
const CAP: &str = "900000";

/// Every lock, its tokens and what it was asked for with, in order. A `!` gives the hold back again.
const HOLDS: &[(&str, &str, &[&str])] = &[
    ("alone", "a", &["LABEL", "web 3"]),
    ("readers", "a", &["SHARED"]),
    ("readers", "b", &["SHARED", "HOLD", "x", "LABEL", ""]),
    ("readers", "b", &["SHARED", "HOLD", "y"]),
    ("readers", "c", &["SHARED", "MAXHOLD", CAP]),
    ("permits", "a", &["LIMIT", "5"]),
    ("permits", "b", &["LIMIT", "3"]),
    ("permits", "c", &["SHARED"]),
    ("named", "a", &["HOLD", "outer"]),
    ("named", "a", &["HOLD", "inner"]),
    ("named and not", "a", &[]),
    ("named and not", "a", &["HOLD", "outer"]),
    ("capped", "a", &["MAXHOLD", CAP]),
    ("bound", "a", &["EPHEMERAL"]),
    ("bound readers", "a", &["SHARED", "EPHEMERAL"]),
    ("bound readers", "b", &["LIMIT", "9"]),
    ("upgraded", "a", &["SHARED", "HOLD", "x"]),
    ("upgraded", "a", &["UPGRADE"]),
    ("downgraded", "a", &[]),
    ("downgraded", "a", &["LIMIT", "4", "DOWNGRADE"]),
    ("one left", "gone", &["SHARED"]),
    ("one left", "a", &["SHARED"]),
    ("one left", "gone", &["!"]),
    ("lapsed", "gone", &["SHARED", "PX", "50"]),
    ("lapsed", "a", &["SHARED"]),
    ("raised", "a", &[]),
];

/// What else is asked of a lock that was carried: as many as it had, and no more.
const FULL: &[(&str, &[&str])] = &[("alone", &["SHARED"]), ("readers", &[]), ("permits", &["LIMIT", "9"])];

#[track_caller]
fn hold(client: &mut Client, part: &[(&str, &str, &[&str])]) {
    for (key, token, options) in part {
        match *options {
            ["!"] => release(client, key, token),
            options if options.contains(&"PX") => drop(gain(client, key, token, options)),
            options => drop(gain(client, key, token, &[options, &["PX", LONG]].concat())),
        }
    }
}

/// Every lock of the table, on a connection that has to live as long as the holds bound to it.
#[track_caller]
fn fill(client: &mut Client) {
    hold(client, HOLDS);
    until_lapsed(client);
    raise(client);
}

/// Waits until the one short lease is over, for everybody: in its last ms it is still saved, and would start anew.
#[track_caller]
fn until_lapsed(client: &mut Client) {
    until_held(client, "lapsed", 1);
    until_count(client, "leases_ended", 1);
}

#[track_caller]
fn raise(client: &mut Client) {
    let fence = cmd!(client, "LOCK.INFO", "raised").get("fence").int();
    assert!(cmd!(client, "LOCK.EXTEND", "raised", "a", "FENCE", fence + 360_000_000).int() > 0);
}

fn keys() -> Vec<&'static str> {
    let mut keys: Vec<&str> = HOLDS.iter().map(|&(key, ..)| key).collect();
    keys.dedup();
    keys
}

/// All that is to be kept, as LOCK.INFO shows it: by lock the mode, the limit and each holder.
#[track_caller]
fn picture(client: &mut Client, keys: &[&str]) -> Vec<String> {
    let picture = keys.iter().map(|key| {
        let info = cmd!(client, "LOCK.INFO", key);
        if info.is_null() {
            return format!("{key}: free");
        }
        let mut holders: Vec<String> = info.get("holders").array().iter().map(shown).collect();
        // Two with one fence have no order of their own.
        holders.sort();
        let (mode, limit) = (info.get("mode").text(), info.get("limit").int());
        format!("{key}: {mode} {limit} {} {holders:?}", info.get("held").int())
    });
    picture.collect()
}

fn shown(holder: &crate::harness::Reply) -> String {
    let number = |field: &str| holder.get(field).int();
    format!("{} {} {}", number("fence"), number("holds"), holder.get("label").text())
}

/// Fails unless all is as before, and does what such holds do. Gives the holds back.
#[track_caller]
fn kept(client: &mut Client, before: &[String]) {
    assert_eq!(picture(client, &keys()), before);
    for (key, token, _) in HOLDS {
        assert_eq!(holds(client, key, token), *token != "gone", "{token} of {key}");
        for holder in cmd!(client, "LOCK.INFO", key).get("holders").array() {
            assert_eq!((holder.get("ephemeral").int(), holder.get("client").int()), (0, 0), "{key}");
        }
    }
    for (key, options) in FULL {
        assert!(ask(client, key, "stranger", options).is_null(), "{key} {options:?}");
    }
    // The caps are there still, and what they leave is no more than it was.
    for (key, token) in [("capped", "a"), ("readers", "c")] {
        let left = cmd!(client, "LOCK.EXTEND", key, token, "PX", 9_000_000).int();
        assert!((600_000..=900_000).contains(&left), "{key}: {left} ms left");
    }
    assert_eq!(cmd!(client, "LOCK.EXTEND", "readers", "b", "PX", 9_000_000).int(), 9_000_000, "it has no cap");
    // The names of the holds, and whether there is one without.
    for (key, token, names) in [("named", "a", ["inner", "outer"]), ("readers", "b", ["x", "y"])] {
        for name in names {
            assert!(holds(client, key, token), "{key} before {name}");
            assert_eq!(cmd!(client, "LOCK.RELEASE", key, token, "HOLD", name).int(), 1, "{key} {name}");
        }
        assert!(!holds(client, key, token), "{key}");
    }
    assert_eq!(cmd!(client, "LOCK.RELEASE", "named and not", "a", "HOLD", "outer").int(), 1);
    assert!(holds(client, "named and not", "a"));
    // The limit of three goes with its holder, that of five stays.
    release(client, "permits", "b");
    for token in ["d", "e", "f"] {
        assert_eq!(gain(client, "permits", token, &["LIMIT", "9"]).new, 1, "{token}");
    }
    assert!(ask(client, "permits", "g", &["SHARED"]).is_null());
}

fn pair(kind: Kind) -> (Server, Server) {
    let (primary, replica) = (Server::start(kind), Server::start(kind));
    replica.replica_of(&primary);
    (primary, replica)
}

/// Some holds before a rewrite and some after it, then the crash.
fn survive_kill9(kind: Kind, preamble: &str) {
    for rewritten_at in [0, 10, 21, HOLDS.len()] {
        let mut server = durable(kind, preamble).start();
        let mut owner = server.client();
        hold(&mut owner, &HOLDS[..rewritten_at]);
        rewrite_aof(&mut server.client());
        hold(&mut owner, &HOLDS[rewritten_at..]);
        until_lapsed(&mut owner);
        raise(&mut owner);
        let before = picture(&mut owner, &keys());
        server.kill9();
        drop(owner);
        server.restart();
        kept(&mut server.client(), &before);
    }
}

on_every_server! {
    fn a_snapshot_keeps_them(kind: Kind) {
        let mut server = Server::start(kind);
        let mut owner = server.client();
        fill(&mut owner);
        let before = picture(&mut owner, &keys());
        cmd!(server.client(), "SAVE").ok();
        server.kill9();
        drop(owner);
        server.restart();
        kept(&mut server.client(), &before);
    }

    fn an_aof_with_rdb_preamble_keeps_them(kind: Kind) {
        survive_kill9(kind, "yes");
    }

    fn a_plain_aof_keeps_them(kind: Kind) {
        survive_kill9(kind, "no");
    }

    fn a_full_sync_carries_them(kind: Kind) {
        for (diskless, load) in [("no", "disabled"), ("yes", "on-empty-db"), ("yes", "swapdb")] {
            let primary = Server::builder(kind).arg("repl-diskless-sync", diskless).start();
            let replica = Server::builder(kind).arg("repl-diskless-load", load).start();
            let mut owner = primary.client();
            fill(&mut owner);
            let before = picture(&mut owner, &keys());
            replica.replica_of(&primary);
            agree(&primary, &replica);
            let mut below = replica.client();
            assert_eq!(picture(&mut below, &keys()), before);
            replica.promote();
            drop(owner);
            kept(&mut below, &before);
        }
    }

    fn the_stream_carries_them_and_a_promotion_keeps_them(kind: Kind) {
        let (mut primary, replica) = pair(kind);
        let mut owner = primary.client();
        for part in HOLDS.chunks(1) {
            hold(&mut owner, part);
            wait_in_sync(&primary, &replica);
        }
        until_lapsed(&mut owner);
        raise(&mut owner);
        agree(&primary, &replica);
        let before = picture(&mut owner, &keys());
        let mut below = replica.client();
        assert_eq!(picture(&mut below, &keys()), before);
        primary.kill9();
        replica.promote();
        kept(&mut below, &before);
    }

    fn a_migrate_carries_them(kind: Kind) {
        let (from, to) = (Server::start(kind), Server::start(kind));
        let mut owner = from.client();
        fill(&mut owner);
        let before = picture(&mut owner, &keys());
        for key in keys() {
            cmd!(from.client(), "MIGRATE", "127.0.0.1", to.port(), key, 0, 5_000).ok();
        }
        assert_eq!(cmd!(owner, "DBSIZE").int(), 0);
        drop(owner);
        kept(&mut to.client(), &before);
    }

    fn dump_and_restore_carry_them(kind: Kind) {
        let (from, to) = (Server::start(kind), Server::start(kind));
        let mut owner = from.client();
        fill(&mut owner);
        let before = picture(&mut owner, &keys());
        let mut target = to.client();
        let payloads: Vec<Vec<u8>> = keys().iter().map(|key| cmd!(owner, "DUMP", key).bulk().to_vec()).collect();
        for (key, payload) in keys().iter().zip(&payloads) {
            cmd!(target, "RESTORE", key, 0, payload).ok();
            // Over the very lock that it was made of, too.
            cmd!(owner, "RESTORE", key, 0, payload, "REPLACE").ok();
        }
        drop(owner);
        kept(&mut target, &before);
        kept(&mut from.client(), &before);
    }

    fn a_reload_keeps_them(kind: Kind) {
        let server = Server::start(kind);
        let mut owner = server.client();
        fill(&mut owner);
        let before = picture(&mut owner, &keys());
        cmd!(server.client(), "DEBUG", "RELOAD").ok();
        drop(owner);
        kept(&mut server.client(), &before);
    }

    fn an_eviction_that_is_undone_keeps_them_bound_too(kind: Kind) {
        let primary = Server::builder(kind).arg("maxmemory-policy", "allkeys-random").start();
        let replica = Server::start(kind);
        replica.replica_of(&primary);
        let mut owner = primary.client();
        fill(&mut owner);
        let before = picture(&mut owner, &keys());
        let mut client = primary.client();
        for _ in 0..5 {
            // In one turn: the command that evicts, and no more evictions.
            let commands = ["CONFIG SET maxmemory 1", "SET x y", "CONFIG SET maxmemory 0", "DEL x"];
            client.pipeline(commands.map(|line| line.split(' ').collect::<Vec<&str>>()));
            let all = keys().len() as i64;
            eventually(SOON, || match cmd!(client, "DBSIZE").int() {
                found if found == all => Ok(()),
                found => Err(found),
            });
            assert_eq!(picture(&mut client, &keys()), before);
        }
        assert!(count(&mut client, "evictions_undone") > 0);
        agree(&primary, &replica);
        assert_eq!(picture(&mut replica.client(), &keys()), before);
        drop(owner);
        wait_until_free(&mut client, "bound");
        until_held(&mut client, "bound readers", 1);
    }

    fn a_lock_that_was_carried_frees_itself(kind: Kind) {
        let (from, to) = (Server::start(kind), Server::start(kind));
        let mut client = from.client();
        for (token, ms) in [("a", "300"), ("b", "900")] {
            gain(&mut client, "readers", token, &["SHARED", "PX", ms]);
        }
        cmd!(client, "MIGRATE", "127.0.0.1", to.port(), "readers", 0, 5_000).ok();
        let mut target = to.client();
        until_held(&mut target, "readers", 1);
        eventually(SOON, || match cmd!(target, "EXISTS", "readers").int() {
            0 => Ok(()),
            there => Err(there),
        });
        assert_eq!(take(&mut target, "readers", "c").new, 1);
    }

    /// Whatever is done to locks in whatever order, a replica and a restarted server have what the primary has.
    fn random_histories_agree_everywhere(kind: Kind) {
        let builder: Builder = durable(kind, "no");
        let mut primary = builder.start();
        let replica = Server::start(kind);
        replica.replica_of(&primary);
        let mut client = primary.client();
        let mut dice = Dice(0x2545_f491_4f6c_dd1d ^ kind.name().len() as u64);
        for round in 0..3 {
            for _ in 0..300 {
                let command = dice.command();
                let reply = client.cmd(&command);
                let refused = reply.is_error() && !["NOTHELD", "DEADLOCK", "ERR "].iter()
                    .any(|code| reply.err().starts_with(code));
                assert!(!refused, "{command:?}: {reply:?}");
            }
            agree(&primary, &replica);
            let before = picture(&mut client, RANDOM_KEYS);
            assert_eq!(picture(&mut replica.client(), RANDOM_KEYS), before, "round {round}, on the replica");
            if round == 1 {
                rewrite_aof(&mut client);
            }
            primary.kill9();
            primary.restart();
            client = primary.client();
            assert_eq!(picture(&mut client, RANDOM_KEYS), before, "round {round}, after the restart");
            wait_in_sync(&primary, &replica);
        }
    }
}

const RANDOM_KEYS: &[&str] = &["k0", "k1", "k2", "k3"];

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("31 bits") % sides
    }

    fn one_of<'a>(&mut self, choices: &[&'a [&'a str]]) -> Vec<&'a str> {
        choices[self.roll(choices.len())].to_vec()
    }

    fn command(&mut self) -> Vec<&'static str> {
        let key = RANDOM_KEYS[self.roll(RANDOM_KEYS.len())];
        let token = ["a", "b", "c", "d", "e"][self.roll(5)];
        let hold = self.one_of(&[&[], &[], &["HOLD", "x"], &["HOLD", "y"]]);
        match self.roll(20) {
            0..=9 => {
                let mode = self.one_of(&[
                    &[],
                    &["SHARED"],
                    &["SHARED"],
                    &["LIMIT", "2"],
                    &["LIMIT", "3"],
                    &["UPGRADE"],
                    &["SHARED", "DOWNGRADE"],
                    &["LIMIT", "2", "DOWNGRADE"],
                ]);
                let lease = self.one_of(&[&["PX", "600000"], &["PX", "700000"], &["PX", "300"]]);
                let rest = self.one_of(&[&[], &[], &["POLL", "10000"], &["EPHEMERAL"], &["MAXHOLD", "900000"]]);
                [&["LOCK.ACQUIRE", key, "TOKEN", token], &*mode, &*hold, &*lease, &*rest].concat()
            }
            10..=15 => [&["LOCK.RELEASE", key, token], &*hold].concat(),
            16..=17 => {
                let options = self.one_of(&[&[], &["PX", "800000"], &["FENCE", "1"]]);
                [&["LOCK.EXTEND", key, token], &*options].concat()
            }
            18 => vec!["DEL", key],
            _ => vec!["RENAME", key, RANDOM_KEYS[self.roll(RANDOM_KEYS.len())]],
        }
    }
}
