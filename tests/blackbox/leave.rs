//! Leaving a line: the connection closes, is killed, is unblocked by somebody else, or the token withdraws. The place is
//! gone at once, and whoever is next is not held up by it.

use std::time::Duration;

use crate::harness::line::{
    count, holds, queue, release, send_acquire, stand_in_line, stand_with, still_waits, take, until_count, waiters,
};
use crate::harness::{args, cmd, eventually, grant, on_every_server, Client, Kind, Server};

const SOON: Duration = Duration::from_secs(5);

/// A waiter and the id the server knows its connection by.
fn known_in_line(server: &Server, key: &str, token: &str) -> (Client, i64) {
    let mut waiter = server.client();
    let id = waiter.id();
    send_acquire(&mut waiter, key, token, &["BLOCK", "0", "LABEL", token]);
    let mut watcher = server.client();
    eventually(SOON, || {
        let standing = queue(&mut watcher, key);
        if standing.iter().any(|label| label == token) {
            Ok(())
        } else {
            Err(standing)
        }
    });
    (waiter, id)
}

/// Whether CLIENT UNBLOCK may touch our waiters: on Redis 7.0 an unblock and a grant in one turn hang the client.
pub fn unblocks(kind: Kind) -> bool {
    kind != Kind::Redis70
}

on_every_server! {
    fn a_connection_that_closes_leaves_the_line(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let gone = stand_in_line(&server, "k", "gone");
        let mut next = stand_in_line(&server, "k", "b");
        assert_eq!(waiters(&mut client, "k"), 2);
        drop(gone);
        eventually(SOON, || match waiters(&mut client, "k") {
            1 => Ok(()),
            seen => Err(seen),
        });
        release(&mut client, "k", "a");
        let granted = grant(&next.recv());
        assert_eq!(granted.token, b"b");
        assert_eq!((count(&mut client, "waits_ended_empty"), count(&mut client, "handed_over")), (1, 1));
    }

    fn a_connection_that_is_killed_leaves_the_line(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let (_gone, id) = known_in_line(&server, "k", "gone");
        let mut next = stand_in_line(&server, "k", "b");
        let replies = client.pipeline([args!["CLIENT", "KILL", "ID", id], args!["LOCK.RELEASE", "k", "a"]]);
        assert_eq!((replies[0].int(), replies[1].int()), (1, 1));
        assert_eq!(grant(&next.recv()).token, b"b");
        assert_eq!(count(&mut client, "grants_taken_back"), 0, "it was granted nothing");
    }

    fn a_user_that_is_deleted_takes_its_waits_along(kind: Kind) {
        let server = Server::start(kind);
        let (mut client, mut waiter) = (server.client(), server.client());
        cmd!(client, "ACL", "SETUSER", "u", "on", "nopass", "+@all", "~*").ok();
        cmd!(waiter, "AUTH", "u", "any").ok();
        take(&mut client, "k", "a");
        send_acquire(&mut waiter, "k", "gone", &["BLOCK", "0"]);
        until_count(&mut client, "waiting", 1);
        let mut next = stand_in_line(&server, "k", "b");
        assert_eq!(cmd!(client, "ACL", "DELUSER", "u").int(), 1);
        until_count(&mut client, "waiting", 1);
        release(&mut client, "k", "a");
        assert_eq!(grant(&next.recv()).token, b"b");
    }

    fn a_hundred_that_vanish_at_the_head_hold_nobody_up(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let mut ids = Vec::new();
        let mut gone: Vec<Client> = (0..100).map(|_| server.client()).collect();
        for (n, waiter) in gone.iter_mut().enumerate() {
            ids.push(waiter.id());
            send_acquire(waiter, "k", &format!("t{n}"), &["BLOCK", "0"]);
        }
        until_count(&mut client, "waiting", 100);
        let mut last = stand_in_line(&server, "k", "last");
        // Half are killed before the release, half of the rest after it, all in one read; the others
        // just close.
        let kill = |ids: &[i64]| ids.iter().map(|&id| args!["CLIENT", "KILL", "ID", id]).collect::<Vec<_>>();
        gone.truncate(75);
        // A close the server has not read yet is no close: a grant written to such a connection counts as delivered.
        until_count(&mut client, "waiting", 76);
        let free = vec![args!["LOCK.RELEASE", "k", "a"]];
        client.pipeline([kill(&ids[..50]), free, kill(&ids[50..75])].concat());
        assert_eq!(grant(&last.recv()).token, b"last");
        assert_eq!((count(&mut client, "waiting"), count(&mut client, "held")), (0, 1));
    }

    fn an_unblocked_wait_ends_where_the_server_can_do_it(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        for (how, expected) in [("TIMEOUT", "*-1"), ("ERROR", "-UNBLOCKED")] {
            let (mut waiter, id) = known_in_line(&server, "k", "b");
            let mut next = stand_in_line(&server, "k", "c");
            let done = cmd!(client, "CLIENT", "UNBLOCK", id, how).int();
            assert_eq!(done, i64::from(unblocks(kind)), "{how}");
            if unblocks(kind) {
                let told = format!("{:?}", waiter.recv());
                assert!(told.starts_with(expected), "{how}: {told}");
                assert_eq!(waiters(&mut client, "k"), 1);
                release(&mut client, "k", "a");
            } else {
                still_waits(&server, &mut waiter);
                assert_eq!(waiters(&mut client, "k"), 2);
                release(&mut client, "k", "a");
                assert_eq!(grant(&waiter.recv()).token, b"b");
                release(&mut client, "k", "b");
            }
            assert_eq!(grant(&next.recv()).token, b"c");
            // The connection goes on either way.
            assert!(cmd!(waiter, "PING").is("PONG"));
            release(&mut client, "k", "c");
            take(&mut client, "k", "a");
        }
    }

    fn an_unblocked_connection_can_stand_in_line_again(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let (mut waiter, id) = known_in_line(&server, "k", "b");
        for how in ["TIMEOUT", "ERROR", "TIMEOUT"] {
            cmd!(client, "CLIENT", "UNBLOCK", id, how).int();
            if unblocks(kind) {
                waiter.recv();
                send_acquire(&mut waiter, "k", "b", &["BLOCK", "0"]);
            }
            until_count(&mut client, "waiting", 1);
        }
        release(&mut client, "k", "a");
        assert_eq!(grant(&waiter.recv()).token, b"b");
    }

    fn a_token_that_releases_while_it_waits_is_withdrawn(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let mut waiter = stand_in_line(&server, "k", "b");
        let mut next = stand_in_line(&server, "k", "c");
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "b").int(), -1, "another token holds the lock");
        assert!(waiter.recv().is_null());
        assert!(cmd!(waiter, "PING").is("PONG"));
        assert_eq!((waiters(&mut client, "k"), count(&mut client, "withdrawn")), (1, 1));
        assert_eq!(count(&mut client, "late_releases_taken"), 0, "nothing was late");
        release(&mut client, "k", "a");
        assert_eq!(grant(&next.recv()).token, b"c");
    }

    fn a_withdrawal_from_a_free_lock_finds_nothing_to_release(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let mut waiter = stand_in_line(&server, "k", "b");
        // Deleted and withdrawn in one read: no pump can grant it the lock in between.
        let replies = client.pipeline([args!["DEL", "k"], args!["LOCK.RELEASE", "k", "b"]]);
        assert_eq!((replies[0].int(), replies[1].int()), (1, 0));
        assert!(waiter.recv().is_null());
        assert!(cmd!(client, "LOCK.INFO", "k").is_null());
        // With somebody behind it, the lock is that one's before the command answers.
        take(&mut client, "k", "a");
        let mut waiter = stand_in_line(&server, "k", "b");
        let mut next = stand_in_line(&server, "k", "c");
        let replies = client.pipeline([args!["DEL", "k"], args!["LOCK.RELEASE", "k", "b"]]);
        assert_eq!((replies[0].int(), replies[1].int()), (1, -1));
        assert!(waiter.recv().is_null());
        assert_eq!(grant(&next.recv()).token, b"c");
    }

    fn a_withdrawal_works_in_a_transaction_and_a_script(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let mut waiter = stand_in_line(&server, "k", "b");
        cmd!(client, "MULTI").ok();
        assert!(cmd!(client, "LOCK.RELEASE", "k", "b").is("QUEUED"));
        assert!(cmd!(client, "LOCK.RELEASE", "k", "b").is("QUEUED"));
        let done = cmd!(client, "EXEC");
        assert_eq!((done.array()[0].int(), done.array()[1].int()), (-1, -1));
        assert!(waiter.recv().is_null());
        let mut waiter = stand_in_line(&server, "k", "b");
        assert_eq!(cmd!(client, "EVAL", "return redis.call('LOCK.RELEASE', KEYS[1], 'b')", 1, "k").int(), -1);
        assert!(waiter.recv().is_null());
        assert_eq!(count(&mut client, "withdrawn"), 2);
    }

    fn others_keep_their_order_when_one_in_the_middle_leaves(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let stand = |token: &str| stand_with(&server, "k", token, &["BLOCK", "0", "LABEL", token]);
        let mut waiting = ["b", "c", "d", "e"].map(stand);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "c").int(), -1);
        assert!(waiting[1].recv().is_null());
        assert_eq!(queue(&mut client, "k"), ["b", "d", "e"]);
        send_acquire(&mut waiting[1], "k", "c", &["BLOCK", "0", "LABEL", "c"]);
        eventually(SOON, || {
            let standing = queue(&mut client, "k");
            if standing == ["b", "d", "e", "c"] { Ok(()) } else { Err(standing) }
        });
        for (holder, at, token) in [("a", 0, "b"), ("b", 2, "d"), ("d", 3, "e"), ("e", 1, "c")] {
            release(&mut client, "k", holder);
            assert_eq!(grant(&waiting[at].recv()).token, token.as_bytes());
            assert!(holds(&mut client, "k", token));
        }
    }
}
