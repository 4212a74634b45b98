//! The whole of a lock's life as a state machine: random commands, clock steps, restarts and failovers, each taken by
//! the table behind a small server, by a replica of it, and by the rules in their plainest form.
//!
//! * [`plain`]: the rules
//! * [`node`]: a keyspace around the table, and what a replica is told
//! * [`world`]: one step of all of them, and what must be true after it
//! * [`fate`]: restores, restarts and failovers
//!
//! A new command: a variant of [`Op`], its weight in [`op`], its arm in [`step`], its rule in [`plain`].

mod fate;
mod node;
mod plain;
mod world;

use node::Spot;
use proptest::prelude::*;
use world::World;

/// Few of each, so that steps meet.
const KEYS: [&str; 3] = ["a", "b", "c"];
const TOKENS: [&str; 3] = ["ann", "bob", "cyd"];
const LABELS: [&str; 2] = ["", "web 1"];
const STEPS_MAX: usize = 100;

#[derive(Clone, Debug)]
enum Op {
    Acquire { spot: Spot, token: &'static str, lease_ms: u64, label: &'static str },
    Extend { spot: Spot, token: &'static str, lease_ms: Option<u64> },
    Release { spot: Spot, token: &'static str },
    Check { spot: Spot, token: &'static str },
    Pump { owns_slots: bool },
    Sleep { us: u64 },
    SleepToEdge { offset_us: i64 },
    StepWall { us: i64 },
    Delete { spot: Spot },
    Overwrite { spot: Spot },
    Rename { from: Spot, to: Spot },
    Swap,
    Flush { db: Option<i32>, late: bool },
    FreeLate,
    Evict { spot: Spot },
    Dump { spot: Spot },
    Restore { spot: Spot, dump: usize, replace: bool },
    Forge { spot: Spot, token: &'static str, beyond_ticks: i64, replace: bool },
    StopServing,
    BeginServing,
    Restart { aux: bool, down_us: u64, wall_step_us: i64, lead_us: u64 },
    FailOver { lead_us: u64 },
}

fn step(world: &mut World, op: Op) {
    match op {
        Op::Acquire { spot, token, lease_ms, label } => world.acquire(spot, token, lease_ms, label),
        Op::Extend { spot, token, lease_ms } => world.extend(spot, token, lease_ms),
        Op::Release { spot, token } => world.release(spot, token),
        Op::Check { spot, token } => world.check(spot, token),
        Op::Pump { owns_slots } => world.pump(owns_slots),
        Op::Sleep { us } => world.sleep(us),
        Op::SleepToEdge { offset_us } => world.sleep_to_edge(offset_us),
        Op::StepWall { us } => world.step_wall(us),
        Op::Delete { spot } => world.delete(spot),
        Op::Overwrite { spot } => world.overwrite(spot),
        Op::Rename { from, to } => world.rename(from, to),
        Op::Swap => world.swap(),
        Op::Flush { db, late } => world.flush(db, late),
        Op::FreeLate => world.free_late(),
        Op::Evict { spot } => world.evict(spot),
        Op::Dump { spot } => world.dump(spot),
        Op::Restore { spot, dump, replace } => world.restore(spot, dump, replace),
        Op::Forge { spot, token, beyond_ticks, replace } => world.forge(spot, token, beyond_ticks, replace),
        Op::StopServing => world.stop_serving(),
        Op::BeginServing => world.begin_serving(),
        Op::Restart { aux, down_us, wall_step_us, lead_us } => world.restart(aux, down_us, wall_step_us, lead_us),
        Op::FailOver { lead_us } => world.fail_over(lead_us),
    }
}

fn spots() -> impl Iterator<Item = Spot> {
    [0, 1].into_iter().flat_map(|db| KEYS.into_iter().map(move |key| Spot { db, key }))
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![30 => holding(), 12 => time(), 12 => keyspace(), 3 => serving()]
}

fn holding() -> impl Strategy<Value = Op> {
    prop_oneof![
        10 => (spot(), token(), lease_ms(), proptest::sample::select(&LABELS[..]))
            .prop_map(|(spot, token, lease_ms, label)| Op::Acquire { spot, token, lease_ms, label }),
        6 => (spot(), token(), proptest::option::of(lease_ms()))
            .prop_map(|(spot, token, lease_ms)| Op::Extend { spot, token, lease_ms }),
        5 => (spot(), token()).prop_map(|(spot, token)| Op::Release { spot, token }),
        1 => (spot(), token()).prop_map(|(spot, token)| Op::Check { spot, token }),
    ]
}

fn time() -> impl Strategy<Value = Op> {
    let year_us: i64 = 365 * 24 * 3_600 * 1_000_000;
    prop_oneof![
        4 => prop_oneof![0..3_000u64, 0..80_000u64, 0..200_000_000u64].prop_map(|us| Op::Sleep { us }),
        4 => (-1_500..=1_500i64).prop_map(|offset_us| Op::SleepToEdge { offset_us }),
        4 => proptest::bool::weighted(0.8).prop_map(|owns_slots| Op::Pump { owns_slots }),
        1 => prop_oneof![-20_000_000..=20_000_000i64, -year_us..=year_us].prop_map(|us| Op::StepWall { us }),
    ]
}

fn keyspace() -> impl Strategy<Value = Op> {
    let db = proptest::option::of(0..2i32);
    prop_oneof![
        2 => spot().prop_map(|spot| Op::Delete { spot }),
        1 => spot().prop_map(|spot| Op::Overwrite { spot }),
        4 => (spot(), spot()).prop_map(|(from, to)| Op::Rename { from, to }),
        1 => Just(Op::Swap),
        1 => (db, any::<bool>()).prop_map(|(db, late)| Op::Flush { db, late }),
        1 => Just(Op::FreeLate),
        4 => spot().prop_map(|spot| Op::Evict { spot }),
        2 => spot().prop_map(|spot| Op::Dump { spot }),
        2 => (spot(), any::<usize>(), any::<bool>())
            .prop_map(|(spot, dump, replace)| Op::Restore { spot, dump, replace }),
        1 => (spot(), token(), -2..=2i64, any::<bool>())
            .prop_map(|(spot, token, beyond_ticks, replace)| Op::Forge { spot, token, beyond_ticks, replace }),
    ]
}

fn serving() -> impl Strategy<Value = Op> {
    let wall_step_us = prop_oneof![Just(0), Just(-10_000_000), -12_000_000..=12_000_000i64];
    let down = (0..60_000_000u64, wall_step_us, 0..1_000_000_000u64);
    prop_oneof![
        1 => Just(Op::StopServing),
        2 => Just(Op::BeginServing),
        2 => (any::<bool>(), down).prop_map(|(aux, (down_us, wall_step_us, lead_us))| Op::Restart {
            aux,
            down_us,
            wall_step_us,
            lead_us,
        }),
        2 => (0..1_000_000_000u64).prop_map(|lead_us| Op::FailOver { lead_us }),
    ]
}

fn spot() -> impl Strategy<Value = Spot> {
    proptest::sample::select(spots().collect::<Vec<_>>())
}

fn token() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(&TOKENS[..])
}

fn lease_ms() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 1..5u64, 5 => 1..100u64, 1 => Just(30_000u64)]
}

proptest! {
    #[test]
    fn a_table_keeps_the_plain_rules_through_a_whole_life(ops in proptest::collection::vec(op(), 1..STEPS_MAX)) {
        let mut world = World::new();
        for op in ops {
            step(&mut world, op);
            world.verify();
        }
    }
}
