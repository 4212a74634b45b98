//! A cluster of three primaries, each with a replica, while slots move and replicas take over.

use super::harness::line::count;
use super::harness::{
    cmd, eventually, grant, is_primary, now_ticks, on_every_server, poll, wait_in_sync, Builder, Client, Cluster, Kind,
    Server,
};
use super::network::{routes, Links};
use super::scene::{assert_kept, record, stall, Safety, Scene, SECONDS};
use std::time::Duration;

/// Longer than a takeover takes.
const LONG_MS: u64 = 4_000;
const SOON: Duration = Duration::from_secs(30);
const LOCK: &str = "{k1}";

on_every_server! {
    fn a_cluster_keeps_every_promise_while_slots_move_and_replicas_take_over(kind: Kind) {
        let mut cluster = Cluster::start(kind, 3);
        (0..3).for_each(|primary| {
            cluster.add_replica(primary);
        });
        let links: Vec<Links> = cluster.nodes.iter().map(Links::of).collect();
        let mut scene = Scene::of(cluster.nodes[0].port(), Safety::Told);
        scene.routes = routes(cluster.nodes.iter().map(Server::port).zip(&links));
        let (moving, spare) = moving_and_spare(&cluster);
        // Before that, a free lock whose slot leaves the one for the other can have a lower fence next.
        for node in [cluster.owner(&moving), spare] {
            until_fences_follow_the_clock(&cluster.nodes[node]);
        }
        // The node whose slots stay is the one that fails over: the harness knows who owns the slots that move.
        let steady = (0..3).find(|&node| node != cluster.owner(&moving) && node != spare).expect("a third node");
        let mut pair = (steady, steady + 3);
        let history = record(&scene, SECONDS, |dice| match dice.within(0..4) {
            0 => stall(&cluster.nodes[pair.1], dice),
            1 => {
                let asked = cmd!(cluster.client(pair.1), "CLUSTER", "FAILOVER");
                if asked.is("OK") && poll(SOON, || is_primary(&cluster.nodes[pair.1])).is_ok() {
                    pair = (pair.1, pair.0);
                    cluster.wait_until_ok();
                }
            }
            2 => links[dice.within(0..3) as usize].disturb_clients(dice),
            _ => {
                let slot = cluster.slot(&moving);
                let (here, there) = (cluster.owner(&moving), spare);
                cluster.migrate_slot(slot, there);
                cluster.migrate_slot(slot, here);
            }
        });
        assert_kept(&history);
    }

    /// Not promised: a start leaps ten seconds past the clock, and other nodes learn of that only by locks that are held.
    fn a_free_lock_can_have_lower_fences_when_its_slot_leaves_a_node_that_just_started(kind: Kind) {
        let mut cluster = Cluster::start(kind, 3);
        let (here, there) = (cluster.owner(LOCK), (cluster.owner(LOCK) + 1) % 3);
        until_fences_follow_the_clock(&cluster.nodes[there]);
        let slot = cluster.slot(LOCK);
        // A machine that stalls lets the clock catch up.
        let fell = (0..5).any(|_| {
            cluster.nodes[here].kill9();
            cluster.nodes[here].restart();
            cluster.wait_until_ok();
            let before = fence_of_one(&mut cluster.client(here));
            cluster.migrate_slot(slot, there);
            let after = fence_of_one(&mut cluster.client(there));
            cluster.migrate_slot(slot, here);
            after < before
        });
        assert!(fell, "if this cannot be made to happen any more, promise that it does not");
    }

    /// Without being asked to: the other primaries elect the replica.
    fn what_replicas_have_is_kept_when_primaries_of_a_cluster_die(kind: Kind) {
        let quick = |builder: Builder| builder.arg("cluster-node-timeout", 1000);
        let mut cluster = Cluster::start_with(kind, 3, quick);
        (0..3).for_each(|primary| {
            cluster.add_replica_with(primary, quick);
        });
        // Clients ask the first node where a lock is.
        let mut owners = ["{k0}", "{k1}", "{k2}"].map(|key| cluster.owner(key)).into_iter();
        let dying = owners.find(|&owner| owner != 0).expect("not all locks are on one node");
        let (mut above, mut below) = (dying, dying + 3);
        let mut scene = Scene::of(cluster.nodes[0].port(), Safety::Replicated(1));
        scene.long_ms = LONG_MS;
        let history = record(&scene, 2 * SECONDS, |_| {
            cluster.nodes[above].kill9();
            eventually(SOON, || is_primary(&cluster.nodes[below]));
            cluster.nodes[above].restart();
            (above, below) = (below, above);
            cluster.wait_until_ok();
            wait_in_sync(&cluster.nodes[above], &cluster.nodes[below]);
        });
        assert_kept(&history);
    }
}

/// The fence of somebody who takes the lock and lets it go.
fn fence_of_one(client: &mut Client) -> i64 {
    let fence = grant(&cmd!(client, "LOCK.ACQUIRE", LOCK, "TOKEN", "one")).fence;
    assert_eq!(cmd!(client, "LOCK.RELEASE", LOCK, "one").int(), 1);
    fence
}

/// Until the clock is where the fences of a node leapt to as it started.
fn until_fences_follow_the_clock(node: &Server) {
    let mut client = node.client();
    eventually(SOON, || {
        let (fence, clock) = (count(&mut client, "fence"), now_ticks() as i64);
        if fence < clock {
            Ok(())
        } else {
            Err((fence, clock))
        }
    });
}

/// A lock whose slot moves, and a node to move it to.
fn moving_and_spare(cluster: &Cluster) -> (String, usize) {
    let moving = LOCK.to_owned();
    let owner = cluster.owner(&moving);
    ((moving), (owner + 1) % 3)
}
