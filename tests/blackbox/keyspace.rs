//! The server's own commands on lock keys: they move, delete, overwrite, flush, reload and inspect locks, and the lock
//! still ends by itself at the right time wherever it stands, or is gone for good.

use std::time::Duration;

use crate::harness::hold::{self, ms_left, span, take};
use crate::harness::{cmd, eventually, info_int, on_every_server, send, Client, Kind, Server};
use crate::replication::agree;

const SOON: Duration = Duration::from_secs(5);
const LEASE_MS: u64 = 600;
const LONG_MS: u64 = 600_000;

#[track_caller]
fn held(client: &mut Client) -> i64 {
    info_int(client, "lock", "lock_held")
}

/// A lock that is gone without a release: its name is free and nothing is left of it.
#[track_caller]
fn is_gone(client: &mut Client, key: &str, fence: i64) {
    assert_eq!(ms_left(client, key, "t"), 0);
    assert_eq!(cmd!(client, "LOCK.RELEASE", key, "t").int(), 0);
    let next = take(client, key, "next", LONG_MS);
    assert!(next.fence > fence, "{next:?} after {fence}");
    assert_eq!(cmd!(client, "LOCK.RELEASE", key, "next").int(), 1);
}

#[track_caller]
fn select(client: &mut Client, db: i32) {
    cmd!(client, "SELECT", db).ok();
}

on_every_server! {
    fn a_renamed_lock_ends_under_its_new_name(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let (taken, start) = span(|| take(&mut client, "old", "t", LEASE_MS));
        cmd!(client, "RENAME", "old", "a much longer name than before").ok();
        let name = "a much longer name than before";
        assert!(ms_left(&mut client, name, "t") > 0);
        assert_eq!(ms_left(&mut client, "old", "t"), 0);
        assert!(hold::acquire(&mut client, name, "other", LEASE_MS).is_null());
        let other = take(&mut client, "old", "other", LONG_MS);
        assert!(other.fence > taken.fence);
        start.ends(&mut client, name, LEASE_MS);
        assert_eq!(held(&mut client), 1);
    }

    fn a_lock_renamed_over_another_replaces_it(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "victim", "v", 200);
        let (_, start) = span(|| take(&mut client, "k", "t", LEASE_MS));
        cmd!(client, "RENAME", "k", "victim").ok();
        assert_eq!(ms_left(&mut client, "victim", "v"), 0);
        assert!(ms_left(&mut client, "victim", "t") > 0);
        assert_eq!(held(&mut client), 1);
        start.ends(&mut client, "victim", LEASE_MS);
        assert_eq!(info_int(&mut client, "lock", "lock_leases_ended"), 1);
    }

    fn a_string_renamed_over_a_lock_replaces_it(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "t", 200);
        cmd!(client, "SET", "s", "data").ok();
        cmd!(client, "RENAME", "s", "k").ok();
        assert!(cmd!(client, "LOCK.CHECK", "k", "t").err().starts_with("WRONGTYPE"));
        assert_eq!(held(&mut client), 0);
        assert_eq!(cmd!(client, "RENAMENX", "k", "k2").int(), 1);
        assert_eq!(cmd!(client, "GET", "k2").bulk(), b"data");
    }

    /// Valkey 8.1 would leave the connection in the other database (valkey#4024), if the module did not lead it back.
    fn a_connection_stays_in_its_database_over_a_move(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "t", LONG_MS);
        select(&mut client, 2);
        cmd!(client, "SET", "data", "v").ok();
        assert_eq!(cmd!(client, "MOVE", "data", 7).int(), 1);
        assert!(cmd!(client, "CLIENT", "INFO").text().contains(" db=2 "));
        cmd!(client, "SET", "data", "again").ok();
        select(&mut client, 7);
        assert_eq!(cmd!(client, "GET", "data").bulk(), b"v");
    }

    fn a_moved_lock_ends_in_its_new_database(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let (_, start) = span(|| take(&mut client, "k", "t", LEASE_MS));
        assert_eq!(cmd!(client, "MOVE", "k", 5).int(), 1);
        assert_eq!(ms_left(&mut client, "k", "t"), 0);
        select(&mut client, 5);
        assert!(ms_left(&mut client, "k", "t") > 0);
        start.ends(&mut client, "k", LEASE_MS);
    }

    /// Inside MULTI, Valkey 9.1 tells modules the database in which the transaction began.
    fn a_lock_taken_or_moved_inside_multi_ends_in_its_database(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "moved", "t", LEASE_MS);
        let (_, start) = span(|| {
            let lines = ["MULTI", "SELECT 3", "LOCK.ACQUIRE k TOKEN t PX 600", "SELECT 0", "MOVE moved 4", "EXEC"];
            client.pipeline(lines.map(|line| line.split(' ').collect::<Vec<&str>>()))
        });
        select(&mut client, 4);
        assert!(ms_left(&mut client, "moved", "t") > 0);
        select(&mut client, 3);
        assert!(ms_left(&mut client, "k", "t") > 0);
        start.ends(&mut client, "k", LEASE_MS);
        assert_eq!(held(&mut client), 0);
        select(&mut client, 4);
        assert_eq!(cmd!(client, "DBSIZE").int(), 0);
    }

    fn locks_swapped_with_their_databases_end_there(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let (_, first) = span(|| take(&mut client, "k", "zero", LEASE_MS));
        select(&mut client, 1);
        let (_, second) = span(|| take(&mut client, "k", "one", 2 * LEASE_MS));
        cmd!(client, "SWAPDB", 0, 1).ok();
        assert!(ms_left(&mut client, "k", "zero") > 0);
        first.ends(&mut client, "k", LEASE_MS);
        select(&mut client, 0);
        assert!(ms_left(&mut client, "k", "one") > 0);
        second.ends(&mut client, "k", 2 * LEASE_MS);
    }

    /// Nothing but the server's own cron runs between the RESTORE and the end.
    fn a_restored_lock_ends_by_itself_on_an_idle_server(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "t", LEASE_MS);
        let dump = cmd!(client, "DUMP", "k").bulk().to_vec();
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "t").int(), 1);
        let idle = Server::start(kind);
        let mut client = idle.client();
        let ((), start) = span(|| cmd!(client, "RESTORE", "k", 0, dump).ok());
        start.ends(&mut client, "k", LEASE_MS);
        assert_eq!(held(&mut client), 0);
    }

    fn del_and_unlink_are_the_forced_unlock(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        // An EXPIRE of no time at all is a DEL.
        for line in ["DEL k", "UNLINK k", "EXPIRE k 0", "PEXPIREAT k 1"] {
            let taken = take(&mut client, "k", "t", LONG_MS);
            assert_eq!(client.cmd(&line.split(' ').collect::<Vec<&str>>()).int(), 1);
            is_gone(&mut client, "k", taken.fence);
            assert_eq!(held(&mut client), 0);
        }
    }

    fn data_written_over_a_lock_replaces_it(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "t", 300);
        assert!(cmd!(client, "SET", "k", "v", "NX").is_null(), "the name is taken");
        cmd!(client, "SET", "k", "data").ok();
        assert_eq!(held(&mut client), 0);
        assert!(hold::acquire(&mut client, "k", "t", LONG_MS).err().starts_with("WRONGTYPE"));
        cmd!(client, "SADD", "from", "member").int();
        take(&mut client, "k2", "t", 300);
        assert_eq!(cmd!(client, "SUNIONSTORE", "k2", "from").int(), 1);
        assert_eq!(held(&mut client), 0);
        // Past both leases: neither end may touch the data.
        let (_, start) = span(|| take(&mut client, "clock", "t", 400));
        start.ends(&mut client, "clock", 400);
        assert_eq!(cmd!(client, "GET", "k").bulk(), b"data");
        assert_eq!(cmd!(client, "SCARD", "k2").int(), 1);
    }

    /// The string's own end must not be taken for an eviction of the lock that stood there before.
    fn a_deleted_lock_does_not_come_back_when_data_in_its_place_expires(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for forced in ["DEL k", "UNLINK k", "SET k over"] {
            take(&mut client, "k", "t", LONG_MS);
            let commands = [forced, "SET k v PX 1", "DEBUG SLEEP 0.005", "EXISTS k"];
            let replies = client.pipeline(commands.map(|line| line.split(' ').collect::<Vec<&str>>()));
            assert_eq!(replies[3].int(), 0, "{replies:?}");
            assert!(cmd!(client, "LOCK.INFO", "k").is_null(), "back after {forced}");
            eventually(SOON, || if held(&mut client) == 0 { Ok(()) } else { Err("held") });
            assert_eq!(cmd!(client, "EXISTS", "k").int(), 0);
            assert_eq!(info_int(&mut client, "lock", "lock_evictions_undone"), 0);
        }
    }

    fn flushes_drop_every_lock_and_no_fence_goes_back(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let empty = info_int(&mut client, "memory", "used_memory");
        for flush in ["FLUSHALL", "FLUSHALL ASYNC", "FLUSHALL SYNC", "FLUSHDB", "FLUSHDB ASYNC", "FLUSHDB SYNC"] {
            let mut highest = 0;
            for first in (0..5000).step_by(1000) {
                let commands = (first..first + 1000).map(|n| {
                    ["LOCK.ACQUIRE".to_owned(), format!("lock {n}"), "PX".to_owned(), LONG_MS.to_string()]
                });
                let replies = client.pipeline(commands);
                highest = replies.iter().map(|reply| crate::harness::grant(reply).fence).max().unwrap_or(highest);
            }
            assert_eq!(held(&mut client), 5000);
            let full = info_int(&mut client, "memory", "used_memory");
            let words: Vec<&str> = flush.split(' ').collect();
            client.cmd(&words).ok();
            // A new lock under an old name, maybe before the old value is freed.
            let next = take(&mut client, "lock 7", "t", LONG_MS);
            assert!(next.fence > highest, "{flush}: {next:?} after {highest}");
            eventually(SOON, || match held(&mut client) {
                1 => Ok(()),
                more => Err(more),
            });
            assert!(ms_left(&mut client, "lock 7", "t") > 0);
            assert_eq!(cmd!(client, "LOCK.RELEASE", "lock 7", "t").int(), 1);
            eventually(SOON, || {
                let now = info_int(&mut client, "memory", "used_memory");
                let grown = now - empty;
                if grown * 5 < full - empty { Ok(()) } else { Err(format!("{flush}: {grown} of {}", full - empty)) }
            });
        }
        assert_eq!(info_int(&mut client, "lock", "lock_leases_ended"), 0);
    }

    fn flushdb_leaves_locks_of_other_databases(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "t", LONG_MS);
        select(&mut client, 1);
        take(&mut client, "k", "t", LONG_MS);
        cmd!(client, "FLUSHDB").ok();
        assert_eq!(ms_left(&mut client, "k", "t"), 0);
        select(&mut client, 0);
        assert!(ms_left(&mut client, "k", "t") > 0);
        eventually(SOON, || if held(&mut client) == 1 { Ok(()) } else { Err("held") });
    }

    fn a_copy_is_refused(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "t", LONG_MS);
        assert!(cmd!(client, "COPY", "k", "k2").is_error());
        assert!(cmd!(client, "COPY", "k", "k", "DB", 1).is_error());
        assert_eq!(cmd!(client, "DBSIZE").int(), 1);
        assert_eq!(held(&mut client), 1);
    }

    fn locks_are_listed_by_type(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        cmd!(client, "SET", "data", "v").ok();
        take(&mut client, "lock 1", "t", LONG_MS);
        take(&mut client, "lock 2", "t", LONG_MS);
        assert_eq!(cmd!(client, "TYPE", "lock 1").text(), "redislock");
        let page = cmd!(client, "SCAN", 0, "TYPE", "redislock", "COUNT", 1000);
        let mut names: Vec<String> = page.array()[1].array().iter().map(|name| name.text()).collect();
        names.sort();
        assert_eq!(names, ["lock 1", "lock 2"]);
    }

    fn commands_that_look_into_keys_do_no_harm(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "t", LONG_MS);
        for line in [
            "OBJECT ENCODING k", "OBJECT IDLETIME k", "OBJECT REFCOUNT k", "OBJECT FREQ k", "OBJECT HELP",
            "DEBUG OBJECT k", "DEBUG STRINGMATCH-LEN 1 k", "DEBUG DIGEST-VALUE k", "TOUCH k", "MEMORY USAGE k",
            "MEMORY DOCTOR", "MEMORY STATS", "DUMP k", "SORT k", "GET k", "APPEND k x", "STRLEN k", "LPUSH k x",
            "HGETALL k", "GETSET k x", "INCR k", "EXPIRETIME k", "RANDOMKEY", "KEYS *", "SCAN 0", "PERSIST k",
            "EXPIRE k 100 LT", "DEBUG RELOAD", "DEBUG HTSTATS 0", "WATCH k", "UNWATCH", "MEMORY PURGE",
        ] {
            client.send(&line.split(' ').collect::<Vec<&str>>());
            client.recv();
        }
        assert!(ms_left(&mut client, "k", "t") > 0);
        assert_eq!(cmd!(client, "TYPE", "k").text(), "redislock");
        eventually(SOON, || match cmd!(client, "TTL", "k").int() {
            -1 => Ok(()),
            ttl => Err(ttl),
        });
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "t").int(), 1);
    }

    fn memory_usage_is_what_a_lock_costs(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let label = "x".repeat(100);
        let lock = |n: usize| -> Vec<String> {
            let key = format!("lock {n:08}");
            ["LOCK.ACQUIRE", &key, "PX", "600000", "LABEL", &label].map(str::to_owned).to_vec()
        };
        client.pipeline((0..2000).map(lock));
        let before = info_int(&mut client, "memory", "used_memory");
        client.pipeline((2000..10_000).map(lock));
        let each = (info_int(&mut client, "memory", "used_memory") - before) / 8000;
        let told = cmd!(client, "MEMORY", "USAGE", "lock 00005000").int();
        // The keyspace's tables double now and then, which MEMORY USAGE of one key leaves out or counts in part.
        assert!(told > each / 2 && told < each * 3 / 2, "told {told}, measured {each}");
    }

    /// Valkey 8.1 leaves a client in the database that a module was told of: there it is refused.
    fn copy_to_another_database_is_whole_or_refused(kind: Kind) {
        let (server, replica) = (Server::start(kind), Server::start(kind));
        replica.replica_of(&server);
        let mut client = server.client();
        take(&mut client, "k", "t", LONG_MS);
        cmd!(client, "SET", "a", "value").ok();
        assert_eq!(cmd!(client, "COPY", "a", "b").int(), 1);
        let script = "return redis.call('COPY', 'a', 'from script', 'DB', 1)";
        cmd!(client, "MULTI").ok();
        send!(client, "copy", "a", "in turn", "db", 1);
        client.recv();
        let queued = cmd!(client, "EXEC");
        let told = [cmd!(client, "COPY", "a", "b", "DB", 1, "REPLACE"), cmd!(client, "EVAL", script, 0), queued];
        for (told, way) in told.iter().zip(["plain", "script", "MULTI"]) {
            if kind == Kind::Valkey81 {
                assert!(told.err().starts_with("ERR ") || told.err().starts_with("EXECABORT "), "{way}: {told:?}");
            } else {
                assert!(!told.is_error(), "{way}: {told:?}");
            }
        }
        cmd!(client, "SET", "after", "value").ok();
        let expected = if kind == Kind::Valkey81 { (4, 0) } else { (4, 3) };
        agree(&server, &replica);
        for node in [&server, &replica] {
            let mut client = node.client();
            let here = cmd!(client, "DBSIZE").int();
            cmd!(client, "SELECT", 1).ok();
            assert_eq!((here, cmd!(client, "DBSIZE").int()), expected);
        }
    }

    fn a_debug_reload_keeps_locks_and_starts_their_leases_anew(kind: Kind) {
        let mut server = Server::builder(kind).arg("appendonly", "yes").start();
        let mut client = server.client();
        let taken = take(&mut client, "k", "t", LEASE_MS);
        for reload in [["DEBUG", "RELOAD"], ["DEBUG", "LOADAOF"]] {
            assert!(cmd!(client, "LOCK.EXTEND", "k", "t").int() > 0);
            let ((), start) = span(|| client.cmd(&reload).ok());
            let left = ms_left(&mut client, "k", "t");
            assert!(left > 0, "{reload:?}");
            assert_eq!(hold::fence(&mut client, "k"), taken.fence);
            // What was there before may be freed in the background.
            eventually(SOON, || match held(&mut client) {
                1 => Ok(()),
                more => Err(more),
            });
            assert!(hold::acquire(&mut client, "k", "other", LEASE_MS).is_null());
            if reload[1] == "LOADAOF" {
                start.ends(&mut client, "k", LEASE_MS);
            }
        }
        server.shutdown_nosave();
    }
}
