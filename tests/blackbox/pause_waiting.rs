//! While the server is paused or waits to shut down, nothing may be written, or it aborts: leases and waits that end then
//! write nothing, waiters are told why, and the line moves on when the pause is over.

use std::path::Path;
use std::time::Duration;

use crate::harness::line::{
    count, holds, release, send_acquire, stand_dying, stand_in_line, stand_with, take, until_count, waiters,
};
use crate::harness::{
    args, cmd, eventually, grant, info, let_pass, on_every_server, send, timed, wait_in_sync, Client, Kind, Server,
};

const SOON: Duration = Duration::from_secs(5);
/// How soon after a pause the line moves on; the pump looks every 5 ms.
const LATE: Duration = Duration::from_millis(300);

/// A primary with a replica and an append-only file: only what is propagated can break a pause.
fn watched_pair(kind: Kind) -> (Server, Server) {
    let primary = Server::builder(kind).append_only("always").start();
    let replica = Server::start(kind);
    replica.replica_of(&primary);
    (primary, replica)
}

/// All that was ever appended.
fn appended(server: &Server) -> u64 {
    let dir = server.dir().join("appendonlydir");
    let length = |path: &Path| path.metadata().map_or(0, |found| found.len());
    let files = dir.read_dir().expect("the directory of the append-only file");
    files.map(|file| length(&file.expect("a file").path())).sum()
}

fn a_pause_writes_nothing_and_the_line_moves_on(kind: Kind, mode: &str) {
    let (primary, replica) = watched_pair(kind);
    let mut client = primary.client();
    for key in ["k", "free", "held"] {
        take(&mut client, key, "a");
    }
    let _dying = ["k", "free"].map(|key| stand_dying(&primary, key, 100));
    let mut heir = stand_in_line(&primary, "k", "b");
    let mut second = stand_with(&primary, "k", "c", &["BLOCK", "700"]);
    let mut head = stand_with(&primary, "free", "b", &["BLOCK", "700"]);
    let mut refused = stand_with(&primary, "held", "b", &["BLOCK", "700"]);
    send_acquire(&mut client, "k", "p", &["POLL", "700"]);
    assert!(client.recv().is_null());
    let gone = stand_in_line(&primary, "k", "gone");
    let (granted, paused) = timed(|| {
        client.pipeline([
            args!["LOCK.RELEASE", "k", "a"],
            args!["LOCK.RELEASE", "free", "a"],
            args!["CLIENT", "PAUSE", 1000, mode],
        ]);
        let before = appended(&primary);
        drop(gone);
        // The lock is free, only not to be given: that is no null.
        let told = head.recv();
        assert!(told.err().starts_with("TRYAGAIN"), "{told:?}");
        // Another token holds the lock, or is ahead in line: that is.
        assert!(refused.recv().is_null());
        assert!(second.recv().is_null());
        assert_eq!(heir.try_recv(Duration::from_millis(100)), None);
        assert_eq!(appended(&primary), before);
        grant(&heir.recv())
    });
    assert!(paused >= Duration::from_millis(1000), "granted in the pause, after {paused:?}");
    assert!(paused < Duration::from_millis(1000) + LATE, "late: {paused:?}");
    assert_eq!((granted.token, granted.new), (b"b".to_vec(), 1));
    assert_eq!((waiters(&mut client, "k"), count(&mut client, "polling")), (0, 0));
    until_count(&mut client, "held", 2);
    wait_in_sync(&primary, &replica);
    let copy = cmd!(replica.client(), "LOCK.INFO", "k");
    assert_eq!(copy.get("fence").int(), granted.fence);
    assert!(cmd!(replica.client(), "LOCK.INFO", "free").is_null());
}

on_every_server! {
    fn a_pause_of_writes_writes_nothing(kind: Kind) {
        a_pause_writes_nothing_and_the_line_moves_on(kind, "WRITE");
    }

    fn a_pause_of_everything_writes_nothing(kind: Kind) {
        a_pause_writes_nothing_and_the_line_moves_on(kind, "ALL");
    }

    /// All of them at once, after the server could do nothing for a while: the next ones are not kept waiting.
    fn forty_thousand_waits_that_end_in_a_pause_end_at_once(kind: Kind) {
        const WAITS: usize = 40_000;
        const WAIT_MS: u64 = 3000;
        let server = Server::start(kind);
        let mut client = server.client();
        cmd!(client, "CONFIG", "SET", "lock.max-waiters", WAITS).ok();
        take(&mut client, "k", "a");
        client.pipeline((0..WAITS).map(|n| args!["LOCK.ACQUIRE", "k", "TOKEN", n, "POLL", WAIT_MS]));
        cmd!(client, "CLIENT", "PAUSE", 60_000, "WRITE").ok();
        server.sigstop();
        let_pass(Duration::from_millis(WAIT_MS));
        server.sigcont();
        // A tenth of it if the pump goes on as it would without a pause, and more if it takes a rest in between.
        let ((), took) = timed(|| until_count(&mut client, "polling", 0));
        assert!(took < Duration::from_millis(1500), "{took:?}");
        cmd!(client, "CLIENT", "UNPAUSE").ok();
        assert_eq!(count(&mut client, "waits_ended_empty"), WAITS as i64);
    }

    fn the_end_of_a_pause_is_noticed_at_once(kind: Kind) {
        let (primary, _replica) = watched_pair(kind);
        let mut client = primary.client();
        take(&mut client, "k", "a");
        let _dying = stand_dying(&primary, "k", 100);
        let mut heir = stand_in_line(&primary, "k", "b");
        client.pipeline([args!["LOCK.RELEASE", "k", "a"], args!["CLIENT", "PAUSE", 60_000, "WRITE"]]);
        until_lapsed(&mut client, "k");
        assert_eq!(heir.try_recv(Duration::from_millis(50)), None);
        let (granted, took) = timed(|| {
            cmd!(client, "CLIENT", "UNPAUSE").ok();
            grant(&heir.recv())
        });
        assert_eq!(granted.token, b"b");
        assert!(took < LATE, "{took:?}");
    }

    fn an_undelivered_grant_is_taken_back_after_the_pause(kind: Kind) {
        let (primary, _replica) = watched_pair(kind);
        let mut client = primary.client();
        for key in ["k", "l"] {
            take(&mut client, key, "a");
        }
        let mut killed = ["k", "l"].map(|_| primary.client());
        let ids = killed.each_mut().map(|waiter| waiter.id());
        for (waiter, key) in killed.iter_mut().zip(["k", "l"]) {
            send_acquire(waiter, key, "b", &["BLOCK", "0"]);
        }
        until_count(&mut client, "waiting", 2);
        let mut next = ["k", "l"].map(|key| stand_in_line(&primary, key, "c"));
        // Granted, killed and paused before any timer can run.
        client.pipeline([
            args!["LOCK.RELEASE", "k", "a"],
            args!["LOCK.RELEASE", "l", "a"],
            args!["CLIENT", "KILL", "ID", ids[0]],
            args!["CLIENT", "KILL", "ID", ids[1]],
            args!["CLIENT", "PAUSE", 300, "WRITE"],
        ]);
        let before = appended(&primary);
        // Whoever asks is told, and keeps what it was told.
        assert!(holds(&mut client, "l", "b"));
        assert_eq!(next[0].try_recv(Duration::from_millis(150)), None);
        assert_eq!(appended(&primary), before);
        assert_eq!(grant(&next[0].recv()).token, b"c");
        assert_eq!(next[1].try_recv(Duration::ZERO), None);
        release(&mut client, "l", "b");
        assert_eq!(grant(&next[1].recv()).token, b"c");
        assert_eq!(count(&mut client, "grants_taken_back"), 1);
    }

    fn a_shutdown_that_waits_for_a_replica_survives_leases_that_end(kind: Kind) {
        let (mut primary, replica) = watched_pair(kind);
        let mut client = primary.client();
        cmd!(client, "CONFIG", "SET", "shutdown-timeout", 60).ok();
        for key in ["k", "l"] {
            take(&mut client, key, "a");
        }
        let _dying = ["k", "l"].map(|key| stand_dying(&primary, key, 100));
        let mut heir = stand_in_line(&primary, "k", "b");
        let mut brief = stand_with(&primary, "k", "c", &["BLOCK", "700"]);
        replica.sigstop();
        let mut stopper = lagging_shutdown(&primary, "k");
        assert!(brief.recv().is_null());
        assert_eq!(heir.try_recv(Duration::from_millis(50)), None);
        // Called off, it serves on.
        cmd!(client, "SHUTDOWN", "ABORT").ok();
        assert!(stopper.recv().is_error());
        let fence = grant(&heir.recv()).fence;
        // And once more, to the end.
        let mut waiter = stand_in_line(&primary, "l", "b");
        let _stopper = lagging_shutdown(&primary, "l");
        until_lapsed(&mut client, "l");
        assert_eq!(waiter.try_recv(Duration::from_millis(50)), None);
        replica.sigcont();
        let status = primary.wait_for_exit();
        assert!(status.success(), "{status}");
        let mut below = replica.client();
        assert_eq!(cmd!(below, "LOCK.INFO", "k").get("fence").int(), fence);
        assert!(waiter.is_closed());
        assert!(cmd!(below, "LOCK.INFO", "l").get("fence").int() > fence, "still the dead holder's");
    }
}

/// Waits until the lease of the dying holder is over.
#[track_caller]
fn until_lapsed(client: &mut Client, key: &str) {
    eventually(SOON, || match cmd!(client, "LOCK.CHECK", key, "dying").int() {
        0 => Ok(()),
        left => Err(left),
    });
}

/// A connection whose SHUTDOWN waits for a replica that lags behind; the next in line has a lock just before.
fn lagging_shutdown(primary: &Server, key: &str) -> Client {
    let mut stopper = primary.client();
    send!(stopper, "LOCK.RELEASE", key, "a");
    send!(stopper, "SET", "unsent", 1);
    send!(stopper, "SHUTDOWN");
    assert_eq!(stopper.recv().int(), 1);
    stopper.recv().ok();
    let mut watcher = primary.client();
    eventually(SOON, || {
        let about = info(&mut watcher, "server");
        about.find("shutdown_in_milliseconds").map(|_| ()).ok_or(format!("{about:?}"))
    });
    stopper
}
