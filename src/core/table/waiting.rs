//! Waiting in line: joining it, and the ways a wait ends without the lock.

use super::holding::{Acquire, Acquired, Ask, Turn};
use super::{Effect, Table};
use crate::core::fence::Fence;
use crate::core::hold::{Delivery, Hold};
use crate::core::line::{Lines, Seat, Waiter};
use crate::core::name::{HoldName, Place, Token};
use crate::core::packed::Packed;
use crate::core::slab::Handle;
use crate::core::time::Instant;
use crate::seeded::bug;
use std::rc::Rc;

/// What to do while another token holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Answer at once.
    No,
    /// Block the connection at this seat, until this instant or for ever.
    Block(Seat, Option<Instant>),
    /// Keep a place in line until this instant, without blocking.
    Poll(Instant),
}

/// How many may wait on this server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Blocked connections.
    pub blocked: usize,
    /// Places kept for tokens that poll.
    pub polled: usize,
}

/// The answer to a blocked connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The lock is its token's, if [`Table::deliver`] still says so.
    Granted {
        /// The lock.
        lock: Handle,
        /// The hold's fence.
        fence: Fence,
        /// The lease in ms.
        ttl_ms: u64,
        /// From the receipt of the command to the grant, in ms, rounded down.
        waited_ms: u64,
    },
    /// The wait is over and another token holds the lock, or the wait was withdrawn.
    Empty,
    /// The same token waits on another connection now.
    Superseded,
    /// The token waited for an upgrade, and its hold is gone.
    NotHeld,
    /// The token came to share the lock in another way, and waited to have it alone.
    HeldShared,
    /// The key holds something that is not a lock.
    NotALock,
    /// The key's slot is another node's.
    SlotGone,
    /// This node is no primary any more.
    Demoted,
    /// The wait is over, and the lock was free but could not be given: the server's own error says why.
    Refused(Box<str>),
    /// The wait is over and no locks are given out, for so many ms more.
    Grace(u64),
    /// All fences are used up.
    NoFence,
}

impl Table {
    /// Lets a token wait for a lock that it cannot have now.
    pub(super) fn wait(
        &mut self,
        held: Option<Handle>,
        place: Place<'_>,
        request: &Acquire<'_>,
        now: Instant,
    ) -> Acquired {
        let (seat, until) = match request.wait {
            Wait::No => return Acquired::Held,
            Wait::Block(seat, until) => (Some(seat), until),
            Wait::Poll(until) => (None, Some(until)),
        };
        let waiter = waiter(place.db, self.lines.key_at(place), request, seat, until, now);
        let known = self.lines.find(place, request.token.bytes());
        // A token that waits for an upgrade and lost its hold waits for something else now: at the end of the line.
        let same = known.and_then(|known| self.lines.get(known)).filter(|known| known.upgrade == waiter.upgrade);
        let counted = known.and_then(|known| self.lines.get(known));
        if counted.is_none_or(|known| known.seat.is_some() != seat.is_some()) && self.is_full(seat, request.limits) {
            return Acquired::TooMany;
        }
        let order = same.map_or(Lines::order_of_new(waiter.upgrade), Waiter::order);
        if same.is_none_or(|same| same.mode != waiter.mode) && self.would_never_end(held, &waiter, order) {
            self.counts.deadlocks += 1;
            return Acquired::Deadlock;
        }
        let waiter = match known.filter(|_| same.is_some() && !bug("resend-loses-its-place")) {
            Some(known) => {
                if let Some(old) = self.lines.take_over(known, waiter) {
                    self.effects.push(Effect::Answer(old, Answer::Superseded));
                    if bug("superseded-told-twice") {
                        self.effects.push(Effect::Answer(old, Answer::Superseded));
                    }
                }
                known
            }
            None => {
                if known.is_some() {
                    self.supersede(place, request.token);
                }
                self.counts.waited += 1;
                self.lines.join(waiter, held)
            }
        };
        if seat.is_some() {
            Acquired::Waits(waiter)
        } else {
            Acquired::Held
        }
    }

    fn is_full(&self, seat: Option<Seat>, limits: Limits) -> bool {
        match seat {
            Some(_) => self.lines.blocked() >= limits.blocked,
            None => self.lines.polled() >= limits.polled,
        }
    }

    /// Ends the token's wait because it releases, or the wait for a hold of this name; its connection gets null.
    /// Whether it waited.
    pub(super) fn withdraw(&mut self, place: Place<'_>, token: Token<'_>, name: Option<HoldName<'_>>) -> bool {
        if self.lines.is_empty() {
            return false;
        }
        let meant = |waiter: &Waiter| name.is_none() || waiter.name.as_deref() == name.map(HoldName::bytes);
        let waits = self.lines.find(place, token.bytes());
        let waits = waits.filter(|&waiter| self.lines.get(waiter).is_some_and(meant));
        let Some(waiter) = waits.and_then(|waiter| self.lines.leave(waiter)) else { return false };
        self.counts.withdrawn += 1;
        self.effects.extend(waiter.seat.map(|seat| Effect::Answer(seat, Answer::Empty)));
        true
    }

    /// The connection is gone, or was unblocked by somebody else: its wait is over. Whoever was behind it may have its
    /// turn now.
    pub fn leave(&mut self, waiter: Handle) {
        if let Some(waiter) = self.lines.leave(waiter) {
            self.counts.waits_ended_empty += 1;
            self.stir_place(waiter.place());
        }
    }

    /// The wait is over; its connection gets this answer.
    pub fn end_wait(&mut self, waiter: Handle, answer: Answer) {
        if let Some(waiter) = self.lines.leave(waiter) {
            self.counts.waits_ended_empty += 1;
            self.effects.extend(waiter.seat.map(|seat| Effect::Answer(seat, answer)));
            self.stir_place(waiter.place());
        }
    }

    /// Every wait for this lock is over.
    pub fn end_waits(&mut self, place: Place<'_>, answer: &Answer) {
        while let Some(waiter) = self.lines.first(place) {
            self.end_wait(waiter, answer.clone());
        }
    }

    /// Every wait is over: this node is no primary any more. Gives back the connections that are still blocked.
    pub fn drop_lines(&mut self) -> Vec<Seat> {
        self.stirred.clear();
        self.stirred_dbs.clear();
        self.sweep = None;
        let lines = std::mem::take(&mut self.lines);
        self.counts.waits_ended_empty += lines.len() as u64;
        lines.seats()
    }

    /// Whether a grant made to a waiter is its token's still, at the moment its reply is written: the caller has seen
    /// that the lock is where it was. From then on the token knows, and the grant is not taken back.
    pub fn deliver(&mut self, lock: Handle, token: &[u8], fence: Fence, now: Instant) -> bool {
        let token = Packed::of(token);
        let hold = self.locks.get(lock).and_then(|lock| lock.hold(token)).filter(|hold| hold.fence == fence);
        if hold.is_none_or(|hold| self.ms_left(&hold, now) == 0) {
            return false;
        }
        self.told(lock, token);
        true
    }

    /// The token was told that it holds the lock.
    pub(super) fn told(&mut self, lock: Handle, token: Packed<'_>) {
        self.unbind_before(lock, token);
        self.update(lock, |lock| lock.update(token, Hold::confirm));
    }

    /// The token learns that it holds the lock, or shows that it knows: a grant it had yet to fetch starts its lease, and
    /// none is taken back.
    pub(super) fn heard(&mut self, lock: Handle, token: Packed<'_>, now: Instant) {
        let hold = self.locks.get(lock).and_then(|lock| lock.hold(token));
        if let Some(lease) = hold.filter(|hold| hold.delivery == Delivery::Unfetched).map(|hold| hold.lease) {
            self.raise_lease(lock, token, lease, now);
        }
        self.told(lock, token);
    }

    /// Ends a grant whose reply could not be delivered, unless its token learned of it in another way: it is over, and
    /// the next in line may have its turn. Whether it is.
    pub fn void(&mut self, lock: Handle, fence: Fence, now: Instant) -> bool {
        let seen = self.locks.get(lock).and_then(|lock| {
            let mut untold = lock
                .holders_with(fence)
                .filter(|seen| seen.hold.delivery == Delivery::Untold || bug("taken-back-though-told"));
            untold.next()
        });
        let seen = seen.filter(|_| !bug("undelivered-grant-kept"));
        let Some(token) = seen.map(|seen| Box::<[u8]>::from(&*seen.token)) else { return false };
        self.update(lock, |lock| {
            lock.update(Packed::of(&token), |hold| hold.void(now));
        });
        true
    }
}

/// A wait as it is asked for.
fn waiter(
    db: i32,
    key: Rc<[u8]>,
    request: &Acquire<'_>,
    seat: Option<Seat>,
    until: Option<Instant>,
    now: Instant,
) -> Waiter {
    let ask = &request.ask;
    let mut waiter = Waiter::new(db, key, request.token, request.label, ask.lease, now);
    waiter.mode = ask.mode;
    waiter.name = ask.name.map(|name| name.bytes().into());
    waiter.cap_ms = ask.cap_ms;
    waiter.ephemeral = ask.ephemeral;
    waiter.upgrade = ask.turn == Turn::Upgrade;
    waiter.client = request.client;
    waiter.seat = seat;
    waiter.until = until;
    waiter
}

impl Waiter {
    /// What the waiter asks for.
    pub(super) fn ask(&self) -> Ask<'_> {
        Ask {
            mode: self.mode,
            turn: if self.upgrade { Turn::Upgrade } else { Turn::No },
            lease: self.lease,
            name: self.name.as_deref().and_then(HoldName::new),
            cap_ms: self.cap_ms,
            ephemeral: self.ephemeral,
        }
    }
}
