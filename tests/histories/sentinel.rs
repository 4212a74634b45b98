//! A primary, two replicas and three Sentinels, which alone decide who takes over while the primary is killed, stands
//! still, or is cut off together with half of the clients. These ask the Sentinels where the primary is.

use std::time::Duration;

use super::dice::Dice;
use super::harness::{
    cmd, eventually, in_sync, info_int, is_primary, let_pass, on_every_server, Builder, Kind, Proxy, Server,
};
use super::history::History;
use super::network::{routes, Links};
use super::scene::{assert_kept, record, rewrite, stall, watched_primary, Safety, Scene};

/// They wait before they act, and longer where the machine stood still.
const SETTLE_WAIT: Duration = Duration::from_secs(120);
const ASK_WAIT: Duration = Duration::from_secs(2);
/// Of a run: a failover takes most of it.
const SECONDS: u64 = 7;
/// Of replicas, in whole seconds.
const MAX_LAG: u64 = 1;
/// The longest lease: longer than a failover takes.
const LONG_MS: u64 = 4_000;
/// What guarantees.md asks for: the longest lease, the lag, two seconds, and how long a link here holds back what a
/// replica said.
const GRACE_MS: u64 = LONG_MS + 1 + 1000 * (MAX_LAG + 2) + 700;

struct Watched {
    nodes: Vec<Server>,
    links: Vec<Links>,
    sentinels: Vec<Server>,
    /// The node that is the primary, as far as the Sentinels said.
    primary: usize,
}

impl Watched {
    fn start(kind: Kind, setup: impl Fn(Builder) -> Builder) -> Self {
        let nodes: Vec<Server> = (0..3).map(|_| setup(Server::builder(kind)).start()).collect();
        let links: Vec<Links> = nodes.iter().map(Links::of).collect();
        for (node, links) in nodes.iter().zip(&links) {
            links.announce(node);
        }
        let port = links[0].peers.port();
        (1..3).for_each(|replica| nodes[replica].replica_by(port, &nodes[0]));
        let sentinel = || Server::builder(kind).sentinel_of(port, 2).arg("sentinel failover-timeout", "watched 6000");
        let sentinels = (0..3).map(|_| sentinel().start()).collect();
        let mut watched = Self { nodes, links, sentinels, primary: 0 };
        watched.settle();
        watched.until_granting();
        watched
    }

    fn scene(&self, safety: Safety) -> Scene {
        let mut scene = Scene::watched(&self.sentinels, safety);
        scene.long_ms = LONG_MS;
        scene.routes = routes(self.links.iter().map(|links| links.peers.port()).zip(&self.links));
        scene
    }

    /// The node that all Sentinels take for the primary.
    fn agreed(&self) -> Result<usize, String> {
        let said: Vec<Option<u16>> =
            self.sentinels.iter().map(|sentinel| watched_primary(sentinel.port(), ASK_WAIT)).collect();
        let node = self.links.iter().position(|links| said.iter().all(|&port| port == Some(links.peers.port())));
        node.ok_or_else(|| format!("{said:?}"))
    }

    /// Waits until all nodes follow the one that the Sentinels agree on, and every Sentinel knows that all are well. Who
    /// comes back is told where the primary is: Sentinels would do it, after some ten seconds.
    fn settle(&mut self) {
        eventually(SETTLE_WAIT, || {
            self.primary = self.agreed()?;
            let (primary, port) = (&self.nodes[self.primary], self.links[self.primary].peers.port());
            is_primary(primary)?;
            for node in self.nodes.iter().filter(|node| node.port() != primary.port()) {
                cmd!(node.client(), "REPLICAOF", "127.0.0.1", port);
                in_sync(&mut primary.client(), &mut node.client())?;
            }
            self.sentinels.iter().try_for_each(|sentinel| knows(sentinel, port))
        });
    }

    /// Waits until the Sentinels have made another node the primary.
    fn until_failed_over(&mut self) {
        let old = self.primary;
        self.primary = eventually(SETTLE_WAIT, || match self.agreed() {
            Ok(next) if next != old => Ok(next),
            other => Err(other),
        });
    }

    /// The primary is lost to the Sentinels in some way, and comes back once another is in its place.
    fn fail_over(&mut self, way: u64, dice: &mut Dice) {
        let old = self.primary;
        match way {
            0 => {
                self.nodes[old].kill9();
                self.until_failed_over();
                self.nodes[old].restart();
            }
            1 => {
                self.nodes[old].sigstop();
                self.until_failed_over();
                // By now its clients have gone elsewhere. What it does for those that have not is in `unpromised`.
                self.links[old].sides.iter().for_each(Proxy::sever);
                self.nodes[old].sigcont();
            }
            _ => {
                // Half of the clients are with the majority, and half with it.
                self.links[old].peers.cut();
                self.links[old].sides[0].cut();
                self.until_failed_over();
                let_pass(Duration::from_millis(dice.within(500..4_000)));
                self.links[old].peers.mend();
                self.links[old].sides[0].mend();
            }
        }
        self.settle();
    }

    /// Waits until a grace is over, and lets clients work in peace for a moment.
    fn until_granting(&self) {
        let mut client = self.nodes[self.primary].client();
        eventually(SETTLE_WAIT, || match info_int(&mut client, "lock", "lock_grace_left_ms") {
            0 => Ok(()),
            left_ms => Err(left_ms),
        });
        let_pass(Duration::from_millis(500));
    }

    /// Something that is over before anybody takes it for a failure, or hardly.
    fn disturb(&self, dice: &mut Dice) {
        let replica = (self.primary + 1 + dice.within(0..2) as usize) % 3;
        match dice.within(0..5) {
            0 => stall(&self.nodes[replica], dice),
            1 => stall(&self.nodes[self.primary], dice),
            2 => self.links[self.primary].disturb_clients(dice),
            3 => self.links[self.primary].disturb_peers(dice),
            _ => rewrite(&self.nodes[self.primary], dice),
        }
    }
}

/// `Err` is what this Sentinel knows instead of a primary behind this port, and of two replicas and two Sentinels.
fn knows(sentinel: &Server, port: u16) -> Result<(), String> {
    let mut client = sentinel.client();
    let state = cmd!(client, "SENTINEL", "MASTER", "watched");
    let known = ["port", "num-slaves", "num-other-sentinels", "flags"].map(|name| state.get(name).text());
    if known != [&*port.to_string(), "2", "2", "master"] {
        return Err(format!("{known:?}"));
    }
    let replicas = cmd!(client, "SENTINEL", "REPLICAS", "watched");
    let are_well = replicas.array().iter().all(|replica| replica.get("flags").text() == "slave");
    are_well.then_some(()).ok_or_else(|| format!("{replicas:?}"))
}

/// Begins with a primary that is cut off. Then one in four faults is a failover.
fn follow(watched: &mut Watched, scene: &Scene) -> History {
    let mut failovers = 0;
    let history = record(scene, SECONDS, |dice| {
        if failovers == 0 || dice.percent(25) {
            let way = if failovers == 0 { 2 } else { dice.within(0..3) };
            failovers += 1;
            watched.fail_over(way, dice);
            watched.until_granting();
        } else {
            // A disturbance can be a failure to a Sentinel that is slow itself.
            watched.settle();
            watched.disturb(dice);
        }
    });
    eprintln!("{failovers} failovers");
    history
}

on_every_server! {
    /// Also beside a primary that is cut off and goes on: what it grants then, no replica has.
    fn what_replicas_have_is_kept_whoever_sentinels_promote(kind: Kind) {
        let mut watched = Watched::start(kind, |builder| builder);
        let scene = watched.scene(Safety::Replicated(2));
        assert_kept(&follow(&mut watched, &scene));
    }

    /// Whatever was lost with the old primary, and whatever it goes on to grant: `lock.grace` is longer.
    fn with_grace_no_failover_gives_a_lock_to_a_second_owner(kind: Kind) {
        let mut watched = Watched::start(kind, |builder| {
            let builder = builder.arg("min-replicas-to-write", 2).arg("min-replicas-max-lag", MAX_LAG);
            let builder = builder.arg("lock.default-ttl", LONG_MS).arg("lock.max-ttl", LONG_MS + 1);
            builder.arg("lock.grace", GRACE_MS)
        });
        let scene = watched.scene(Safety::Grace(2));
        assert_kept(&follow(&mut watched, &scene));
    }
}
