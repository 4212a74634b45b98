//! A primary that nobody follows replicates nothing. Whoever begins to follow, at whatever moment, misses nothing: a
//! replica, a replica that comes back, an append-only file that is turned on. Each test first lets the server go long
//! enough without a follower for it to know that there is none.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::harness::hold::{ms_left, take};
use crate::harness::{cmd, eventually, info_int, on_every_server, Client, Kind, Server};
use crate::replication::agree;

const SOON: Duration = Duration::from_secs(30);
const LONG_MS: u64 = 600_000;
const TAKE: &str = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'TOKEN', 'script', 'PX', 600000)";

fn alone(kind: Kind) -> Server {
    let server = Server::builder(kind).arg("hz", 100).arg("repl-backlog-ttl", 1).start();
    be_unheard(&server);
    server
}

/// Takes locks until the server's cron has come by often enough to see that nobody follows.
fn be_unheard(server: &Server) {
    let mut client = server.client();
    let since = info_int(&mut client, "server", "uptime_in_seconds");
    eventually(SOON, || {
        take(&mut client, "early", "t", LONG_MS);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "early", "t").int(), 1);
        match info_int(&mut client, "server", "uptime_in_seconds") {
            now if now > since + 1 => Ok(()),
            now => Err(now),
        }
    });
}

/// Changes locks in every way a command can: plainly, in a transaction, in a script, with a line.
fn change(client: &mut Client, round: usize) {
    let key = format!("lock:{}", round % 50);
    let other = format!("other:{}", round % 50);
    cmd!(client, "LOCK.ACQUIRE", key, "TOKEN", "t", "PX", LONG_MS, "SHARED");
    cmd!(client, "LOCK.ACQUIRE", key, "TOKEN", "u", "PX", LONG_MS + round as u64, "SHARED");
    cmd!(client, "LOCK.RELEASE", key, if round.is_multiple_of(2) { "t" } else { "u" });
    cmd!(client, "MULTI").ok();
    cmd!(client, "LOCK.ACQUIRE", other, "TOKEN", "t", "PX", LONG_MS);
    cmd!(client, "LOCK.ACQUIRE", other, "TOKEN", "next", "PX", LONG_MS, "POLL", 10_000);
    cmd!(client, "LOCK.RELEASE", other, "t");
    cmd!(client, "EXEC").array();
    cmd!(client, "EVAL", TAKE, 1, format!("script:{}", round % 50));
    if round.is_multiple_of(3) {
        cmd!(client, "LOCK.RELEASE", format!("script:{}", round % 50), "script");
        cmd!(client, "LOCK.RELEASE", other, "next");
    }
}

/// Lets `follow` happen while a client changes locks all the time, before, meanwhile and after.
fn while_changing(server: &Server, follow: impl FnOnce()) {
    let (stop, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    let go_on = |more: usize| {
        let from = rounds.load(Ordering::SeqCst);
        eventually(SOON, || match rounds.load(Ordering::SeqCst) {
            now if now > from + more => Ok(()),
            now => Err(now),
        });
    };
    thread::scope(|scope| {
        // Also where something fails: nobody waits for a client that works on.
        let stops = Stops(&stop);
        let changing = scope.spawn(|| {
            let mut client = server.client();
            while !stop.load(Ordering::SeqCst) {
                change(&mut client, rounds.fetch_add(1, Ordering::SeqCst));
            }
        });
        go_on(20);
        follow();
        go_on(20);
        drop(stops);
        changing.join().expect("the client that changes locks");
    });
}

/// Stops the client when it goes.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

on_every_server! {
    fn a_replica_that_comes_at_any_time_misses_nothing(kind: Kind) {
        let (primary, replica) = (alone(kind), Server::start(kind));
        while_changing(&primary, || replica.replica_of(&primary));
        agree(&primary, &replica);
    }

    fn a_replica_that_comes_back_misses_nothing(kind: Kind) {
        let (primary, replica) = (alone(kind), Server::start(kind));
        replica.replica_of(&primary);
        replica.promote();
        while_changing(&primary, || replica.replica_of(&primary));
        agree(&primary, &replica);
        // Without a replica the backlog goes after a second; then there is nothing to come back to.
        replica.promote();
        let mut client = primary.client();
        eventually(SOON, || match info_int(&mut client, "replication", "repl_backlog_active") {
            0 => Ok(()),
            active => Err(active),
        });
        be_unheard(&primary);
        while_changing(&primary, || replica.replica_of(&primary));
        agree(&primary, &replica);
    }

    fn an_append_only_file_that_is_turned_on_misses_nothing(kind: Kind) {
        let server = alone(kind);
        let mut client = server.client();
        for (key, token) in [("before", "kept"), ("given back", "gone")] {
            take(&mut client, key, token, LONG_MS);
        }
        cmd!(client, "CONFIG", "SET", "appendonly", "yes").ok();
        assert_eq!(cmd!(client, "LOCK.RELEASE", "given back", "gone").int(), 1);
        take(&mut client, "after", "kept", LONG_MS);
        eventually(SOON, || {
            let busy = ["aof_rewrite_in_progress", "aof_rewrite_scheduled"];
            let busy = busy.map(|field| info_int(&mut server.client(), "persistence", field));
            if busy == [0, 0] { Ok(()) } else { Err(busy) }
        });
        take(&mut client, "much later", "kept", LONG_MS);
        cmd!(client, "DEBUG", "LOADAOF").ok();
        for key in ["before", "after", "much later"] {
            assert!(ms_left(&mut client, key, "kept") > 0, "{key}");
        }
        assert!(cmd!(client, "LOCK.INFO", "given back").is_null());
    }

    fn what_nobody_follows_counts_for_save_points(kind: Kind) {
        let server = alone(kind);
        let mut client = server.client();
        let changes = |client: &mut Client| info_int(client, "persistence", "rdb_changes_since_last_save");
        let before = changes(&mut client);
        take(&mut client, "k", "t", LONG_MS);
        assert_eq!(changes(&mut client), before + 1);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "t").int(), 1);
        assert_eq!(changes(&mut client), before + 2);
    }
}
