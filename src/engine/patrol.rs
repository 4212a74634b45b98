//! Slots of a cluster. One can come or leave without any event for a module, so lines, and locks that came in for a
//! slot of another node, are looked at again and again: who waits is told when the slot left, and a lease runs from
//! when it came.

use super::pump::{arm, arm_at_once, for_a_share, later, place, with_key};
use super::{carry_out, seats, with, State};
use crate::core::line::Walk;
use crate::core::slab::Handle;
use crate::core::table::Answer;
use crate::core::time::Instant;
use crate::server::context::{Context, Refusal};
use std::ops::Bound;

/// How often each line is looked at to see whether its slot left, in us: waiters are told within two seconds.
pub(super) const PATROL_MICROS: u64 = 1_000_000;

/// Sees to it that slots are looked at from now on: somebody waits in a cluster.
pub fn patrol_from(context: &Context, now: Instant) {
    with(|state| {
        state.agenda.patrol_at.get_or_insert(later(now, PATROL_MICROS));
    });
    arm(context, now);
}

/// A lock came in from elsewhere, in a cluster: its lease begins once this node owns the slot.
pub fn arrived(context: &Context, handle: Handle) {
    with(|state| state.agenda.newcomers.push(handle));
    arm_at_once(context);
}

/// Somebody is about to look at a lock. If its slot was still on its way here when the last patrol came by, every lease
/// starts anew first: the slot may have come a moment ago, however long ago the patrol was.
pub(super) fn hold_back_if_arriving(state: &mut State, handle: Handle, now: Instant) {
    if state.agenda.arriving.contains(&handle) {
        state.table.hold_back(handle, now);
    }
}

/// One look at all there is to look at.
#[derive(Default)]
pub(super) struct Round {
    /// How far it is among the lines.
    lines: Walk,
    /// The last lock of another's slot that was looked at.
    arriving: Option<Handle>,
}

/// In a cluster a slot can come or leave without any event for a module: each line, and each lock that came in for
/// another's slot, is looked at in turn.
pub(super) fn patrol(context: &Context, now: Instant) {
    let due = with(|state| {
        let due = state.agenda.patrol_at.is_some_and(|at| at <= now);
        if due && state.agenda.round.is_none() {
            state.agenda.round = Some(Round::default());
        }
        due
    });
    if !due {
        return;
    }
    let mut all_seen = false;
    for_a_share(|| {
        let seen = look_at_line(context).or_else(|| look_at_arriving(context, now));
        all_seen = seen.is_none();
        seen
    });
    with(|state| {
        let agenda = &mut state.agenda;
        let mut pause = 0;
        if all_seen {
            agenda.round = None;
            pause = PATROL_MICROS;
        }
        let idle = all_seen && state.table.lines().is_empty() && agenda.arriving.is_empty();
        agenda.patrol_at = (!idle).then(|| later(now, pause));
    });
}

fn look_at_line(context: &Context) -> Option<()> {
    let spot = with(|state| {
        let round = state.agenda.round.as_mut()?;
        let (place, walk) = state.table.lines().next_place(round.lines)?;
        round.lines = walk;
        Some(seats::owned(place))
    })?;
    with_key(context, &spot, |key| {
        if context.refusal(key) == Some(Refusal::NotOurs) {
            with(|state| state.table.end_waits(place(&spot), &Answer::SlotGone));
            carry_out(context, key, true);
        }
    });
    Some(())
}

/// Looks at a lock that came in for another's slot. Once the slot is here, its lease runs from now on.
fn look_at_arriving(context: &Context, now: Instant) -> Option<()> {
    let handle = with(|state| {
        let agenda = &mut state.agenda;
        let round = agenda.round.as_mut()?;
        let after = round.arriving.map_or(Bound::Unbounded, Bound::Excluded);
        round.arriving = agenda.arriving.range((after, Bound::Unbounded)).next().copied();
        round.arriving
    })?;
    let missing = slot_is_missing(context, handle);
    with(|state| {
        state.table.hold_back(handle, now);
        if !missing {
            state.agenda.arriving.remove(&handle);
        }
    });
    Some(())
}

/// Looks at locks that came in from elsewhere: those of another node's slot wait for it.
pub(super) fn receive_newcomers(context: &Context, now: Instant) {
    for handle in with(|state| std::mem::take(&mut state.agenda.newcomers)) {
        if slot_is_missing(context, handle) {
            with(|state| state.agenda.arriving.insert(handle));
            patrol_from(context, now);
        }
    }
}

fn slot_is_missing(context: &Context, handle: Handle) -> bool {
    let spot = seats::place_of(handle);
    spot.and_then(|spot| with_key(context, &spot, |key| context.refusal(key))).flatten() == Some(Refusal::NotOurs)
}
