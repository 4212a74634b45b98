//! Failures that users of other lock systems reported about wake-ups, one test each, named by its number in the
//! project's list of cases. The report is named above each test.

use std::time::Duration;

use crate::harness::line::{
    count, holds, release, send_acquire, stand_in_line, stand_with, take, take_for, until_count, waiters,
};
use crate::harness::{
    args, cmd, eventually, grant, info, info_int, on_every_server, timed, Client, Cluster, Info, Kind, Reply, Server,
};

const SOON: Duration = Duration::from_secs(5);

/// Asks once; the place is kept for ten seconds.
fn poll(key: &str, token: &str) -> Vec<Vec<u8>> {
    args!["LOCK.ACQUIRE", key, "TOKEN", token, "POLL", 10_000]
}

/// Milliseconds at this share of the sorted times.
fn quantile_ms(sorted: &[Duration], share: f64) -> f64 {
    let at = (sorted.len() as f64 * share) as usize;
    sorted[at.min(sorted.len() - 1)].as_secs_f64() * 1000.0
}

on_every_server! {
    // redisson#1763: the subscription is complete after the unlock was published, and the thread waits in vain.
    fn c1_a_release_that_races_a_wait_never_loses_it(kind: Kind) {
        let server = Server::start(kind);
        let (mut holder, mut waiter) = (server.client(), server.client());
        take(&mut holder, "k", "0");
        let mut longest = 0;
        for round in 0..1000 {
            let (old, new) = (round.to_string(), (round + 1).to_string());
            // Now the one is sent first, now the other; the server sees them as it likes.
            if round % 2 == 0 {
                holder.send(&["LOCK.RELEASE", "k", &old]);
                send_acquire(&mut waiter, "k", &new, &["BLOCK", "60000"]);
            } else {
                send_acquire(&mut waiter, "k", &new, &["BLOCK", "60000"]);
                holder.send(&["LOCK.RELEASE", "k", &old]);
            }
            assert_eq!(holder.recv().int(), 1, "round {round}");
            let granted = grant(&waiter.recv());
            assert_eq!(granted.new, 1, "round {round}");
            longest = longest.max(granted.waited);
            std::mem::swap(&mut holder, &mut waiter);
        }
        assert!(longest < 1000, "one waited {longest} ms for a lock that was given up at once");
        assert_eq!(count(&mut holder, "released"), 1000);
    }

    // redisson#3891: a write-lock waiter is blocked for 35 s after the unlock, until the lease is over.
    fn c2_a_waiter_is_woken_by_the_release_not_by_the_lease(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let mut took: Vec<Duration> = (0..20)
            .map(|_| {
                take(&mut client, "k", "a");
                let mut waiter = stand_in_line(&server, "k", "b");
                let ((), took) = timed(|| {
                    release(&mut client, "k", "a");
                    assert_eq!(grant(&waiter.recv()).token, b"b");
                });
                release(&mut client, "k", "b");
                took
            })
            .collect();
        took.sort_unstable();
        assert!(took[0] < Duration::from_millis(5) && took[10] < Duration::from_millis(50), "{took:?}");
    }

    // redisson#995, #1466, #4216, #5046, #5219, #5299: waiters need subscriptions, and those run out.
    fn c4_waiters_on_thousands_of_names_cost_bounded_memory(kind: Kind) {
        const BLOCKED: usize = 1_000;
        const POLLED: usize = 10_000;
        let server = Server::builder(kind).arg("maxclients", 4000).start();
        let mut client = server.client();
        let key = |n: usize| format!("k{n}");
        let hold = |n| args!["LOCK.ACQUIRE", key(n), "TOKEN", "a", "PX", 600_000];
        assert!(!client.pipeline((0..BLOCKED + POLLED).map(hold)).iter().any(Reply::is_null));
        let mut waiting: Vec<Client> = (0..BLOCKED).map(|_| server.client()).collect();
        let used = |client: &mut Client| info_int(client, "memory", "used_memory");
        let idle = used(&mut client);
        for (n, waiter) in waiting.iter_mut().enumerate() {
            send_acquire(waiter, &key(n), "b", &["BLOCK", "0"]);
        }
        until_count(&mut client, "waiting", BLOCKED as i64);
        let blocked = used(&mut client);
        let polls = client.pipeline((BLOCKED..BLOCKED + POLLED).map(|n| poll(&key(n), &format!("t{n}"))));
        assert!(polls.iter().all(Reply::is_null));
        let (each_blocked, each_polled) =
            ((blocked - idle) / BLOCKED as i64, (used(&mut client) - blocked) / POLLED as i64);
        eprintln!("{}: {each_blocked} bytes each blocked, {each_polled} each polled", kind.name());
        assert!(each_blocked < 60_000 && each_polled < 1_500, "{each_blocked} and {each_polled} bytes each");
        // Each is woken by its own lock.
        let free = client.pipeline((0..BLOCKED + POLLED).map(|n| args!["LOCK.RELEASE", key(n), "a"]));
        assert!(free.iter().all(|reply| reply.int() == 1));
        assert!(waiting.iter_mut().all(|waiter| grant(&waiter.recv()).token == b"b"));
        let fetched = client.pipeline((BLOCKED..BLOCKED + POLLED).map(|n| poll(&key(n), &format!("t{n}"))));
        assert!(fetched.iter().all(|reply| grant(reply).new == 1));
    }

    // redisson#4064: one subscribe that fails leaves the key failing for ever.
    fn c5_a_wait_that_ends_badly_leaves_no_state(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for way in ["timeout", "kill", "close", "data", "withdraw"] {
            take(&mut client, "k", "a");
            let mut waiter = server.client();
            let id = waiter.id();
            send_acquire(&mut waiter, "k", "b", &["BLOCK", if way == "timeout" { "20" } else { "0" }]);
            if way != "timeout" {
                until_count(&mut client, "waiting", 1);
            }
            match way {
                "timeout" => assert!(waiter.recv().is_null()),
                "kill" => assert_eq!(cmd!(client, "CLIENT", "KILL", "ID", id).int(), 1),
                "close" => drop(waiter),
                "data" => {
                    cmd!(client, "SET", "k", "v").ok();
                    assert!(waiter.recv().err().starts_with("WRONGTYPE"));
                    cmd!(client, "DEL", "k").int();
                }
                _ => assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "b").int(), -1),
            }
            until_count(&mut client, "waiting", 0);
            cmd!(client, "LOCK.RELEASE", "k", "a").int();
            let next = grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "c", "BLOCK", 0));
            assert_eq!((next.waited, next.new), (0, 1), "after {way}");
            release(&mut client, "k", "c");
            assert_eq!(cmd!(client, "DBSIZE").int(), 0, "after {way}");
        }
    }

    // redisson#543: tryLock(0) blocks for ever.
    fn c7_without_block_the_reply_comes_in_the_same_command(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let replies = client.pipeline([
            args!["LOCK.ACQUIRE", "k"],
            args!["LOCK.ACQUIRE", "k", "TOKEN", "b"],
            args!["LOCK.ACQUIRE", "k", "TOKEN", "b", "PX", 1],
            args!["PING"],
        ]);
        assert!(replies[..3].iter().all(Reply::is_null), "{replies:?}");
        assert!(replies[3].is("PONG"));
        assert_eq!(count(&mut client, "waited"), 0);
    }

    // redisson#3349: unlock messages are broadcast to every node of a cluster, and saturate its network.
    fn c8_hand_overs_send_nothing_over_the_cluster_bus(kind: Kind) {
        let cluster = Cluster::start(kind, 2);
        let node = cluster.owner("k");
        let (mut client, mut waiter) = (cluster.client(node), cluster.client(node));
        let sent = |client: &mut Client| Info::parse(&cmd!(client, "CLUSTER", "INFO").text());
        let before = sent(&mut client);
        let ((), took) = timed(|| {
            take(&mut client, "k", "0");
            for round in 0..500 {
                send_acquire(&mut waiter, "k", &format!("{}", round + 1), &["BLOCK", "0"]);
                release(&mut client, "k", &round.to_string());
                grant(&waiter.recv());
            }
        });
        let after = sent(&mut client);
        let moved = |name: &str| {
            let number = |info: &Info| info.find(name).map_or(0, |seen| seen.parse::<u64>().expect("a number"));
            number(&after) - number(&before)
        };
        // A node says hello to each other one, and answers, a few times in a second, locks or no locks.
        let hello = ["cluster_stats_messages_ping_sent", "cluster_stats_messages_pong_sent"];
        let hellos: u64 = hello.into_iter().map(moved).sum();
        assert!(hellos < 20 + 10 * took.as_secs(), "{hellos} in {took:?}");
        assert_eq!(moved("cluster_stats_messages_sent"), hellos, "{after:?}");
        // Valkey 9 counts bytes too.
        let bytes = moved("cluster_stats_bytes_sent");
        assert!(bytes <= hellos * 4096, "{bytes} bytes for {hellos} messages");
        assert_eq!(moved("cluster_stats_pubsub_bytes_sent") + moved("cluster_stats_module_bytes_sent"), 0);
    }

    // spring-integration#3690: waiters that wait for a message sleep through the end of a lease.
    fn c9_a_waiter_gets_the_lock_when_its_holder_dies(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let (granted, took) = timed(|| {
            take_for(&mut client, "k", "dead", 500);
            grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b", "PX", 1000, "BLOCK", 60_000))
        });
        assert!(took >= Duration::from_millis(500), "{took:?}");
        assert!(granted.waited <= 700, "{granted:?}");
    }

    // python-redis-lock#14, #17: a release that wakes nobody leaves a signal; the next waiter does not block.
    fn c10_a_release_nobody_waits_for_leaves_nothing(kind: Kind) {
        const NAMES: i64 = 100_000;
        let server = Server::start(kind);
        let mut client = server.client();
        // Somebody waited once, and is gone.
        take(&mut client, "k", "a");
        drop(stand_in_line(&server, "k", "gone"));
        until_count(&mut client, "waiting", 0);
        release(&mut client, "k", "a");
        assert_eq!(cmd!(client, "DBSIZE").int(), 0);
        take(&mut client, "k", "a");
        assert!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b", "BLOCK", 50).is_null(), "no stale wake-up");
        release(&mut client, "k", "a");
        // A hundred thousand names, used once each, with somebody in line.
        let mut turn = |from: i64| {
            let words = (from..from + 1000).flat_map(|n| {
                let key = format!("name {n}");
                [args!["LOCK.ACQUIRE", key, "TOKEN", "a"], poll(&key, "b"), args!["LOCK.RELEASE", key, "a"],
                    args!["LOCK.RELEASE", key, "b"]]
            });
            let replies = client.pipeline(words.collect::<Vec<_>>());
            assert!(replies.chunks(4).all(|four| four[2].int() == 1 && four[3].int() == 1));
            info_int(&mut client, "memory", "used_memory")
        };
        // What the allocator and the server's own tables keep is there after the first of them.
        let before = turn(0);
        let after = (1..NAMES / 1000).map(|thousand| turn(thousand * 1000)).last().expect("some");
        assert!(after - before < 200_000, "{} bytes more", after - before);
        assert_eq!((cmd!(client, "DBSIZE").int(), count(&mut client, "held")), (0, 0));
    }

    // python-redis-lock#26: a forced release does not wake waiters. Every way is in `wake.rs`.
    fn c12_a_forced_release_serves_or_fails_every_waiter(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let ways: [(&[&str], bool); 5] = [
            (&["DEL", "k"], true),
            (&["FLUSHDB"], true),
            (&["RENAME", "k", "m"], true),
            (&["SET", "k", "v"], false),
            (&["LOCK.RELEASE", "k", "a"], true),
        ];
        for (way, served) in ways {
            take(&mut client, "k", "a");
            let mut waiting = ["b", "c", "d"].map(|token| stand_in_line(&server, "k", token));
            assert!(!client.cmd(way).is_error());
            for (waiter, token) in waiting.iter_mut().zip(["b", "c", "d"]) {
                let told = waiter.recv();
                assert_eq!(!told.is_error(), served, "{way:?}: {told:?}");
                cmd!(client, "LOCK.RELEASE", "k", token);
            }
            cmd!(client, "FLUSHALL").ok();
        }
    }

    // redis#7413, valkey#4384, redis PR#15620: with many volatile keys the server's own expiry is minutes late.
    fn c13_a_lease_ends_on_time_however_many_keys_expire(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        // Their ends are spread over the whole test, so the server is at it all the time and behind.
        let volatile = "for n = 1, 20000 do redis.call('SET', ARGV[1] .. n, n, 'PX', 300 + n % 4000) end";
        for tenth in 0..10 {
            assert!(cmd!(client, "EVAL", volatile, 0, format!("{tenth} ")).is_null());
        }
        let mut late: Vec<i64> = (0..7)
            .map(|round| {
                let key = format!("k{round}");
                take_for(&mut client, &key, "dead", 200);
                let took = grant(&cmd!(client, "LOCK.ACQUIRE", key, "TOKEN", "b", "BLOCK", 0)).waited;
                (took - 200).max(0)
            })
            .collect();
        late.sort_unstable();
        assert!(late[3] < 60, "late by {late:?} ms");
    }

    // redisson#3287, #486: it takes a second to get a lock among ten clients. Reported here, judged by the benchmark.
    fn c14_the_latency_of_hand_overs_is_reported(kind: Kind) {
        let server = Server::builder(kind).arg("maxclients", 3000).start();
        let mut client = server.client();
        for many in [2, 10, 100, 1000] {
            take(&mut client, "k", "t0");
            let mut waiting: Vec<Client> = (0..many).map(|_| server.client()).collect();
            for (n, waiter) in waiting.iter_mut().enumerate() {
                // One read per waiter, so that the order is known: each is seen in line before the next one.
                send_acquire(waiter, "k", &format!("t{}", n + 1), &["BLOCK", "0"]);
                if many <= 10 {
                    until_count(&mut client, "waiting", n as i64 + 1);
                }
            }
            until_count(&mut client, "waiting", many as i64);
            let mut took = Vec::new();
            let mut holder = b"t0".to_vec();
            for _ in 0..many {
                let ((), one) = timed(|| {
                    assert_eq!(cmd!(client, "LOCK.RELEASE", "k", holder).int(), 1);
                    holder = next_holder(&mut waiting);
                });
                took.push(one);
            }
            took.sort_unstable();
            let (p50, p99) = (quantile_ms(&took, 0.5), quantile_ms(&took, 0.99));
            eprintln!("{}: {many} waiters, hand-over p50 {p50:.3} ms, p99 {p99:.3} ms", kind.name());
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", holder).int(), 1);
            assert_eq!(waiters(&mut client, "k"), 0);
        }
    }

    // redisson#3573: with hundreds of names and 48 threads a waiter is not woken.
    fn c15_names_do_not_stand_in_each_others_way(kind: Kind) {
        const NAMES: usize = 300;
        let server = Server::builder(kind).arg("maxclients", 3000).start();
        let mut client = server.client();
        let key = |n: usize| format!("k{n}");
        for n in 0..NAMES {
            take(&mut client, &key(n), "a");
        }
        let mut waiting: Vec<Client> = (0..NAMES * 2).map(|_| server.client()).collect();
        for (n, waiter) in waiting.iter_mut().enumerate() {
            send_acquire(waiter, &key(n % NAMES), &format!("t{n}"), &["BLOCK", "0"]);
        }
        until_count(&mut client, "waiting", 2 * NAMES as i64);
        // In an order that has nothing to do with that of the waits: 7 and 300 have no divisor in common.
        for n in (0..NAMES).map(|n| n * 7 % NAMES) {
            release(&mut client, &key(n), "a");
            // Either of the two may have come first.
            let first = [n, n + NAMES].into_iter().find(|t| holds(&mut client, &key(n), &format!("t{t}")));
            let first = first.expect("one of the two in line");
            assert_eq!(grant(&waiting[first].recv()).token, format!("t{first}").into_bytes());
            release(&mut client, &key(n), &format!("t{first}"));
            let second = if first == n { n + NAMES } else { n };
            assert_eq!(grant(&waiting[second].recv()).token, format!("t{second}").into_bytes());
        }
        assert_eq!((count(&mut client, "waiting"), count(&mut client, "held")), (0, NAMES as i64));
    }

    // Under C1 and C15: whoever polls is not woken at all, and is not forgotten either.
    fn c15_a_place_that_is_polled_is_not_forgotten(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        assert!(client.cmd(&poll("k", "b")).is_null());
        let _behind = stand_with(&server, "k", "c", &["BLOCK", "0", "PX", "5000"]);
        release(&mut client, "k", "a");
        let told = eventually(SOON, || match client.cmd(&poll("k", "b")) {
            reply if reply.is_null() => Err("not yet"),
            reply => Ok(grant(&reply)),
        });
        assert_eq!(told.token, b"b");
        assert_eq!(info(&mut client, "lock").int("lock_handed_over"), 1);
    }
}

/// The token of the one that was granted the lock, whoever it is.
fn next_holder(waiting: &mut Vec<Client>) -> Vec<u8> {
    let (at, token) = eventually(SOON, || {
        let told = waiting.iter_mut().map(|waiter| waiter.try_recv(Duration::ZERO)).enumerate();
        told.filter_map(|(at, reply)| Some((at, grant(&reply?).token))).next().ok_or("nobody is told")
    });
    waiting.remove(at);
    token
}
