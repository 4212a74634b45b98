//! More reported failures, as in `regression`: what stays behind when locks come and go, what people see of a lock, and
//! what happens to a holder that died or stalled.

use std::time::{Duration, Instant};

use crate::harness::{
    args, cmd, eventually, grant, info, on_every_server, send, wait_until_free, Client, Kind, Reply, Server,
};

const SOON: Duration = Duration::from_secs(10);
const NAMES: u32 = 100_000;
/// Two bytes a name, for what the server itself does meanwhile: the smallest thing kept for each name is larger.
const NOISE_BYTES: i64 = 200_000;

/// Memory in use, without what connections need.
fn used_bytes(client: &mut Client) -> i64 {
    let memory = info(client, "memory");
    memory.int("used_memory") - memory.int("mem_clients_normal")
}

/// Takes and releases each name once, and gives the fences in order.
#[track_caller]
fn use_names_once(client: &mut Client, prefix: &str, count: u32) -> Vec<i64> {
    let mut fences = Vec::new();
    let all: Vec<u32> = (0..count).collect();
    for part in all.chunks(1_000) {
        let commands = part.iter().flat_map(|n| {
            let key = format!("{prefix}:{n}");
            [args!["LOCK.ACQUIRE", key, "TOKEN", "a"], args!["LOCK.RELEASE", key, "a"]]
        });
        for replies in client.pipeline(commands).chunks(2) {
            fences.push(grant(&replies[0]).fence);
            assert_eq!(replies[1].int(), 1);
        }
    }
    fences
}

/// A holder in the bytes of the append-only file: version 1, exclusive, fence, a lease of 60 s, token `t`, no label.
fn stored_holder(fence: u64) -> Vec<u8> {
    let mut bytes = vec![1, 1];
    bytes.extend(fence.to_le_bytes());
    bytes.extend(60_000_u64.to_le_bytes());
    bytes.extend([1, b't', 0]);
    bytes
}

on_every_server! {
    // python-redis-lock#14, #17: a release with nobody waiting left a key without a time to live for each name.
    fn c10_names_used_once_leave_no_key_and_no_memory(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        // What is allocated once and kept is not counted.
        use_names_once(&mut client, "warm", 2_000);
        let before = used_bytes(&mut client);
        use_names_once(&mut client, "name", NAMES);
        assert_eq!(cmd!(client, "DBSIZE").int(), 0);
        eventually(SOON, || match used_bytes(&mut client) - before {
            grown if grown < NOISE_BYTES => Ok(()),
            grown => Err(grown),
        });
        // And those whose lease ended.
        let commands = (0..2_000).map(|n| args!["LOCK.ACQUIRE", format!("lapse:{n}"), "PX", 1 + n % 50]);
        assert!(client.pipeline(commands).iter().all(|reply| grant(reply).new == 1));
        eventually(SOON, || match (cmd!(client, "DBSIZE").int(), used_bytes(&mut client) - before) {
            (0, grown) if grown < 2 * NOISE_BYTES => Ok(()),
            left => Err(left),
        });
    }

    // redisson#6510: 25 million counters of fences, a third of all keys, stayed behind.
    fn c75_fences_need_no_counter_a_name_and_never_go_back(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let first = use_names_once(&mut client, "k", 10_000);
        let second = use_names_once(&mut client, "k", 10_000);
        let all = [first, second].concat();
        assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "a fence went back");
        assert_eq!(cmd!(client, "DBSIZE").int(), 0);
    }

    // ioredis#2000, #813, #1187, PR#2164, node-redis#994, #339: clients with floating-point numbers lost digits.
    fn c76_a_fence_is_exact_as_a_double(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let fence = grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a")).fence;
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
        let through_a_double = fence as f64 as i64;
        assert!(fence < 1 << 53 && through_a_double == fence, "{fence}");
        // A script's numbers are doubles, and so is their way back to text in 14 digits.
        let script = "return tostring(redis.call('LOCK.ACQUIRE', KEYS[1], 'TOKEN', 'a')[2])";
        assert_eq!(cmd!(client, "EVAL", script, 1, "k").text(), fence.to_string());
    }

    // As above: at the end of the exact numbers issuing stops, and what is held goes on.
    fn c76_fences_stop_below_2_to_53(kind: Kind) {
        let last = (1_u64 << 53) - 1;
        let mut aof = Vec::new();
        for command in [args!["SELECT", 0], args!["LOCK._SET", "k", stored_holder(last)]] {
            aof.extend(format!("*{}\r\n", command.len()).into_bytes());
            for arg in command {
                aof.extend(format!("${}\r\n", arg.len()).into_bytes());
                aof.extend([&arg[..], b"\r\n"].concat());
            }
        }
        let server = Server::builder(kind).arg("appendonly", "yes").file("appendonly.aof", &aof).start();
        let mut client = server.client();
        assert_eq!(cmd!(client, "LOCK.INFO", "k").get("fence").int(), 9_007_199_254_740_991);
        assert_eq!(cmd!(client, "LOCK.ACQUIRE", "other", "TOKEN", "b").err(), "ERR all fences below 2^53 are used up");
        assert_eq!(cmd!(client, "EXISTS", "other").int(), 0);
        assert!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b").is_null());
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "t", "PX", 70_000).int(), 70_000);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "t").int(), 1);
        assert_eq!(info(&mut client, "lock").int("lock_fence"), 9_007_199_254_740_991);
    }

    // redisson#2116, PR#3848, #3523, RedLock.net#32, python-redis-lock#41, pottery#701: who holds it, since when, and
    // which locks are there.
    fn c72_who_holds_what_can_be_asked_by_anyone(kind: Kind) {
        let server = Server::start(kind);
        let mut holder = server.client();
        cmd!(holder, "CLIENT", "SETNAME", "worker-7").ok();
        let held = grant(&cmd!(holder, "LOCK.ACQUIRE", "lock:1", "TOKEN", "a", "PX", 60_000));
        grant(&cmd!(holder, "LOCK.ACQUIRE", "lock:2", "LABEL", "job 12 on web-3"));
        cmd!(holder, "SET", "data", 1).ok();
        let mut other = server.client();
        let info = cmd!(other, "LOCK.INFO", "lock:1");
        let one = &info.get("holders").array()[0];
        assert_eq!((one.get("label").text(), one.get("client").int()), ("worker-7".into(), holder.id()));
        assert_eq!(info.get("fence").int(), held.fence);
        assert!(info.get("ttl-ms").int() > 0 && one.get("age-ms").int() >= 0);
        assert_eq!(cmd!(other, "LOCK.INFO", "lock:2").get("holders").array()[0].get("label").text(), "job 12 on web-3");
        let found = cmd!(other, "SCAN", 0, "COUNT", 100, "TYPE", "redislock");
        let mut names: Vec<String> = found.array()[1].array().iter().map(Reply::text).collect();
        names.sort();
        assert_eq!(names, ["lock:1", "lock:2"]);
    }

    // node-redlock#185: "never got it" and "lost it" looked the same.
    fn c73_never_got_it_and_lost_it_are_different_replies(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 10));
        wait_until_free(&mut client, "k");
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b", "PX", 60_000));
        let never = cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "c");
        let lost = cmd!(client, "LOCK.EXTEND", "k", "a");
        assert_eq!((never, lost), (Reply::NullArray, Reply::Int(0)));
    }

    // portalocker#137, pgbouncer#102, #418, authentik#23876, pgdog#1407: a lock that belongs to a connection is lost
    // when a library reconnects, or stays when a pooler keeps the connection. So it belongs to the token.
    fn c77_a_lock_outlives_its_connection_and_not_its_lease(kind: Kind) {
        let server = Server::start(kind);
        let (mut holder, mut other) = (server.client(), server.client());
        let held = grant(&cmd!(holder, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000));
        grant(&cmd!(holder, "LOCK.ACQUIRE", "short", "TOKEN", "a", "PX", 300));
        assert_eq!(cmd!(other, "CLIENT", "KILL", "ID", holder.id()).int(), 1);
        eventually(SOON, || if holder.is_closed() { Ok(()) } else { Err("open") });
        assert!(cmd!(other, "LOCK.ACQUIRE", "k", "TOKEN", "b").is_null());
        let mut back = server.client();
        assert_eq!(grant(&cmd!(back, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000)).fence, held.fence);
        wait_until_free(&mut other, "short");
    }

    // sidekiq-unique-jobs#592, #691, #861, #488, #580, #779, #653: locks of killed jobs stayed, a reaper deleted locks
    // of running ones, and an index of all locks kept what was gone.
    fn c78_a_dead_holder_needs_no_reaper_and_no_index(kind: Kind) {
        let server = Server::start(kind);
        let (mut dead, mut alive) = (server.client(), server.client());
        grant(&cmd!(dead, "LOCK.ACQUIRE", "dead", "TOKEN", "a", "PX", 1_000));
        grant(&cmd!(alive, "LOCK.ACQUIRE", "alive", "TOKEN", "b", "PX", 60_000));
        // One key a lock, and nothing beside them.
        assert_eq!(cmd!(alive, "DBSIZE").int(), 2);
        drop(dead);
        wait_until_free(&mut alive, "dead");
        assert!(cmd!(alive, "LOCK.CHECK", "alive", "b").int() > 0);
        assert_eq!(cmd!(alive, "DBSIZE").int(), 1);
    }

    // bull#308, bullmq#3183, #3056, #1497: a worker that stalled past its lease finished a job another had taken.
    fn c79_a_worker_that_stalled_is_told_in_every_reply(kind: Kind) {
        let server = Server::start(kind);
        let (mut stalled, mut next) = (server.client(), server.client());
        let old = grant(&cmd!(stalled, "LOCK.ACQUIRE", "job", "TOKEN", "attempt-1", "PX", 10));
        wait_until_free(&mut next, "job");
        let new = grant(&cmd!(next, "LOCK.ACQUIRE", "job", "TOKEN", "attempt-2", "PX", 60_000));
        assert!(old.fence < new.fence);
        assert_eq!(cmd!(stalled, "LOCK.CHECK", "job", "attempt-1").int(), 0);
        assert_eq!(cmd!(stalled, "LOCK.EXTEND", "job", "attempt-1").int(), 0);
        assert!(cmd!(stalled, "LOCK.ACQUIRE", "job", "TOKEN", "attempt-1").is_null());
        assert_eq!(cmd!(stalled, "LOCK.RELEASE", "job", "attempt-1").int(), -1);
        assert!(cmd!(next, "LOCK.CHECK", "job", "attempt-2").int() > 0);
    }

    // dynamodb-lock-client#34, #9: the lease of a dead holder began to run only when somebody else came.
    fn c80_a_lease_runs_from_the_grant_whoever_comes(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let lease = Duration::from_millis(1_000);
        let sent = Instant::now();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", lease.as_millis()));
        let answered = Instant::now();
        // Others come late in the lease. What they get depends on how busy the machine is, but it is not the lock.
        assert!(cmd!(client, "BLPOP", "nothing", "0.7").is_null());
        assert!(cmd!(client, "LOCK.RELEASE", "k", "b").int() <= 0);
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "b", "PX", 60_000).int(), 0);
        wait_until_free(&mut client, "k");
        assert!(sent.elapsed() >= lease, "after {:?}", sent.elapsed());
        assert!(answered.elapsed() < lease + Duration::from_millis(650), "after {:?}", answered.elapsed());
    }

    // curator#835, redisson#7272, spring-integration#11049: a request cancelled in the middle left the lock in limbo.
    fn c82_a_request_cancelled_in_the_middle_can_be_taken_up(kind: Kind) {
        let server = Server::start(kind);
        for n in 0..50 {
            let key = format!("k{n}");
            let mut cancelled = server.client();
            send!(cancelled, "LOCK.ACQUIRE", key, "TOKEN", "a", "PX", 60_000);
            drop(cancelled);
            // Whether the first one arrived or not, the token holds the lock once, and one release frees it.
            let mut client = server.client();
            let held = grant(&cmd!(client, "LOCK.ACQUIRE", key, "TOKEN", "a", "PX", 60_000));
            assert_eq!(cmd!(client, "LOCK.INFO", key).get("fence").int(), held.fence);
            assert_eq!(cmd!(client, "LOCK.RELEASE", key, "a").int(), 1);
        }
        let mut half = server.client();
        half.write(b"*4\r\n$12\r\nLOCK.ACQUIRE\r\n$4\r\nhalf\r\n$5\r\nTOKEN\r\n$1\r\n");
        drop(half);
        assert_eq!(cmd!(server.client(), "EXISTS", "half").int(), 0);
    }
}
