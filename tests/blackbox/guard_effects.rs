//! What a guarded command does to data: what it changes reaches replicas and the append-only file exactly once, it may
//! change the lock it is guarded by, and it obeys what the server refuses writes for.

use std::fs;
use std::time::Duration;

use crate::harness::{
    args, cmd, eventually, grant, info_int, on_every_server, send, wait_in_sync, Client, Kind, Reply, Server,
};

const SOON: Duration = Duration::from_secs(10);

fn hold(client: &mut Client) {
    grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "t", "EX", 600));
}

fn guard(client: &mut Client, command: Vec<Vec<u8>>) -> Reply {
    client.cmd(&[args!["LOCK.GUARD", "k", "t"], command].concat())
}

/// Commands that replicate as they are, that replicate as another, and that have nothing to replicate.
const CHANGES: [&str; 23] = [
    "INCR n",
    "INCRBYFLOAT f 0.1",
    "APPEND s x",
    "RPUSH l 1",
    "SADD set a b c d",
    "SPOP set",
    "XADD x * f v",
    "SET e 1 EX 5000",
    "EXPIRE s 5000",
    "GETEX e EX 6000",
    "SETEX g 5000 v",
    "HINCRBY h f 1",
    "ZINCRBY z 1 m",
    "SORT l STORE sorted",
    "LMOVE l m LEFT RIGHT",
    "GETDEL g",
    "MSET a 1 b 2",
    "RENAME b c",
    "BITFIELD bits INCRBY u8 0 1",
    "GEOADD geo 1 2 p",
    "PFADD pf a",
    "DEL none",
    "GET n",
];

/// Guards in every surrounding, each change such that one too many or too few shows: `n` ends as 12.
fn change_everything(client: &mut Client) {
    for command in CHANGES {
        let words = command.split(' ').map(|word| word.as_bytes().to_vec());
        let reply = guard(client, words.collect());
        assert!(!reply.is_error(), "{command}: {reply:?}");
    }
    cmd!(client, "MULTI").ok();
    for _ in 0..3 {
        assert!(guard(client, args!["INCR", "n"]).is("QUEUED"));
        assert!(cmd!(client, "LOCK.GUARD", "k", "nobody", "INCR", "n").is("QUEUED"));
    }
    assert_eq!(cmd!(client, "EXEC").array().iter().filter(|reply| reply.is_error()).count(), 3);
    let script = "for i = 1, 3 do redis.call('LOCK.GUARD', 'k', 't', 'INCR', 'n') redis.call('INCR', 'n') end
                  redis.pcall('LOCK.GUARD', 'k', 'nobody', 'INCR', 'n')
                  return redis.call('GET', 'n')";
    assert_eq!(cmd!(client, "EVAL", script, 0).text(), "10");
    cmd!(client, "LOCK.GUARD", "k", "nobody", "INCR", "n").err();
    guard(client, args!["LPUSH", "n", 1]).err();
    cmd!(client, "FOREIGN.CALL", "LOCK.GUARD", "k", "t", "INCR", "n").int();
    cmd!(client, "FOREIGN.WRAP", "LOCK.GUARD", "k", "t", "INCR", "n").int();
}

/// What everything in the data set adds up to, values and all.
fn digest(client: &mut Client) -> String {
    cmd!(client, "DEBUG", "DIGEST").text()
}

fn logged(server: &Server) -> Vec<u8> {
    let files = fs::read_dir(server.dir().join("appendonlydir")).expect("an append-only directory");
    let of_changes =
        files.map(|file| file.expect("a file").path()).filter(|path| path.display().to_string().contains("incr"));
    of_changes.flat_map(|path| fs::read(path).expect("an append-only file")).collect()
}

fn times(haystack: &[u8], needle: &str) -> usize {
    haystack.windows(needle.len()).filter(|window| window.eq_ignore_ascii_case(needle.as_bytes())).count()
}

on_every_server! {
    fn each_change_reaches_the_replica_and_the_file_once(kind: Kind) {
        let mut primary = Server::builder(kind)
            .with_foreign_module()
            .append_only("always")
            .start();
        let replica = Server::builder(kind).with_foreign_module().start();
        replica.replica_of(&primary);
        let mut client = primary.client();
        hold(&mut client);
        change_everything(&mut client);
        wait_in_sync(&primary, &replica);
        let all = digest(&mut client);
        assert_eq!(cmd!(client, "GET", "n").text(), "12");
        assert_eq!(digest(&mut replica.client()), all);

        let log = logged(&primary);
        assert_eq!((times(&log, "\r\nINCR\r\n"), times(&log, "lock.guard"), times(&log, "foreign")), (12, 0, 0));
        primary.kill9();
        primary.restart();
        let mut client = primary.client();
        assert_eq!(cmd!(client, "GET", "n").text(), "12");
        assert_eq!(digest(&mut client), all);
    }

    fn what_changes_nothing_is_not_replicated(kind: Kind) {
        let server = Server::builder(kind).append_only("always").start();
        let mut client = server.client();
        hold(&mut client);
        assert!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "p", "POLL", 10_000, "EX", 600).is_null());
        guard(&mut client, args!["SET", "d", 1]).ok();
        cmd!(client, "LOCK.RELEASE", "k", "t").int();
        let before = logged(&server).len();
        assert!(guard(&mut client, args!["SET", "d", 2]).is_error());
        // This one fetches a grant, which tells the replicas nothing new.
        assert_eq!(cmd!(client, "LOCK.GUARD", "k", "p", "GET", "d").text(), "1");
        assert!(cmd!(client, "LOCK.GUARD", "k", "p", "LPUSH", "d", 1).is_error());
        assert_eq!(cmd!(client, "LOCK.GUARD", "k", "p", "DEL", "none").int(), 0);
        assert_eq!(logged(&server).len(), before);
    }

    fn a_replica_runs_none(kind: Kind) {
        let (primary, replica) = (Server::start(kind), Server::start(kind));
        let mut client = primary.client();
        hold(&mut client);
        replica.replica_of(&primary);
        let mut below = replica.client();
        let reply = guard(&mut below, args!["GET", "d"]);
        assert!(reply.err().starts_with("READONLY"), "{reply:?}");
        cmd!(below, "CONFIG", "SET", "replica-read-only", "no").ok();
        let reply = guard(&mut below, args!["SET", "d", 1]);
        assert!(reply.err().starts_with("READONLY"), "{reply:?}");
        assert_eq!(cmd!(below, "EXISTS", "d").int(), 0);
        replica.promote();
        guard(&mut below, args!["SET", "d", 1]).ok();
    }

    fn a_command_may_remove_the_lock_it_is_guarded_by(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let gone = |client: &mut Client| {
            assert!(guard(client, args!["SET", "d", 1]).err().starts_with("NOTHELD"));
            hold(client);
        };
        hold(&mut client);
        assert_eq!(guard(&mut client, args!["DEL", "k"]).int(), 1);
        gone(&mut client);
        assert_eq!(guard(&mut client, args!["UNLINK", "d", "k"]).int(), 1);
        gone(&mut client);
        guard(&mut client, args!["RENAME", "k", "other"]).ok();
        assert!(guard(&mut client, args!["SET", "d", 1]).err().starts_with("NOTHELD"));
        guard_at(&mut client, "other", args!["RENAME", "other", "k"]).ok();
        assert_eq!(guard(&mut client, args!["MOVE", "k", 1]).int(), 1);
        gone(&mut client);
        guard(&mut client, args!["SET", "k", "data"]).ok();
        assert!(guard(&mut client, args!["SET", "d", 1]).err().starts_with("WRONGTYPE"));
        assert_eq!(cmd!(client, "DEL", "k").int(), 1);
        gone(&mut client);
        assert!(guard(&mut client, args!["COPY", "k", "copy"]).is_error());
        assert!(guard(&mut client, args!["LPUSH", "k", 1]).err().starts_with("WRONGTYPE"));
        assert_eq!(cmd!(client, "EXISTS", "d").int(), 0);
        // A time to live is none of a lock's.
        assert_eq!(guard(&mut client, args!["PEXPIRE", "k", 300]).int(), 1);
        eventually(SOON, || {
            let undone = info_int(&mut client, "lock", "lock_expires_undone");
            if undone == 1 { Ok(()) } else { Err(undone) }
        });
        assert_eq!(cmd!(client, "TTL", "k").int(), -1);
        guard(&mut client, args!["SET", "d", 1]).ok();
    }

    fn a_lock_removed_under_its_guard_goes_to_the_line(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        hold(&mut client);
        let mut waiter = server.client();
        send!(waiter, "LOCK.ACQUIRE", "k", "TOKEN", "next", "BLOCK", 0);
        eventually(SOON, || {
            let waiting = info_int(&mut client, "lock", "lock_waiting");
            if waiting == 1 { Ok(()) } else { Err(waiting) }
        });
        assert_eq!(guard(&mut client, args!["DEL", "k"]).int(), 1);
        assert_eq!(grant(&waiter.recv()).token, b"next");
        assert!(guard(&mut client, args!["SET", "d", 1]).err().starts_with("NOTHELD"));
    }

    fn data_and_lock_may_move_to_another_server(kind: Kind) {
        let (from, to) = (Server::start(kind), Server::start(kind));
        let mut client = from.client();
        hold(&mut client);
        guard(&mut client, args!["SET", "d", 1]).ok();
        guard(&mut client, args!["MIGRATE", "127.0.0.1", to.port(), "d", 0, 5_000]).ok();
        guard(&mut client, args!["MIGRATE", "127.0.0.1", to.port(), "k", 0, 5_000]).ok();
        assert_eq!(cmd!(client, "DBSIZE").int(), 0);
        assert_eq!(guard(&mut to.client(), args!["INCR", "d"]).int(), 2);
    }

    fn only_what_the_command_changes_is_signalled(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        hold(&mut client);
        for (watched, change, aborts) in [("k", "SET", false), ("d", "SET", true), ("d", "GET", false)] {
            let mut other = server.client();
            cmd!(other, "WATCH", watched).ok();
            let rest = if change == "SET" { args!["SET", "d", 1] } else { args!["GET", "d"] };
            guard(&mut client, rest);
            cmd!(other, "MULTI").ok();
            assert!(cmd!(other, "PING").is("QUEUED"));
            assert_eq!(cmd!(other, "EXEC").is_null(), aborts, "{watched} {change}");
        }
        let mut cache = server.resp3_client();
        cmd!(cache, "CLIENT", "TRACKING", "ON").ok();
        assert_eq!(cmd!(cache, "GET", "d").text(), "1");
        guard(&mut client, args!["SET", "d", 2]).ok();
        assert_eq!(cache.recv_push().array()[0].text(), "invalidate");
    }

    fn the_memory_limit_holds_for_the_guarded_command(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        hold(&mut client);
        cmd!(client, "SET", "d", 1).ok();
        cmd!(client, "CONFIG", "SET", "maxmemory", 1).ok();
        let oom = |reply: &Reply| assert!(reply.err().contains("OOM "), "{reply:?}");
        oom(&guard(&mut client, args!["SET", "d", 2]));
        oom(&cmd!(client, "EVAL", "return redis.call('LOCK.GUARD', 'k', 't', 'SET', 'd', 2)", 0));
        cmd!(client, "MULTI").ok();
        // Redis 7.0 queues nothing at all then.
        match guard(&mut client, args!["SET", "d", 2]) {
            refused @ Reply::Error(_) => oom(&refused),
            _ => oom(&cmd!(client, "EXEC").array()[0]),
        }
        cmd!(client, "DISCARD");
        // What needs no memory runs, as it does by itself.
        assert_eq!(guard(&mut client, args!["GET", "d"]).text(), "1");
        assert_eq!(guard(&mut client, args!["DEL", "d"]).int(), 1);
        cmd!(client, "CONFIG", "SET", "maxmemory", 0).ok();
        guard(&mut client, args!["SET", "d", 3]).ok();
    }

    fn missing_replicas_and_pauses_hold_for_guards(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        hold(&mut client);
        cmd!(client, "CONFIG", "SET", "min-replicas-to-write", 1).ok();
        for command in [args!["SET", "d", 1], args!["GET", "d"]] {
            let reply = guard(&mut client, command);
            assert!(reply.err().starts_with("NOREPLICAS"), "{reply:?}");
        }
        let reply = cmd!(client, "EVAL", "return redis.call('LOCK.GUARD', 'k', 't', 'SET', 'd', 1)", 0);
        assert!(reply.err().contains("NOREPLICAS"), "{reply:?}");
        cmd!(client, "CONFIG", "SET", "min-replicas-to-write", 0).ok();

        cmd!(client, "CLIENT", "PAUSE", 60_000, "WRITE").ok();
        let mut paused = server.client();
        send!(paused, "LOCK.GUARD", "k", "t", "SET", "d", 1);
        assert_eq!(paused.try_recv(Duration::from_millis(100)), None);
        assert_eq!(cmd!(client, "EXISTS", "d").int(), 0);
        cmd!(client, "CLIENT", "UNPAUSE").ok();
        paused.recv().ok();
    }
}

fn guard_at(client: &mut Client, key: &str, command: Vec<Vec<u8>>) -> Reply {
    client.cmd(&[args!["LOCK.GUARD", key, "t"], command].concat())
}
