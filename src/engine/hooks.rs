//! What the server tells the module outside commands: values loaded, saved and freed, role changes, events of keys.

use super::{grace, metrics, patrol, pump, saved, seats, undo, with};
use crate::core::fence::Fence;
use crate::core::name::Place;
use crate::core::slab::Handle;
use crate::core::table::{Answer, Origin, Refused, Table};
use crate::server::clock;
use crate::server::context::Context;
use crate::server::events::{self, Loading, Notice, NoticedKey};
use crate::server::info::InfoWriter;
use crate::server::key::Content;
use crate::server::{log, timer, Hooks};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Locks dropped in one go, so that a FLUSHALL ASYNC of a million costs no pause after all.
const BURIED_A_RUN: usize = 1024;

/// Handles of values the server freed, maybe on another thread, until the main thread comes by.
static FREED: Mutex<Vec<Handle>> = Mutex::new(Vec::new());
static FREED_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Drops locks whose values were freed since the last call. Whether some are left for the next.
pub fn bury() -> bool {
    if FREED_COUNT.load(Ordering::Acquire) == 0 {
        return false;
    }
    let (freed, left) = {
        let mut all = FREED.lock().unwrap_or_else(PoisonError::into_inner);
        let left = all.len().saturating_sub(BURIED_A_RUN);
        let freed = if left == 0 { std::mem::take(&mut *all) } else { all.split_off(left) };
        FREED_COUNT.store(left, Ordering::Release);
        (freed, left)
    };
    with(|state| freed.into_iter().for_each(|handle| state.table.freed(handle)));
    left > 0
}

/// Subscribes to keyspace notifications when the first lock comes: a server that never uses one pays nothing.
pub fn watch_keys(context: &Context) {
    if !with(|state| std::mem::replace(&mut state.watching_keys, true)) {
        events::watch_keys::<Engine>(context);
    }
}

/// Subscribes to closing connections when the first hold is bound to one.
pub fn watch_clients(context: &Context) {
    if !with(|state| std::mem::replace(&mut state.watching_clients, true)) {
        events::watch_clients::<Engine>(context);
    }
}

/// Begins to serve, if this node is a primary; the end of a load begins anew.
pub fn start(context: &Context) {
    warn_of_eviction(context);
    if context.is_serving_primary() {
        grace::begin();
    }
    begin_serving(context);
}

fn begin_serving(context: &Context) {
    if context.is_serving_primary() {
        with(|state| {
            state.table.begin_serving(clock::now());
            state.table.stir(None);
        });
        pump::arm(context, clock::instant());
    }
}

/// A key came here or got a time to live: if it is a lock, it ends here from now on, by its lease alone.
fn stands(context: &Context, noticed: &NoticedKey<'_>, arrived: bool) {
    with(|state| state.table.left_for_good());
    let key = noticed.open();
    let Content::Lock(handle) = key.content() else { return };
    let place = key.place();
    if arrived && context.is_cluster() && with(|state| state.table.is_serving()) {
        patrol::arrived(context, handle);
    }
    let has_ttl = key.has_ttl();
    let undo = with(|state| {
        state.table.came(handle, place);
        if has_ttl {
            state.table.expire_set(handle);
        }
        let undo = has_ttl && state.table.is_serving();
        if undo {
            state.expires.push((place.db, place.key.into()));
        }
        undo
    });
    if undo {
        pump::arm_at_once(context);
    } else {
        pump::arm(context, clock::instant());
    }
}

/// The server took a key away: a lock that went with it is put back.
fn lost(context: &Context, key: &NoticedKey<'_>, keep: fn(&mut Table, Place<'_>) -> bool) {
    if with(|state| state.table.has_left()) {
        let place = key.place();
        if with(|state| keep(&mut state.table, place)) {
            pump::arm_at_once(context);
        }
    }
}

fn warn_of_eviction(context: &Context) {
    let policy = context.server_info(c"memory", c"maxmemory_policy").unwrap_or_default();
    if policy.starts_with("allkeys-") {
        log::warning(&format!(
            "maxmemory-policy {policy} evicts locks too: each one is put back, but use noeviction or volatile-* with locks"
        ));
    }
}

/// The module, as the server sees it.
pub struct Engine;

impl Hooks for Engine {
    fn load(context: &Context, place: Place<'_>, bytes: &[u8], origin: Origin) -> Result<Handle, &'static str> {
        watch_keys(context);
        let now = clock::now();
        with(|state| state.table.load(place, bytes, origin, now)).map_err(|refused| match refused {
            Refused::Corrupt(corrupt) => corrupt.reason(),
            Refused::FenceAhead => "its fence is more than a day ahead of the clock",
        })
    }

    fn save(handle: Handle) -> Vec<Vec<u8>> {
        saved(handle, true)
    }

    fn digest(handle: Handle) -> Vec<Vec<u8>> {
        saved(handle, false)
    }

    fn client_closed(context: &Context, client: u64) {
        let closed = with(|state| {
            let holds = state.table.closed(client);
            let any = !holds.is_empty();
            for hold in holds {
                let Some(lock) = state.table.get(hold.0) else { continue };
                let spot = seats::owned(lock.place());
                state.closed.push(pump::Closed { client, hold, spot });
            }
            any
        });
        if closed {
            pump::arm_at_once(context);
        }
    }

    fn freed(handle: Handle) {
        let mut freed = FREED.lock().unwrap_or_else(PoisonError::into_inner);
        freed.push(handle);
        FREED_COUNT.store(freed.len(), Ordering::Release);
    }

    fn unlinked(handle: Handle) {
        let known = with(|state| {
            state.table.unlinked(handle);
            state.table.is_serving() && state.table.get(handle).is_some()
        });
        // What was overwritten is buried within the turn, or what stands there next could be taken for it as it goes.
        if known {
            pump::arm_at_once(&Context::detached());
        }
    }

    fn memory_bytes(handle: Handle) -> usize {
        with(|state| state.table.memory_bytes(handle))
    }

    fn load_aux(number: u64) -> Result<(), &'static str> {
        let fence = Fence::new(number).ok_or("it is out of range")?;
        with(|state| state.table.raise_fence(fence));
        Ok(())
    }

    fn save_aux() -> Option<u64> {
        let ticks = clock::now().ticks;
        with(|state| state.table.fences().to_save(state.table.held() > 0, ticks)).map(Fence::get)
    }

    fn pump(context: &Context) {
        pump::run(context);
    }

    fn cron(context: &Context) {
        if bury() {
            pump::arm_at_once(context);
        }
        timer::renew::<Self>(context);
        pump::arm(context, clock::instant());
    }

    fn role_changed(context: &Context, primary: bool) {
        if primary {
            grace::begin();
            begin_serving(context);
        } else {
            grace::forget();
            // Most servers have unblocked every connection by themselves, before this. Valkey 9 in a cluster has not.
            let blocked = with(|state| {
                state.table.stop_serving();
                state.table.drop_lines()
            });
            blocked.into_iter().for_each(|seat| seats::answer(seat, Answer::Demoted, 0));
        }
    }

    fn loading(context: &Context, what: Loading) {
        match what {
            Loading::Started => with(|state| state.table.stop_serving()),
            Loading::Ended => begin_serving(context),
        }
    }

    fn saving(context: &Context) {
        undo::stand_in(context);
    }

    fn flushed(context: &Context, db: Option<i32>) {
        with(|state| state.table.flushed(db));
        pump::arm(context, clock::instant());
    }

    fn swapped(context: &Context, first: i32, second: i32) {
        with(|state| {
            state.table.swapped(first, second);
            let closed = state.closed.iter_mut().chain(&mut state.agenda.refused_closed).map(|closed| &mut closed.spot);
            for (db, _) in state.expires.iter_mut().chain(&mut state.expires_unsaved).chain(closed) {
                *db = match *db {
                    db if db == first => second,
                    db if db == second => first,
                    db => db,
                };
            }
        });
        pump::arm(context, clock::instant());
    }

    fn abandoned(seat: u64) {
        seats::abandoned(seat);
        pump::arm_if_stirred(&Context::detached());
    }

    fn unblocked(context: &Context, seat: u64) {
        seats::abandoned(seat);
        pump::arm_if_stirred(context);
    }

    fn answered(context: &Context, seat: u64) {
        seats::answered(context, seat);
    }

    fn noticed(context: &Context, notice: Notice, key: &NoticedKey<'_>) {
        let (any_lock, any_line) = with(|state| (state.table.known() > 0, !state.table.lines().is_empty()));
        if any_line {
            // A legacy lock leaves no other trace: not of its end, nor of another time to live, nor of becoming data.
            let place = key.place();
            with(|state| state.table.stir_place(place));
            pump::arm_if_stirred(context);
        }
        if !any_lock {
            return;
        }
        match notice {
            Notice::Arrived => stands(context, key, true),
            Notice::ExpireChanged => stands(context, key, false),
            Notice::Deleted => with(|state| state.table.left_for_good()),
            Notice::Evicted => lost(context, key, Table::evicted),
            Notice::Expired => lost(context, key, Table::expired),
        }
    }

    fn info(writer: &mut InfoWriter) {
        bury();
        metrics::write(writer);
    }

    fn policy_changed(context: &Context) {
        warn_of_eviction(context);
    }

    fn settings_changed(context: &Context) {
        grace::set();
        pump::arm(context, clock::instant());
    }
}
