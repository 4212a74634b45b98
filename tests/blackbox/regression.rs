//! Failures that users of other lock systems reported, one test each, named by the number of the case. The reference
//! above each is the public tracker where it was reported. The cases of clocks, restarts and failovers are elsewhere.

use std::time::Duration;

use crate::harness::{
    args, assert_left, busily, cmd, grant, on_every_server, send, wait_until_free, within_ms, Client, Kind, Reply,
    Server,
};

const SOON: Duration = Duration::from_secs(10);
const WRONGTYPE: &str = "WRONGTYPE key holds data, not a lock: use another name";

/// Takes `key` for `token` with a short lease and waits until it is over.
#[track_caller]
fn let_lapse(client: &mut Client, key: &str, token: &str) -> i64 {
    let held = grant(&cmd!(client, "LOCK.ACQUIRE", key, "TOKEN", token, "PX", 10));
    wait_until_free(client, key);
    held.fence
}

on_every_server! {
    // redisson#4064: after one failed attempt the name failed at once for ever.
    fn c5_a_failed_request_leaves_no_state(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        assert!(cmd!(client, "LOCK.ACQUIRE", "k", "PX", "soon").is_error());
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a"));
        assert!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b").is_null());
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), 1);
        assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b")).new, 1);
    }

    // redisson#543: a try with no time to wait blocked for ever.
    fn c7_a_try_never_blocks(kind: Kind) {
        let server = Server::start(kind);
        let (mut holder, mut other) = (server.client(), server.client());
        grant(&cmd!(holder, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000));
        within_ms(0..=1_000, || {
            assert_eq!(cmd!(other, "LOCK.ACQUIRE", "k", "TOKEN", "b"), Reply::NullArray);
            assert_eq!(cmd!(other, "LOCK.RELEASE", "k", "b").int(), -1);
            assert_eq!(cmd!(other, "LOCK.EXTEND", "k", "b").int(), 0);
        });
        // The connection was not left waiting in any way.
        assert!(cmd!(other, "PING").is("PONG"));
    }

    // redisson#3573: waiting for one of hundreds of names disturbed the others.
    fn c15_names_do_not_disturb_each_other(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let key = |n: u32| format!("k{n}");
        client.pipeline((0..500).map(|n| args!["LOCK.ACQUIRE", key(n), "TOKEN", "a", "PX", 60_000]));
        let released = client.pipeline((0..500).step_by(2).map(|n| args!["LOCK.RELEASE", key(n), "a"]));
        assert!(released.iter().all(|reply| reply.int() == 1));
        for (n, left) in client.pipeline((0..500).map(|n| args!["LOCK.CHECK", key(n), "a"])).iter().enumerate() {
            assert_eq!(left.int() > 0, n % 2 == 1, "{n}: {left:?}");
        }
    }

    // laravel#20709, #26213, reinhardt-web#740: a release after the own lease had ended freed another client's lock.
    fn c24_release_never_frees_anothers_lock(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let_lapse(&mut client, "k", "a");
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b", "PX", 60_000));
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), -1);
        assert!(cmd!(client, "LOCK.CHECK", "k", "b").int() > 0);
    }

    // aredis#119: tasks that shared a connection shared its token, and released each other's locks.
    fn c25_two_tasks_of_one_connection_are_strangers(kind: Kind) {
        let server = Server::start(kind);
        let mut shared = server.client();
        let one = grant(&cmd!(shared, "LOCK.ACQUIRE", "k")).token;
        assert!(cmd!(shared, "LOCK.ACQUIRE", "k").is_null());
        let two = grant(&cmd!(shared, "LOCK.ACQUIRE", "other")).token;
        assert_eq!(cmd!(shared, "LOCK.RELEASE", "k", two).int(), -1);
        assert_eq!(cmd!(shared, "LOCK.RELEASE", "k", one).int(), 1);
    }

    // redis-py#3847, PR#4258: a release whose reply was lost could not be sent again.
    fn c26_a_release_sent_again_says_so(kind: Kind) {
        let server = Server::start(kind);
        let mut lost = server.client();
        grant(&cmd!(lost, "LOCK.ACQUIRE", "k", "TOKEN", "a"));
        send!(lost, "LOCK.RELEASE", "k", "a");
        drop(lost);
        let mut client = server.client();
        wait_until_free(&mut client, "k");
        for _ in 0..3 {
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), 0);
        }
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b"));
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), -1);
    }

    // redis-py PR#1095, redsync#107, node-redlock#65, #168, #283, spring-integration#2661, #2894: releasing a lock
    // whose lease had ended was a misleading or a fatal error.
    fn c27_a_release_has_three_results_and_none_is_an_error(kind: Kind) {
        let server = Server::start(kind);
        for mut client in [server.client(), server.resp3_client()] {
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a"), Reply::Int(0));
            let_lapse(&mut client, "k", "a");
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a"), Reply::Int(0));
            grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b"));
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a"), Reply::Int(-1));
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "b"), Reply::Int(1));
        }
    }

    // redlock-rb#36, redis-semaphore#175: extending an expired lock took it anew, although another may have had it.
    fn c28_extend_never_takes_a_lock(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        // Right at the end, where a moment decides: once an extension failed, the hold is over for good.
        for _ in 0..20 {
            grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 5));
            busily(SOON, || match cmd!(client, "LOCK.CHECK", "k", "a").int() {
                0 => Ok(()),
                left_ms => Err(left_ms),
            });
            assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a", "PX", 60_000).int(), 0);
            assert_eq!(cmd!(client, "LOCK.CHECK", "k", "a").int(), 0);
            wait_until_free(&mut client, "k");
        }
    }

    // redsync#71, #72 and its Extend: success and validity were claimed for locks that were gone.
    fn c30_what_is_left_is_told_by_the_server_at_the_reply(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 300));
        let mut last = 300;
        busily(SOON, || {
            let left = cmd!(client, "LOCK.CHECK", "k", "a").int();
            assert!(left <= last, "{last} ms left, then {left}");
            last = left;
            if left == 0 { Ok(()) } else { Err(left) }
        });
        wait_until_free(&mut client, "k");
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a", "PX", 60_000).int(), 0);
    }

    // redisson#7367, #4822, #4109: a request sent again after a lost reply counted as a second hold, so that one
    // release left the lock held, up to 41 times.
    fn c39_a_request_sent_again_is_one_hold(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let mut fences = Vec::new();
        for _ in 0..41 {
            let mut lost = server.client();
            fences.push(grant(&cmd!(lost, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000)).fence);
        }
        assert!(fences.iter().all(|fence| *fence == fences[0]), "{fences:?}");
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), 1);
        assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b")).new, 1);
    }

    // redisson#1966, #1626, #2714, #7272, PR#7251: renewals after the release kept the lock for ever.
    fn c40_a_released_token_is_never_revived(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000));
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), 1);
        for _ in 0..3 {
            assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a", "PX", 60_000).int(), 0);
        }
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b", "PX", 10));
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a", "PX", 60_000).int(), 0);
        wait_until_free(&mut client, "k");
    }

    // redisson#3194, #775, #5698, #3919: renewals went missing without a word.
    fn c41_each_renewal_of_a_batch_has_its_own_result(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let key = |n: i64| format!("k{n}");
        client.pipeline((0..100).map(|n| args!["LOCK.ACQUIRE", key(n), "TOKEN", "a", "PX", 60_000]));
        client.pipeline((0..100).step_by(3).map(|n| args!["LOCK.RELEASE", key(n), "a"]));
        let renewed = client.pipeline((0..100).map(|n| args!["LOCK.EXTEND", key(n), "a", "PX", 70_000 + n]));
        for (n, left) in (0..).zip(renewed) {
            assert_eq!(left.int(), if n % 3 == 0 { 0 } else { 70_000 + n });
        }
    }

    // redisson#5623, #1110: taking a lock again set its lease back to the default, cut it short, or added to it.
    fn c42_reentry_neither_shortens_nor_adds(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for (lease_ms, expected_ms) in [(10_000, 10_000), (1_000, 10_000), (10_000, 10_000), (40_000, 40_000)] {
            let left = grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", lease_ms)).ttl;
            assert_left(left, expected_ms);
        }
        assert_left(grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a")).ttl, 40_000);
    }

    // cirello dynamolock#280: a heartbeat whose reply was lost made the next one fail, and the lock was given up.
    fn c43_an_extension_sent_again_succeeds(kind: Kind) {
        let server = Server::start(kind);
        grant(&cmd!(server.client(), "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 10_000));
        for _ in 0..5 {
            let mut lost = server.client();
            send!(lost, "LOCK.EXTEND", "k", "a", "PX", 60_000);
            drop(lost);
            assert_eq!(cmd!(server.client(), "LOCK.EXTEND", "k", "a", "PX", 60_000).int(), 60_000);
        }
    }

    // etcd#22082: a stale unlock sent again deleted a newer lock. Here each unit of work has a token of its own.
    fn c44_a_stale_release_does_not_free_a_newer_lock(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let stale = grant(&cmd!(client, "LOCK.ACQUIRE", "k"));
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", stale.token).int(), 1);
        let newer = grant(&cmd!(client, "LOCK.ACQUIRE", "k"));
        assert_ne!(stale.token, newer.token);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", stale.token).int(), -1);
        assert!(cmd!(client, "LOCK.CHECK", "k", newer.token).int() > 0);
    }

    // go-redsync PR#149: an instance that had forgotten the lock never got it back, since extending only extends.
    fn c60_an_instance_that_forgot_gets_the_lock_back_when_asked(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let first = grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000));
        cmd!(client, "FLUSHALL").ok();
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a").int(), 0);
        let again = grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000));
        assert!(again.new == 1 && again.fence > first.fence, "{first:?} then {again:?}");
    }

    // laravel#31166: the lock was set in one step and its time to live in another, and a crash came between.
    fn c63_a_lock_never_stands_without_a_lease(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let commands = (0..200).flat_map(|n| {
            let key = format!("k{n}");
            [args!["LOCK.ACQUIRE", key], args!["LOCK.INFO", key]]
        });
        for replies in client.pipeline(commands).chunks(2) {
            assert!((1..=30_000).contains(&replies[1].get("ttl-ms").int()), "{replies:?}");
        }
    }

    // redlock-rb#108, dynamodb-lock-client#6: an outage was told in the same way as "somebody else has it".
    fn c64_held_by_another_and_an_error_are_different_replies(kind: Kind) {
        let server = Server::start(kind);
        for mut client in [server.client(), server.resp3_client()] {
            cmd!(client, "FLUSHALL").ok();
            grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a"));
            cmd!(client, "SET", "data", 1).ok();
            let held = cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b");
            assert!(held.is_null() && !held.is_error(), "{held:?}");
            assert_eq!(cmd!(client, "LOCK.ACQUIRE", "data", "TOKEN", "b").err(), WRONGTYPE);
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "b"), Reply::Int(-1));
            assert_eq!(cmd!(client, "LOCK.RELEASE", "data", "b").err(), WRONGTYPE);
        }
    }

    // redlock-rb#27, resque-scheduler#298, nestjs-redis#15, aioredlock#73, #76: scripts had to be uploaded again.
    // redisson#2225, #2734, #6684, bullmq#3351, node-redlock#287, redis#6360: scripts are forbidden (C68).
    fn c67_no_script_is_needed(kind: Kind) {
        let server = Server::builder(kind).arg("rename-command", "EVAL \"\"").start();
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a"));
        cmd!(client, "SCRIPT", "FLUSH").ok();
        cmd!(client, "FUNCTION", "FLUSH").ok();
        assert!(cmd!(client, "EVAL", "return 1", 0).err().starts_with("ERR unknown command"));
        assert!(cmd!(client, "LOCK.EXTEND", "k", "a").int() > 0);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), 1);
    }
}
