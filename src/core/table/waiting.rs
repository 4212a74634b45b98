//! Waiting in line: joining it, and the ways a wait ends without the lock.

use super::holding::{Acquire, Acquired, Turn};
use super::{Effect, Table};
use crate::core::fence::Fence;
use crate::core::hold::{Delivery, Hold};
use crate::core::line::{Seat, Waiter};
use crate::core::name::{Place, Token};
use crate::core::slab::Handle;
use crate::core::time::Instant;

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
    /// The key holds something that is not a lock.
    NotALock,
    /// The key's slot is another node's.
    SlotGone,
    /// This node is no primary any more.
    Demoted,
    /// The wait is over, and the lock was free but could not be given: the server's own error says why.
    Refused(Box<str>),
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
        let set = |waiter: &mut Waiter| {
            let ask = &request.ask;
            waiter.lease = ask.lease;
            waiter.mode = ask.mode;
            waiter.name = ask.name.map(|name| name.bytes().into());
            waiter.cap_ms = ask.cap_ms;
            waiter.ephemeral = ask.ephemeral;
            waiter.label = request.label.bytes().into();
            waiter.client = request.client;
            waiter.asked = now;
            waiter.seat = seat;
            waiter.until = until;
        };
        let upgrade = request.ask.turn == Turn::Upgrade;
        let waits = self.lines.find(place, request.token.bytes());
        let waiter = match waits {
            Some(waiter) => {
                let blocks = self.lines.get(waiter).is_some_and(|waiter| waiter.seat.is_some());
                if blocks != seat.is_some() && self.is_full(seat, request.limits) {
                    return Acquired::TooMany;
                }
                if let Some(old) = self.lines.take_over(waiter, set) {
                    self.effects.push(Effect::Answer(old, Answer::Superseded));
                }
                waiter
            }
            None => {
                if self.is_full(seat, request.limits) {
                    return Acquired::TooMany;
                }
                let mut waiter = Waiter::new(place, request.token, &[], request.ask.lease, now);
                set(&mut waiter);
                waiter.upgrade = upgrade;
                if self.would_never_end(held, &waiter) {
                    self.counts.deadlocks += 1;
                    return Acquired::Deadlock;
                }
                self.counts.waited += 1;
                let waiter = self.lines.join(waiter);
                if let Some(held) = held {
                    self.lines.set_lock(place, held);
                }
                waiter
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

    /// Ends the token's wait because it releases; its connection gets null. Whether it waited.
    pub(super) fn withdraw(&mut self, place: Place<'_>, token: Token<'_>) -> bool {
        if self.lines.is_empty() {
            return false;
        }
        let waits = self.lines.find(place, token.bytes());
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
        std::mem::take(&mut self.lines).seats()
    }

    /// Whether a grant made to a waiter is its token's still, at the moment its reply is written. From then on the
    /// token knows, and the grant is not taken back.
    pub fn deliver(&mut self, lock: Handle, place: Place<'_>, token: &[u8], fence: Fence, now: Instant) -> bool {
        let held = self.locks.get(lock).filter(|lock| lock.place() == place);
        let hold = held.and_then(|lock| lock.hold(token)).filter(|hold| hold.fence == fence);
        if hold.is_none_or(|hold| self.ms_left(hold, now) == 0) {
            return false;
        }
        self.told(lock, token);
        true
    }

    /// The token was told that it holds the lock.
    pub(super) fn told(&mut self, lock: Handle, token: &[u8]) {
        self.update(lock, |lock| lock.update(token, Hold::confirm));
    }

    /// Ends a grant whose reply could not be delivered, unless its token learned of it in another way: it is over, and
    /// the next in line may have its turn. An upgrade leaves the shared hold. Whether there was such a grant.
    pub fn void(&mut self, handle: Handle, fence: Fence, now: Instant) -> bool {
        let seen = self.locks.get(handle).and_then(|lock| {
            let mut untold = lock.holders_with(fence).filter(|seen| seen.hold.delivery == Delivery::Untold);
            untold.next()
        });
        let Some(seen) = seen else { return false };
        let (token, before) = (Box::<[u8]>::from(seen.token), seen.hold.before_upgrade());
        match before {
            Some(before) => {
                self.counts.taken_back += 1;
                self.make_shared(handle, &token, before.limit, Some(before.fence));
                self.told(handle, &token);
            }
            None => self.update(handle, |lock| {
                lock.update(&token, |hold| {
                    hold.delivery = Delivery::Unfetched;
                    hold.end = now;
                });
            }),
        }
        true
    }
}
