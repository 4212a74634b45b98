//! A stranger's EXPIRE on a lock key, as janitor scripts set one where TTL is -1: it ends no lock, at whatever moment
//! it comes, and is taken back and counted.

use std::time::Duration;

use crate::harness::hold::{self, ms_left, span, take};
use crate::harness::line::{release, send_acquire, stand_in_line};
use crate::harness::{cmd, eventually, grant, info_int, let_pass, on_every_server, Client, Kind, Server};

const SOON: Duration = Duration::from_secs(5);
const LONG_MS: u64 = 600_000;

#[track_caller]
fn has_no_ttl(client: &mut Client, key: &str) {
    eventually(SOON, || match cmd!(client, "PTTL", key).int() {
        -1 => Ok(()),
        ttl => Err(ttl),
    });
}

#[track_caller]
fn lines(client: &mut Client, lines: &[&str]) -> Vec<crate::harness::Reply> {
    client.pipeline(lines.iter().map(|line| line.split(' ').collect::<Vec<&str>>()))
}

on_every_server! {
    fn every_kind_of_expire_is_taken_back_and_counted(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let fence = take(&mut client, "k", "t", LONG_MS).fence;
        let kinds = [
            "EXPIRE k 100", "PEXPIRE k 100000", "EXPIREAT k 99999999999", "PEXPIREAT k 99999999999000",
            "EXPIRE k 100 NX", "EXPIRE k 100 LT",
        ];
        for (count, line) in (1..).zip(kinds) {
            assert_eq!(lines(&mut client, &[line])[0].int(), 1, "{line}");
            has_no_ttl(&mut client, "k");
            assert_eq!(info_int(&mut client, "lock", "lock_expires_undone"), count, "{line}");
        }
        // These do nothing to a key without a TTL.
        for line in ["EXPIRE k 100 XX", "EXPIRE k 100 GT", "PERSIST k"] {
            assert_eq!(lines(&mut client, &[line])[0].int(), 0, "{line}");
        }
        assert_eq!(hold::fence(&mut client, "k"), fence);
        assert!(ms_left(&mut client, "k", "t") > 0);
        assert_eq!(info_int(&mut client, "lock", "lock_evictions_undone"), 0);
    }

    /// As the next, with somebody who waits for the lock: it is not handed over.
    fn an_expire_that_is_over_at_once_hands_nothing_over(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for turn in [
            &["PEXPIRE k 20", "DEBUG SLEEP 0.025"][..],
            &["MULTI", "PEXPIRE k 20", "DEBUG SLEEP 0.025", "EXEC"],
            &["PEXPIRE k 20", "DEBUG SLEEP 0.025", "SWAPDB 0 1", "SWAPDB 0 1"],
            &["PEXPIRE k 60", "CLIENT PAUSE 100 WRITE"],
        ] {
            take(&mut client, "k", "t", LONG_MS);
            let mut waiter = stand_in_line(&server, "k", "w");
            send_acquire(&mut client, "k", "p", &["POLL", "10000"]);
            assert!(client.recv().is_null());
            lines(&mut client, turn);
            // A write waits for the end of the pause, and lets the turn end that it began in.
            cmd!(client, "SET", "other", "value").ok();
            for _ in 0..3 {
                let_pass(Duration::from_millis(20));
                assert!(ms_left(&mut client, "k", "t") > 0, "{turn:?}: the lock is lost");
            }
            assert_eq!(waiter.try_recv(Duration::ZERO), None, "{turn:?}: two hold the lock");
            release(&mut client, "k", "t");
            assert_eq!(grant(&waiter.recv()).token, b"w");
            release(&mut client, "k", "w");
            assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "p", "POLL", 1)).token, b"p");
            release(&mut client, "k", "p");
        }
        assert!(info_int(&mut client, "lock", "lock_evictions_undone") > 0);
    }

    /// Over before the module's next turn: the key is gone for an instant, the lock is not. (A TTL of 1 ms can be over
    /// before Redis 7.0 has set it, which makes it a DEL.)
    fn an_expire_that_is_over_at_once_frees_no_lock(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let fence = take(&mut client, "k", "t", LONG_MS).fence;
        for probe in [
            "LOCK.ACQUIRE k TOKEN other", "LOCK.CHECK k t", "LOCK.INFO k", "LOCK.EXTEND k t", "GET k", "EXISTS k",
            "LOCK.RELEASE k other",
        ] {
            let replies = lines(&mut client, &["PEXPIRE k 20", "DEBUG SLEEP 0.025", probe]);
            assert_eq!(replies[0].int(), 1);
            match probe {
                "LOCK.ACQUIRE k TOKEN other" => assert!(replies[2].is_null(), "{replies:?}"),
                "LOCK.CHECK k t" | "LOCK.EXTEND k t" => assert!(replies[2].int() > 0, "{replies:?}"),
                "LOCK.INFO k" => assert_eq!(replies[2].get("fence").int(), fence),
                "LOCK.RELEASE k other" => assert_eq!(replies[2].int(), -1),
                _ => {}
            }
            has_no_ttl(&mut client, "k");
            assert!(ms_left(&mut client, "k", "t") > 0, "{probe}");
            assert_eq!(hold::fence(&mut client, "k"), fence, "{probe}");
        }
        assert_eq!(info_int(&mut client, "lock", "lock_held"), 1);
        assert_eq!(info_int(&mut client, "lock", "lock_leases_ended"), 0);
    }

    fn an_expire_in_a_transaction_or_script_is_taken_back(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let transaction = ["MULTI", "LOCK.ACQUIRE k TOKEN t PX 600000", "PEXPIRE k 20", "EXEC"];
        let replies = lines(&mut client, &transaction);
        assert_eq!(replies[3].array()[1].int(), 1);
        // Longer than the TTL.
        let_pass(Duration::from_millis(30));
        has_no_ttl(&mut client, "k");
        assert!(ms_left(&mut client, "k", "t") > 0);
        assert_eq!(cmd!(client, "EVAL", "return redis.call('PEXPIRE', KEYS[1], 20)", 1, "k").int(), 1);
        let_pass(Duration::from_millis(30));
        has_no_ttl(&mut client, "k");
        assert!(ms_left(&mut client, "k", "t") > 0);
    }

    /// The key is elsewhere by the time the module comes to look.
    fn an_expire_before_the_key_moves_is_taken_back_there(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for (moved, db, name) in [
            ("RENAME k k2", 0, "k2"),
            ("MOVE k 4", 4, "k"),
            ("SWAPDB 0 6", 6, "k"),
        ] {
            cmd!(client, "SELECT", 0).ok();
            take(&mut client, "k", "t", LONG_MS);
            let undone = info_int(&mut client, "lock", "lock_expires_undone");
            lines(&mut client, &["MULTI", "EXPIRE k 100", moved, "EXEC"]);
            cmd!(client, "SELECT", db).ok();
            has_no_ttl(&mut client, name);
            assert!(ms_left(&mut client, name, "t") > 0, "{moved}");
            assert_eq!(info_int(&mut client, "lock", "lock_expires_undone"), undone + 1, "{moved}");
            cmd!(client, "FLUSHALL").ok();
        }
    }

    /// The snapshot has no time to live, at which the next start would drop the lock.
    fn an_expire_and_a_save_in_one_turn_lose_no_lock(kind: Kind) {
        let mut server = Server::start(kind);
        let mut client = server.client();
        for (name, save) in [("saved", "SAVE"), ("forked", "BGSAVE")] {
            take(&mut client, name, "t", LONG_MS);
            let undone = info_int(&mut client, "lock", "lock_expires_undone");
            let expire = format!("PEXPIRE {name} 20");
            let replies = lines(&mut client, &[expire.as_str(), save]);
            assert_eq!(replies[0].int(), 1);
            assert!(!replies[1].is_error(), "{replies:?}");
            eventually(SOON, || match info_int(&mut client, "lock", "lock_expires_undone") - undone {
                1 => Ok(()),
                more => Err(more),
            });
            eventually(SOON, || match info_int(&mut client, "persistence", "rdb_bgsave_in_progress") {
                0 => Ok(()),
                busy => Err(busy),
            });
            server.kill9();
            let_pass(Duration::from_millis(50));
            server.restart();
            client = server.client();
            assert!(ms_left(&mut client, name, "t") > 0, "{name}");
            assert_eq!(cmd!(client, "PTTL", name).int(), -1);
        }
    }

    /// The time to live is over by the save, which comes before the module's next turn: the snapshot has the lock.
    fn an_expire_that_is_over_by_a_save_in_the_same_turn_loses_no_lock(kind: Kind) {
        let mut server = Server::start(kind);
        let mut client = server.client();
        let fence = take(&mut client, "k", "t", LONG_MS).fence;
        for save in ["DEBUG RELOAD", "SAVE", "BGSAVE"] {
            let replies = lines(&mut client, &["PEXPIRE k 20", "DEBUG SLEEP 0.025", save]);
            assert_eq!(replies[0].int(), 1);
            assert!(!replies[2].is_error(), "{replies:?}");
            assert!(ms_left(&mut client, "k", "t") > 0, "{save}");
            eventually(SOON, || match info_int(&mut client, "persistence", "rdb_bgsave_in_progress") {
                0 => Ok(()),
                busy => Err(busy),
            });
            server.kill9();
            server.restart();
            client = server.client();
            assert!(ms_left(&mut client, "k", "t") > 0, "{save}");
            assert_eq!(hold::fence(&mut client, "k"), fence, "{save}");
            assert_eq!(cmd!(client, "PTTL", "k").int(), -1, "{save}");
        }
    }

    fn data_that_replaced_a_lock_keeps_its_own_ttl(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "t", LONG_MS);
        lines(&mut client, &["EXPIRE k 100", "SET k data EX 1000"]);
        let (_, start) = span(|| take(&mut client, "turn", "t", 50));
        start.ends(&mut client, "turn", 50);
        assert!(cmd!(client, "TTL", "k").int() > 0);
        assert_eq!(info_int(&mut client, "lock", "lock_expires_undone"), 0);
    }

    /// The end of the lease comes first, or the TTL does: the lock ends once, at the end of its lease.
    fn a_ttl_near_the_end_of_the_lease_changes_nothing(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let name = |n: u64| format!("k{n}");
        let starts: Vec<_> = (0..20).map(|n| span(|| take(&mut client, &name(n), "t", 300)).1).collect();
        let commands = (0..20).map(|n| ["PEXPIRE".to_owned(), name(n), (190 + 10 * n).to_string()]);
        client.pipeline(commands);
        for (n, start) in (0..).zip(starts) {
            start.ends(&mut client, &name(n), 300);
        }
        assert_eq!(info_int(&mut client, "lock", "lock_leases_ended"), 20);
        assert_eq!(info_int(&mut client, "lock", "lock_held"), 0);
    }
}
