//! The pump: one timer that does what no command is there to do. It ends leases and waits on time, hands locks over,
//! takes undelivered grants back, puts evicted locks back and takes foreign EXPIREs back. It writes only where the
//! server would let a client write: not on a replica, not while loading, not during a pause, not in a slot of another
//! node; and a hand-over also obeys whatever else the server refuses writes for.

use super::{carry_out, grace, hooks, legacy, lock_in, patrol, seats, undo, with};
use crate::core::name::Place;
use crate::core::slab::Handle;
use crate::core::table::{Answer, BoundHold, Site, Table};
use crate::core::time::Instant;
use crate::seeded::bug;
use crate::server::context::{Context, Refusal};
use crate::server::key::{Content, Key};
use crate::server::{alloc, clock, timer};
use std::collections::BTreeSet;

/// Time for things of each kind in one run, in us, so that a million leases ending at once cost no pause: a run stays
/// well under a ms, and the commands that came in meanwhile have their turn before the next.
const SHARE_MICROS: u64 = 200;

/// How soon the pump looks again while it must not write, in us. A pause has no end that a module is told of.
const PAUSE_POLL_MICROS: u64 = 5_000;

/// How soon a hand-over that the server refused is tried again, in us.
const RETRY_MICROS: u64 = 50_000;

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

/// Does one thing after another, until there is nothing left to do or the time is over. At least one is done.
pub(super) fn for_a_share(mut do_one: impl FnMut() -> Option<()>) {
    let until = later(clock::instant(), SHARE_MICROS);
    while do_one().is_some() && clock::instant() < until {}
}

/// What the pump has to come back to.
#[derive(Default)]
pub(super) struct Agenda {
    /// Places where something happened, still to be looked at in this round.
    stirred: Vec<Spot>,
    /// Hand-overs that the server refused.
    refused: Vec<Spot>,
    /// Releases that the server refused, of connections that closed.
    pub(super) refused_closed: Vec<Closed>,
    retry_at: Option<Instant>,
    /// What is still to be looked at, in a cluster.
    pub(super) round: Option<patrol::Round>,
    /// Locks that came in from elsewhere, to be looked at once.
    pub(super) newcomers: Vec<Handle>,
    /// Locks that came in for a slot this node does not own yet: their leases do not run.
    pub(super) arriving: BTreeSet<Handle>,
    pub(super) patrol_at: Option<Instant>,
    legacy: legacy::Ends,
}

/// Sees to it that the pump runs when it has something to do next.
pub fn arm(context: &Context, now: Instant) {
    arm_for(context, now, |table| table.next_deadline());
}

/// The same after a command: leases that were there before it are seen to.
pub fn arm_for_news(context: &Context, now: Instant) {
    arm_for(context, now, Table::take_sooner);
}

fn arm_for(context: &Context, now: Instant, next_deadline: impl FnOnce(&mut Table) -> Option<Instant>) {
    let at = with(|state| {
        let lease_or_wait = next_deadline(&mut state.table);
        let agenda = &state.agenda;
        let stirred = state.table.is_stirred() || !agenda.stirred.is_empty();
        if stirred || !state.take_backs.is_empty() || !state.closed.is_empty() {
            return Some(now);
        }
        Instant::earliest([lease_or_wait, agenda.retry_at, agenda.patrol_at, agenda.legacy.first()])
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

/// If anybody waits in front of this legacy lock, sees to it that the line is looked at when it ends.
pub fn watch_legacy(context: &Context, place: Place<'_>, now: Instant, ttl_ms: u64) {
    let waited_for = with(|state| {
        let waited_for = state.table.lines().count(place) > 0;
        if waited_for {
            // The server counts a key as expired one ms after its time.
            state.agenda.legacy.set(seats::owned(place), now.after_ms(ttl_ms + 1));
            state
                .agenda
                .legacy
                .forget_unless(state.table.lines().len(), |spot| state.table.lines().count(self::place(spot)) > 0);
        }
        waited_for
    });
    if waited_for {
        hooks::watch_keys(context);
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
        let some_left = with(|state| state.table.lines().next_over(now).is_some());
        timer::arm::<hooks::Engine>(context, now, if some_left { now } else { later(now, PAUSE_POLL_MICROS) });
        return;
    }
    undo::put_all_back(context);
    undo::undo_expires(context);
    take_back(context, now);
    retry(context, now);
    end_bound(context, now);
    patrol::receive_newcomers(context, now);
    end_leases(context, now);
    serve_stirred(context, now);
    end_waits(context, now, true);
    patrol::patrol(context, now);
    alloc::tidy();
    arm(context, now);
}

fn end_leases(context: &Context, now: Instant) {
    for_a_share(|| {
        let handle = with(|state| state.table.next_due(now))?;
        let here = seats::place_of(handle).and_then(|spot| {
            with_key(context, &spot, |key| {
                let here = key.content() == Content::Lock(handle);
                if here {
                    attend(context, key, place(&spot));
                }
                here
            })
        });
        if here != Some(true) {
            with(|state| state.table.missing(handle));
        }
        Some(())
    });
}

/// Brings the lock at a key up to date, as far as the server allows: ends a hold whose lease is over, gives a free lock
/// to the next in line. The refusal, if there was one.
fn attend(context: &Context, key: &Key<'_>, place: Place<'_>) -> Option<Refusal> {
    let lock = match key.content() {
        // To open the key may be what ended it: it had been given a time to live.
        Content::Empty => undo::put_back_at(context, key, place),
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
        None => with(|state| {
            if let Some(handle) = lock {
                patrol::hold_back_if_arriving(state, handle, now.instant);
                // The slot is here: what is granted from now on runs by itself.
                state.agenda.arriving.remove(&handle);
            }
            state.table.settle(site, now);
        }),
        Some(Refusal::NotOurs) => with(|state| {
            state.table.end_waits(place, &Answer::SlotGone);
            if let Some(handle) = lock.filter(|&handle| state.table.hold_back(handle, now.instant)) {
                // Its cap is over, and it is not for this node to end it: it is looked at again with the slot.
                state.table.park(handle);
                state.agenda.arriving.insert(handle);
                state.agenda.patrol_at.get_or_insert(later(now.instant, patrol::PATROL_MICROS));
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

/// Tries again what the server refused. It refuses one like all others, so while it goes on, one is enough to see that.
fn retry(context: &Context, now: Instant) {
    if !with(|state| state.agenda.retry_at.take_if(|at| *at <= now).is_some()) {
        return;
    }
    if let Some(spot) = with(|state| state.agenda.refused.pop()) {
        with_key(context, &spot, |key| attend(context, key, place(&spot)));
    }
    with(|state| {
        if state.agenda.retry_at.is_none() {
            state.agenda.stirred.append(&mut state.agenda.refused);
            state.closed.append(&mut state.agenda.refused_closed);
        }
    });
}

/// Looks at places where something happened, or where a hand-over was refused a while ago.
fn serve_stirred(context: &Context, now: Instant) {
    with(|state| {
        while let Some(spot) = state.agenda.legacy.take_over(now) {
            state.table.stir_place(place(&spot));
        }
    });
    for_a_share(|| {
        let spot = with(|state| state.agenda.stirred.pop().or_else(|| state.table.next_stirred()))?;
        with_key(context, &spot, |key| attend(context, key, place(&spot)));
        Some(())
    });
}

/// Ends the waits whose time is over. Where nothing may be written now, a free lock stays free meanwhile.
fn end_waits(context: &Context, now: Instant, may_write: bool) {
    for_a_share(|| {
        let (waiter, spot) = with(|state| {
            let waiter = state.table.lines().next_over(now)?;
            Some((waiter, seats::owned(state.table.lines().get(waiter)?.place())))
        })?;
        let ended = with_key(context, &spot, |key| {
            let refusal = if may_write { attend(context, key, place(&spot)) } else { None };
            let evicted = || with(|state| state.table.find_evicted(place(&spot)));
            let lock = lock_in(key).ok().flatten().or_else(evicted);
            let site = Site { place: place(&spot), lock, legacy: None };
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
        Some(())
    });
}

const PAUSED: &str = "TRYAGAIN the lock is free, but this server is paused";

/// Ends the holds of connections that closed, as far as the server allows: it is a release that nobody sends.
fn end_bound(context: &Context, now: Instant) {
    for_a_share(|| {
        let closed = with(|state| state.closed.pop())?;
        let (client, token) = (closed.client, &closed.hold.1);
        let spot = seats::place_of(closed.hold.0).unwrap_or_else(|| closed.spot.clone());
        with_key(context, &spot, |key| {
            let lock = match lock_in(key) {
                Ok(None) => undo::put_back_at(context, key, place(&spot)),
                found => found.ok().flatten(),
            };
            let Some(lock) = lock else { return };
            if !with(|state| state.table.is_bound(lock, token, client)) {
                return;
            }
            if let Some(refusal) = context.refusal(key) {
                with(|state| {
                    state.agenda.refused_closed.push(closed.clone());
                    if let Refusal::Other(_) = refusal {
                        state.agenda.refused_closed.append(&mut state.closed);
                    }
                    state.agenda.retry_at = Some(later(now, RETRY_MICROS));
                });
                return;
            }
            let site = Site { place: place(&spot), lock: Some(lock), legacy: None };
            with(|state| state.table.end_bound(site, token, client, clock::now()));
            carry_out(context, key, true);
        });
        Some(())
    });
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

pub(super) fn with_key<R>(context: &Context, spot: &Spot, body: impl FnOnce(&Key<'_>) -> R) -> Option<R> {
    let name = context.string(&spot.1);
    let key = context.open(&name, spot.0, true)?;
    Some(body(&key))
}

pub(super) fn place(spot: &Spot) -> Place<'_> {
    Place { db: spot.0, key: &spot.1 }
}

pub(super) const fn later(now: Instant, micros: u64) -> Instant {
    Instant::from_micros(now.micros() + micros)
}
