//! `LOCK.ACQUIRE`: who is granted a lock, what the reply says, and what sending it again does. What may be typed is in
//! `syntax`, labels are in `label_option`.

use std::collections::HashSet;

use crate::harness::{
    assert_left, cmd, grant, info_int, on_every_server, wait_until_free, within_ms, Client, Kind, Reply, Server,
};

/// `lock.default-ttl` and `lock.max-ttl`, as the server has them if nobody sets them.
const DEFAULT_TTL_MS: i64 = 30_000;
const MAX_TTL_MS: i64 = 86_400_000;

fn both_protocols(server: &Server) -> [Client; 2] {
    [server.client(), server.resp3_client()]
}

on_every_server! {
    fn a_free_lock_is_granted_in_five_elements(kind: Kind) {
        let server = Server::start(kind);
        for (mut client, key) in both_protocols(&server).into_iter().zip(["two", "three"]) {
            let granted = grant(&cmd!(client, "LOCK.ACQUIRE", key, "TOKEN", "a", "PX", 60_000));
            assert_eq!(granted.token, b"a");
            assert!(granted.fence > 0, "{granted:?}");
            // Nothing of the lease is gone at the instant of the grant, and nobody waited.
            assert_eq!((granted.ttl, granted.waited, granted.new), (60_000, 0, 1));
            assert_left(cmd!(client, "LOCK.CHECK", key, "a").int(), 60_000);
        }
    }

    fn a_held_lock_is_null_to_every_other_token(kind: Kind) {
        let server = Server::start(kind);
        let [mut resp2, mut resp3] = both_protocols(&server);
        let held = grant(&cmd!(resp2, "LOCK.ACQUIRE", "k", "TOKEN", "a"));
        // The connection that holds the lock is nothing special: the token is.
        assert_eq!(cmd!(resp2, "LOCK.ACQUIRE", "k", "TOKEN", "b"), Reply::NullArray);
        assert_eq!(cmd!(resp3, "LOCK.ACQUIRE", "k", "TOKEN", "b"), Reply::Null);
        assert_eq!(cmd!(resp2, "LOCK.ACQUIRE", "k"), Reply::NullArray);
        assert_eq!(cmd!(resp3, "LOCK.INFO", "k").get("fence").int(), held.fence);
    }

    fn without_a_token_the_server_makes_a_random_uuid(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let mut seen = HashSet::new();
        for n in 0..100 {
            let key = format!("k{n}");
            let token = grant(&cmd!(client, "LOCK.ACQUIRE", key)).token;
            let text = String::from_utf8(token).expect("a UUID is text");
            let parts: Vec<&str> = text.split('-').collect();
            let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
            assert_eq!(lengths, [8, 4, 4, 4, 12], "{text}");
            assert!(text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-')), "{text}");
            assert!(parts[2].starts_with('4') && parts[3].starts_with(['8', '9', 'a', 'b']), "no version 4: {text}");
            assert_eq!(cmd!(client, "LOCK.RELEASE", key, text).int(), 1);
            assert!(seen.insert(text));
        }
    }

    fn the_same_token_gets_its_grant_again(kind: Kind) {
        let server = Server::start(kind);
        let first = grant(&cmd!(server.client(), "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000));
        // From another connection too: the one that lost the reply is gone.
        for mut client in both_protocols(&server) {
            let again = grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000));
            assert_eq!((&again.token, again.fence, again.new, again.waited), (&first.token, first.fence, 0, 0));
            assert_left(again.ttl, 60_000);
        }
        // One hold, however often it was asked for.
        assert_eq!(cmd!(server.client(), "LOCK.RELEASE", "k", "a").int(), 1);
        assert_eq!(cmd!(server.client(), "LOCK.RELEASE", "k", "a").int(), 0);
    }

    fn a_repeat_raises_the_lease_and_never_shortens_it(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let mut ttl_after = |lease: &[&str]| {
            let args = [&["LOCK.ACQUIRE", "k", "TOKEN", "a"], lease].concat();
            grant(&client.cmd(&args)).ttl
        };
        assert_eq!(ttl_after(&["PX", "10000"]), 10_000);
        assert_eq!(ttl_after(&["PX", "60000"]), 60_000);
        assert_left(ttl_after(&["PX", "1"]), 60_000);
        assert_left(ttl_after(&["EX", "10"]), 60_000);
        // Without PX the default is what it is raised to, here less than is left.
        assert_left(ttl_after(&[]), 60_000);
        assert_eq!(ttl_after(&["EX", "3600"]), 3_600_000);
        assert_left(cmd!(server.client(), "LOCK.CHECK", "k", "a").int(), 3_600_000);
    }

    fn a_repeat_without_a_lease_raises_it_to_the_default(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 10_000));
        assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a")).ttl, DEFAULT_TTL_MS);
    }

    fn a_lease_is_the_default_unless_given_and_at_most_the_maximum(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", "default")).ttl, DEFAULT_TTL_MS);
        assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", "px-max", "PX", MAX_TTL_MS)).ttl, MAX_TTL_MS);
        assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", "ex-max", "EX", MAX_TTL_MS / 1_000)).ttl, MAX_TTL_MS);
        assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", "px-min", "PX", 1)).ttl, 1);
        assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", "ex-min", "EX", 1)).ttl, 1_000);
        assert_eq!(cmd!(client, "LOCK.ACQUIRE", "over", "PX", MAX_TTL_MS + 1).err(),
            "ERR lease of 86400001 ms is above lock.max-ttl 86400000");
        assert_eq!(cmd!(client, "LOCK.ACQUIRE", "over", "EX", MAX_TTL_MS / 1_000 + 1).err(),
            "ERR lease of 86401000 ms is above lock.max-ttl 86400000");
        assert!(cmd!(client, "LOCK.INFO", "over").is_null());
    }

    fn a_token_whose_lease_ended_takes_the_lock_anew(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let first = grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 20));
        wait_until_free(&mut client, "k");
        let second = grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000));
        assert_eq!((second.new, second.ttl), (1, 60_000));
        assert!(second.fence > first.fence, "{first:?} then {second:?}");
    }

    fn fences_rise_whatever_happens_between_two_grants(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let mut last = 0;
        let mut next = |client: &mut Client, key: &str, token: &str| {
            let granted = grant(&cmd!(client, "LOCK.ACQUIRE", key, "TOKEN", token));
            assert!(granted.fence > last && granted.new == 1, "{granted:?} after fence {last}");
            last = granted.fence;
        };
        next(&mut client, "k", "a");
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), 1);
        next(&mut client, "k", "a");
        assert_eq!(cmd!(client, "DEL", "k").int(), 1);
        next(&mut client, "k", "b");
        next(&mut client, "other", "a");
        cmd!(client, "FLUSHALL").ok();
        next(&mut client, "k", "a");
        cmd!(client, "FLUSHALL", "ASYNC").ok();
        next(&mut client, "k", "c");
        cmd!(client, "SWAPDB", 0, 1).ok();
        next(&mut client, "k", "c");
        cmd!(client, "SET", "k", "data").ok();
        assert_eq!(cmd!(client, "DEL", "k").int(), 1);
        next(&mut client, "k", "c");
        assert_eq!(info_int(&mut client, "lock", "lock_fence"), last);
    }

    fn each_database_has_its_own_locks(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a"));
        cmd!(client, "SELECT", 1).ok();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b"));
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), -1);
        cmd!(client, "SELECT", 0).ok();
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), 1);
    }

    fn a_lock_is_a_key_without_a_time_to_live(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "PX", 60_000));
        cmd!(client, "SET", "data", 1).ok();
        assert_eq!(cmd!(client, "TYPE", "k").text(), "redislock");
        assert_eq!(cmd!(client, "PTTL", "k").int(), -1);
        let found = cmd!(client, "SCAN", 0, "COUNT", 100, "TYPE", "redislock");
        assert_eq!(found.array()[1], Reply::Array(vec![Reply::Bulk(b"k".to_vec())]));
    }

    fn a_client_that_still_uses_set_nx_is_kept_out(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a"));
        assert!(cmd!(client, "SET", "k", "mine", "NX", "PX", 60_000).is_null());
        assert_eq!(cmd!(client, "SETNX", "k", "mine").int(), 0);
        assert!(cmd!(client, "GET", "k").err().starts_with("WRONGTYPE"));
        assert_left(cmd!(client, "LOCK.CHECK", "k", "a").int(), DEFAULT_TTL_MS);
    }

    fn del_is_the_forced_unlock(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for unlock in ["DEL", "UNLINK"] {
            grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a"));
            assert_eq!(cmd!(client, unlock, "k").int(), 1);
            assert_eq!(cmd!(client, "LOCK.CHECK", "k", "a").int(), 0);
            assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a").int(), 0);
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), 0);
            assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b")).new, 1);
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "b").int(), 1);
        }
    }

    fn every_answer_comes_at_once(kind: Kind) {
        let server = Server::start(kind);
        let (mut holder, mut other) = (server.client(), server.client());
        grant(&cmd!(holder, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000));
        // A hundred tries, each well below the shortest tick of the server.
        within_ms(0..=2_000, || {
            for _ in 0..100 {
                assert!(cmd!(other, "LOCK.ACQUIRE", "k", "TOKEN", "b").is_null());
            }
        });
    }
}
