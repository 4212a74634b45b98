//! What others do to the keys of locks and the module takes back: evictions, and EXPIREs.

use super::pump::with_key;
use super::{lock_in, seats, with};
use crate::core::name::Place;
use crate::core::slab::Handle;
use crate::server::context::Context;
use crate::server::key::Key;
use crate::server::value::SET_COMMAND;

/// Puts every evicted lock back.
pub(super) fn put_all_back(context: &Context) {
    while let Some(handle) = with(|state| state.table.first_evicted()) {
        if let Some(spot) = seats::place_of(handle) {
            with_key(context, &spot, |key| put_back(context, key, handle));
        }
        with(|state| state.table.give_up_if_evicted(handle));
    }
}

/// Sees to it that what is being saved now has locks as they are: evicted ones stand at their keys, and none has a time
/// to live, at which the next start would drop it. Nobody is told: the pump still does that. The command that saves may
/// have evicted them itself, or came in the same turn as an EXPIRE.
pub fn stand_in(context: &Context) {
    for spot in with(|state| std::mem::take(&mut state.expires)) {
        let unsaved = with_key(context, &spot, |key| {
            let expires = matches!(lock_in(key), Ok(Some(_))) && key.has_ttl();
            if expires {
                key.remove_ttl();
            }
            expires
        });
        if unsaved == Some(true) {
            with(|state| state.expires_unsaved.push(spot));
        }
    }
    // After the others: one whose time to live is over goes as its key is opened.
    for handle in with(|state| state.table.all_evicted()) {
        if let Some(spot) = seats::place_of(handle) {
            with_key(context, &spot, |key| lock_in(key) == Ok(None) && key.store(handle));
        }
    }
}

/// Puts the lock that was evicted from this key, where nothing is now, back there. That lock, if there is one.
pub(super) fn put_back_at(context: &Context, key: &Key<'_>, place: Place<'_>) -> Option<Handle> {
    let evicted = with(|state| state.table.find_evicted(place));
    evicted.filter(|&evicted| put_back(context, key, evicted))
}

/// Puts an evicted lock back at its key, if nothing else took the key. Whether it did.
fn put_back(context: &Context, key: &Key<'_>, handle: Handle) -> bool {
    let stands = match lock_in(key) {
        Ok(None) => key.store(handle),
        found => found == Ok(Some(handle)),
    };
    if !stands {
        return false;
    }
    with(|state| state.table.put_back(handle));
    for bytes in super::saved(handle, true) {
        context.replicate(SET_COMMAND, key, Some(&bytes));
    }
    context.signal_modified(key);
    true
}

/// Takes every EXPIRE on a lock back, and tells replicas.
pub(super) fn undo_expires(context: &Context) {
    let undo = |key: &Key<'_>, handle| {
        context.replicate(c"PERSIST", key, None);
        with(|state| state.table.expire_undone(handle));
    };
    for spot in with(|state| std::mem::take(&mut state.expires_unsaved)) {
        with_key(context, &spot, |key| lock_in(key).ok().flatten().map(|handle| undo(key, handle)));
    }
    for spot in with(|state| std::mem::take(&mut state.expires)) {
        with_key(context, &spot, |key| {
            let Ok(Some(handle)) = lock_in(key) else { return };
            if key.has_ttl() {
                key.remove_ttl();
                undo(key, handle);
            }
        });
    }
}
