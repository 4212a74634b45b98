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

use client::LEASE_END_MS;
use faults::LEFT_BEHIND_US;
use world::{Rules, World, MS, SECOND};

/// Steps of one run, by default.
const STEPS: u64 = 400_000;
/// Steps of the run that is always the same.
const FIXED_STEPS: u64 = 100_000;
const FIXED_SEED: u64 = 1;
/// Steps after which everything has to come to rest.
const A_WHILE: u64 = 20_000;

fn from_env(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// One run that is always the same, and one of a seed that never was there before; or the one that is asked for. How many
/// promises were void.
fn simulate(rules: Rules) -> u64 {
    let steps = from_env("REDIS_LOCK_SIM_STEPS").unwrap_or(STEPS);
    if let Some(seed) = from_env("REDIS_LOCK_SIM_SEED") {
        return simulate_seed(rules, seed, steps);
    }
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
    simulate_seed(rules, FIXED_SEED, FIXED_STEPS) + simulate_seed(rules, clock, steps)
}

fn simulate_seed(rules: Rules, seed: u64, steps: u64) -> u64 {
    // A run that fails has printed it.
    eprintln!("REDIS_LOCK_SIM_SEED={seed} REDIS_LOCK_SIM_STEPS={steps}, {rules:?}");
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
    judge.voided
}

/// Whatever the wall clock does.
#[test]
fn one_server_keeps_every_promise() {
    let void =
        simulate(Rules { fsync_always: true, failovers: false, wall_us: 100_000 * SECOND, loss: 2, grace_ms: 0 });
    assert_eq!(void, 0);
}

#[test]
fn a_server_that_syncs_always_keeps_every_promise_over_its_restarts() {
    simulate(Rules { fsync_always: true, failovers: true, wall_us: 2 * SECOND, loss: 2, grace_ms: 0 });
}

/// What was neither on a disk nor on the replica that took over is lost, and nothing else.
#[test]
fn what_was_replicated_or_synced_is_kept_over_every_failover() {
    let void = simulate(Rules { fsync_always: false, failovers: true, wall_us: 2 * SECOND, loss: 5, grace_ms: 0 });
    assert!(void > 0, "no failover lost anything");
}

/// Fences included: where clocks agree, no number of failovers lets one fall.
#[test]
fn failovers_that_follow_each_other_keep_every_promise() {
    let void = simulate(Rules { fsync_always: false, failovers: true, wall_us: 0, loss: 2, grace_ms: 0 });
    assert!(void > 0, "no failover lost anything");
}

/// What is lost is given to nobody else while it lasts, and nobody gets more than it had meanwhile: the grace is longer
/// than any lease and the time that a primary goes on beside its successor.
#[test]
fn with_grace_nobody_gets_what_a_failover_lost() {
    let grace_ms = LEASE_END_MS + LEFT_BEHIND_US / MS;
    let void = simulate(Rules { fsync_always: false, failovers: true, wall_us: 2 * SECOND, loss: 5, grace_ms });
    assert!(void > 0, "no failover lost anything");
}
