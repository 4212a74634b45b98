//! The grace after a start or a promotion, as far as the server has a part in it: the config, and lines in the log.

use super::{settings, with};
use crate::core::time::Instant;
use crate::server::{clock, log};

/// This node started as a primary, or was promoted.
pub(super) fn begin() {
    let now = clock::instant();
    with(|state| {
        state.table.set_grace_ms(settings::grace_ms(), now);
        state.table.begin_grace(now);
    });
    tell();
}

/// Somebody set a config. An end that moved to the past is for the pump to note.
pub(super) fn set() {
    let now = clock::instant();
    if with(|state| state.table.set_grace_ms(settings::grace_ms(), now)) {
        tell();
    }
}

/// This node is no primary any more.
pub(super) fn forget() {
    with(|state| state.table.drop_grace());
}

/// Milliseconds until locks are given out; 0 if they are.
pub fn left_ms() -> u64 {
    let now = clock::instant();
    with(|state| state.table.grace_left_ms(now))
}

/// Notes the end, if it is over.
pub(super) fn end(now: Instant) {
    if with(|state| state.table.end_grace(now)) {
        log::notice("lock.grace is over: locks are given out");
    }
}

fn tell() {
    let left_ms = left_ms();
    if left_ms > 0 {
        log::notice(&format!("lock.grace: no new locks for {left_ms} ms"));
    }
}
