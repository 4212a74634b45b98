//! Slots of a cluster. One can come or leave without any event for a module, so lines, and locks that came in for a
//! slot of another node, are looked at again and again: who waits is told when the slot left, and a lease runs from
//! when it came.

use super::pump::{arm, arm_at_once, later, place, with_key, A_RUN};
use super::{carry_out, seats, with, State};
use crate::core::slab::Handle;
use crate::core::table::Answer;
use crate::core::time::Instant;
use crate::server::context::{Context, Refusal};

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

/// A command is about to look at a lock. If the lock's slot is still on its way here, every lease starts anew first: it
/// does not run yet, however long ago the last patrol was.
pub(super) fn hold_back_if_arriving(state: &mut State, handle: Handle, now: Instant) {
    if state.agenda.arriving.contains(&handle) {
        state.table.hold_back(handle, now);
    }
}

/// In a cluster a slot can come or leave without any event for a module: each line, and each lock that came in for
/// another's slot, is looked at in turn.
pub(super) fn patrol(context: &Context, now: Instant) {
    let due = with(|state| state.agenda.patrol_at.is_some_and(|at| at <= now));
    if !due {
        return;
    }
    receive_arriving(context, now);
    let spots = with(|state| {
        let agenda = &mut state.agenda;
        if agenda.patrol.is_empty() {
            agenda.patrol = state.table.lines().places(None).map(seats::owned).collect();
        }
        agenda.patrol.split_off(agenda.patrol.len().saturating_sub(A_RUN))
    });
    for spot in spots {
        with_key(context, &spot, |key| {
            if context.refusal(key) == Some(Refusal::NotOurs) {
                with(|state| state.table.end_waits(place(&spot), &Answer::SlotGone));
                carry_out(context, key, true);
            }
        });
    }
    with(|state| {
        let agenda = &mut state.agenda;
        let idle = state.table.lines().is_empty() && agenda.arriving.is_empty();
        let pause = if agenda.patrol.is_empty() { PATROL_MICROS } else { 0 };
        agenda.patrol_at = (!idle).then(|| later(now, pause));
    });
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

fn receive_arriving(context: &Context, now: Instant) {
    for handle in with(|state| std::mem::take(&mut state.agenda.arriving)) {
        let missing = slot_is_missing(context, handle);
        with(|state| {
            state.table.hold_back(handle, now);
            if missing {
                state.agenda.arriving.insert(handle);
            }
        });
    }
}

fn slot_is_missing(context: &Context, handle: Handle) -> bool {
    let spot = seats::place_of(handle);
    spot.and_then(|spot| with_key(context, &spot, |key| context.refusal(key))).flatten() == Some(Refusal::NotOurs)
}
