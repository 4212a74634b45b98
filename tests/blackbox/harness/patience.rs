//! Waiting and measuring, and the only place in the tests that sleeps: a test waits for a condition with
//! [`eventually`], and a wait that runs out prints the last value seen.

use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::thread::sleep;
use std::time::{Duration, Instant};

const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// Calls `probe` until it answers `Ok`. `Err` carries what was seen instead.
#[track_caller]
pub fn eventually<T, E: Debug>(patience: Duration, probe: impl FnMut() -> Result<T, E>) -> T {
    poll(patience, probe).unwrap_or_else(|last| panic!("not within {patience:?}; last seen: {last:?}"))
}

/// Like `eventually`, but a wait that runs out returns the last `Err`.
pub fn poll<T, E>(patience: Duration, mut probe: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let start = Instant::now();
    let mut pause = PAUSE_MIN;
    loop {
        match probe() {
            Err(_) if start.elapsed() < patience => sleep(pause),
            outcome => return outcome,
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Like `eventually`, but without a pause between two calls: for what is measured to the millisecond.
#[track_caller]
pub fn busily<T, E: Debug>(patience: Duration, mut probe: impl FnMut() -> Result<T, E>) -> T {
    let start = Instant::now();
    loop {
        match probe() {
            Ok(value) => return value,
            Err(last) => assert!(start.elapsed() < patience, "not within {patience:?}; last seen: {last:?}"),
        }
    }
}

/// What `action` returned and how long it took.
pub fn timed<T>(action: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let value = action();
    (value, start.elapsed())
}

/// Runs `action` and fails unless the whole milliseconds it took are in `expected_ms`.
#[track_caller]
pub fn within_ms<T: Debug>(expected_ms: RangeInclusive<u64>, action: impl FnOnce() -> T) -> T {
    let (value, took) = timed(action);
    let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    assert!(expected_ms.contains(&took_ms), "took {took:?}, expected {expected_ms:?} ms; returned {value:?}");
    value
}

/// Lets time pass while nothing is to be seen: a server is down, or must stay as it is.
pub fn let_pass(time: Duration) {
    let end = Instant::now() + time;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        sleep(left.min(PAUSE_MAX));
    }
}
