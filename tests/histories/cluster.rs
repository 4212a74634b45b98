//! A cluster of three primaries, each with a replica, while slots move and replicas take over.

use super::harness::{
    cmd, eventually, is_primary, on_every_server, poll, wait_in_sync, Builder, Cluster, Kind, Server,
};
use super::network::{routes, Links};
use super::scene::{assert_kept, record, stall, Safety, Scene, SECONDS};
use std::time::Duration;

/// Longer than a takeover takes.
const LONG_MS: u64 = 4_000;
const SOON: Duration = Duration::from_secs(30);

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

/// A lock whose slot moves, and a node to move it to.
fn moving_and_spare(cluster: &Cluster) -> (String, usize) {
    let moving = "{k1}".to_owned();
    let owner = cluster.owner(&moving);
    ((moving), (owner + 1) % 3)
}
