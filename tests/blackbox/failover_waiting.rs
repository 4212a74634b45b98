//! Waiters and changes of role: a demoted server tells its waiters so, a promoted one starts with no line and no polled
//! place, and a failover that waits while leases end neither aborts nor writes.

use std::time::Duration;

use crate::harness::line::{
    count, holds, release, send_acquire, stand_dying, stand_in_line, stand_with, still_waits, take, until_count,
    waiters,
};
use crate::harness::{args, cmd, grant, info, on_every_server, until_failed_over, wait_in_sync, Client, Kind, Server};

fn pair(kind: Kind) -> (Server, Server) {
    let build = || Server::builder(kind).append_only("always").start();
    let (primary, replica) = (build(), build());
    replica.replica_of(&primary);
    (primary, replica)
}

/// The server unblocks everyone whose primary it is no more, and closes the connection.
#[track_caller]
fn unblocked(waiter: &mut Client) {
    let told = waiter.recv();
    assert!(told.err().starts_with("UNBLOCKED"), "{told:?}");
}

#[track_caller]
fn fail_over(primary: &Server, replica: &Server) {
    cmd!(primary.client(), "FAILOVER", "TIMEOUT", 10_000).ok();
    until_failed_over(primary, replica);
}

/// Begins a failover that has to wait for a stopped replica, and lets the next in line have a lock just before.
#[track_caller]
fn fail_over_in_vain(client: &mut Client, key: &str) {
    let replies = client.pipeline([
        args!["LOCK.RELEASE", key, "a"],
        args!["SET", "unsent", 1],
        args!["FAILOVER", "TIMEOUT", 60_000],
    ]);
    replies[2].ok();
}

on_every_server! {
    fn a_demoted_server_tells_its_waiters(kind: Kind) {
        let (primary, replica) = pair(kind);
        let mut client = primary.client();
        take(&mut client, "k", "a");
        let mut waiting = ["b", "c"].map(|token| stand_in_line(&primary, "k", token));
        send_acquire(&mut client, "k", "p", &["POLL", "10000"]);
        assert!(client.recv().is_null());
        wait_in_sync(&primary, &replica);
        replica.promote();
        primary.replica_of(&replica);
        waiting.iter_mut().for_each(unblocked);
        assert_eq!((count(&mut client, "waiting"), count(&mut client, "polling")), (0, 0));
        // The promoted one has the holder, and nobody in line.
        let mut above = replica.client();
        assert!(holds(&mut above, "k", "a"));
        assert_eq!(waiters(&mut above, "k"), 0);
        let mut again = stand_in_line(&replica, "k", "b");
        release(&mut above, "k", "a");
        assert_eq!(grant(&again.recv()).token, b"b");
        wait_in_sync(&replica, &primary);
        let told = cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "c", "BLOCK", 0);
        assert!(told.err().starts_with("READONLY"), "{told:?}");
    }

    fn a_server_that_comes_back_has_forgotten_its_lines(kind: Kind) {
        let (primary, replica) = pair(kind);
        let mut client = primary.client();
        take(&mut client, "k", "a");
        let mut waiter = stand_in_line(&primary, "k", "b");
        send_acquire(&mut client, "k", "p", &["POLL", "10000"]);
        assert!(client.recv().is_null());
        cmd!(client, "REPLICAOF", "127.0.0.1", replica.port()).ok();
        cmd!(client, "REPLICAOF", "NO", "ONE").ok();
        unblocked(&mut waiter);
        assert_eq!((count(&mut client, "waiting"), count(&mut client, "polling")), (0, 0));
        assert_eq!(waiters(&mut client, "k"), 0);
        // Its own lock is still there, for a whole lease, and a new line forms.
        assert!(holds(&mut client, "k", "a"));
        let mut waiter = stand_in_line(&primary, "k", "c");
        release(&mut client, "k", "a");
        assert_eq!(grant(&waiter.recv()).token, b"c");
    }

    fn a_failover_that_waits_while_leases_end_writes_nothing(kind: Kind) {
        let (primary, replica) = pair(kind);
        let mut client = primary.client();
        let fence = take(&mut client, "k", "a").fence;
        let _dying = stand_dying(&primary, "k", 200);
        let mut forever = stand_in_line(&primary, "k", "b");
        let mut brief = stand_with(&primary, "k", "c", &["BLOCK", "900"]);
        send_acquire(&mut client, "k", "p", &["POLL", "700"]);
        assert!(client.recv().is_null());
        wait_in_sync(&primary, &replica);
        // A stopped replica holds the failover up, paused, beyond the end of lease, wait and poll.
        replica.sigstop();
        fail_over_in_vain(&mut client, "k");
        assert!(brief.recv().is_null(), "b is ahead");
        still_waits(&primary, &mut forever);
        assert_eq!(info(&mut client, "replication").text("master_failover_state"), "waiting-for-sync");
        replica.sigcont();
        until_failed_over(&primary, &replica);
        unblocked(&mut forever);
        // The holder of the last moment has its whole lease again, and then nobody inherits it.
        let mut above = replica.client();
        assert_eq!(waiters(&mut above, "k"), 0);
        let again = grant(&cmd!(above, "LOCK.ACQUIRE", "k", "TOKEN", "b", "BLOCK", 0));
        assert!(again.fence > fence);
        until_count(&mut above, "held", 1);
        wait_in_sync(&replica, &primary);
        assert_eq!(cmd!(client, "LOCK.INFO", "k").get("fence").int(), again.fence);
    }

    fn a_failover_that_is_called_off_lets_the_line_move_on(kind: Kind) {
        let (primary, replica) = pair(kind);
        let mut client = primary.client();
        take(&mut client, "k", "a");
        let _dying = stand_dying(&primary, "k", 100);
        let mut heir = stand_in_line(&primary, "k", "b");
        replica.sigstop();
        fail_over_in_vain(&mut client, "k");
        assert_eq!(heir.try_recv(Duration::from_millis(250)), None);
        cmd!(client, "FAILOVER", "ABORT").ok();
        assert_eq!(grant(&heir.recv()).token, b"b");
        replica.sigcont();
        wait_in_sync(&primary, &replica);
    }

    fn a_grant_and_a_demotion_in_one_turn_break_nothing(kind: Kind) {
        let (primary, replica) = pair(kind);
        let mut client = primary.client();
        take(&mut client, "k", "a");
        let mut waiter = stand_in_line(&primary, "k", "b");
        let replies = client.pipeline([
            args!["LOCK.RELEASE", "k", "a"],
            args!["REPLICAOF", "127.0.0.1", replica.port()],
        ]);
        assert_eq!(replies[0].int(), 1);
        let told = waiter.recv();
        assert!(told.is_error() || grant(&told).token == b"b", "{told:?}");
        cmd!(client, "REPLICAOF", "NO", "ONE").ok();
        assert_eq!((count(&mut client, "waiting"), count(&mut client, "polling")), (0, 0));
        // Told or not, b or nobody has it; by its token it is b's in either case.
        assert!(grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b")).fence > 0);
        release(&mut client, "k", "b");
    }

    fn an_unfetched_grant_does_not_stand_in_the_way_of_the_next_primary(kind: Kind) {
        let (primary, replica) = pair(kind);
        let mut client = primary.client();
        take(&mut client, "k", "a");
        let poll = args!["LOCK.ACQUIRE", "k", "TOKEN", "p", "PX", 300, "POLL", 10_000];
        assert!(client.cmd(&poll).is_null());
        release(&mut client, "k", "a");
        wait_in_sync(&primary, &replica);
        replica.promote();
        // What was granted and not fetched is a hold like any other there, for one lease.
        let mut above = replica.client();
        let heir = grant(&cmd!(above, "LOCK.ACQUIRE", "k", "TOKEN", "b", "BLOCK", 0));
        assert!(heir.waited <= 1000, "{heir:?}");
    }

    fn lines_form_again_after_each_of_many_failovers(kind: Kind) {
        let (mut primary, mut replica) = pair(kind);
        let mut fence = 0;
        for _ in 0..3 {
            let mut client = primary.client();
            let held = take(&mut client, "k", "a").fence;
            assert!(held > fence, "{held} after {fence}");
            fence = held;
            let mut waiting = ["b", "c"].map(|token| stand_in_line(&primary, "k", token));
            release(&mut client, "k", "a");
            let granted = grant(&waiting[0].recv()).fence;
            assert!(granted > fence, "{granted} after {fence}");
            fence = granted;
            fail_over(&primary, &replica);
            unblocked(&mut waiting[1]);
            (primary, replica) = (replica, primary);
            let mut client = primary.client();
            assert!(holds(&mut client, "k", "b"));
            release(&mut client, "k", "b");
        }
    }
}
