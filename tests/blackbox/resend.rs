//! The same token sent again while it waits keeps its place and is answered on the new connection; the old one is told
//! `ERR superseded`. This is what makes a retry after a lost connection safe, and it must never move anybody back.

use std::time::Duration;

use crate::harness::line::{
    count, holds, queue, release, send_acquire, stand_in_line, stand_with, take, take_for, until_count, waiters,
};
use crate::harness::{cmd, eventually, grant, on_every_server, Client, Kind, Reply, Server};

const SOON: Duration = Duration::from_secs(5);

#[track_caller]
fn superseded(waiter: &mut Client) {
    let told: Reply = waiter.recv();
    assert!(told.err().starts_with("ERR superseded"), "{told:?}");
}

on_every_server! {
    fn a_resend_keeps_its_place(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let stand = |token: &str| stand_with(&server, "k", token, &["BLOCK", "0", "LABEL", token]);
        let [mut old, mut behind] = ["b", "c"].map(stand);
        let mut new = server.client();
        send_acquire(&mut new, "k", "b", &["BLOCK", "0", "LABEL", "b again"]);
        superseded(&mut old);
        assert_eq!(queue(&mut client, "k"), ["b again", "c"]);
        release(&mut client, "k", "a");
        assert_eq!(grant(&new.recv()).token, b"b");
        assert_eq!(behind.try_recv(Duration::ZERO), None);
        // The old connection is usable, and its end is nobody's loss any more.
        assert!(cmd!(old, "PING").is("PONG"));
        drop(old);
        assert!(holds(&mut client, "k", "b"));
        release(&mut client, "k", "b");
        assert_eq!(grant(&behind.recv()).token, b"c");
    }

    fn eleven_resends_on_eleven_connections_are_one_place(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let mut last = stand_in_line(&server, "k", "b");
        let mut behind = stand_in_line(&server, "k", "c");
        for _ in 0..10 {
            let mut new = server.client();
            send_acquire(&mut new, "k", "b", &["BLOCK", "0"]);
            superseded(&mut last);
            last = new;
            assert_eq!((waiters(&mut client, "k"), count(&mut client, "waiting")), (2, 2));
        }
        assert_eq!(count(&mut client, "waited"), 2, "two joined, however often they asked");
        release(&mut client, "k", "a");
        assert_eq!(grant(&last.recv()).token, b"b");
        assert_eq!(behind.try_recv(Duration::ZERO), None);
    }

    fn a_resend_is_told_how_long_it_waited_itself(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take_for(&mut client, "k", "a", 900);
        let mut old = stand_in_line(&server, "k", "b");
        // It comes when most of the time is over.
        let until = |left: i64| if left < 300 { Ok(()) } else { Err(left) };
        eventually(SOON, || until(cmd!(client, "LOCK.CHECK", "k", "a").int()));
        let mut new = server.client();
        send_acquire(&mut new, "k", "b", &["PX", "700", "BLOCK", "0"]);
        superseded(&mut old);
        let granted = grant(&new.recv());
        assert!(granted.waited < 400, "waited {}", granted.waited);
        assert_eq!(granted.ttl, 700, "the last request counts");
        assert!(count(&mut client, "wait_ms_max") > 400, "the token waited all the time");
    }

    fn a_resend_sets_the_end_of_the_wait_anew(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let mut forever = stand_in_line(&server, "k", "b");
        let mut brief = server.client();
        send_acquire(&mut brief, "k", "b", &["BLOCK", "50"]);
        superseded(&mut forever);
        assert!(brief.recv().is_null());
        assert_eq!(waiters(&mut client, "k"), 0);
        // And the other way round: a wait that was about to end goes on.
        let mut brief = stand_with(&server, "k", "b", &["BLOCK", "150"]);
        send_acquire(&mut forever, "k", "b", &["BLOCK", "0"]);
        superseded(&mut brief);
        assert_eq!(forever.try_recv(Duration::from_millis(250)), None);
        release(&mut client, "k", "a");
        assert_eq!(grant(&forever.recv()).token, b"b");
    }

    fn a_superseded_connection_that_dies_takes_nothing_along(kind: Kind) {
        let server = Server::start(kind);
        let (mut client, mut old) = (server.client(), server.client());
        let id = old.id();
        take(&mut client, "k", "a");
        send_acquire(&mut old, "k", "b", &["BLOCK", "0"]);
        until_count(&mut client, "waiting", 1);
        let mut new = server.client();
        // The resend and the end of the old connection in one turn of the loop.
        server.sigstop();
        send_acquire(&mut new, "k", "b", &["BLOCK", "0"]);
        drop(old);
        server.sigcont();
        cmd!(client, "CLIENT", "KILL", "ID", id);
        eventually(SOON, || match waiters(&mut client, "k") {
            1 => Ok(()),
            seen => Err(seen),
        });
        // A connection that is gone before its resend arrives loses the place; then this one joined anew.
        release(&mut client, "k", "a");
        assert_eq!(grant(&new.recv()).token, b"b");
        assert_eq!((count(&mut client, "held"), count(&mut client, "grants_taken_back")), (1, 0));
    }

    fn a_resend_of_a_token_that_was_granted_repeats_the_grant(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let mut waiter = stand_in_line(&server, "k", "b");
        release(&mut client, "k", "a");
        let granted = grant(&waiter.recv());
        let again = grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b", "BLOCK", 0));
        assert_eq!((again.fence, again.waited, again.new), (granted.fence, 0, 0));
    }

    fn a_token_waits_for_several_locks_at_a_time(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let keys = ["k", "l", "m"];
        for key in keys {
            take(&mut client, key, "a");
        }
        let mut waiting = keys.map(|key| stand_in_line(&server, key, "b"));
        assert_eq!(count(&mut client, "waiting"), 3);
        for (key, waiter) in keys.iter().zip(&mut waiting).rev() {
            release(&mut client, key, "a");
            assert_eq!(grant(&waiter.recv()).token, b"b");
        }
    }
}
