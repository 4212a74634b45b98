//! Servers that die at any moment, under traffic, while they save and rewrite: no acknowledged hold is lost, no fence
//! is issued twice, and a load that takes longer than a lease ends none.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::Duration;

use crate::harness::forge::{aof, holder};
use crate::harness::hold::{self, ms_left, repeat, take};
use crate::harness::{
    args, cmd, eventually, info, info_int, let_pass, on_every_server, timed, Client, Kind, Scratch, Server,
};

const SOON: Duration = Duration::from_secs(20);
const LONG_MS: u64 = 600_000;
/// Shorter than a slow load, longer than it takes to save.
const LEASE_MS: u64 = 1500;
const ROUNDS: usize = 4;
const NAMES: usize = 30;

/// What the server acknowledged: the fence of each held lock, and the highest of all.
#[derive(Default)]
struct Acknowledged {
    held: BTreeMap<String, i64>,
    highest: i64,
}

impl Acknowledged {
    /// Takes and releases locks until the connection dies. The command that died may have happened or not.
    fn work_until_dead(&mut self, client: &mut Client, round: usize) -> Option<String> {
        for n in 0.. {
            let key = format!("k{}", (n * 7 + round) % NAMES);
            let release = self.held.contains_key(&key);
            let command = if release {
                args!["LOCK.RELEASE", key, "t"]
            } else {
                args!["LOCK.ACQUIRE", key, "TOKEN", "t", "PX", LONG_MS]
            };
            let reply = client.try_send(&command).ok().and_then(|()| client.try_recv(SOON));
            let Some(reply) = reply else { return Some(key) };
            if release {
                assert_eq!(reply.int(), 1);
                self.held.remove(&key);
                continue;
            }
            let taken = crate::harness::grant(&reply);
            assert!(taken.fence > self.highest, "{taken:?} after {}", self.highest);
            self.highest = taken.fence;
            self.held.insert(key, taken.fence);
        }
        None
    }

    /// Every hold is there with its fence, and no other, but for the one command that nobody heard back from.
    fn check(&mut self, client: &mut Client, unheard: Option<&str>) {
        for n in 0..NAMES {
            let key = format!("k{n}");
            let found = cmd!(client, "LOCK.INFO", &key);
            if unheard == Some(&key) {
                self.held.remove(&key);
                cmd!(client, "LOCK.RELEASE", key, "t").int();
                continue;
            }
            let expected = self.held.get(&key).copied();
            let fence = (!found.is_null()).then(|| found.get("fence").int());
            assert_eq!(fence, expected, "{key}");
        }
    }
}

/// Writes twenty keys at a time, each of them new.
fn flood_until_dead(client: &mut Client) {
    let value = "x".repeat(2000);
    for first in (0..u64::MAX).step_by(20) {
        for n in first..first + 20 {
            if client.try_send(&["SET", &format!("flood {n}"), &value]).is_err() {
                return;
            }
        }
        if (0..20).any(|_| client.try_recv(SOON).is_none()) {
            return;
        }
    }
}

/// The newest part of the append-only file.
fn last_part(dir: &Scratch) -> std::path::PathBuf {
    let parts = fs::read_dir(dir.join("appendonlydir")).expect("an append-only directory");
    let paths = parts.map(|part| part.expect("a file").path());
    paths.filter(|path| path.to_string_lossy().ends_with(".incr.aof")).max().expect("a part")
}

on_every_server! {
    /// appendfsync always: what was acknowledged is on disk.
    fn no_acknowledged_hold_is_lost_by_kill9_in_the_middle_of_anything(kind: Kind) {
        for preamble in ["yes", "no"] {
            let mut server = Server::builder(kind)
                .append_only("always")
                .arg("aof-use-rdb-preamble", preamble)
                .start();
            let mut seen = Acknowledged::default();
            for round in 0..ROUNDS {
                let mut worker = server.client();
                let mut saver = server.client();
                let unheard = thread::scope(|scope| {
                    let work = scope.spawn(|| seen.work_until_dead(&mut worker, round));
                    for n in 0..6 {
                        let save = if n % 2 == 0 { "BGREWRITEAOF" } else { "BGSAVE" };
                        cmd!(saver, save);
                        let_pass(Duration::from_millis(20 + 7 * round as u64));
                    }
                    server.kill9();
                    work.join().expect("the worker")
                });
                server.restart();
                seen.check(&mut server.client(), unheard.as_deref());
            }
            assert!(seen.highest > 0);
        }
    }

    /// Evicted and put back within one write to the disk, or the lock would be gone after a crash in between.
    fn locks_under_a_flood_of_evictions_survive_kill9(kind: Kind) {
        for _ in 0..3 {
            let mut server = Server::builder(kind)
                .append_only("always")
                .arg("maxmemory-policy", "allkeys-random")
                .start();
            let mut client = server.client();
            for n in 0..100 {
                take(&mut client, &format!("k{n}"), "t", LONG_MS);
            }
            let used = info_int(&mut client, "memory", "used_memory");
            cmd!(client, "CONFIG", "SET", "maxmemory", used + 60_000).ok();
            let mut flooder = server.client();
            thread::scope(|scope| {
                let flood = scope.spawn(|| flood_until_dead(&mut flooder));
                eventually(SOON, || match info_int(&mut client, "lock", "lock_evictions_undone") {
                    0..50 => Err("too few evictions"),
                    _ => Ok(()),
                });
                server.kill9();
                flood.join().expect("the flood")
            });
            server.restart();
            let mut client = server.client();
            for n in 0..100 {
                assert!(ms_left(&mut client, &format!("k{n}"), "t") > 0, "k{n} is lost");
            }
        }
    }

    /// Saved at an unknown moment, so holds may be missing or old; but fences are never issued again.
    fn fences_rise_over_crashes_of_a_server_that_only_snapshots(kind: Kind) {
        let mut server = Server::start(kind);
        let mut highest = 0;
        for _ in 0..4 {
            let mut client = server.client();
            for n in 0..200 {
                cmd!(client, "DEL", format!("k{n}")).int();
                let taken = take(&mut client, &format!("k{n}"), "t", LONG_MS);
                assert!(taken.fence > highest, "{taken:?} after {highest}");
                highest = taken.fence;
                if n == 100 {
                    cmd!(client, "BGSAVE");
                }
            }
            eventually(SOON, || match info_int(&mut client, "persistence", "rdb_bgsave_in_progress") {
                0 => Ok(()),
                _ => Err("saving"),
            });
            server.kill9();
            server.restart();
            // A hold from the snapshot gets a fence above even those that were lost.
            let repeated = repeat(&mut server.client(), "k50", "t", 1000);
            assert!(repeated.fence > highest, "{repeated:?} after {highest}");
            highest = repeated.fence;
        }
    }

    /// Keys load slowly; a lease that began to run as its lock was read would be over before the last key is.
    fn a_load_longer_than_the_lease_ends_none(kind: Kind) {
        for appendonly in ["no", "yes"] {
            let builder = Server::builder(kind).arg("appendonly", appendonly).arg("appendfsync", "always");
            let mut server = builder.start();
            let mut client = server.client();
            cmd!(client, "DEBUG", "POPULATE", 2000, "filler", 10).ok();
            for n in 0..50 {
                take(&mut client, &format!("k{n}"), "t", LEASE_MS);
            }
            cmd!(client, "CONFIG", "SET", "key-load-delay", 1000).ok();
            cmd!(client, "CONFIG", "REWRITE").ok();
            if appendonly == "yes" {
                // Into the base file, which loads key by key.
                cmd!(client, "BGREWRITEAOF");
                eventually(SOON, || match info_int(&mut client, "persistence", "aof_rewrite_in_progress") {
                    0 => Ok(()),
                    _ => Err("rewriting"),
                });
            } else {
                cmd!(client, "SAVE").ok();
            }
            server.kill9();
            let ((), took) = timed(|| server.restart());
            assert!(took > Duration::from_millis(LEASE_MS), "loaded in {took:?}");
            let mut client = server.client();
            for n in 0..50 {
                let left = ms_left(&mut client, &format!("k{n}"), "t");
                assert!(left > 0, "appendonly {appendonly}: k{n} is over");
            }
            assert_eq!(info_int(&mut client, "lock", "lock_leases_ended"), 0);
        }
    }

    /// The machine went down in the middle of a write.
    fn a_cut_append_only_file_keeps_every_whole_command(kind: Kind) {
        let mut server = Server::builder(kind).append_only("always").start();
        let mut client = server.client();
        let whole = take(&mut client, "whole", "t", LONG_MS).fence;
        let cut = take(&mut client, "cut", "t", LONG_MS).fence;
        server.kill9();
        let path = last_part(&server.dir());
        let file = fs::read(&path).expect("the append-only file");
        fs::write(&path, &file[..file.len() - 7]).expect("cut the file");
        server.restart();
        let mut client = server.client();
        assert_eq!(hold::fence(&mut client, "whole"), whole);
        assert!(take(&mut client, "cut", "other", LONG_MS).fence > cut);
    }

    /// The server ignores what its own file's commands answer, but for a line in the log.
    fn a_lock_of_a_newer_version_in_the_append_only_file_is_told_in_the_log(kind: Kind) {
        let mut newer = holder(7, LONG_MS, b"t", b"");
        newer[0] = 3;
        let good = holder(8, LONG_MS, b"t", b"");
        let file = aof(&[args!["LOCK._SET", "newer", newer], args!["LOCK._SET", "good", good]]);
        let server = Server::builder(kind).arg("appendonly", "yes").file("appendonly.aof", &file).start();
        let mut client = server.client();
        assert_eq!(cmd!(client, "EXISTS", "newer").int(), 0);
        assert!(ms_left(&mut client, "good", "t") > 0);
        assert!(server.log().contains("written by a newer version of this module"), "{}", server.log());
        assert_eq!(info(&mut client, "lock").int("lock_held"), 1);
    }
}
