//! Locks as bytes from elsewhere: DUMP, RESTORE and MIGRATE, forged fences, and payloads that are cut, changed or huge
//! and still pass the server's own checksum. Each is a lock or an error, never a crash.

use std::fs;

use crate::harness::forge::{aof, holder, Forge, HEAD_BYTES, STRING_FOLLOWS};
use crate::harness::hold::{self, ms_left, span, take};
use crate::harness::payload::{with_valid_checksum, Payload};
use crate::harness::{
    args, cmd, eventually, info_int, now_ticks, on_every_server, Client, Kind, Reply, Server, TICKS_PER_SECOND,
};

const SOON: std::time::Duration = std::time::Duration::from_secs(5);
const LEASE_MS: u64 = 500;
const LONG_MS: u64 = 600_000;
/// First fence that no client could read exactly.
const FENCE_END: u64 = 1 << 53;
const DAY_TICKS: u64 = 24 * 3600 * TICKS_PER_SECOND;

#[track_caller]
fn refused(client: &mut Client, payload: Vec<u8>) {
    let reply = cmd!(client, "RESTORE", "forged", 0, payload);
    assert!(reply.err().starts_with("ERR Bad data format"), "{reply:?}");
    assert_eq!(cmd!(client, "EXISTS", "forged").int(), 0);
}

fn as_fence(fence: i64) -> u64 {
    u64::try_from(fence).expect("a fence is not negative")
}

fn start_on_aof(kind: Kind, commands: &[Vec<Vec<u8>>]) -> Server {
    let file = aof(commands);
    Server::builder(kind).arg("appendonly", "yes").file("appendonly.aof", &file).start()
}

/// The most memory the process ever had in use, in KB.
fn peak_kb(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("a running server");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a peak");
    line.split_whitespace().nth(1).and_then(|kb| kb.parse().ok()).expect("a number")
}

/// Numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % sides as u64).expect("below sides")
    }

    /// Changes a body in one to four places. Its first byte stays: any other type is the server's own business.
    fn mutate(&mut self, body: &mut Vec<u8>) {
        for _ in 0..=self.roll(4) {
            let at = 1 + self.roll(body.len() - 1);
            let byte = u8::try_from(self.roll(256)).expect("a byte");
            match self.roll(5) {
                0 => body[at] = byte,
                1 => body[at] ^= 1 << (byte % 8),
                2 => body.insert(at, byte),
                3 if body.len() > HEAD_BYTES => drop(body.remove(at)),
                _ => body[at] = [0, 1, 2, 0x3f, 0x7f, 0x80, 0x81, 0xc3, 0xff][self.roll(9)],
            }
        }
    }
}

on_every_server! {
    fn a_restored_lock_is_the_same_hold_with_a_whole_lease(kind: Kind) {
        let (first, second) = (Server::start(kind), Server::start(kind));
        let mut client = first.client();
        cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", b"\0t\xff", "PX", LEASE_MS, "LABEL", "web 3");
        let fence = hold::fence(&mut client, "k");
        let dump = cmd!(client, "DUMP", "k").bulk().to_vec();
        let mut client = second.client();
        let ((), start) = span(|| cmd!(client, "RESTORE", "other name", 0, dump).ok());
        assert!(cmd!(client, "LOCK.CHECK", "other name", b"\0t\xff").int() > 0);
        let shown = cmd!(client, "LOCK.INFO", "other name");
        assert_eq!(shown.get("fence").int(), fence);
        assert_eq!(shown.get("holders").array()[0].get("label").text(), "web 3");
        assert!(hold::acquire(&mut client, "other name", "other", LONG_MS).is_null());
        start.ends(&mut client, "other name", LEASE_MS);
        assert!(take(&mut client, "other name", "other", LONG_MS).fence > fence);
    }

    fn a_restore_replaces_a_held_lock(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let forge = Forge::new(&mut client);
        let fence = take(&mut client, "k", "t", 300).fence;
        let payload = forge.lock(&holder(as_fence(fence) - 5, LEASE_MS, b"restored", b""));
        assert!(cmd!(client, "RESTORE", "k", 0, &payload).err().starts_with("BUSYKEY"));
        assert!(ms_left(&mut client, "k", "t") > 0);
        let ((), start) = span(|| cmd!(client, "RESTORE", "k", 0, payload, "REPLACE").ok());
        assert_eq!(ms_left(&mut client, "k", "t"), 0);
        assert!(ms_left(&mut client, "k", "restored") > 0);
        start.ends(&mut client, "k", LEASE_MS);
        assert!(take(&mut client, "k", "t", LONG_MS).fence > fence, "a lower fence does not lower the next");
    }

    /// A TTL is none of a lock's: it must not end the lock early.
    fn a_restore_with_a_ttl_loses_the_ttl(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let forge = Forge::new(&mut client);
        let payload = forge.lock(&holder(1, LEASE_MS, b"t", b""));
        let ((), start) = span(|| cmd!(client, "RESTORE", "k", 50, payload).ok());
        eventually(SOON, || match cmd!(client, "PTTL", "k").int() {
            -1 => Ok(()),
            ttl => Err(ttl),
        });
        start.ends(&mut client, "k", LEASE_MS);
        assert_eq!(info_int(&mut client, "lock", "lock_expires_undone"), 1);
        assert_eq!(info_int(&mut client, "lock", "lock_leases_ended"), 1);
        // A RESTORE of a key whose time is over is no key at all.
        let payload = forge.lock(&holder(1, LONG_MS, b"t", b""));
        cmd!(client, "RESTORE", "k", 1, payload, "ABSTTL").ok();
        assert_eq!(cmd!(client, "EXISTS", "k").int(), 0);
        assert_eq!(info_int(&mut client, "lock", "lock_held"), 0);
        take(&mut client, "k", "other", LONG_MS);
    }

    fn migrate_moves_locks_between_servers(kind: Kind) {
        let (source, target) = (Server::start(kind), Server::start(kind));
        let (mut client, mut there) = (source.client(), target.client());
        let fence = take(&mut client, "k1", "t1", LEASE_MS).fence;
        take(&mut client, "k2", "t2", LONG_MS);
        let port = target.port();
        let (reply, start) =
            span(|| cmd!(client, "MIGRATE", "127.0.0.1", port, "", 0, 5000, "KEYS", "k1", "k2", "none"));
        reply.ok();
        assert_eq!(cmd!(client, "DBSIZE").int(), 0);
        assert_eq!(info_int(&mut client, "lock", "lock_held"), 0);
        assert_eq!(hold::fence(&mut there, "k1"), fence);
        assert!(ms_left(&mut there, "k2", "t2") > 0);
        start.ends(&mut there, "k1", LEASE_MS);
        assert!(take(&mut there, "k1", "other", LONG_MS).fence > fence);
        assert_eq!(info_int(&mut there, "lock", "lock_held"), 2);
        // A name that is taken there stays here.
        take(&mut client, "k2", "here", LONG_MS);
        let reply = cmd!(client, "MIGRATE", "127.0.0.1", port, "k2", 0, 5000);
        assert!(reply.err().contains("BUSYKEY"), "{reply:?}");
        assert!(ms_left(&mut client, "k2", "here") > 0);
    }

    fn every_truncated_payload_is_an_error(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let forge = Forge::new(&mut client);
        // Without a label: the server reads on into its own footer, where a cut label would find its last byte.
        let payload = Payload::decode(&forge.lock(&holder(7, LONG_MS, b"a token", b"")));
        for length in 0..payload.body.len() {
            refused(&mut client, with_valid_checksum(&payload.body[..length], payload.rdb_version));
        }
        // The same cuts inside a string whose length agrees.
        let whole = holder(7, LONG_MS, b"token", b"label");
        for length in 0..whole.len() {
            refused(&mut client, forge.lock(&whole[..length]));
        }
        refused(&mut client, forge.lock(&[whole.as_slice(), b"\0"].concat()));
        cmd!(client, "RESTORE", "whole", 0, forge.lock(&whole)).ok();
        assert_eq!(info_int(&mut client, "lock", "lock_held"), 1);
    }

    fn mutated_payloads_do_no_harm(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "short", "token", LONG_MS);
        // One that the server packs.
        cmd!(client, "LOCK.ACQUIRE", "packed", "TOKEN", "t".repeat(128), "LABEL", "x".repeat(128), "PX", LONG_MS);
        let seeds = ["short", "packed"].map(|key| Payload::decode(cmd!(client, "DUMP", key).bulk()));
        let mut dice = Dice(2);
        let (mut accepted, mut base) = (0, 0);
        for round in 0..2000 {
            let mut body = seeds[round % 2].body.clone();
            dice.mutate(&mut body);
            let payload = with_valid_checksum(&body, seeds[0].rdb_version);
            match cmd!(client, "RESTORE", format!("k{}", round % 10), 0, payload, "REPLACE") {
                Reply::Error(_) => {}
                reply => {
                    reply.ok();
                    accepted += 1;
                }
            }
            if round == 200 {
                base = info_int(&mut client, "memory", "used_memory");
            }
        }
        assert!((20..1800).contains(&accepted), "{accepted} of 2000 were accepted");
        let grown = info_int(&mut client, "memory", "used_memory") - base;
        assert!(grown < 60_000, "{grown} bytes for good");
        assert!(ms_left(&mut client, "short", "token") > 0);
        assert!(info_int(&mut client, "lock", "lock_held") <= 12);
        let commands = (0..10).map(|n| args!["DEL", format!("k{n}")]);
        client.pipeline(commands);
        assert_eq!(info_int(&mut client, "lock", "lock_held"), 2);
    }

    fn a_newer_version_is_refused_with_its_reason_in_the_log(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let forge = Forge::new(&mut client);
        let mut newer = holder(7, LONG_MS, b"t", b"");
        newer[0] = 3;
        refused(&mut client, forge.lock(&newer));
        assert!(server.log().contains("written by a newer version of this module"));
        let mut unknown = holder(7, LONG_MS, b"t", b"");
        unknown[1] = 9;
        refused(&mut client, forge.lock(&unknown));
        // The module id ends in ten bits of version: the layout around the codec.
        let mut layout = forge.head.clone();
        *layout.last_mut().expect("an id") ^= 2;
        let other = Forge { head: layout, rdb_version: forge.rdb_version };
        refused(&mut client, other.with_fence(7));
    }

    fn fences_and_leases_out_of_range_are_refused(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let forge = Forge::new(&mut client);
        for fence in [0, FENCE_END, u64::MAX] {
            refused(&mut client, forge.with_fence(fence));
        }
        for lease_ms in [0, u64::MAX, 10 * 365 * 24 * 3_600 * 1_000 + 1] {
            refused(&mut client, forge.lock(&holder(7, lease_ms, b"t", b"")));
        }
        refused(&mut client, forge.lock(&holder(7, LONG_MS, b"", b"")));
        refused(&mut client, forge.lock(&holder(7, LONG_MS, &[b'x'; 129], b"")));
        refused(&mut client, forge.lock(&holder(7, LONG_MS, b"t", &[b'x'; 129])));
        cmd!(client, "RESTORE", "widest", 0, forge.lock(&holder(7, LONG_MS, &[0; 128], &[0xff; 128]))).ok();
    }

    /// One forged number must not poison the fences of a whole server for ever.
    fn a_stranger_raises_fences_by_a_day_at_most(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let forge = Forge::new(&mut client);
        let before = info_int(&mut client, "lock", "lock_fence");
        refused(&mut client, forge.with_fence(now_ticks() + DAY_TICKS + 60 * TICKS_PER_SECOND));
        refused(&mut client, forge.with_fence(FENCE_END - 1));
        assert_eq!(info_int(&mut client, "lock", "lock_fence"), before, "a refused fence raises nothing");
        assert!(server.log().contains("more than a day ahead"));
        let highest = now_ticks() + DAY_TICKS - 60 * TICKS_PER_SECOND;
        cmd!(client, "RESTORE", "k", 0, forge.with_fence(highest)).ok();
        assert_eq!(as_fence(hold::fence(&mut client, "k")), highest);
        assert_eq!(as_fence(take(&mut client, "next", "t", LONG_MS).fence), highest + 1);
        // What is not above the highest known is no news.
        cmd!(client, "RESTORE", "again", 0, forge.with_fence(highest + 1)).ok();
    }

    fn the_servers_own_files_may_hold_any_fence_below_2_to_53(kind: Kind) {
        let set = |key: &str, fence: u64| args!["LOCK._SET", key, holder(fence, LONG_MS, b"t", b"")];
        let near = FENCE_END - 2_000_000;
        let mut server = start_on_aof(kind, &[set("k", near)]);
        let mut client = server.client();
        assert_eq!(as_fence(hold::fence(&mut client, "k")), near);
        let next = as_fence(take(&mut client, "next", "t", LONG_MS).fence);
        assert_eq!(next, near + 1_000_001, "ten seconds of ticks past the highest");
        cmd!(client, "SAVE").ok();
        let rdb = fs::read(server.dir().join("dump.rdb")).expect("the snapshot");
        server.shutdown_nosave();
        let server = Server::builder(kind).file("dump.rdb", &rdb).start();
        let mut client = server.client();
        assert_eq!(as_fence(hold::fence(&mut client, "next")), next);
        assert!(hold::acquire(&mut client, "last", "t", LONG_MS).err().contains("2^53"), "the guard used up the rest");
    }

    fn issuing_stops_at_the_last_fence_with_an_error(kind: Kind) {
        let last = holder(FENCE_END - 1, LONG_MS, b"t", b"");
        let server = start_on_aof(kind, &[args!["SET", "s", "v"], args!["LOCK._SET", "k", last]]);
        let mut client = server.client();
        assert_eq!(as_fence(hold::fence(&mut client, "k")), FENCE_END - 1);
        let held = info_int(&mut client, "lock", "lock_held");
        for _ in 0..2 {
            let reply = hold::acquire(&mut client, "new", "t", LONG_MS);
            assert!(reply.err().contains("fences below 2^53 are used up"), "{reply:?}");
        }
        // A repeat would need a new fence, as it predates this start.
        assert!(hold::acquire(&mut client, "k", "t", LONG_MS).is_error());
        assert!(hold::acquire(&mut client, "k", "other", LONG_MS).is_null());
        assert_eq!(info_int(&mut client, "lock", "lock_held"), held);
        assert!(cmd!(client, "LOCK.EXTEND", "k", "t").int() > 0);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "t").int(), 1);
        assert!(hold::acquire(&mut client, "k", "t", LONG_MS).is_error());
        assert_eq!(cmd!(client, "EXISTS", "k").int(), 0);
    }

    /// The lengths say more than is there: 4 GB, 2^60 bytes, and 1 GB out of three packed bytes.
    fn a_forged_length_costs_no_memory(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let forge = Forge::new(&mut client);
        let start = peak_kb(&server);
        let lengths: [&[u8]; 4] = [
            &[0x80, 0xff, 0xff, 0xff, 0xff],
            &[0x81, 0x10, 0, 0, 0, 0, 0, 0, 0],
            &[0x81, 0, 0, 0, 0, 0x40, 0, 0, 0],
            &[0xc3, 3, 0x80, 0x40, 0, 0, 0, 1, 2, 3],
        ];
        for length in lengths {
            for tail in [&b""[..], b"\x01\x01", &[0; 100]] {
                let reply = cmd!(client, "RESTORE", "k", 0, forge.raw(&[&[STRING_FOLLOWS], length, tail].concat()));
                assert!(reply.is_error(), "{length:?}: {reply:?}");
            }
        }
        let grown = peak_kb(&server) - start;
        assert!(grown < 16_000, "{grown} KB more at the peak");
        assert!(info_int(&mut client, "memory", "used_memory") < 64_000_000);
    }

    /// An RDB is all or nothing: a lock that cannot be read stops the start instead of being dropped.
    fn a_damaged_lock_in_the_rdb_stops_the_start(kind: Kind) {
        let mut server = Server::builder(kind).arg("rdbchecksum", "no").start();
        let token = "needle in the haystack";
        take(&mut server.client(), "k", token, LONG_MS);
        server.shutdown_save();
        let mut rdb = fs::read(server.dir().join("dump.rdb")).expect("the snapshot");
        let at = rdb.windows(token.len()).position(|window| window == token.as_bytes()).expect("the token");
        // The byte before the token is its length.
        rdb[at - 1] = 0;
        let failed = Server::builder(kind).arg("rdbchecksum", "no").file("dump.rdb", &rdb).try_start();
        let log = failed.expect_err("a damaged lock");
        assert!(log.contains("a lock was refused"), "{log}");
    }
}
