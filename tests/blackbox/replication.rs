//! Replicas hold what their primary holds, byte for byte, end nothing by themselves, and take no lock command that
//! writes. What they make of it when promoted is in `promotion`.

use std::fs;
use std::time::Duration;

use crate::harness::forge::{holder, Forge};
use crate::harness::hold::{self, ms_left, repeat, span, take};
use crate::harness::{
    cmd, eventually, info, info_int, let_pass, on_every_server, send, wait_in_sync, wait_until_heard, Client, Kind,
    Server,
};

const SOON: Duration = Duration::from_secs(10);
const LONG_MS: u64 = 600_000;

/// Waits until the replica has all that the primary wrote, and fails unless both hold the same data.
#[track_caller]
pub fn agree(primary: &Server, replica: &Server) {
    wait_in_sync(primary, replica);
    let digest = |server: &Server| cmd!(server.client(), "DEBUG", "DIGEST").text();
    eventually(SOON, || {
        let (above, below) = (digest(primary), digest(replica));
        if above == below {
            Ok(())
        } else {
            Err((above, below))
        }
    });
}

fn pair(kind: Kind) -> (Server, Server) {
    let (primary, replica) = (Server::start(kind), Server::start(kind));
    replica.replica_of(&primary);
    (primary, replica)
}

/// The commands in the server's append-only file, each with its key.
fn written(server: &Server) -> Vec<String> {
    let dir = fs::read_dir(server.dir().join("appendonlydir")).expect("an append-only directory");
    let mut words: Vec<String> = Vec::new();
    for file in dir.map(|entry| entry.expect("a file").path()) {
        if file.to_string_lossy().ends_with(".incr.aof") {
            let text = fs::read(file).expect("the append-only file");
            words.extend(String::from_utf8_lossy(&text).split("\r\n").map(str::to_owned));
        }
    }
    // A word stands after its length.
    let name = |word: &String| word.starts_with("LOCK.") || word == "DEL";
    let at = words.iter().enumerate().filter(|(_, word)| name(word)).map(|(at, _)| at);
    at.map(|at| format!("{} {}", words[at], words[at + 2])).collect()
}

#[track_caller]
fn run(client: &mut Client, line: &str) {
    let reply = client.cmd(&line.split(' ').collect::<Vec<&str>>());
    assert!(!reply.is_error(), "{line}: {reply:?}");
}

on_every_server! {
    fn a_full_sync_brings_every_lock(kind: Kind) {
        let (primary, replica) = (Server::start(kind), Server::start(kind));
        let mut client = primary.client();
        take(&mut replica.client(), "lost", "t", LONG_MS);
        let taken = take(&mut client, "k", "token", LONG_MS);
        cmd!(client, "LOCK.ACQUIRE", "labelled", "LABEL", "web 3", "PX", LONG_MS);
        cmd!(client, "SELECT", 4).ok();
        take(&mut client, "k", "in four", LONG_MS);
        replica.replica_of(&primary);
        agree(&primary, &replica);
        let mut below = replica.client();
        let shown = cmd!(below, "LOCK.INFO", "k");
        assert_eq!(shown.get("fence").int(), taken.fence);
        assert_eq!(shown.get("role").text(), "replica");
        assert_eq!(cmd!(client, "LOCK.INFO", "k").get("role").text(), "primary");
        assert_eq!(ms_left(&mut below, "k", "token"), 600_000, "the whole lease, as it stands still");
        assert_eq!(ms_left(&mut below, "k", "other"), 0);
        assert!(cmd!(below, "LOCK.INFO", "lost").is_null());
        eventually(SOON, || match info_int(&mut below, "lock", "lock_held") {
            3 => Ok(()),
            held => Err(held),
        });
        let highest = hold::fence(&mut below, "labelled");
        assert!(info_int(&mut below, "lock", "lock_fence") >= highest);
    }

    fn both_agree_after_every_kind_of_change(kind: Kind) {
        let (primary, replica) = pair(kind);
        let mut client = primary.client();
        let forge = Forge::new(&mut client);
        take(&mut client, "k", "t", LONG_MS);
        agree(&primary, &replica);
        repeat(&mut client, "k", "t", 1000);
        agree(&primary, &replica);
        repeat(&mut client, "k", "t", 2 * LONG_MS);
        agree(&primary, &replica);
        assert_eq!(ms_left(&mut replica.client(), "k", "t"), 1_200_000);
        for line in ["LOCK.EXTEND k t", "LOCK.EXTEND k t PX 1", "LOCK.EXTEND k t EX 3000", "LOCK.EXTEND none t"] {
            run(&mut client, line);
            agree(&primary, &replica);
        }
        assert_eq!(ms_left(&mut replica.client(), "k", "t"), 3_000_000);
        assert!(hold::acquire(&mut client, "k", "other", LONG_MS).is_null());
        let (_, start) = span(|| take(&mut client, "short", "t", 100));
        start.ends(&mut client, "short", 100);
        agree(&primary, &replica);
        // Ended and taken anew in one command, before the pump comes by.
        take(&mut client, "again", "t", 1);
        let_pass(Duration::from_millis(2));
        take(&mut client, "again", "t2", LONG_MS);
        agree(&primary, &replica);
        cmd!(client, "RESTORE", "restored", 50, forge.lock(&holder(99, LONG_MS, b"r", b""))).ok();
        for line in [
            "LOCK.RELEASE k t", "LOCK.RELEASE k t", "LOCK.ACQUIRE a TOKEN t PX 600000", "RENAME a b", "MOVE b 3",
            "SWAPDB 3 0", "PEXPIRE b 100000", "SWAPDB 0 3", "LOCK.ACQUIRE c TOKEN t", "SET c data",
            "LOCK.ACQUIRE d TOKEN t", "DEL d", "LOCK.ACQUIRE e TOKEN t", "FLUSHDB ASYNC", "LOCK.ACQUIRE f TOKEN t",
            "FLUSHALL", "LOCK.ACQUIRE g TOKEN t",
        ] {
            run(&mut client, line);
            agree(&primary, &replica);
        }
        assert_eq!(cmd!(replica.client(), "KEYS", "*").array().len(), 1);
        // Some servers flush in the background.
        eventually(SOON, || match info_int(&mut replica.client(), "lock", "lock_held") {
            1 => Ok(()),
            held => Err(held),
        });
    }

    /// On Valkey 8.1 a MOVE would make a replica apply the rest of the stream in the wrong database (valkey#4024).
    fn a_move_leaves_the_stream_in_its_database(kind: Kind) {
        let (primary, replica) = pair(kind);
        let mut client = primary.client();
        take(&mut client, "k", "t", LONG_MS);
        for line in ["SET data v", "MOVE data 5", "SET after v", "MOVE k 6", "LOCK.ACQUIRE next TOKEN t"] {
            run(&mut client, line);
        }
        agree(&primary, &replica);
        let mut below = replica.client();
        assert_eq!(cmd!(below, "GET", "after").bulk(), b"v");
        assert!(ms_left(&mut below, "next", "t") > 0);
    }

    fn a_foreign_expire_is_taken_back_on_replicas_too(kind: Kind) {
        let (primary, replica) = pair(kind);
        let mut client = primary.client();
        let (_, start) = span(|| take(&mut client, "k", "t", 1500));
        for command in ["PEXPIRE", "EXPIRE"] {
            assert_eq!(cmd!(client, command, "k", 1000).int(), 1);
            agree(&primary, &replica);
            assert_eq!(cmd!(replica.client(), "PTTL", "k").int(), -1);
            assert_eq!(cmd!(client, "PTTL", "k").int(), -1);
        }
        assert_eq!(info_int(&mut client, "lock", "lock_expires_undone"), 2);
        start.ends(&mut client, "k", 1500);
        agree(&primary, &replica);
    }

    /// The append-only file is the stream, and MONITOR does not show it: commands of admins are left out there.
    fn the_stream_carries_effects_and_a_freed_lock_is_a_del(kind: Kind) {
        let server = Server::builder(kind).append_only("always").start();
        let mut client = server.client();
        take(&mut client, "k", "t", LONG_MS);
        repeat(&mut client, "k", "t", 1000);
        assert!(cmd!(client, "LOCK.EXTEND", "k", "t").int() > 0);
        assert!(hold::acquire(&mut client, "k", "other", LONG_MS).is_null());
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "other").int(), -1);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "t").int(), 1);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "t").int(), 0);
        let (_, start) = span(|| take(&mut client, "lapses", "t", 50));
        start.ends(&mut client, "lapses", 50);
        // Tried in vain, extended to the same length, released twice: none of it is a change.
        let commands = ["LOCK._SET k", "DEL k", "LOCK._SET lapses", "DEL lapses"];
        assert_eq!(written(&server), commands);
    }

    fn a_broken_link_is_mended_by_a_partial_sync(kind: Kind) {
        let (primary, replica) = pair(kind);
        let mut client = primary.client();
        take(&mut client, "released meanwhile", "t", LONG_MS);
        wait_in_sync(&primary, &replica);
        replica.sigstop();
        assert!(cmd!(client, "CLIENT", "KILL", "TYPE", "replica").int() > 0);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "released meanwhile", "t").int(), 1);
        let taken = take(&mut client, "taken meanwhile", "t", LONG_MS);
        replica.sigcont();
        agree(&primary, &replica);
        assert_eq!(info_int(&mut client, "stats", "sync_full"), 1);
        assert_eq!(info_int(&mut client, "stats", "sync_partial_ok"), 1);
        assert_eq!(hold::fence(&mut replica.client(), "taken meanwhile"), taken.fence);
    }

    fn a_replica_of_a_replica_holds_the_same(kind: Kind) {
        let (primary, middle) = pair(kind);
        let last = Server::start(kind);
        last.replica_of(&middle);
        let mut client = primary.client();
        let (_, start) = span(|| take(&mut client, "k", "t", 400));
        take(&mut client, "long", "t", LONG_MS);
        wait_in_sync(&primary, &middle);
        agree(&middle, &last);
        assert_eq!(ms_left(&mut last.client(), "long", "t"), 600_000);
        start.ends(&mut client, "k", 400);
        agree(&primary, &middle);
        agree(&middle, &last);
        assert_eq!(cmd!(last.client(), "DBSIZE").int(), 1);
    }

    fn a_replica_takes_no_lock_command_that_writes(kind: Kind) {
        let (primary, replica) = pair(kind);
        take(&mut primary.client(), "k", "t", LONG_MS);
        agree(&primary, &replica);
        let mut below = replica.client();
        let bytes = holder(1, LONG_MS, b"forged", b"");
        for read_only in ["yes", "no"] {
            cmd!(below, "CONFIG", "SET", "replica-read-only", read_only).ok();
            for line in [
                "LOCK.ACQUIRE k TOKEN t", "LOCK.ACQUIRE free TOKEN t", "LOCK.ACQUIRE free", "LOCK.RELEASE k t",
                "LOCK.RELEASE free t", "LOCK.EXTEND k t", "LOCK.EXTEND free t PX 5",
            ] {
                let reply = below.cmd(&line.split(' ').collect::<Vec<&str>>());
                assert!(reply.err().starts_with("READONLY"), "{read_only}: {line}: {reply:?}");
            }
            let reply = cmd!(below, "LOCK._SET", "k", &bytes);
            assert!(reply.is_error(), "{read_only}: {reply:?}");
            cmd!(below, "MULTI").ok();
            send!(below, "LOCK._SET", "k", &bytes);
            below.recv();
            let reply = cmd!(below, "EXEC");
            let inner = if reply.is_error() { &reply } else { &reply.array()[0] };
            assert!(inner.is_error(), "{read_only}: {reply:?}");
        }
        agree(&primary, &replica);
        assert_eq!(cmd!(below, "DBSIZE").int(), 1);
    }

    fn wait_counts_the_replicas_that_have_the_grant(kind: Kind) {
        let (primary, replica) = pair(kind);
        let mut client = primary.client();
        take(&mut client, "k", "t", LONG_MS);
        assert_eq!(cmd!(client, "WAIT", 1, 5000).int(), 1);
        assert!(ms_left(&mut replica.client(), "k", "t") > 0);
        replica.sigstop();
        take(&mut client, "k2", "t", LONG_MS);
        assert_eq!(cmd!(client, "WAIT", 1, 50).int(), 0);
        replica.sigcont();
        assert_eq!(cmd!(client, "WAIT", 1, 5000).int(), 1);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k2", "t").int(), 1);
        assert_eq!(cmd!(client, "WAIT", 1, 5000).int(), 1);
        assert_eq!(cmd!(replica.client(), "EXISTS", "k2").int(), 0);
    }

    fn waitaof_counts_the_disks_that_have_the_grant(kind: Kind) {
        let builder = Server::builder(kind).append_only("everysec");
        let mut server = builder.start();
        let mut client = server.client();
        let taken = take(&mut client, "k", "t", LONG_MS);
        let reply = cmd!(client, "WAITAOF", 1, 0, 10_000);
        if kind == Kind::Redis70 {
            // Newer than this server.
            assert!(reply.err().contains("unknown command"));
            return;
        }
        assert_eq!(reply.array()[0].int(), 1);
        server.kill9();
        server.restart();
        assert_eq!(hold::fence(&mut server.client(), "k"), taken.fence);
    }

    /// While the primary is silent a replica has no business to end its leases.
    fn a_lease_stands_still_on_a_replica(kind: Kind) {
        let (primary, replica) = pair(kind);
        wait_until_heard(&primary);
        let mut client = primary.client();
        take(&mut client, "k", "t", 1500);
        assert_eq!(cmd!(client, "WAIT", 1, 1400).int(), 1);
        primary.sigstop();
        let_pass(Duration::from_millis(1600));
        let mut below = replica.client();
        assert_eq!(ms_left(&mut below, "k", "t"), 1500);
        assert_eq!(cmd!(below, "EXISTS", "k").int(), 1);
        primary.sigcont();
        eventually(SOON, || match cmd!(below, "EXISTS", "k").int() {
            0 => Ok(()),
            _ => Err("still held"),
        });
        agree(&primary, &replica);
    }

    fn a_primary_with_a_replica_that_saves_for_itself(kind: Kind) {
        let primary = Server::start(kind);
        let mut replica = Server::builder(kind).append_only("always").start();
        replica.replica_of(&primary);
        let mut client = primary.client();
        let taken = take(&mut client, "k", "t", LONG_MS);
        take(&mut client, "released", "t", LONG_MS);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "released", "t").int(), 1);
        let (_, start) = span(|| take(&mut client, "lapsed", "t", 100));
        start.ends(&mut client, "lapsed", 100);
        agree(&primary, &replica);
        // A full sync may have the replica rewrite its file.
        eventually(SOON, || {
            let state = info(&mut replica.client(), "persistence");
            let busy = state.int("aof_rewrite_in_progress") + state.int("aof_rewrite_scheduled");
            if busy == 0 { Ok(()) } else { Err(busy) }
        });
        replica.kill9();
        replica.restart();
        let mut client = replica.client();
        assert_eq!(cmd!(client, "KEYS", "*").array().len(), 1);
        assert_eq!(hold::fence(&mut client, "k"), taken.fence);
        assert!(repeat(&mut client, "k", "t", LONG_MS).fence > taken.fence);
    }

    /// Links break at random under traffic; in the end both agree and nothing is left over.
    fn resync_storms_leave_both_equal(kind: Kind) {
        let primary = Server::builder(kind).arg("repl-backlog-size", 16_384).start();
        let replica = Server::start(kind);
        replica.replica_of(&primary);
        let mut client = primary.client();
        for round in 0..12 {
            let commands = (0..150).map(|n| {
                let key = format!("k{}", (round * 7 + n) % 40);
                match n % 4 {
                    0 => format!("LOCK.ACQUIRE {key} TOKEN t{n} PX {}", 1 + n),
                    1 => format!("LOCK.ACQUIRE {key} TOKEN t{n} LABEL {}", "x".repeat(100)),
                    2 => format!("LOCK.RELEASE {key} t{}", n - 1),
                    _ => format!("DEL {key}"),
                }
            });
            let replies = client.pipeline(commands.map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>()));
            assert!(replies.iter().all(|reply| !reply.is_error()), "{replies:?}");
            cmd!(client, "CLIENT", "KILL", "TYPE", "replica").int();
            if round % 3 == 0 {
                cmd!(replica.client(), "CLIENT", "KILL", "TYPE", "master").int();
                cmd!(client, "BGSAVE", "SCHEDULE");
            }
        }
        for n in 0..40 {
            cmd!(client, "DEL", format!("k{n}")).int();
        }
        take(&mut client, "last", "t", LONG_MS);
        agree(&primary, &replica);
        for server in [&primary, &replica] {
            let mut client = server.client();
            assert_eq!(cmd!(client, "DBSIZE").int(), 1);
            eventually(SOON, || match info_int(&mut client, "lock", "lock_held") {
                1 => Ok(()),
                held => Err(held),
            });
        }
        assert!(!replica.log().contains("sending an error"), "{}", replica.log());
    }
}
