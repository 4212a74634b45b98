//! Locks that clients of other libraries took with `SET key token NX PX`: respected, waited for, and released or
//! extended by their own token. What the server's own commands do to such a key wakes whoever waits for it.

use std::time::Duration;

use crate::harness::{cmd, eventually, grant, info_int, on_every_server, send, within_ms, Client, Kind, Reply, Server};

const SOON: Duration = Duration::from_secs(5);
const LONG_MS: i64 = 60_000;

/// Takes the lock the way other libraries do.
#[track_caller]
fn set(client: &mut Client, ms: i64) {
    cmd!(client, "SET", "k", "theirs", "NX", "PX", ms).ok();
}

/// A connection whose token waits in line.
#[track_caller]
fn waiting(server: &Server, token: &str) -> Client {
    let mut client = server.client();
    let mut observer = server.client();
    let before = info_int(&mut observer, "lock", "lock_waiting");
    send!(client, "LOCK.ACQUIRE", "k", "TOKEN", token, "BLOCK", 0);
    eventually(SOON, || match info_int(&mut observer, "lock", "lock_waiting") {
        now if now == before + 1 => Ok(()),
        now => Err(now),
    });
    client
}

on_every_server! {
    fn a_try_respects_it_and_never_adopts_it(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        set(&mut client, LONG_MS);
        assert_eq!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "ours"), Reply::NullArray);
        assert_eq!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "theirs"), Reply::NullArray);
        assert_eq!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "ours", "SHARED"), Reply::NullArray);
        assert!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "theirs", "UPGRADE").err().starts_with("NOTHELD "));
        assert_eq!(cmd!(client, "GET", "k").text(), "theirs");
    }

    fn their_set_fails_while_a_module_lock_is_held(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "ours"));
        assert!(cmd!(client, "SET", "k", "theirs", "NX", "PX", LONG_MS).is_null());
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "ours").int(), 1);
        set(&mut client, LONG_MS);
    }

    fn its_token_checks_extends_and_releases_it(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        set(&mut client, 20_000);
        assert_eq!(cmd!(client, "LOCK.CHECK", "k", "ours").int(), 0);
        assert!((15_000..=20_000).contains(&cmd!(client, "LOCK.CHECK", "k", "theirs").int()));
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "ours", "PX", LONG_MS).int(), 0);
        assert!((15_000..=20_000).contains(&cmd!(client, "LOCK.EXTEND", "k", "theirs", "PX", 10).int()), "never shorter");
        assert!((15_000..=20_000).contains(&cmd!(client, "LOCK.EXTEND", "k", "theirs").int()), "its length is not known");
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "theirs", "PX", LONG_MS).int(), LONG_MS);
        assert!((50_000..=LONG_MS).contains(&cmd!(client, "PTTL", "k").int()));
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "ours").int(), -1);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "theirs", "HOLD", "h").int(), 0);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "theirs").int(), 1);
        assert_eq!(cmd!(client, "EXISTS", "k").int(), 0);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "theirs").int(), 0);
    }

    fn info_shows_it(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        set(&mut client, LONG_MS);
        let _waiter = waiting(&server, "a");
        let info = cmd!(client, "LOCK.INFO", "k");
        assert_eq!(info.get("mode").text(), "legacy");
        assert!((50_000..=LONG_MS).contains(&info.get("ttl-ms").int()));
        assert_eq!((info.get("fence").int(), info.get("held").int(), info.get("waiters").int()), (0, 1, 1));
    }

    fn a_guard_runs_for_its_token(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        set(&mut client, LONG_MS);
        assert!(cmd!(client, "LOCK.GUARD", "k", "ours", "SET", "data", "x").err().starts_with("NOTHELD "));
        cmd!(client, "LOCK.GUARD", "k", "theirs", "SET", "data", "x").ok();
    }

    fn a_waiter_is_granted_when_it_expires(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        set(&mut client, 300);
        let mut waiter = waiting(&server, "a");
        within_ms(100..=500, || assert_eq!(grant(&waiter.recv()).new, 1));
    }

    fn a_waiter_is_granted_when_it_goes_in_any_way(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let script = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end";
        let ways: [&[&str]; 7] = [
            &["DEL", "k"], &["UNLINK", "k"], &["EVAL", script, "1", "k", "theirs"], &["GETDEL", "k"],
            &["RENAME", "k", "other"], &["FLUSHALL"], &["LOCK.RELEASE", "k", "theirs"],
        ];
        for way in ways {
            set(&mut client, LONG_MS);
            let mut waiter = waiting(&server, "a");
            assert!(!client.cmd(way).is_error(), "{way:?}");
            let waited = within_ms(0..=1_000, || grant(&waiter.recv()));
            assert_eq!(waited.token, b"a", "{way:?}");
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), 1, "{way:?}");
            cmd!(client, "DEL", "other").int();
        }
    }

    fn a_waiter_is_refused_when_it_turns_out_to_be_data(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        set(&mut client, LONG_MS);
        let mut waiter = waiting(&server, "a");
        assert_eq!(cmd!(client, "PERSIST", "k").int(), 1);
        assert!(waiter.recv().err().starts_with("WRONGTYPE "));
    }

    /// The server by itself would notice late, or here not at all.
    fn a_shorter_life_wakes_the_line_sooner(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        cmd!(client, "DEBUG", "SET-ACTIVE-EXPIRE", 0).ok();
        let shorter: [&[&str]; 4] = [
            &["PEXPIRE", "k", "300"], &["SET", "k", "theirs", "PX", "300"], &["GETEX", "k", "PX", "300"],
            &["SET", "k", "anothers", "XX", "PX", "300"],
        ];
        for way in shorter {
            set(&mut client, LONG_MS);
            let mut waiter = waiting(&server, "a");
            assert!(!client.cmd(way).is_error(), "{way:?}");
            assert_eq!(grant(&waiter.recv()).token, b"a", "{way:?}");
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), 1, "{way:?}");
        }
    }

    fn a_longer_life_keeps_the_line_waiting(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        set(&mut client, 100);
        let mut waiter = waiting(&server, "a");
        assert_eq!(cmd!(client, "PEXPIRE", "k", 600).int(), 1);
        within_ms(400..=1_000, || assert_eq!(grant(&waiter.recv()).new, 1));
    }

    /// Asking the server whether it would let a client write must not touch the time to live.
    fn a_wait_leaves_the_key_as_it_was(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        set(&mut client, LONG_MS);
        let before = cmd!(client, "DEBUG", "DIGEST").text();
        let mut waiter = server.client();
        assert!(cmd!(waiter, "LOCK.ACQUIRE", "k", "TOKEN", "a", "BLOCK", 100).is_null());
        assert_eq!(cmd!(client, "DEBUG", "DIGEST").text(), before);
        assert!(cmd!(client, "PTTL", "k").int() > 50_000);
        assert_eq!(cmd!(client, "OBJECT", "ENCODING", "k").text(), "embstr");
    }
}
