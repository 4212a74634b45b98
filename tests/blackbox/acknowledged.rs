//! `LOCK.ACQUIRE` and then `WAIT` on the same connection says whether replicas have the grant, also when the ACQUIRE was
//! blocked and somebody else's release, or the end of a lease, made the grant.

use std::time::Duration;

use crate::harness::line::{
    count, release, send_acquire, stand_in_line, stand_with, take, take_for, until_count, LONG_MS,
};
use crate::harness::{args, cmd, grant, on_every_server, send, wait_in_sync, Client, Kind, Server};

/// A connection that waits in line for `k` and has WAIT right behind.
fn in_line_with_wait(server: &Server, wait_ms: u64) -> Client {
    let mut waiter = stand_in_line(server, "k", "b");
    send!(waiter, "WAIT", 1, wait_ms);
    waiter
}

on_every_server! {
    fn wait_behind_a_blocked_acquire_tells_the_truth(kind: Kind) {
        let (primary, replica) = (Server::start(kind), Server::start(kind));
        replica.replica_of(&primary);
        let mut client = primary.client();
        take(&mut client, "k", "a");
        let mut waiter = in_line_with_wait(&primary, 5000);
        release(&mut client, "k", "a");
        let fence = grant(&waiter.recv()).fence;
        assert_eq!(waiter.recv().int(), 1);
        assert_eq!(cmd!(replica.client(), "LOCK.INFO", "k").get("fence").int(), fence);
        release(&mut client, "k", "b");
        // A replica that is there and does not answer has not acknowledged.
        take(&mut client, "k", "a");
        let mut waiter = in_line_with_wait(&primary, 300);
        wait_in_sync(&primary, &replica);
        replica.sigstop();
        release(&mut client, "k", "a");
        assert_eq!(grant(&waiter.recv()).token, b"b");
        assert_eq!(waiter.recv().int(), 0);
        replica.sigcont();
        assert_eq!(cmd!(waiter, "WAIT", 1, 5000).int(), 1);
    }

    fn wait_behind_a_lease_that_ended_tells_the_truth(kind: Kind) {
        let (primary, replica) = (Server::start(kind), Server::start(kind));
        replica.replica_of(&primary);
        let mut client = primary.client();
        take_for(&mut client, "k", "a", 500);
        let mut waiter = in_line_with_wait(&primary, 300);
        wait_in_sync(&primary, &replica);
        replica.sigstop();
        assert_eq!(grant(&waiter.recv()).token, b"b");
        assert_eq!(waiter.recv().int(), 0);
        replica.sigcont();
        assert_eq!(cmd!(waiter, "WAIT", 1, 5000).int(), 1);
    }

    fn what_is_handed_over_is_replicated_as_it_happens(kind: Kind) {
        let (primary, replica) = (Server::start(kind), Server::start(kind));
        replica.replica_of(&primary);
        let (mut client, mut below) = (primary.client(), replica.client());
        take(&mut client, "k", "a");
        let mut waiting = [
            stand_with(&primary, "k", "b", &["PX", "7000", "BLOCK", "0", "LABEL", "bee"]),
            stand_with(&primary, "k", "c", &["PX", "100", "BLOCK", "0", "LABEL", "cee"]),
        ];
        release(&mut client, "k", "a");
        let fence = grant(&waiting[0].recv()).fence;
        wait_in_sync(&primary, &replica);
        let seen = cmd!(below, "LOCK.INFO", "k");
        let holder = seen.get("holders").array()[0].clone();
        assert_eq!((seen.get("fence").int(), holder.get("label").text()), (fence, "bee".into()));
        assert_eq!(seen.get("role").text(), "replica");
        assert_eq!(seen.get("waiters").int(), 0, "lines are the primary's alone");
        release(&mut client, "k", "b");
        let fence = grant(&waiting[1].recv()).fence;
        // The end of its lease frees the lock on both.
        until_count(&mut client, "held", 0);
        wait_in_sync(&primary, &replica);
        assert!(cmd!(below, "LOCK.INFO", "k").is_null());
        assert_eq!(cmd!(below, "EXISTS", "k").int(), 0);
        assert!(count(&mut below, "fence") >= fence);
    }

    fn a_hand_over_in_a_transaction_is_one_transaction_below(kind: Kind) {
        let server = Server::builder(kind).append_only("always").start();
        let mut client = server.client();
        take(&mut client, "k", "a");
        let mut waiter = stand_in_line(&server, "k", "b");
        client.pipeline([
            args!["MULTI"],
            args!["SET", "before", 1],
            args!["LOCK.RELEASE", "k", "a"],
            args!["SET", "after", 1],
            args!["EXEC"],
        ]);
        let fence = grant(&waiter.recv()).fence;
        let mut server = server;
        server.kill9();
        server.restart();
        let mut client = server.client();
        assert_eq!(cmd!(client, "LOCK.INFO", "k").get("fence").int(), fence);
        assert_eq!(cmd!(client, "EXISTS", "before", "after").int(), 2);
        // Who held it holds it, for a whole lease again; nobody waits.
        let left = cmd!(client, "LOCK.CHECK", "k", "b").int();
        assert!(left > 0 && left <= LONG_MS as i64, "{left}");
        assert_eq!(cmd!(client, "LOCK.INFO", "k").get("waiters").int(), 0);
        send_acquire(&mut client, "k", "c", &["BLOCK", "20"]);
        assert!(client.try_recv(Duration::from_secs(5)).expect("an end of the wait").is_null());
    }
}
