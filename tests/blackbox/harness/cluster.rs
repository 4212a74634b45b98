//! A small cluster: primaries that share the slots evenly, replicas on request, and slots that move, step by step so
//! that a test can act in between.

use std::time::Duration;

use super::arg::cmd;
use super::client::Client;
use super::info::Info;
use super::kind::Kind;
use super::patience::eventually;
use super::replication::is_primary;
use super::reply::Reply;
use super::server::Server;

const SLOTS: usize = 16_384;
const FORM_WAIT: Duration = Duration::from_secs(30);
const MIGRATE_WAIT_MS: u64 = 5000;
const KEYS_AT_ONCE: usize = 100;

/// Nodes that know each other. `nodes` holds the primaries first, then added replicas in order.
#[derive(Debug)]
pub struct Cluster {
    pub nodes: Vec<Server>,
    kind: Kind,
    /// The node that owns each slot.
    owners: Vec<usize>,
}

impl Cluster {
    /// `count` primaries with the module loaded.
    #[track_caller]
    pub fn start(kind: Kind, count: usize) -> Self {
        Self::start_with(kind, count, |builder| builder)
    }

    /// `count` primaries, each built by `setup`.
    #[track_caller]
    pub fn start_with(kind: Kind, count: usize, setup: impl Fn(super::Builder) -> super::Builder) -> Self {
        let nodes: Vec<Server> = (0..count).map(|_| setup(node_builder(kind)).start()).collect();
        let owners: Vec<usize> = (0..SLOTS).map(|slot| slot * count / SLOTS).collect();
        for (index, node) in nodes.iter().enumerate() {
            let mut client = node.client();
            // Distinct epochs from the start: equal ones are resolved by and by, which moves them under the test.
            cmd!(client, "CLUSTER", "SET-CONFIG-EPOCH", index + 1).ok();
            let first = owners.partition_point(|&owner| owner < index);
            let next = owners.partition_point(|&owner| owner <= index);
            cmd!(client, "CLUSTER", "ADDSLOTSRANGE", first, next - 1).ok();
        }
        let cluster = Self { nodes, kind, owners };
        for node in &cluster.nodes[1..] {
            cluster.meet(node);
        }
        cluster.wait_until_ok();
        cluster
    }

    /// Adds a replica of `nodes[primary]` and returns its index.
    #[track_caller]
    pub fn add_replica(&mut self, primary: usize) -> usize {
        self.add_replica_with(primary, |builder| builder)
    }

    /// Adds a replica, built by `setup`.
    #[track_caller]
    pub fn add_replica_with(&mut self, primary: usize, setup: impl Fn(super::Builder) -> super::Builder) -> usize {
        self.nodes.push(setup(node_builder(self.kind)).start());
        let index = self.nodes.len() - 1;
        self.meet(&self.nodes[index]);
        self.wait_until_ok();
        let id = self.id(primary);
        let mut replica = self.nodes[index].client();
        eventually(FORM_WAIT, || accepted(cmd!(replica, "CLUSTER", "REPLICATE", id)));
        super::wait_in_sync(&self.nodes[primary], &self.nodes[index]);
        // A primary that has not heard of its replica yet lets it fail over in vain.
        let known = format!("slave {id}");
        eventually(FORM_WAIT, || {
            let nodes = cmd!(self.client(primary), "CLUSTER", "NODES").text();
            if nodes.contains(&known) {
                Ok(())
            } else {
                Err(nodes)
            }
        });
        index
    }

    /// Waits until every node knows every other and serves its slots.
    #[track_caller]
    pub fn wait_until_ok(&self) {
        for node in &self.nodes {
            let mut client = node.client();
            eventually(FORM_WAIT, || self.settled(&mut client));
        }
    }

    pub fn client(&self, node: usize) -> Client {
        self.nodes[node].client()
    }

    /// The name of a node in the cluster.
    pub fn id(&self, node: usize) -> String {
        cmd!(self.client(node), "CLUSTER", "MYID").text()
    }

    pub fn slot(&self, key: &str) -> usize {
        let slot = cmd!(self.client(0), "CLUSTER", "KEYSLOT", key).int();
        usize::try_from(slot).expect("a slot is not negative")
    }

    /// The node that owns the slot of `key`, as far as this harness moved it.
    pub fn owner(&self, key: &str) -> usize {
        self.owners[self.slot(key)]
    }

    /// Moves a slot with all its keys, as `redis-cli --cluster reshard` does.
    #[track_caller]
    pub fn migrate_slot(&mut self, slot: usize, target: usize) {
        self.open_slot(slot, target);
        self.move_keys(slot, target);
        self.assign_slot(slot, target);
    }

    /// Marks a slot as importing on its target and as migrating on its owner.
    #[track_caller]
    pub fn open_slot(&self, slot: usize, target: usize) {
        let source = self.owners[slot];
        self.set_slot(target, slot, "IMPORTING", &self.id(source));
        self.set_slot(source, slot, "MIGRATING", &self.id(target));
    }

    /// Moves every key of an open slot and returns how many there were.
    #[track_caller]
    pub fn move_keys(&self, slot: usize, target: usize) -> usize {
        let mut source = self.client(self.owners[slot]);
        let port = self.nodes[target].port();
        let mut moved = 0;
        loop {
            let keys = cmd!(source, "CLUSTER", "GETKEYSINSLOT", slot, KEYS_AT_ONCE);
            if keys.array().is_empty() {
                return moved;
            }
            for key in keys.array() {
                let key = key.bulk();
                let moves = cmd!(source, "MIGRATE", "127.0.0.1", port, key, 0, MIGRATE_WAIT_MS);
                // Under traffic a key may be gone by now.
                assert!(moves.is("OK") || moves.is("NOKEY"), "{moves:?}");
                moved += usize::from(moves.is("OK"));
            }
        }
    }

    /// Tells every primary that a slot is the target's now, the target first so that the slot always has an owner.
    #[track_caller]
    pub fn assign_slot(&mut self, slot: usize, target: usize) {
        let id = self.id(target);
        let source = self.owners[slot];
        let rest = (0..self.nodes.len()).filter(|&node| node != target && node != source);
        for node in [target, source].into_iter().chain(rest) {
            if is_primary(&self.nodes[node]).is_ok() {
                self.set_slot(node, slot, "NODE", &id);
            }
        }
        self.owners[slot] = target;
    }

    /// Moves a slot by the atomic migration of Valkey 9 and waits for its end.
    #[track_caller]
    pub fn migrate_slot_atomically(&mut self, slot: usize, target: usize) {
        let id = self.id(target);
        let mut source = self.client(self.owners[slot]);
        cmd!(source, "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", id).ok();
        eventually(FORM_WAIT, || {
            let jobs = cmd!(source, "CLUSTER", "GETSLOTMIGRATIONS");
            let latest = jobs.array().first().ok_or("no migration")?;
            match latest.get("state").text().as_str() {
                "success" => Ok(()),
                _ => Err(format!("{latest:?}")),
            }
        });
        self.owners[slot] = target;
    }

    #[track_caller]
    fn set_slot(&self, node: usize, slot: usize, state: &str, id: &str) {
        let mut client = self.client(node);
        cmd!(client, "CLUSTER", "SETSLOT", slot, state, id).ok();
    }

    fn meet(&self, node: &Server) {
        let (port, bus_port) = (self.nodes[0].port(), self.nodes[0].bus_port());
        let bus_port = bus_port.expect("a cluster node has a bus port");
        cmd!(node.client(), "CLUSTER", "MEET", "127.0.0.1", port, bus_port).ok();
    }

    /// `Err` is what this node says about a cluster that is not settled.
    fn settled(&self, client: &mut Client) -> Result<(), String> {
        let state = Info::parse(&cmd!(client, "CLUSTER", "INFO").text());
        let nodes = cmd!(client, "CLUSTER", "NODES").text();
        let met = nodes.lines().count() == self.nodes.len() && !nodes.contains("handshake");
        let linked = !nodes.contains("disconnected") && !nodes.contains("fail");
        if state.text("cluster_state") == "ok" && met && linked {
            return Ok(());
        }
        Err(format!("{state:?}\n{nodes}"))
    }
}

fn node_builder(kind: Kind) -> super::Builder {
    Server::builder(kind).arg("cluster-enabled", "yes").arg("cluster-node-timeout", 5000)
}

fn accepted(reply: Reply) -> Result<(), Reply> {
    if reply.is("OK") {
        Ok(())
    } else {
        Err(reply)
    }
}
