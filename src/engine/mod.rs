//! What stands between core and the server: the one table of locks, how a command reaches it, and how its effects are
//! carried out. No borrow of the table is held while the server is called, since the server can call back.
//!
//! * [`pump`]: ends leases on time, puts evicted locks back, takes foreign EXPIREs back
//! * [`hooks`]: loading, saving, role changes and keyspace events
//! * [`label`], [`settings`], [`metrics`]: one small thing each

mod hooks;
pub mod label;
mod metrics;
mod pump;
pub mod settings;

use crate::core::codec;
use crate::core::lock::Lock;
use crate::core::slab::Handle;
use crate::core::table::{Effect, Ended, Table};
use crate::core::time::{Instant, Now};
use crate::server::args::Args;
use crate::server::cell::MainThread;
use crate::server::clock;
use crate::server::context::Context;
use crate::server::key::{Content, Key};
use crate::server::value::SET_COMMAND;
use std::ffi::CStr;

pub use hooks::{start, Engine};

/// Why a command was turned away before core was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// The key holds something that is not a lock.
    WrongType,
    /// This node is no serving primary.
    ReadOnly,
}

/// All there is: core's table, and what the pump still has to do.
struct State {
    table: Table,
    /// Memory for a lock's bytes on their way to the replicas.
    bytes: Vec<u8>,
    /// Keys of locks that somebody gave a time to live, by database.
    expires: Vec<(i32, Box<[u8]>)>,
    /// Whether keyspace notifications are subscribed.
    watching_keys: bool,
    /// The wall clock's lead over the monotonic clock when last looked at, in us.
    wall_lead_micros: u64,
}

static STATE: MainThread<Option<State>> = MainThread::new(None);

fn with<R>(body: impl FnOnce(&mut State) -> R) -> R {
    STATE.with(|state| {
        body(state.get_or_insert_with(|| State {
            table: Table::default(),
            bytes: Vec::new(),
            expires: Vec::new(),
            watching_keys: false,
            wall_lead_micros: clock::wall_lead_micros(),
        }))
    })
}

/// Lets a command that writes ask core about the lock at its key, and carries out what follows.
///
/// # Errors
/// On a replica, and for a key that holds something else.
pub fn write<R>(
    context: &Context,
    args: Args<'_>,
    ask: impl FnOnce(&mut Table, Option<Handle>, Now) -> R,
) -> Result<R, Denied> {
    hooks::bury();
    if !with(|state| state.table.is_serving()) {
        return Err(Denied::ReadOnly);
    }
    let key = context.open_arg(args, 1).ok_or(Denied::WrongType)?;
    let mut found = lock_in(&key)?;
    let place = context.place(args.get(1).unwrap_or_default());
    if let (None, Some(evicted)) = (found, with(|state| state.table.find_evicted(place))) {
        found = pump::put_back(context, &key, evicted).then_some(evicted);
    }
    let now = clock::now();
    let answer = with(|state| {
        if let Some(handle) = found {
            state.table.linked(handle, place);
        }
        ask(&mut state.table, found, now)
    });
    carry_out(context, &key, true);
    pump::arm(context, now.instant);
    Ok(answer)
}

/// Lets a command that only looks ask core about the lock at its key.
///
/// # Errors
/// For a key that holds something else.
pub fn read<R>(
    context: &Context,
    args: Args<'_>,
    ask: impl FnOnce(&Table, Option<Handle>, Instant) -> R,
) -> Result<R, Denied> {
    hooks::bury();
    let key = context.read_arg(args, 1).ok_or(Denied::WrongType)?;
    let found = lock_in(&key)?;
    let place = context.place(args.get(1).unwrap_or_default());
    let now = clock::instant();
    Ok(with(|state| {
        let found = found.or_else(|| state.table.find_evicted(place));
        ask(&state.table, found, now)
    }))
}

/// Lets the internal command change the lock at its key, on a replica or while loading: the effects stay here, the
/// command itself is passed on.
///
/// # Errors
/// For a key that holds something else.
pub fn follow<R>(
    context: &Context,
    args: Args<'_>,
    change: impl FnOnce(&mut Table, Option<Handle>, Now) -> R,
) -> Result<R, Denied> {
    hooks::bury();
    let key = context.open_arg(args, 1).ok_or(Denied::WrongType)?;
    let found = lock_in(&key)?;
    let now = clock::now();
    let answer = with(|state| change(&mut state.table, found, now));
    carry_out(context, &key, false);
    context.replicate_verbatim();
    Ok(answer)
}

fn lock_in(key: &Key<'_>) -> Result<Option<Handle>, Denied> {
    match key.content() {
        Content::Empty => Ok(None),
        Content::Lock(handle) => Ok(Some(handle)),
        Content::Other => Err(Denied::WrongType),
    }
}

/// Carries out the effects of one question to core, all of which concern this key.
fn carry_out(context: &Context, key: &Key<'_>, replicate: bool) {
    let effects = with(|state| state.table.take_effects());
    for &effect in &effects {
        match effect {
            Effect::Created(handle) => {
                hooks::watch_keys(context);
                key.store(handle);
                changed(context, key, replicate.then_some(handle));
                context.notify(c"lock.acquired", key);
            }
            Effect::Changed(handle) => changed(context, key, replicate.then_some(handle)),
            Effect::Removed(why) => {
                key.delete();
                if replicate {
                    context.replicate(c"DEL", key, None);
                }
                context.signal_modified(key);
                context.notify(event_of(why), key);
            }
        }
    }
    with(|state| state.table.reuse_effects(effects));
}

const fn event_of(why: Ended) -> &'static CStr {
    match why {
        Ended::Released => c"lock.released",
        Ended::LeaseEnded => c"lock.expired",
    }
}

fn changed(context: &Context, key: &Key<'_>, replicate: Option<Handle>) {
    if let Some(handle) = replicate {
        // Nothing is borrowed while the server is called, and no memory is asked for.
        let mut bytes = with(|state| std::mem::take(&mut state.bytes));
        if write_saved(handle, &mut bytes) {
            context.replicate(SET_COMMAND, key, Some(&bytes));
        }
        bytes.clear();
        with(|state| state.bytes = bytes);
    }
    context.signal_modified(key);
}

/// A lock's bytes for RDB and AOF.
fn saved(handle: Handle) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    write_saved(handle, &mut bytes).then_some(bytes)
}

/// Appends a lock's saved form; false if there is no such lock.
fn write_saved(handle: Handle, bytes: &mut Vec<u8>) -> bool {
    with(|state| {
        let Some(holder) = state.table.get(handle).and_then(Lock::holder) else { return false };
        codec::encode(&holder, bytes);
        true
    })
}
