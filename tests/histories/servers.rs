//! One server, a primary with replicas, and a cluster: what clients are promised holds, whatever happens to them.

use std::env;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::dice::Dice;
use super::harness::{
    cmd, eventually, let_pass, on_every_server, poll, wait_in_sync, Clock, Cluster, Kind, Server, HOUR_US,
};
use super::history::History;
use super::witness::Witness;
use super::worker::{Scene, Worker};

const WORKERS: usize = 8;
const SECONDS: u64 = 4;
const SOON: Duration = Duration::from_secs(30);

fn from_env(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// Lets clients work while something goes wrong again and again.
fn record(scene: &Scene, mut fault: impl FnMut(&mut Dice)) -> History {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
    let seed = from_env("REDIS_LOCK_HISTORY_SEED", clock);
    eprintln!("seed {seed}");
    let end = Instant::now() + Duration::from_secs(from_env("REDIS_LOCK_HISTORY_SECONDS", SECONDS));
    thread::scope(|scope| {
        let start = |number| scope.spawn(move || Worker::new(scene, number, seed).run());
        let workers: Vec<_> = (0..WORKERS).map(start).collect();
        let mut dice = Dice(seed);
        while Instant::now() < end {
            let_pass(Duration::from_millis(dice.within(50..400)));
            fault(&mut dice);
        }
        scene.over.store(true, Ordering::SeqCst);
        History::merge(workers.into_iter().map(|worker| worker.join().expect("a worker")).collect())
    })
}

/// Nothing that was promised is broken.
fn assert_kept(history: &History) {
    let found = history.check();
    let (promised, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|found| found.promised);
    let safe = history.holds.iter().filter(|hold| hold.safe).count();
    let (holds, others) = (history.holds.len(), others.len());
    eprintln!("{holds} holds, {safe} of them safe; {others} violations of what is not promised");
    assert!(promised.is_empty(), "{promised:#?}");
    assert!(safe > 20, "too little happened: {holds} holds, {safe} of them safe");
}

fn stall(server: &Server, dice: &mut Dice) {
    server.sigstop();
    let_pass(Duration::from_millis(dice.within(20..400)));
    server.sigcont();
}

/// The clock of a server, an hour or less forward or back.
fn step(clock: &Clock, dice: &mut Dice) {
    clock.step(dice.within(0..HOUR_US as u64) as i64 - HOUR_US / 2);
}

on_every_server! {
    /// Its own file says so too.
    fn one_server_keeps_every_promise_over_stalls_clock_steps_and_kill9(kind: Kind) {
        let clock = Clock::new();
        let builder = Server::builder(kind).arg("appendonly", "yes").arg("appendfsync", "always");
        // No rewrite: the file has all that ever happened.
        let builder = builder.arg("auto-aof-rewrite-percentage", 0).arg("aof-use-rdb-preamble", "no");
        let mut server = builder.clock(&clock).start();
        let scene = Scene::new(server.port(), 0);
        let history = record(&scene, |dice| match dice.within(0..4) {
            0 => {
                server.kill9();
                server.restart();
            }
            1 => stall(&server, dice),
            _ => clock.step(dice.within(0..HOUR_US as u64) as i64),
        });
        assert_kept(&history);
        server.kill9();
        Witness::read(&server.dir()).confirm(&history);
    }

    fn one_server_keeps_every_promise_while_it_rewrites_and_saves(kind: Kind) {
        let clock = Clock::new();
        let builder = Server::builder(kind).arg("appendonly", "yes").arg("appendfsync", "always");
        let mut server = builder.clock(&clock).start();
        let scene = Scene::new(server.port(), 0);
        let history = record(&scene, |dice| match dice.within(0..4) {
            0 => {
                server.kill9();
                server.restart();
            }
            1 => step(&clock, dice),
            2 => drop(cmd!(server.client(), "BGREWRITEAOF")),
            _ => drop(cmd!(server.client(), "BGSAVE")),
        });
        assert_kept(&history);
    }

    /// A grant counts once both replicas have it: then it survives whichever takes over.
    fn what_replicas_have_is_kept_over_every_failover(kind: Kind) {
        let mut nodes: Vec<Server> = (0..3).map(|_| Server::start(kind)).collect();
        nodes[1].replica_of(&nodes[0]);
        nodes[2].replica_of(&nodes[0]);
        let scene = Scene::new(nodes[0].port(), 2);
        let mut primary = 0;
        let history = record(&scene, |dice| {
            let (next, third) = ((primary + 1) % 3, (primary + 2) % 3);
            match dice.within(0..4) {
                0 => return stall(&nodes[next], dice),
                1 => return stall(&nodes[primary], dice),
                2 => {
                    // The one that takes over has everything.
                    cmd!(nodes[primary].client(), "FAILOVER", "TO", "127.0.0.1", nodes[next].port()).ok();
                    eventually(SOON, || is_primary(&nodes[next]));
                }
                _ => {
                    nodes[primary].kill9();
                    nodes[next].promote();
                    // It comes back as a primary of its own: nobody may take it for the one that counts.
                    scene.port.store(nodes[next].port(), Ordering::SeqCst);
                    nodes[primary].restart();
                    nodes[primary].replica_of(&nodes[next]);
                }
            }
            scene.port.store(nodes[next].port(), Ordering::SeqCst);
            nodes[third].replica_of(&nodes[next]);
            wait_in_sync(&nodes[next], &nodes[primary]);
            primary = next;
        });
        assert_kept(&history);
    }

    fn a_cluster_keeps_every_promise_while_slots_move_and_replicas_take_over(kind: Kind) {
        let mut cluster = Cluster::start(kind, 3);
        (0..3).for_each(|primary| {
            cluster.add_replica(primary);
        });
        let scene = Scene::new(cluster.nodes[0].port(), 0);
        let (moving, spare) = moving_and_spare(&cluster);
        // The node whose slots stay is the one that fails over: the harness knows who owns the slots that move.
        let steady = (0..3).find(|&node| node != cluster.owner(&moving) && node != spare).expect("a third node");
        let mut pair = (steady, steady + 3);
        let history = record(&scene, |dice| match dice.within(0..3) {
            0 => stall(&cluster.nodes[pair.1], dice),
            1 => {
                let asked = cmd!(cluster.client(pair.1), "CLUSTER", "FAILOVER");
                if asked.is("OK") && poll(SOON, || is_primary(&cluster.nodes[pair.1])).is_ok() {
                    pair = (pair.1, pair.0);
                    cluster.wait_until_ok();
                }
            }
            _ => {
                let slot = cluster.slot(&moving);
                let (here, there) = (cluster.owner(&moving), spare);
                cluster.migrate_slot(slot, there);
                cluster.migrate_slot(slot, here);
            }
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

fn is_primary(node: &Server) -> Result<(), String> {
    let role = cmd!(node.client(), "ROLE");
    match role.array()[0].text().as_str() {
        "master" => Ok(()),
        other => Err(other.to_owned()),
    }
}
