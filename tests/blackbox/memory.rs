//! What locks leave behind: nothing. Not after a release, not after a lease, not per name, whatever happened to them in
//! between. (Another lock system was found with 25 million leaked fence counters: redisson#6510.)

use std::time::Duration;

use crate::harness::forge::{holder, Forge};
use crate::harness::hold::{ms_left, take};
use crate::harness::{args, cmd, eventually, grant, info_int, on_every_server, Client, Kind, Server};

const SOON: Duration = Duration::from_secs(15);
const LONG_MS: u64 = 600_000;
const BATCH: u64 = 1000;

fn used(client: &mut Client) -> i64 {
    info_int(client, "memory", "used_memory")
}

fn acquire(key: String, lease_ms: u64) -> Vec<Vec<u8>> {
    args!["LOCK.ACQUIRE", key, "TOKEN", "t", "PX", lease_ms]
}

on_every_server! {
    fn a_hundred_thousand_names_used_once_leave_nothing(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let mut highest = 0;
        let mut base = 0;
        for first in (0..100_000).step_by(1000) {
            let commands = (first..first + BATCH).flat_map(|n| {
                let key = format!("name {n}");
                [acquire(key.clone(), LONG_MS), args!["LOCK.RELEASE", key, "t"]]
            });
            for pair in client.pipeline(commands).chunks(2) {
                let fence = grant(&pair[0]).fence;
                assert!(fence > highest, "{fence} after {highest}");
                highest = fence;
                assert_eq!(pair[1].int(), 1);
            }
            if first == 10_000 {
                base = used(&mut client);
            }
        }
        assert_eq!(cmd!(client, "DBSIZE").int(), 0);
        assert_eq!(info_int(&mut client, "lock", "lock_held"), 0);
        let grown = used(&mut client) - base;
        // Less than a byte a name: what grows is the buffers of this connection.
        assert!(grown < 90_000, "{grown} bytes for good");
    }

    fn ten_thousand_leases_that_end_at_once_leave_nothing(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "first", "t", 1);
        let base = used(&mut client);
        for first in (0..10_000).step_by(1000) {
            let replies = client.pipeline((first..first + BATCH).map(|n| acquire(format!("name {n}"), 2000)));
            assert!(replies.iter().all(|reply| grant(reply).new == 1));
        }
        let full = used(&mut client);
        assert!(full - base > 1_000_000);
        eventually(SOON, || match cmd!(client, "DBSIZE").int() {
            0 => Ok(()),
            keys => Err(keys),
        });
        assert_eq!(info_int(&mut client, "lock", "lock_held"), 0);
        assert_eq!(info_int(&mut client, "lock", "lock_leases_ended"), 10_001);
        // The server's own tables shrink by and by.
        eventually(SOON, || {
            let grown = used(&mut client) - base;
            if grown * 10 < full - base {
                Ok(())
            } else {
                Err(format!("{grown} of {} bytes are left", full - base))
            }
        });
    }

    /// When the lock of another library would have ended is known only as long as somebody waits for it.
    fn short_waits_for_legacy_locks_leave_nothing(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let mut base = 0;
        for first in (0..60_000).step_by(1000) {
            client.pipeline((first..first + BATCH).flat_map(|n| {
                let key = format!("name {n}");
                [
                    args!["SET", key, "theirs", "PX", LONG_MS],
                    args!["LOCK.ACQUIRE", key, "TOKEN", "t", "POLL", 5000],
                    args!["LOCK.RELEASE", key, "t"],
                    args!["DEL", key],
                ]
            }));
            if first == 10_000 {
                base = used(&mut client);
            }
        }
        assert_eq!(info_int(&mut client, "lock", "lock_polling"), 0);
        let grown = used(&mut client) - base;
        assert!(grown < 90_000, "{grown} bytes for good");
    }

    fn deleted_and_flushed_locks_leave_nothing(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let mut base = 0;
        for round in 0..6 {
            client.pipeline((0..2 * BATCH).map(|n| acquire(format!("name {n}"), LONG_MS)));
            client.pipeline((0..BATCH).map(|n| args!["DEL", format!("name {n}")]));
            cmd!(client, "FLUSHALL", if round % 2 == 0 { "SYNC" } else { "ASYNC" }).ok();
            eventually(SOON, || match info_int(&mut client, "lock", "lock_held") {
                0 => Ok(()),
                held => Err(held),
            });
            if round == 1 {
                base = used(&mut client);
            }
        }
        eventually(SOON, || {
            let grown = used(&mut client) - base;
            if grown < 30_000 {
                Ok(())
            } else {
                Err(format!("{grown} bytes for good"))
            }
        });
    }

    /// Everything that can happen to a lock, over and over.
    fn no_way_to_treat_a_lock_leaks(kind: Kind) {
        let server = Server::builder(kind).arg("maxmemory-policy", "allkeys-random").start();
        let mut client = server.client();
        let forge = Forge::new(&mut client);
        let good = forge.lock(&holder(7, LONG_MS, b"t", b"label"));
        let bad = forge.lock(&holder(7, 0, b"t", b"label"));
        let lines = [
            "LOCK.ACQUIRE k TOKEN t LABEL x", "RENAME k other", "MOVE other 3", "SWAPDB 3 0", "SWAPDB 0 3",
            "LOCK.ACQUIRE k TOKEN t", "PEXPIRE k 1", "DEBUG SLEEP 0.002", "LOCK.ACQUIRE k TOKEN other", "SET k data",
            "DEL k", "LOCK.ACQUIRE k", "CONFIG SET maxmemory 1", "GET k", "CONFIG SET maxmemory 0", "LOCK.INFO k",
            "LOCK.ACQUIRE k2 TOKEN t PX 1", "DEBUG SLEEP 0.002", "LOCK.ACQUIRE k2 TOKEN t", "LOCK.ACQUIRE k2 PX 0",
            "LOCK.ACQUIRE k2 TOKEN t EX 1000", "LOCK.EXTEND k2 t EX 2000", "LOCK._SET k2 forged", "DUMP k2",
            "COPY k2 k3", "DEBUG DIGEST", "OBJECT ENCODING k2", "LOCK.RELEASE k2 other", "DEBUG RELOAD", "FLUSHALL",
        ];
        let mut base = 0;
        for round in 0..60 {
            client.pipeline(lines.map(|line| line.split(' ').collect::<Vec<&str>>()));
            cmd!(client, "RESTORE", "restored", 0, &good).ok();
            cmd!(client, "RESTORE", "restored", 0, &good, "REPLACE").ok();
            assert!(cmd!(client, "RESTORE", "restored", 0, &bad, "REPLACE").is_error());
            assert!(ms_left(&mut client, "restored", "t") > 0);
            cmd!(client, "FLUSHALL").ok();
            if round == 10 {
                base = used(&mut client);
            }
        }
        // Some servers flush in the background.
        eventually(SOON, || match info_int(&mut client, "lock", "lock_held") {
            0 => Ok(()),
            held => Err(held),
        });
        let grown = used(&mut client) - base;
        assert!(grown < 30_000, "{grown} bytes for good");
    }
}
