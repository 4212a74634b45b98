//! Core under everything that goes wrong, in simulated time: servers that replicate, save, stall, die and take over from
//! one another, clocks that are off and step, a network that delays, loses and repeats, and clients that wait and hold in
//! every way there is. After every step the judge looks at what must be true. One seed decides all of it:
//! `REDIS_LOCK_SIM_SEED` and `REDIS_LOCK_SIM_STEPS` repeat and lengthen a run.
//!
//! * [`world`]: events, the network, what clients are told
//! * [`node`]: one server: table, keyspace, clocks, disk. [`serving`]: its commands and its pump. [`conclusion`]: what
//!   follows from them
//! * [`client`]: what clients want. [`faults`]: what goes wrong
//! * [`judge`]: what must be true

// Tests assert by panicking.
#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

mod client;
mod conclusion;
#[path = "../blackbox/stress/dice.rs"]
mod dice;
mod faults;
mod judge;
mod node;
mod serving;
mod world;

use std::env;
use std::time::{SystemTime, UNIX_EPOCH};
use world::{Rules, World, SECOND};

/// Steps of one run, by default.
const STEPS: u64 = 500_000;
/// Steps after which everything has to come to rest.
const A_WHILE: u64 = 20_000;

fn from_env(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

fn simulate(rules: Rules) -> World {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
    let (seed, steps) = (from_env("REDIS_LOCK_SIM_SEED", clock), from_env("REDIS_LOCK_SIM_STEPS", STEPS));
    eprintln!("seed {seed}, {rules:?}");
    let mut world = World::new(seed, rules);
    while world.steps < steps {
        world.run(A_WHILE);
    }
    let judge = &world.judge;
    eprintln!(
        "{} steps, {} s, {} grants, {} promises void",
        world.steps,
        world.now / SECOND,
        judge.granted,
        judge.voided
    );
    assert!(judge.granted > steps / 100, "too little happened: {} grants", judge.granted);
    world
}

/// Whatever the wall clock does.
#[test]
fn one_server_keeps_every_promise() {
    let world = simulate(Rules { fsync_always: true, failovers: false, wall_us: 100_000 * SECOND, loss: 2 });
    assert_eq!(world.judge.voided, 0);
}

#[test]
fn a_server_that_syncs_always_keeps_every_promise_over_its_restarts() {
    simulate(Rules { fsync_always: true, failovers: true, wall_us: 2 * SECOND, loss: 2 });
}

/// What was neither on a disk nor on the replica that took over is lost, and nothing else.
#[test]
fn what_was_replicated_or_synced_is_kept_over_every_failover() {
    let world = simulate(Rules { fsync_always: false, failovers: true, wall_us: 2 * SECOND, loss: 5 });
    assert!(world.judge.voided > 0, "no failover lost anything");
}

/// Fences included: where clocks agree, no number of failovers lets one fall.
#[test]
fn failovers_that_follow_each_other_keep_every_promise() {
    let world = simulate(Rules { fsync_always: false, failovers: true, wall_us: 0, loss: 2 });
    assert!(world.judge.voided > 0, "no failover lost anything");
}
