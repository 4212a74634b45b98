//! The pump: one timer that does what no command is there to do. It ends leases and waits on time, hands locks over,
//! takes undelivered grants back, puts evicted locks back and takes foreign EXPIREs back. It writes only where the
//! server would let a client write: not on a replica, not while loading, not during a pause, not in a slot of another
//! node; and a hand-over also obeys whatever else the server refuses writes for.

use super::{carry_out, grace, hooks, lock_in, seats, with, State};
use crate::core::name::Place;
use crate::core::slab::Handle;
use crate::core::table::{Answer, BoundHold, Site};
use crate::core::time::Instant;
use crate::seeded::bug;
use crate::server::clock;
use crate::server::context::{Context, Refusal};
use crate::server::key::{Content, Key};
use crate::server::timer;
use crate::server::value::SET_COMMAND;
use std::collections::{BTreeMap, BTreeSet};

/// Things done of each kind in one run, so that a million leases ending at once cost no pause: a run stays well under
/// a ms, and the commands that came in meanwhile have their turn before the next.
const A_RUN: usize = 64;

/// How soon the pump looks again while it must not write, in us. A pause has no end that a module is told of.
const PAUSE_POLL_MICROS: u64 = 5_000;

/// How soon a hand-over that the server refused is tried again, in us.
const RETRY_MICROS: u64 = 50_000;

/// How often each line is looked at to see whether its slot left, in us: waiters are told within two seconds.
const PATROL_MICROS: u64 = 1_000_000;

/// A database and a key.
pub(super) type Spot = (i32, Box<[u8]>);

/// A hold whose connection closed.
#[derive(Clone)]
pub(super) struct Closed {
    /// The connection's id, which no other ever gets.
    pub(super) client: u64,
    /// The hold, as it was then.
    pub(super) hold: BoundHold,
    /// Where the lock stood: one that is evicted meanwhile comes back there as another value.
    pub(super) spot: Spot,
}

/// What the pump has to come back to.
#[derive(Default)]
pub(super) struct Agenda {
    /// Hand-overs that the server refused.
    refused: Vec<Spot>,
    /// Releases that the server refused, of connections that closed.
    refused_closed: Vec<Closed>,
    retry_at: Option<Instant>,
    /// Lines whose slot is still to be looked at in this round.
    patrol: Vec<Spot>,
    /// Locks that came in from elsewhere, to be looked at once.
    newcomers: Vec<Handle>,
    /// Locks that came in for a slot this node does not own yet: their leases do not run.
    arriving: BTreeSet<Handle>,
    patrol_at: Option<Instant>,
    /// Lines in front of legacy locks, and when each of those ends: the server alone would end it late.
    legacy: BTreeMap<Spot, Instant>,
}

/// Sees to it that the pump runs when it has something to do next.
pub fn arm(context: &Context, now: Instant) {
    let at = with(|state| {
        if state.table.is_stirred() || !state.take_backs.is_empty() || !state.closed.is_empty() {
            return Some(now);
        }
        let agenda = &state.agenda;
        let legacy_end = agenda.legacy.values().min().copied();
        [state.table.next_deadline(), agenda.retry_at, agenda.patrol_at, legacy_end].into_iter().flatten().min()
    });
    if let Some(at) = at {
        timer::arm::<hooks::Engine>(context, now, at);
    }
}

/// Sees to it that the pump soon looks at places where something happened.
pub fn arm_if_stirred(context: &Context) {
    if with(|state| state.table.is_stirred()) {
        arm_at_once(context);
    }
}

/// Sees to it that the pump runs in the next turn of the event loop.
pub fn arm_at_once(context: &Context) {
    let now = clock::instant();
    timer::arm::<hooks::Engine>(context, now, now);
}

/// Sees to it that slots are looked at from now on: somebody waits in a cluster.
pub fn patrol_from(context: &Context, now: Instant) {
    with(|state| {
        state.agenda.patrol_at.get_or_insert(later(now, PATROL_MICROS));
    });
    arm(context, now);
}

/// If anybody waits in front of this legacy lock, sees to it that the line is looked at when it ends.
pub fn watch_legacy(context: &Context, place: Place<'_>, now: Instant, ttl_ms: u64) {
    let waited_for = with(|state| {
        let waited_for = state.table.lines().count(place) > 0;
        if waited_for {
            // The server counts a key as expired one ms after its time.
            state.agenda.legacy.insert(seats::owned(place), now.after_ms(ttl_ms + 1));
        }
        waited_for
    });
    if waited_for {
        hooks::watch_keys(context);
    }
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

/// One run.
pub fn run(context: &Context) {
    if hooks::bury() {
        arm_at_once(context);
    }
    if !with(|state| state.table.is_serving()) {
        return;
    }
    let now = clock::instant();
    grace::end(now);
    if context.must_not_write() && !bug("hand-over-while-paused") {
        end_waits(context, now, false);
        timer::arm::<hooks::Engine>(context, now, later(now, PAUSE_POLL_MICROS));
        return;
    }
    put_all_back(context);
    undo_expires(context);
    take_back(context, now);
    end_bound(context, now);
    receive_newcomers(context, now);
    end_leases(context, now);
    serve_stirred(context, now);
    end_waits(context, now, true);
    patrol(context, now);
    arm(context, now);
}

fn end_leases(context: &Context, now: Instant) {
    for _ in 0..A_RUN {
        let Some(handle) = with(|state| state.table.next_due(now)) else { break };
        let Some(spot) = seats::place_of(handle) else { continue };
        let here = with_key(context, &spot, |key| {
            let here = key.content() == Content::Lock(handle);
            if here {
                attend(context, key, place(&spot));
            }
            here
        });
        if here != Some(true) {
            with(|state| state.table.missing(handle));
        }
    }
}

/// Brings the lock at a key up to date, as far as the server allows: ends a hold whose lease is over, gives a free lock
/// to the next in line. The refusal, if there was one.
fn attend(context: &Context, key: &Key<'_>, place: Place<'_>) -> Option<Refusal> {
    let lock = match key.content() {
        Content::Empty => None,
        Content::Lock(handle) => Some(handle),
        Content::Legacy => {
            watch_legacy(context, place, clock::instant(), key.ttl_ms().unwrap_or(0));
            return None;
        }
        Content::Other => {
            with(|state| state.table.end_waits(place, &Answer::NotALock));
            carry_out(context, key, true);
            return None;
        }
    };
    let (site, now) = (Site { place, lock, legacy: None }, clock::now());
    let hands_over = with(|state| state.table.would_hand_over(site, now.instant));
    // Ending a lease alone asks no more than what lets the server itself expire a key.
    let refusal = if hands_over || context.is_cluster() { context.refusal(key) } else { None };
    let refusal = refusal.filter(|_| !bug("hand-over-though-refused"));
    match &refusal {
        None => {
            with(|state| state.table.settle(site, now));
        }
        Some(Refusal::NotOurs) => with(|state| {
            state.table.end_waits(place, &Answer::SlotGone);
            if let Some(handle) = lock.filter(|&handle| state.table.hold_back(handle, now.instant)) {
                // Its cap is over, and it is not for this node to end it: it is looked at again with the slot.
                state.table.park(handle);
                state.agenda.arriving.insert(handle);
                state.agenda.patrol_at.get_or_insert(later(now.instant, PATROL_MICROS));
            }
        }),
        Some(Refusal::Other(_)) => with(|state| {
            if let Some(handle) = lock {
                state.table.park(handle);
            }
            state.agenda.refused.push(seats::owned(place));
            state.agenda.retry_at = Some(later(now.instant, RETRY_MICROS));
        }),
    }
    carry_out(context, key, true);
    refusal
}

/// Looks at every place where something happened, or where a hand-over was refused a while ago.
fn serve_stirred(context: &Context, now: Instant) {
    let mut spots = with(|state| {
        let mut spots = state.table.take_stirred();
        let over = state.agenda.legacy.iter().filter(|&(_, &end)| end <= now).map(|(spot, _)| spot.clone());
        for spot in over.collect::<Vec<_>>() {
            state.agenda.legacy.remove(&spot);
            spots.push(spot);
        }
        if state.agenda.retry_at.is_some_and(|at| at <= now) {
            state.agenda.retry_at = None;
            spots.append(&mut state.agenda.refused);
            state.closed.append(&mut state.agenda.refused_closed);
        }
        spots
    });
    let later = spots.split_off(spots.len().min(A_RUN));
    for spot in spots {
        with_key(context, &spot, |key| attend(context, key, place(&spot)));
    }
    with(|state| state.table.stir_again(later));
}

/// Ends the waits whose time is over. Where nothing may be written now, a free lock stays free meanwhile.
fn end_waits(context: &Context, now: Instant, may_write: bool) {
    for _ in 0..A_RUN {
        let waiter = with(|state| {
            let waiter = state.table.lines().next_over(now)?;
            Some((waiter, seats::owned(state.table.lines().get(waiter)?.place())))
        });
        let Some((waiter, spot)) = waiter else { break };
        let ended = with_key(context, &spot, |key| {
            let refusal = if may_write { attend(context, key, place(&spot)) } else { None };
            let site = Site { place: place(&spot), lock: lock_in(key).ok().flatten(), legacy: None };
            let legacy = key.content() == Content::Legacy;
            with(|state| {
                let first = !legacy && state.table.lines().first(site.place) == Some(waiter);
                let answer = match refusal {
                    _ if state.table.grace_left_ms(now) > 0 => Answer::Grace(state.table.grace_left_ms(now)),
                    Some(Refusal::Other(text)) if first => Answer::Refused(text),
                    None if first && state.table.would_hand_over(site, now) => Answer::Refused(PAUSED.into()),
                    _ => Answer::Empty,
                };
                state.table.end_wait(waiter, answer);
            });
            carry_out(context, key, may_write);
        });
        if ended.is_none() {
            with(|state| state.table.leave(waiter));
        }
    }
}

const PAUSED: &str = "TRYAGAIN the lock is free, but this server is paused";

/// Ends the holds of connections that closed, as far as the server allows: it is a release that nobody sends.
fn end_bound(context: &Context, now: Instant) {
    let some = with(|state| state.closed.split_off(state.closed.len().saturating_sub(A_RUN)));
    for closed in some {
        let (client, token) = (closed.client, &closed.hold.1);
        let spot = seats::place_of(closed.hold.0).unwrap_or_else(|| closed.spot.clone());
        with_key(context, &spot, |key| {
            let Ok(Some(lock)) = lock_in(key) else { return };
            if !with(|state| state.table.is_bound(lock, token, client)) {
                return;
            }
            if context.refusal(key).is_some() {
                with(|state| {
                    state.agenda.refused_closed.push(closed.clone());
                    state.agenda.retry_at = Some(later(now, RETRY_MICROS));
                });
                return;
            }
            let site = Site { place: place(&spot), lock: Some(lock), legacy: None };
            with(|state| state.table.end_bound(site, token, client, clock::now()));
            carry_out(context, key, true);
        });
    }
}

/// Ends the grants that nobody was told of. Whoever is next is granted the lock as at the end of a lease: as far as the
/// server allows.
fn take_back(context: &Context, now: Instant) {
    for order in with(|state| std::mem::take(&mut state.take_backs)) {
        let Some(spot) = seats::place_of(order.lock) else { continue };
        with_key(context, &spot, |key| {
            let stands = key.content() == Content::Lock(order.lock);
            if stands && with(|state| state.table.void(order.lock, order.fence, now)) {
                attend(context, key, place(&spot));
            }
        });
    }
}

/// In a cluster a slot can come or leave without any event for a module: each line, and each lock that came in for
/// another's slot, is looked at in turn.
fn patrol(context: &Context, now: Instant) {
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
fn receive_newcomers(context: &Context, now: Instant) {
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

fn put_all_back(context: &Context) {
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
    for handle in with(|state| state.table.all_evicted()) {
        if let Some(spot) = seats::place_of(handle) {
            with_key(context, &spot, |key| lock_in(key) == Ok(None) && key.store(handle));
        }
    }
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
    for bytes in super::saved(handle, true) {
        context.replicate(SET_COMMAND, key, Some(&bytes));
    }
    context.signal_modified(key);
    true
}

fn undo_expires(context: &Context) {
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

fn with_key<R>(context: &Context, spot: &Spot, body: impl FnOnce(&Key<'_>) -> R) -> Option<R> {
    let name = context.string(&spot.1);
    let key = context.open(&name, spot.0, true)?;
    Some(body(&key))
}

fn place(spot: &Spot) -> Place<'_> {
    Place { db: spot.0, key: &spot.1 }
}

const fn later(now: Instant, micros: u64) -> Instant {
    Instant::from_micros(now.micros() + micros)
}
