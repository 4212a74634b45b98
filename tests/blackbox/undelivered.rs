//! A grant is final only when its reply is. Here it meets, in one turn of the server's loop, everything that can come
//! between: the waiter is killed or unblocked, the lock is deleted, moved or released, the token is sent again. Never
//! are there two owners, never is a lock lost, and who was told something keeps it.

use std::time::Duration;

use crate::harness::line::{
    count, holds, release, send_acquire, stand_in_line, stand_with, take, until_count, LONG_MS,
};
use crate::harness::{args, cmd, eventually, grant, on_every_server, Client, Kind, Server};

const SOON: Duration = Duration::from_secs(5);
/// Some turns of the pump.
const A_MOMENT: Duration = Duration::from_millis(15);

/// What the first waiter is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// The lock is its own.
    Granted,
    /// This error, on a connection that goes on.
    Error(&'static str),
    /// Nothing: its connection is gone.
    Closed,
}

/// Who has `k` in the end: the first waiter's token, or the next in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    First,
    Next,
    /// Nobody: a lock does not stand there any more.
    Data,
}

/// Commands that follow the release in one read; `$ID` is the first waiter's connection.
struct Clash {
    commands: &'static [&'static str],
    told: Told,
    owner: Owner,
}

const fn clash(commands: &'static [&'static str], told: Told, owner: Owner) -> Clash {
    Clash { commands, told, owner }
}

const RELEASE: &str = "LOCK.RELEASE k a";
const KILL: &str = "CLIENT KILL ID $ID";
const RESEND: &str = "LOCK.ACQUIRE k TOKEN first PX 60000";
const LOST: Told = Told::Error("TRYAGAIN ");

const CLASHES: &[Clash] = &[
    clash(&[RELEASE], Told::Granted, Owner::First),
    clash(&[RELEASE, KILL], Told::Closed, Owner::Next),
    clash(&[KILL, RELEASE], Told::Closed, Owner::Next),
    clash(&["DEL k", RELEASE, KILL], Told::Closed, Owner::Next),
    clash(&["DEL k", "LOCK.CHECK k first", "LOCK.EXTEND k x", KILL], Told::Closed, Owner::Next),
    // The grant is gone before it was told.
    clash(&[RELEASE, "DEL k"], LOST, Owner::Next),
    clash(&[RELEASE, "UNLINK k"], LOST, Owner::Next),
    clash(&[RELEASE, "DEL k", "LOCK.ACQUIRE k TOKEN x"], LOST, Owner::Next),
    clash(&[RELEASE, "DEL k", KILL], Told::Closed, Owner::Next),
    clash(&[RELEASE, "FLUSHALL"], LOST, Owner::Next),
    clash(&[RELEASE, "FLUSHDB ASYNC"], LOST, Owner::Next),
    clash(&[RELEASE, "RENAME k m"], LOST, Owner::Next),
    clash(&[RELEASE, "RENAME k m", KILL], Told::Closed, Owner::Next),
    clash(&[RELEASE, "MOVE k 1"], LOST, Owner::Next),
    clash(&[RELEASE, "SWAPDB 0 1"], LOST, Owner::Next),
    clash(&[RELEASE, "SET k v"], LOST, Owner::Data),
    clash(&[RELEASE, "LOCK.RELEASE k first"], LOST, Owner::Next),
    clash(&[RELEASE, "LOCK.RELEASE k first", KILL], Told::Closed, Owner::Next),
    // It is back in time.
    clash(&[RELEASE, "RENAME k m", "RENAME m k"], Told::Granted, Owner::First),
    clash(&[RELEASE, "SWAPDB 0 1", "SWAPDB 1 0"], Told::Granted, Owner::First),
    clash(&[RELEASE, "EXPIRE k 100"], Told::Granted, Owner::First),
    // Another connection was told: that counts, whatever becomes of the first one.
    clash(&[RELEASE, RESEND], Told::Granted, Owner::First),
    clash(&[RELEASE, KILL, RESEND], Told::Closed, Owner::First),
    clash(&[RELEASE, RESEND, KILL], Told::Closed, Owner::First),
    clash(&[RELEASE, KILL, "LOCK.EXTEND k first"], Told::Closed, Owner::First),
    clash(&[RELEASE, KILL, "LOCK.EXTEND k first PX 1"], Told::Closed, Owner::First),
    clash(&[RELEASE, KILL, "LOCK.CHECK k first"], Told::Closed, Owner::First),
    clash(&[RELEASE, KILL, "LOCK.CHECK k x", "LOCK.EXTEND k x", "LOCK.INFO k"], Told::Closed, Owner::Next),
    clash(&[RELEASE, RESEND, "LOCK.RELEASE k first", KILL], Told::Closed, Owner::Next),
];

fn words(command: &str, id: i64) -> Vec<Vec<u8>> {
    command.split(' ').map(|word| if word == "$ID" { args![id].remove(0) } else { word.into() }).collect()
}

fn try_clash(server: &Server, client: &mut Client, clash: &Clash, in_multi: bool) {
    // The last line of a failed test's output: a reply that never comes does not say what it is missed for.
    let what = format!("{:?}, in MULTI {in_multi}", clash.commands);
    eprintln!("{what}");
    take(client, "k", "a");
    let mut first = server.client();
    let id = first.id();
    send_acquire(&mut first, "k", "first", &["BLOCK", "0"]);
    until_count(client, "waiting", 1);
    let mut next = stand_in_line(server, "k", "next");
    let mut commands: Vec<_> = clash.commands.iter().map(|command| words(command, id)).collect();
    if in_multi {
        commands = [vec![args!["MULTI"]], commands, vec![args!["EXEC"]]].concat();
    }
    client.pipeline(commands);
    match clash.told {
        Told::Granted => assert_eq!(grant(&first.recv()).token, b"first", "{what}"),
        Told::Error(error) => {
            let told = first.recv();
            assert!(told.err().starts_with(error), "{what}: {told:?}");
            assert!(cmd!(first, "PING").is("PONG"), "{what}");
        }
        Told::Closed => eventually(SOON, || if first.is_closed() { Ok(()) } else { Err(&what) }),
    }
    match clash.owner {
        Owner::First => {
            assert_eq!(next.try_recv(A_MOMENT), None, "{what}");
            assert!(holds(client, "k", "first") && !holds(client, "k", "next"), "{what}");
            release(client, "k", "first");
            assert_eq!(grant(&next.recv()).token, b"next", "{what}");
        }
        Owner::Next => {
            assert_eq!(grant(&next.recv()).token, b"next", "{what}");
            assert!(holds(client, "k", "next") && !holds(client, "k", "first"), "{what}");
        }
        Owner::Data => assert!(next.recv().err().starts_with("WRONGTYPE"), "{what}"),
    }
    for key in ["k", "m"] {
        cmd!(client, "LOCK.RELEASE", key, "next");
    }
    assert_eq!(count(client, "waiting"), 0, "{what}");
    // Nothing is left behind in any database: what was granted in vain is nobody's.
    eventually(SOON, || match info_keys(client) {
        keys if keys.is_empty() || clash.owner == Owner::Data => Ok(()),
        keys => Err(format!("{what}: {keys}")),
    });
    cmd!(client, "FLUSHALL").ok();
}

fn info_keys(client: &mut Client) -> String {
    let text = cmd!(client, "INFO", "keyspace").text();
    text.lines().filter(|line| line.starts_with("db")).collect()
}

on_every_server! {
    fn a_grant_meets_anything_in_one_turn(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for clash in CLASHES {
            try_clash(&server, &mut client, clash, false);
        }
    }

    fn a_grant_meets_anything_in_one_transaction(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for clash in CLASHES {
            try_clash(&server, &mut client, clash, true);
        }
    }

    fn a_grant_and_an_unblock_in_one_turn_leave_one_owner(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for how in ["TIMEOUT", "ERROR"] {
            for unblock_first in [true, false] {
                take(&mut client, "k", "a");
                let mut first = server.client();
                let id = first.id();
                send_acquire(&mut first, "k", "first", &["BLOCK", "0"]);
                until_count(&mut client, "waiting", 1);
                let mut next = stand_in_line(&server, "k", "next");
                let mut commands = vec![args!["LOCK.RELEASE", "k", "a"], args!["CLIENT", "UNBLOCK", id, how]];
                if unblock_first {
                    commands.reverse();
                }
                let replies = client.pipeline(commands);
                // Servers differ in which of the two wins; what the waiter was told must be so.
                let told = first.recv();
                let what = format!("{how}, unblock first {unblock_first}, {replies:?}: {told:?}");
                assert!(cmd!(first, "PING").is("PONG"), "exactly one reply: {what}");
                if told.is_error() || told.is_null() {
                    assert!(told.is_null() || told.err().starts_with("UNBLOCKED"), "{what}");
                } else {
                    assert_eq!(grant(&told).token, b"first", "{what}");
                    assert!(holds(&mut client, "k", "first"), "{what}");
                    release(&mut client, "k", "first");
                }
                assert_eq!(grant(&next.recv()).token, b"next", "{what}");
                assert!(!holds(&mut client, "k", "first"), "{what}");
                release(&mut client, "k", "next");
                assert_eq!((count(&mut client, "held"), count(&mut client, "waiting")), (0, 0), "{what}");
            }
        }
    }

    fn a_resend_after_an_unblocked_grant_keeps_what_it_was_told(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let mut first = server.client();
        let id = first.id();
        send_acquire(&mut first, "k", "first", &["BLOCK", "0"]);
        until_count(&mut client, "waiting", 1);
        let mut next = stand_in_line(&server, "k", "next");
        let replies = client.pipeline([
            args!["LOCK.RELEASE", "k", "a"],
            args!["CLIENT", "UNBLOCK", id, "ERROR"],
            args!["LOCK.ACQUIRE", "k", "TOKEN", "first", "PX", LONG_MS],
        ]);
        let told = grant(&replies[2]);
        assert_eq!(next.try_recv(A_MOMENT), None);
        assert_eq!(cmd!(client, "LOCK.INFO", "k").get("fence").int(), told.fence);
        release(&mut client, "k", "first");
        assert_eq!(grant(&next.recv()).token, b"next");
    }

    fn a_grant_that_was_not_told_is_taken_back_and_counted(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let mut waiting = ["b", "c", "d"].map(|_| server.client());
        let ids = waiting.each_mut().map(|waiter| waiter.id());
        for (n, waiter) in (1..).zip(&mut waiting) {
            send_acquire(waiter, "k", &format!("t{n}"), &["BLOCK", "0"]);
            until_count(&mut client, "waiting", n);
        }
        let mut last = stand_with(&server, "k", "last", &["BLOCK", "0", "PX", "5000"]);
        // The first is granted and killed; the others were never granted anything.
        let kills = ids.map(|id| args!["CLIENT", "KILL", "ID", id]);
        client.pipeline([args!["LOCK.RELEASE", "k", "a"]].into_iter().chain(kills));
        let granted = grant(&last.recv());
        assert_eq!((granted.token, granted.ttl), (b"last".to_vec(), 5000));
        assert_eq!(count(&mut client, "grants_taken_back"), 1);
        assert_eq!(count(&mut client, "handed_over"), 2);
    }

    fn each_of_many_grants_in_vain_is_taken_back_in_turn(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let mut fence = take(&mut client, "k", "a").fence;
        for round in 0..50 {
            let mut waiter = server.client();
            let id = waiter.id();
            send_acquire(&mut waiter, "k", "b", &["BLOCK", "0"]);
            until_count(&mut client, "waiting", 1);
            client.pipeline([args!["LOCK.RELEASE", "k", "a"], args!["CLIENT", "KILL", "ID", id]]);
            // The next command is a turn later; the lock is free by then, or a moment after.
            eventually(SOON, || match cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a") {
                reply if reply.is_null() => Err("not taken back"),
                reply => {
                    let granted = grant(&reply);
                    assert!(granted.fence > fence && granted.new == 1, "round {round}: {granted:?}");
                    fence = granted.fence;
                    Ok(())
                }
            });
        }
        assert_eq!(count(&mut client, "grants_taken_back"), 50);
        release(&mut client, "k", "a");
        assert_eq!(count(&mut client, "held"), 0);
    }
}
