//! Waiting in a cluster: when a slot leaves, its waiters are told to try again, and no node grants what is not its own
//! any more. A lease does not run on a node that does not own the slot yet.

use std::time::{Duration, Instant};

use crate::harness::line::{
    count, holds, release, send_acquire, stand_in_line, stand_with, still_waits, take, take_for, until_count, waiters,
    LONG_MS,
};
use crate::harness::{
    args, busily, cmd, eventually, grant, let_pass, on_every_server, timed, Client, Cluster, Kind, Reply, Server,
};

const SOON: Duration = Duration::from_secs(10);
/// What the contract gives a node to notice that a slot left.
const TOLD_WITHIN: Duration = Duration::from_secs(2);

#[track_caller]
fn try_again(waiter: &mut Client) {
    let (told, took) = timed(|| waiter.recv());
    assert!(told.err().starts_with("TRYAGAIN"), "{told:?}");
    assert!(took < TOLD_WITHIN, "told after {took:?}");
    assert!(cmd!(waiter, "PING").is("PONG"));
}

/// Asks a node that imports the slot.
fn asking(client: &mut Client, words: &[&str]) -> Reply {
    cmd!(client, "ASKING").ok();
    client.cmd(words)
}

struct Move {
    cluster: Cluster,
    slot: usize,
    source: Client,
    target: Client,
    to: usize,
}

impl Move {
    /// Two nodes and the slot of `{k}`, which is to move.
    fn prepare(kind: Kind) -> Self {
        let cluster = Cluster::start(kind, 2);
        let from = cluster.owner("{k}");
        let to = 1 - from;
        Self { slot: cluster.slot("{k}"), source: cluster.client(from), target: cluster.client(to), to, cluster }
    }

    fn source_node(&self) -> &Server {
        &self.cluster.nodes[1 - self.to]
    }
}

on_every_server! {
    fn waiters_of_a_slot_that_leaves_try_again(kind: Kind) {
        let mut m = Move::prepare(kind);
        take(&mut m.source, "{k}", "a");
        let mut heir = stand_with(m.source_node(), "{k}", "b", &["PX", "3000", "BLOCK", "0"]);
        let mut waiting = ["c", "d"].map(|token| stand_in_line(m.source_node(), "{k}", token));
        take_for(&mut m.source, "{k}end", "a", 700);
        let mut at_end = stand_in_line(m.source_node(), "{k}end", "b");
        take(&mut m.source, "{k}gone", "a");
        let mut on_gone = stand_in_line(m.source_node(), "{k}gone", "b");
        send_acquire(&mut m.source, "{k}", "p", &["POLL", "10000"]);
        assert!(m.source.recv().is_null());
        m.cluster.open_slot(m.slot, m.to);
        // A key that is gone from a slot on its way could be on the other side by now.
        assert_eq!(cmd!(m.source, "DEL", "{k}gone").int(), 1);
        try_again(&mut on_gone);
        // What is still there is still the source's: lines go on, by a release and at the end of a lease.
        assert_eq!(grant(&at_end.recv()).token, b"b");
        release(&mut m.source, "{k}", "a");
        let fence = grant(&heir.recv()).fence;
        assert_eq!(m.cluster.move_keys(m.slot, m.to), 2);
        waiting.iter_mut().for_each(try_again);
        assert_eq!((count(&mut m.source, "waiting"), count(&mut m.source, "polling")), (0, 0));
        // On a node that does not own the slot yet, its lease does not run: it outlasts itself.
        let on_the_way = Instant::now();
        eventually(SOON, || {
            assert!(asking(&mut m.target, &["LOCK.CHECK", "{k}", "b"]).int() > 0, "it ended before the slot came");
            if on_the_way.elapsed() > Duration::from_millis(4300) { Ok(()) } else { Err("too early") }
        });
        m.cluster.assign_slot(m.slot, m.to);
        let left = cmd!(m.target, "LOCK.CHECK", "{k}", "b").int();
        assert!((1..=3000).contains(&left), "{left}");
        // Now it runs, and ends for a waiter of the new node.
        let heir = grant(&cmd!(m.target, "LOCK.ACQUIRE", "{k}", "TOKEN", "c", "BLOCK", 0));
        assert!(heir.fence > fence, "{} after {fence}", heir.fence);
        assert!(heir.waited < 4500, "waited {}", heir.waited);
        assert!(cmd!(m.source, "LOCK.CHECK", "{k}", "c").err().starts_with("MOVED"));
        assert_eq!(count(&mut m.source, "handed_over"), 2, "nothing was granted after the slot left");
        assert_eq!(count(&mut m.source, "held"), 0);
    }

    fn a_short_lease_does_not_run_on_its_way(kind: Kind) {
        let mut m = Move::prepare(kind);
        // What MIGRATE sends, of a lease that is shorter than the time between two patrols.
        let replies = m.source.pipeline([
            args!["LOCK.ACQUIRE", "{k}", "TOKEN", "a", "PX", 400],
            args!["DUMP", "{k}"],
            args!["DEL", "{k}"],
        ]);
        m.cluster.open_slot(m.slot, m.to);
        cmd!(m.target, "ASKING").ok();
        cmd!(m.target, "RESTORE", "{k}", 0, replies[1].bulk()).ok();
        // Without a pause: were it to run, it would be over for an instant only, until the node looks at it.
        let on_the_way = Instant::now();
        busily(SOON, || {
            assert!(asking(&mut m.target, &["LOCK.CHECK", "{k}", "a"]).int() > 0, "it ended before the slot came");
            assert!(asking(&mut m.target, &["LOCK.ACQUIRE", "{k}", "TOKEN", "b"]).is_null(), "it has two holders");
            if on_the_way.elapsed() > Duration::from_millis(2500) { Ok(()) } else { Err("too early") }
        });
        m.cluster.assign_slot(m.slot, m.to);
        let next = grant(&cmd!(m.target, "LOCK.ACQUIRE", "{k}", "TOKEN", "b", "BLOCK", 0));
        assert!(next.waited > 0, "it runs from now on, and ends");
    }

    /// Nobody asks for it: the node alone decides when it is over, between two looks at whether the slot came.
    fn a_short_lease_is_whole_when_its_slot_comes(kind: Kind) {
        const LEASE_MS: u64 = 600;
        let mut m = Move::prepare(kind);
        take_for(&mut m.source, "{k}", "a", LEASE_MS);
        let payload = cmd!(m.source, "DUMP", "{k}").bulk().to_vec();
        release(&mut m.source, "{k}", "a");
        m.cluster.open_slot(m.slot, m.to);
        // Moments apart, so that each is at another point of its lease when the slot comes.
        let keys = ["{k}1", "{k}2", "{k}3", "{k}4", "{k}5", "{k}6"];
        for key in keys {
            cmd!(m.target, "ASKING").ok();
            cmd!(m.target, "RESTORE", key, 0, &payload).ok();
            let_pass(Duration::from_millis(LEASE_MS / 6));
        }
        let before = Instant::now();
        m.cluster.assign_slot(m.slot, m.to);
        busily(SOON, || {
            let there = keys.iter().filter(|key| cmd!(m.target, "EXISTS", **key).int() == 1).count();
            let whole = before.elapsed() >= Duration::from_millis(LEASE_MS);
            assert!(there == keys.len() || whole, "{there} left after {:?}", before.elapsed());
            if there == 0 { Ok(()) } else { Err(there) }
        });
    }

    /// For a while the node still holds back what arrived with the slot.
    fn a_grant_nobody_took_goes_on_also_where_its_slot_has_just_come(kind: Kind) {
        let mut m = Move::prepare(kind);
        take(&mut m.source, "{k}", "a");
        take(&mut m.source, "{k}2", "a");
        m.cluster.open_slot(m.slot, m.to);
        assert_eq!(m.cluster.move_keys(m.slot, m.to), 2);
        m.cluster.assign_slot(m.slot, m.to);
        let node = &m.cluster.nodes[m.to];
        send_acquire(&mut m.target, "{k}", "b", &["PX", "60000", "POLL", "100"]);
        assert!(m.target.recv().is_null());
        let mut lost = m.cluster.client(m.to);
        let id = lost.id();
        send_acquire(&mut lost, "{k}2", "b", &["PX", "60000", "BLOCK", "0"]);
        until_count(&mut m.target, "waiting", 1);
        let mut next = ["{k}", "{k}2"].map(|key| stand_in_line(node, key, "c"));
        release(&mut m.target, "{k}", "a");
        cmd!(m.target, "MULTI").ok();
        m.target.pipeline([args!["LOCK.RELEASE", "{k}2", "a"], args!["CLIENT", "KILL", "ID", id], args!["EXEC"]]);
        for next in &mut next {
            assert_eq!(grant(&next.recv()).token, b"c");
        }
        assert_eq!(count(&mut m.target, "grants_taken_back"), 2);
    }

    fn a_slot_that_is_reassigned_with_its_keys_tells_the_line(kind: Kind) {
        let mut m = Move::prepare(kind);
        take(&mut m.source, "{k}", "a");
        let mut waiter = stand_in_line(m.source_node(), "{k}", "b");
        // Nothing is moved first: all that the node sees is that the slot is not its own.
        m.cluster.open_slot(m.slot, m.to);
        cmd!(m.source, "MIGRATE", "127.0.0.1", m.cluster.nodes[m.to].port(), "{k}", 0, 5000, "COPY").ok();
        assert_eq!(waiter.try_recv(Duration::from_millis(50)), None);
        cmd!(m.source, "DEL", "{k}").int();
        m.cluster.assign_slot(m.slot, m.to);
        try_again(&mut waiter);
        assert!(holds(&mut m.target, "{k}", "a"));
        until_count(&mut m.source, "held", 0);
    }

    fn a_failover_in_a_cluster_starts_with_empty_lines(kind: Kind) {
        let mut cluster = Cluster::start(kind, 1);
        let replica = cluster.add_replica(0);
        let mut client = cluster.client(0);
        let fence = take_for(&mut client, "k", "a", 1000).fence;
        let mut waiter = stand_in_line(&cluster.nodes[0], "k", "b");
        let mut above = cluster.client(replica);
        cmd!(above, "CLUSTER", "FAILOVER").ok();
        let told = waiter.recv();
        assert!(told.err().starts_with("UNBLOCKED") || told.err().starts_with("MOVED"), "{told:?}");
        let heir = eventually(SOON, || {
            let reply = cmd!(above, "LOCK.ACQUIRE", "k", "TOKEN", "b", "PX", LONG_MS, "BLOCK", 0);
            if reply.is_error() { Err(reply) } else { Ok(grant(&reply)) }
        });
        assert!(heir.fence > fence);
        assert_eq!((waiters(&mut above, "k"), count(&mut above, "handed_over")), (0, 1));
        assert_eq!(count(&mut client, "waiting"), 0);
    }

    fn a_cluster_that_is_down_grants_nothing(kind: Kind) {
        let mut cluster = Cluster::start_with(kind, 3, |builder| builder.arg("cluster-node-timeout", 1000));
        let node = cluster.owner("k");
        let mut client = cluster.client(node);
        take_for(&mut client, "k", "a", 5000);
        let mut brief = stand_with(&cluster.nodes[node], "k", "b", &["BLOCK", "6000"]);
        let mut forever = stand_in_line(&cluster.nodes[node], "k", "c");
        for other in (0..3).filter(|&other| other != node) {
            cluster.nodes[other].kill9();
        }
        eventually(SOON, || {
            let state = cmd!(client, "CLUSTER", "INFO").text();
            if state.contains("cluster_state:fail") { Ok(()) } else { Err(state) }
        });
        // Redis unblocks everyone then, Valkey nobody. Either way the lock stays where it is beyond its lease.
        let told = brief.recv();
        assert!(told.err().starts_with("CLUSTERDOWN"), "{told:?}");
        assert!(cmd!(brief, "PING").is("PONG"));
        if kind.is_valkey() {
            still_waits(&cluster.nodes[node], &mut forever);
        } else {
            assert!(forever.recv().err().starts_with("CLUSTERDOWN"));
        }
        eventually(SOON, || if cmd!(client, "LOCK.CHECK", "k", "a").is_error() { Ok(()) } else { Err("up") });
        assert_eq!(count(&mut client, "handed_over"), 0);
    }
}

#[test]
fn an_atomic_move_takes_locks_along_both_ways() {
    let mut m = Move::prepare(Kind::Valkey91);
    let mut fence = 0;
    for round in 0..2 {
        for n in 0..100 {
            let key = format!("{{k}}{n}");
            let token = format!("t{round}");
            assert!(take(&mut m.source, &key, &token).fence > fence);
        }
        take_for(&mut m.source, "{k}", "dying", 600);
        let mut waiting = ["{k}", "{k}7", "{k}8"].map(|key| stand_in_line(m.source_node(), key, "b"));
        send_acquire(&mut m.source, "{k}9", "p", &["POLL", "10000"]);
        assert!(m.source.recv().is_null());
        m.cluster.migrate_slot_atomically(m.slot, m.to);
        // One of them may have inherited its lock before the slot left; then it is that one's on the other side.
        let told = waiting.each_mut().map(|waiter| timed(|| waiter.recv()));
        for (reply, took) in &told {
            assert!(*took < TOLD_WITHIN, "told after {took:?}");
            assert!(!reply.is_error() || reply.err().starts_with("TRYAGAIN"), "{reply:?}");
        }
        assert!(told[1].0.is_error() && told[2].0.is_error(), "{told:?}");
        until_count(&mut m.source, "held", 0);
        assert_eq!((count(&mut m.source, "waiting"), count(&mut m.source, "polling")), (0, 0));
        for n in 0..100 {
            let (key, token) = (format!("{{k}}{n}"), format!("t{round}"));
            let left = cmd!(m.target, "LOCK.CHECK", key, token).int();
            assert!((1..=60_000).contains(&left), "{key}: {left}");
        }
        let mut heir = m.cluster.client(m.to);
        send_acquire(&mut heir, "{k}", "b", &["BLOCK", "0"]);
        fence = grant(&heir.recv()).fence;
        for n in 0..100 {
            release(&mut m.target, &format!("{{k}}{n}"), &format!("t{round}"));
        }
        release(&mut m.target, "{k}", "b");
        std::mem::swap(&mut m.source, &mut m.target);
        m.to = 1 - m.to;
    }
}
