//! The pump: one timer that does what no command is there to do. It ends leases on time, puts evicted locks back and
//! takes foreign EXPIREs back. It writes only where the server would let a client write: not on a replica, not while
//! loading, not during a pause, not in a slot of another node.

use super::{carry_out, hooks, lock_in, with};
use crate::core::slab::Handle;
use crate::core::time::Instant;
use crate::server::clock;
use crate::server::context::Context;
use crate::server::key::Key;
use crate::server::timer;

/// Leases ended in one run, so that a million of them ending at once cost no pause: a run stays well under 1 ms.
const LEASES_A_RUN: usize = 256;

/// How soon the pump looks again while it must not write, in us. A pause has no end that a module is told of.
const PAUSE_POLL_MICROS: u64 = 5_000;

/// Sees to it that the pump runs when the next lease ends.
pub fn arm(context: &Context, now: Instant) {
    if let Some(at) = with(|state| state.table.next_deadline()) {
        timer::arm::<hooks::Engine>(context, now, at);
    }
}

/// Sees to it that the pump runs in the next turn of the event loop.
pub fn arm_at_once(context: &Context) {
    let now = clock::instant();
    timer::arm::<hooks::Engine>(context, now, now);
}

/// One run.
pub fn run(context: &Context) {
    if hooks::bury() {
        arm_at_once(context);
    }
    if !with(|state| state.table.is_serving()) {
        return;
    }
    let now = clock::instant();
    if context.must_not_write() {
        let soon = Instant::from_micros(now.micros() + PAUSE_POLL_MICROS);
        timer::arm::<hooks::Engine>(context, now, soon);
        return;
    }
    put_all_back(context);
    undo_expires(context);
    for _ in 0..LEASES_A_RUN {
        let Some(handle) = with(|state| state.table.next_due(now)) else { break };
        end_lease(context, handle, now);
    }
    arm(context, now);
}

fn end_lease(context: &Context, handle: Handle, now: Instant) {
    let at_place = with_key_of(context, handle, |key| {
        let here = lock_in(key) == Ok(Some(handle));
        if here && context.is_cluster() && !context.owns(key) {
            with(|state| state.table.hold_back(handle, now));
        } else if here {
            with(|state| state.table.settle(Some(handle), now));
            carry_out(context, key, true);
        }
        here
    });
    if at_place != Some(true) {
        // Flushed, and not freed yet.
        with(|state| state.table.unlinked(handle));
    }
}

fn put_all_back(context: &Context) {
    while let Some(handle) = with(|state| state.table.first_evicted()) {
        with_key_of(context, handle, |key| put_back(context, key, handle));
        with(|state| state.table.give_up_if_evicted(handle));
    }
}

/// Stores evicted locks at their keys for what is being saved now, and tells nobody: the pump still does that. The
/// command that saves may have evicted them itself.
pub fn stand_in(context: &Context) {
    for handle in with(|state| state.table.all_evicted()) {
        with_key_of(context, handle, |key| lock_in(key) == Ok(None) && key.store(handle));
    }
}

/// Puts an evicted lock back at its key, if nothing else took the key. Whether it did.
pub fn put_back(context: &Context, key: &Key<'_>, handle: Handle) -> bool {
    let stands = match lock_in(key) {
        Ok(None) => key.store(handle),
        found => found == Ok(Some(handle)),
    };
    if !stands {
        return false;
    }
    with(|state| state.table.put_back(handle));
    super::changed(context, key, Some(handle));
    true
}

fn undo_expires(context: &Context) {
    for (db, name) in with(|state| std::mem::take(&mut state.expires)) {
        let name = context.string(&name);
        let Some(key) = context.open(&name, db, true) else { continue };
        let Ok(Some(handle)) = lock_in(&key) else { continue };
        if key.has_ttl() {
            key.remove_ttl();
            context.replicate(c"PERSIST", &key, None);
            with(|state| state.table.expire_undone(handle));
        }
    }
}

/// Opens the key where a lock was last seen.
fn with_key_of<R>(context: &Context, handle: Handle, body: impl FnOnce(&Key<'_>) -> R) -> Option<R> {
    let (db, name) = with(|state| {
        let place = state.table.get(handle)?.place();
        Some((place.db, context.string(place.key)))
    })?;
    let key = context.open(&name, db, true)?;
    Some(body(&key))
}
