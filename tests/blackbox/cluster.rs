//! Locks in a cluster: they are found by slot, move with their slot, and end only on the node that owns it.

use std::time::Duration;

use crate::harness::hold::{self, ms_left, repeat, span, take};
use crate::harness::{args, cmd, eventually, info, info_int, let_pass, on_every_server, Client, Cluster, Kind, Reply};

const SOON: Duration = Duration::from_secs(20);
/// A slot's arrival is noticed within a second or so.
const LATE: Duration = Duration::from_secs(5);
const LONG_MS: u64 = 600_000;
const GUARD_TICKS: i64 = 1_000_000;

/// Sends a command as a client does that was told to ask here.
#[track_caller]
fn asking(client: &mut Client, command: Vec<Vec<u8>>) -> Reply {
    cmd!(client, "ASKING").ok();
    client.cmd(&command)
}

on_every_server! {
    fn a_lock_command_is_sent_on_to_the_owner_of_its_slot(kind: Kind) {
        let cluster = Cluster::start(kind, 2);
        let owner = cluster.owner("k");
        let (mut here, mut there) = (cluster.client(owner), cluster.client(1 - owner));
        take(&mut here, "k", "t", LONG_MS);
        // The tag alone decides.
        take(&mut here, "{k}.other", "t", LONG_MS);
        for line in ["LOCK.ACQUIRE k TOKEN t", "LOCK.RELEASE k t", "LOCK.EXTEND k t", "LOCK.CHECK k t", "LOCK.INFO k"] {
            let reply = there.cmd(&line.split(' ').collect::<Vec<&str>>());
            assert_eq!(reply.err(), format!("MOVED {} 127.0.0.1:{}", cluster.slot("k"), cluster.nodes[owner].port()));
        }
        assert!(ms_left(&mut here, "k", "t") > 0);
        assert_eq!(info_int(&mut there, "lock", "lock_held"), 0);
        let (_, start) = span(|| take(&mut here, "{k}.short", "t", 300));
        start.ends(&mut here, "{k}.short", 300);
    }

    fn a_lock_moves_with_its_slot_and_ends_there(kind: Kind) {
        let mut cluster = Cluster::start(kind, 2);
        let source = cluster.owner("k");
        let target = 1 - source;
        let mut here = cluster.client(source);
        let fence = take(&mut here, "k", "t", 1000).fence;
        take(&mut here, "{k}.long", "t", LONG_MS);
        let slot = cluster.slot("k");
        let ((), moved) = span(|| cluster.migrate_slot(slot, target));
        let mut there = cluster.client(target);
        assert_eq!(hold::fence(&mut there, "k"), fence);
        assert!(hold::acquire(&mut there, "k", "other", LONG_MS).is_null());
        assert!(hold::acquire(&mut here, "k", "t", LONG_MS).err().starts_with("MOVED"));
        assert_eq!(info_int(&mut here, "lock", "lock_held"), 0);
        moved.ends_within(&mut there, "k", 1000, LATE);
        assert!(take(&mut there, "k", "other", LONG_MS).fence > fence);
        assert_eq!(cmd!(there, "LOCK.RELEASE", "{k}.long", "t").int(), 1);
        assert!(!cluster.nodes[target].log().contains("could not be replicated"));
    }

    /// The key is there already, the slot is not: the old owner still answers for the lock.
    fn a_lease_does_not_end_on_a_node_that_does_not_own_the_slot_yet(kind: Kind) {
        let mut cluster = Cluster::start(kind, 2);
        let source = cluster.owner("k");
        let target = 1 - source;
        let slot = cluster.slot("k");
        take(&mut cluster.client(source), "k", "t", 400);
        cluster.open_slot(slot, target);
        assert_eq!(cluster.move_keys(slot, target), 1);
        let mut there = cluster.client(target);
        // Two leases and a half.
        let_pass(Duration::from_millis(1000));
        assert!(asking(&mut there, args!["LOCK.CHECK", "k", "t"]).int() > 0);
        assert!(asking(&mut there, args!["LOCK.ACQUIRE", "k", "TOKEN", "other"]).is_null());
        assert!(asking(&mut there, args!["LOCK.EXTEND", "k", "t"]).int() > 0);
        // The old owner sends everybody there.
        assert!(cmd!(cluster.client(source), "LOCK.CHECK", "k", "t").err().starts_with("ASK"));
        assert!(cmd!(cluster.client(source), "LOCK.ACQUIRE", "k").err().starts_with("ASK"));
        cluster.assign_slot(slot, target);
        eventually(LATE, || match cmd!(there, "EXISTS", "k") {
            Reply::Int(0) => Ok(()),
            other => Err(other),
        });
        take(&mut there, "k", "other", LONG_MS);
    }

    fn a_released_lock_is_free_in_the_middle_of_a_migration(kind: Kind) {
        let mut cluster = Cluster::start(kind, 2);
        let source = cluster.owner("k");
        let target = 1 - source;
        let slot = cluster.slot("k");
        let mut here = cluster.client(source);
        let fence = take(&mut here, "{k}.moved", "t", LONG_MS).fence;
        cluster.open_slot(slot, target);
        assert_eq!(cluster.move_keys(slot, target), 1);
        let mut there = cluster.client(target);
        assert_eq!(asking(&mut there, args!["LOCK.RELEASE", "{k}.moved", "t"]).int(), 1);
        // A new lock of an open slot is taken at its future owner.
        assert!(cmd!(here, "LOCK.ACQUIRE", "k").err().starts_with("ASK"));
        let taken = asking(&mut there, args!["LOCK.ACQUIRE", "{k}.moved", "TOKEN", "t2", "PX", LONG_MS]);
        assert!(crate::harness::grant(&taken).fence > fence);
        cluster.assign_slot(slot, target);
        assert!(ms_left(&mut there, "{k}.moved", "t2") > 0);
    }

    fn a_cluster_replica_takes_over_with_every_lease_whole(kind: Kind) {
        let mut cluster = Cluster::start(kind, 1);
        let replica = cluster.add_replica(0);
        let mut above = cluster.client(0);
        let fence = take(&mut above, "k", "t", LONG_MS).fence;
        take(&mut above, "ends", "t", 1500);
        let mut below = cluster.client(replica);
        assert_eq!(cmd!(above, "WAIT", 1, 5000).int(), 1);
        assert!(hold::acquire(&mut below, "k", "t", LONG_MS).err().starts_with("MOVED"));
        cmd!(below, "READONLY").ok();
        assert_eq!(ms_left(&mut below, "k", "t"), 600_000);
        assert_eq!(cmd!(below, "LOCK.INFO", "k").get("role").text(), "replica");
        let ((), promoted) = span(|| {
            cmd!(below, "CLUSTER", "FAILOVER").ok();
            eventually(SOON, || match info(&mut below, "replication").text("role") {
                "master" => Ok(()),
                other => Err(other.to_owned()),
            });
        });
        cmd!(below, "READWRITE").ok();
        eventually(SOON, || match cmd!(below, "EXISTS", "k") {
            Reply::Int(1) => Ok(()),
            other => Err(other),
        });
        assert!(repeat(&mut below, "k", "t", 1000).fence > fence + GUARD_TICKS);
        promoted.ends_within(&mut below, "ends", 1500, LATE);
    }

    /// A node that lost its cluster must not decide anything; leases end once it is back.
    fn leases_do_not_end_while_the_cluster_is_down(kind: Kind) {
        let mut cluster = Cluster::start_with(kind, 3, |builder| builder.arg("cluster-node-timeout", 500));
        let owner = cluster.owner("k");
        let dead = (owner + 1) % 3;
        take(&mut cluster.client(owner), "k", "t", 3000);
        cluster.nodes[dead].kill9();
        let mut client = cluster.client(owner);
        eventually(SOON, || match cmd!(client, "LOCK.CHECK", "k", "t") {
            Reply::Error(text) if text.starts_with("CLUSTERDOWN") => Ok(()),
            other => Err(other),
        });
        let_pass(Duration::from_millis(3500));
        assert_eq!(info_int(&mut client, "lock", "lock_held"), 1);
        assert_eq!(info_int(&mut client, "lock", "lock_leases_ended"), 0);
        cluster.nodes[dead].restart();
        eventually(SOON, || match cmd!(client, "EXISTS", "k") {
            Reply::Int(0) => Ok(()),
            other => Err(other),
        });
        assert_eq!(info_int(&mut client, "lock", "lock_leases_ended"), 1);
    }

    fn a_restarted_cluster_replica_ends_nothing(kind: Kind) {
        let mut cluster = Cluster::start(kind, 1);
        let replica = cluster.add_replica_with(0, |builder| builder.arg("appendonly", "yes"));
        let mut above = cluster.client(0);
        take(&mut above, "k", "t", LONG_MS);
        assert_eq!(cmd!(above, "WAIT", 1, 5000).int(), 1);
        cluster.nodes[replica].kill9();
        take(&mut above, "k2", "t", LONG_MS);
        cluster.nodes[replica].restart();
        eventually(SOON, || match info(&mut cluster.client(replica), "replication").find("master_link_status") {
            Some("up") => Ok(()),
            other => Err(format!("{other:?}")),
        });
        crate::replication::agree(&cluster.nodes[0], &cluster.nodes[replica]);
        let mut below = cluster.client(replica);
        cmd!(below, "READONLY").ok();
        assert_eq!(ms_left(&mut below, "k2", "t"), 600_000);
        assert_eq!(info_int(&mut below, "lock", "lock_leases_ended"), 0);
    }
}
