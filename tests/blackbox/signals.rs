//! Who is told of a change: WATCH and client tracking see a holder set or removed, and nothing else. A refused command
//! changes nothing that can be seen anywhere.

use std::time::Duration;

use crate::harness::{cmd, eventually, grant, info, on_every_server, Client, Kind, Server};

const SOON: Duration = Duration::from_secs(5);

/// Commands on a held lock `k` of token `a`, a free key `free` and a string `data` that set and remove no holder.
const QUIET: &[&[&str]] = &[
    &["LOCK.ACQUIRE", "k", "TOKEN", "b", "PX", "60000"],
    &["LOCK.ACQUIRE", "k"],
    &["LOCK.ACQUIRE", "k", "TOKEN", "b", "SHARED"],
    &["LOCK.ACQUIRE", "k", "TOKEN", "b", "LIMIT", "9", "HOLD", "h"],
    &["LOCK.RELEASE", "k", "b"],
    &["LOCK.RELEASE", "k", "a", "HOLD", "h"],
    &["LOCK.EXTEND", "k", "b", "PX", "60000"],
    &["LOCK.EXTEND", "k", "b", "FENCE", "9007199254740991"],
    &["LOCK.CHECK", "k", "a"],
    &["LOCK.CHECK", "k", "b"],
    &["LOCK.INFO", "k"],
    &["LOCK.RELEASE", "free", "a"],
    &["LOCK.EXTEND", "free", "a", "PX", "60000"],
    &["LOCK.CHECK", "free", "a"],
    &["LOCK.INFO", "free"],
];

/// Commands that are errors.
const REFUSED: &[&[&str]] = &[
    &["LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", "0"],
    &["LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", "86400001"],
    &["LOCK.ACQUIRE", "k", "TOKEN", "a", "NX"],
    &["LOCK.ACQUIRE", "k", "TOKEN", "a", "BLOCK", "-1"],
    &["LOCK.ACQUIRE", "k", "TOKEN", "b", "POLL", "10001"],
    &["LOCK.ACQUIRE", "k", "TOKEN", "b", "POLL", "10", "EPHEMERAL"],
    &["LOCK.ACQUIRE", "k", "TOKEN", "a", "UPGRADE", "SHARED"],
    &["LOCK.ACQUIRE", "k", "TOKEN", "a", "DOWNGRADE"],
    &["LOCK.ACQUIRE", "k", "TOKEN", "b", "UPGRADE"],
    &["LOCK.ACQUIRE", "free", "TOKEN", "a", "DOWNGRADE", "SHARED"],
    &["LOCK.ACQUIRE", "free", "BLOCK", "0"],
    &["LOCK.ACQUIRE", "free", "LIMIT", "0"],
    &["EVAL", "return redis.call('LOCK.ACQUIRE', KEYS[1], 'TOKEN', 'a', 'EPHEMERAL')", "1", "free"],
    &["LOCK.ACQUIRE", "k", "TOKEN", ""],
    &["LOCK.ACQUIRE", "free", "a"],
    &["LOCK.ACQUIRE", "free", "PX", "-1"],
    &["LOCK.ACQUIRE", "data", "TOKEN", "a"],
    &["LOCK.RELEASE", "k", ""],
    &["LOCK.RELEASE", "k", "a", "HOLD", ""],
    &["LOCK.RELEASE", "data", "a"],
    &["LOCK.EXTEND", "k", "a", "PX", "0"],
    &["LOCK.EXTEND", "k", "a", "FENCE", "0"],
    // More than a day ahead of the clock.
    &["LOCK.EXTEND", "k", "a", "PX", "90000", "FENCE", "9007199254740991"],
    &["LOCK.EXTEND", "data", "a"],
    &["LOCK.CHECK", "data", "a"],
    &["LOCK.INFO", "data"],
    &["LOCK._SET", "k", "x"],
    &["LOCK._SET", "free", "x"],
    &["COPY", "k", "free"],
];

/// The same token and holder, now with another lease.
const LEASE_ONLY: &[&[&str]] = &[
    &["LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", "70000"],
    &["LOCK.EXTEND", "k", "a", "PX", "80000"],
    &["LOCK.EXTEND", "k", "a"],
    &["LOCK.EXTEND", "k", "a", "FENCE", "1"],
    // A mode changes only if that is asked for, and a hold that is exclusive already needs no upgrade.
    &["LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", "85000", "SHARED"],
    &["LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", "86000", "UPGRADE"],
];

/// A connection with the scene of the tables set: `k` held by `a` for 60 s, `data` a string.
fn scene(server: &Server) -> Client {
    let mut client = server.client();
    cmd!(client, "SET", "data", "x").ok();
    grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000));
    client
}

/// Whether a transaction that watches these keys sees `action` as a change to one of them.
#[track_caller]
fn aborts(watcher: &mut Client, keys: &[&str], action: impl FnOnce()) -> bool {
    watcher.cmd(&[&["WATCH"], keys].concat()).ok();
    action();
    cmd!(watcher, "MULTI").ok();
    assert!(cmd!(watcher, "PING").is("QUEUED"));
    cmd!(watcher, "EXEC").is_null()
}

/// The keys of the invalidations this connection got so far: the server writes them before it answers the PING.
#[track_caller]
fn invalidated(tracker: &mut Client) -> Vec<String> {
    assert!(cmd!(tracker, "PING").is("PONG"));
    let pushes: Vec<_> = tracker.pushes.drain(..).collect();
    let keys = pushes.iter().flat_map(|push| {
        assert_eq!(push.array()[0].text(), "invalidate");
        push.array()[1].array().iter().map(|key| key.text())
    });
    keys.collect()
}

/// A connection that keeps `k`, `free` and `data` in a cache.
fn tracker(server: &Server, mode: &[&str]) -> Client {
    let mut client = server.resp3_client();
    client.cmd(&[&["CLIENT", "TRACKING", "ON"], mode].concat()).ok();
    client
}

#[track_caller]
fn fill_cache(tracker: &mut Client) {
    for key in ["k", "free"] {
        cmd!(tracker, "LOCK.CHECK", key, "a").int();
        cmd!(tracker, "LOCK.INFO", key);
    }
    cmd!(tracker, "GET", "data").text();
}

/// Everything a change could show in: data, what is to be saved, what was written to the append-only file, and the
/// module's own numbers.
fn traces(client: &mut Client) -> Vec<String> {
    let (persistence, lock) = (info(client, "persistence"), info(client, "lock"));
    let mut traces = vec![
        cmd!(client, "DBSIZE").int().to_string(),
        cmd!(client, "DEBUG", "DIGEST").text(),
        cmd!(client, "TYPE", "k").text(),
        cmd!(client, "PTTL", "k").int().to_string(),
        cmd!(client, "GET", "data").text(),
        format!("{} unsaved changes", persistence.int("rdb_changes_since_last_save")),
        format!("{} bytes in the append-only file", persistence.int("aof_current_size")),
        format!("{:?}", cmd!(client, "LOCK.INFO", "k").get("fence")),
    ];
    let lines = ["held", "fence", "granted", "repeated", "released", "leases_ended", "expires_undone"];
    traces.extend(lines.map(|name| format!("{name} {}", lock.int(&format!("lock_{name}")))));
    traces
}

on_every_server! {
    fn refused_commands_and_failed_tries_leave_no_trace(kind: Kind) {
        let server = Server::builder(kind).append_only("always").start();
        let mut client = scene(&server);
        let before = traces(&mut client);
        for args in QUIET {
            assert!(!client.cmd(args).is_error(), "{args:?}");
            assert_eq!(traces(&mut client), before, "{args:?}");
        }
        for args in REFUSED {
            assert!(client.cmd(args).is_error(), "{args:?}");
            assert_eq!(traces(&mut client), before, "{args:?}");
        }
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), 1);
        assert_ne!(traces_of_release(&mut client), before[..2]);
    }

    fn watch_sees_no_refusal_no_failed_try_and_no_extension(kind: Kind) {
        let server = Server::start(kind);
        let mut client = scene(&server);
        let mut watcher = server.client();
        for args in [QUIET, REFUSED, LEASE_ONLY].concat() {
            let seen = aborts(&mut watcher, &["k", "free", "data"], || {
                client.cmd(args);
            });
            assert!(!seen, "{args:?} aborted a transaction");
        }
    }

    fn watch_sees_a_grant_a_release_and_a_forced_unlock(kind: Kind) {
        let server = Server::start(kind);
        let (mut client, mut watcher) = (server.client(), server.client());
        for args in [
            &["LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", "60000"][..],
            &["LOCK.RELEASE", "k", "a"],
            &["LOCK.ACQUIRE", "k", "TOKEN", "b"],
            &["DEL", "k"],
        ] {
            let seen = aborts(&mut watcher, &["k"], || {
                assert!(!client.cmd(args).is_error(), "{args:?}");
            });
            assert!(seen, "{args:?} did not abort a transaction");
        }
        // Another key's lock is another matter.
        assert!(!aborts(&mut watcher, &["k"], || {
            grant(&cmd!(client, "LOCK.ACQUIRE", "other"));
        }));
    }

    fn watch_sees_a_lease_end_that_nobody_touches(kind: Kind) {
        let server = Server::start(kind);
        let (mut client, mut watcher) = (server.client(), server.client());
        // Long enough to be held still when it is watched, also on a busy machine.
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 500));
        assert!(aborts(&mut watcher, &["k"], || {
            eventually(SOON, || match cmd!(client, "DBSIZE").int() {
                0 => Ok(()),
                keys => Err(keys),
            });
        }));
    }

    fn a_watched_lock_guards_a_transaction(kind: Kind) {
        let server = Server::start(kind);
        let (mut worker, mut other) = (server.client(), server.client());
        grant(&cmd!(worker, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000));
        for (lost, expected) in [(false, Some(())), (true, None)] {
            cmd!(worker, "WATCH", "k").ok();
            assert!(cmd!(worker, "LOCK.CHECK", "k", "a").int() > 0);
            // The heartbeat of the same worker must not abort its own work.
            assert!(cmd!(other, "LOCK.EXTEND", "k", "a", "PX", 90_000).int() > 0);
            if lost {
                assert_eq!(cmd!(other, "LOCK.RELEASE", "k", "a").int(), 1);
            }
            cmd!(worker, "MULTI").ok();
            assert!(cmd!(worker, "INCR", "done").is("QUEUED"));
            let outcome = cmd!(worker, "EXEC");
            assert_eq!((!outcome.is_null()).then_some(()), expected, "{outcome:?}");
        }
        assert_eq!(cmd!(worker, "GET", "done").text(), "1");
    }

    fn tracking_sees_no_refusal_no_failed_try_and_no_extension(kind: Kind) {
        let server = Server::start(kind);
        let mut client = scene(&server);
        let mut caches = [tracker(&server, &[]), tracker(&server, &["BCAST"])];
        for args in [QUIET, REFUSED, LEASE_ONLY].concat() {
            caches.iter_mut().for_each(fill_cache);
            client.cmd(args);
            for cache in &mut caches {
                assert_eq!(invalidated(cache), [""; 0], "{args:?}");
            }
        }
    }

    fn c33_tracking_sees_a_grant_a_release_and_a_lease_end(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        cmd!(client, "SET", "data", "x").ok();
        let mut caches = [tracker(&server, &[]), tracker(&server, &["BCAST"])];
        for args in [
            &["LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", "60000"][..],
            &["LOCK.RELEASE", "k", "a"],
            &["LOCK.ACQUIRE", "k", "TOKEN", "b", "PX", "60000"],
            &["DEL", "k"],
        ] {
            caches.iter_mut().for_each(fill_cache);
            assert!(!client.cmd(args).is_error(), "{args:?}");
            for cache in &mut caches {
                assert_eq!(invalidated(cache), ["k"], "{args:?}");
            }
        }
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 1_500));
        caches.iter_mut().for_each(|cache| {
            invalidated(cache);
            fill_cache(cache);
        });
        // Nobody asks for the lock: the message comes by itself.
        for cache in &mut caches {
            assert_eq!(cache.recv_push().array()[1].array()[0].text(), "k");
        }
    }
}

/// What a change does to the first two traces, to show that they can tell.
fn traces_of_release(client: &mut Client) -> [String; 2] {
    [cmd!(client, "DBSIZE").int().to_string(), cmd!(client, "DEBUG", "DIGEST").text()]
}
