//! A state machine: random steps on a few locks, played by the table and by a plain model of it. After each step the
//! answer, the effects, the holders and lines, and a replica that follows are compared.
//!
//! * [`ops`]: the steps, and how they are rolled. [`plain`] and [`rules`]: the model
//! * [`world`]: the keyspace, connections and replica around the table
//! * [`play`] and [`disturb`]: one step in both. [`compare`]: whether they agree
//!
//! `LOCK_MODEL_RUNS=n` plays n runs of each theme. A run that fails is cut down to the steps that matter, and printed.

// Only tests and fuzz targets come here, and they find faults by panicking.
#![allow(clippy::indexing_slicing, clippy::unwrap_used)]

mod compare;
mod disturb;
mod ops;
mod plain;
mod play;
mod rules;
mod world;

use ops::{roll, Dice, Op, THEMES};
use std::panic::{catch_unwind, AssertUnwindSafe};
use world::World;

/// Runs of each theme, and steps in a run.
#[cfg(test)]
const RUNS: u64 = 250;
const STEPS: usize = 200;
/// What describes a step to [`play_bytes`].
const BYTES_A_STEP: usize = 4;

/// The first step that goes wrong, and how.
fn first_fault(steps: &[Op]) -> Option<(usize, String)> {
    let mut world = World::new();
    for (index, op) in steps.iter().enumerate() {
        let played = catch_unwind(AssertUnwindSafe(|| {
            world.play(op)?;
            world.compare()
        }));
        let fault = match played {
            Ok(Ok(())) => continue,
            Ok(Err(fault)) => fault,
            Err(_) => "a panic".to_owned(),
        };
        return Some((index, fault));
    }
    None
}

/// Plays steps that bytes describe, and panics at the first that goes wrong: the first byte is the theme, and each four
/// that follow are rolled to a step, so that a step can be left out or moved by itself.
pub fn play_bytes(bytes: &[u8]) {
    let Some((&theme, steps)) = bytes.split_first() else { return };
    let theme = &THEMES[theme as usize % THEMES.len()];
    let roll_one = |seed: &[u8]| roll(&mut Dice(seed.iter().fold(0, |seed, &byte| seed << 8 | u64::from(byte))), theme);
    let steps: Vec<Op> = steps.chunks_exact(BYTES_A_STEP).take(STEPS).map(roll_one).collect();
    if let Some((last, fault)) = first_fault(&steps) {
        panic!("{fault}: {:#?}", &steps[..=last]);
    }
}

/// Leaves out whatever is not needed for a run to fail.
#[cfg(test)]
fn cut_down(mut steps: Vec<Op>) -> Vec<Op> {
    let mut chunk = steps.len();
    while chunk > 0 {
        let mut from = 0;
        while from < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(from..(from + chunk).min(steps.len()));
            if let Some((last, _)) = first_fault(&fewer) {
                fewer.truncate(last + 1);
                steps = fewer;
            } else {
                from += chunk;
            }
        }
        chunk /= 2;
    }
    steps
}

#[cfg(test)]
fn play_theme(number: usize, theme: &ops::Theme) {
    let runs = std::env::var("LOCK_MODEL_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(RUNS);
    for run in 0..runs {
        let seed = run * 1_000 + number as u64;
        let mut dice = Dice(seed);
        let mut steps: Vec<Op> = (0..STEPS).map(|_| roll(&mut dice, theme)).collect();
        let Some((last, _)) = first_fault(&steps) else { continue };
        steps.truncate(last + 1);
        let steps = cut_down(steps);
        let (_, fault) = first_fault(&steps).unwrap_or_default();
        let trace: Vec<String> = steps.iter().map(|op| format!("  {op:?}")).collect();
        panic!("theme {number}, seed {seed}: {fault}\n{}", trace.join("\n"));
    }
}

#[test]
fn the_modes_of_one_lock_are_as_the_model_says() {
    play_theme(0, &THEMES[0]);
}

#[test]
fn tokens_that_wait_for_several_locks_are_as_the_model_says() {
    play_theme(1, &THEMES[1]);
}

#[test]
fn one_lock_in_a_server_with_events_is_as_the_model_says() {
    play_theme(2, &THEMES[2]);
}

#[test]
fn locks_in_a_server_with_events_are_as_the_model_says() {
    play_theme(3, &THEMES[3]);
}

#[test]
fn locks_without_fences_are_as_the_model_says() {
    play_theme(4, &THEMES[4]);
}
