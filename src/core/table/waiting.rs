//! Waiting in line: joining, hand-over, and the ways a wait ends. A grant to a waiter is a hand-over: the hold changes
//! in place, so the lock is never free in between and nothing barges past the line.

use super::holding::{Acquire, Acquired};
use super::{Effect, Ended, Site, Table};
use crate::core::fence::Fence;
use crate::core::line::{Seat, Waiter};
use crate::core::lock::{Delivery, Holder, Lock};
use crate::core::name::{Label, Place, Token};
use crate::core::slab::Handle;
use crate::core::time::{Instant, Now};

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
    /// Brings a lock up to date: a hold whose lease is over ends, a free lock goes to the next in line. Gives back the
    /// lock if it is held.
    pub fn settle(&mut self, site: Site<'_>, now: Now) -> Option<Handle> {
        match site.lock.and_then(|handle| Some((handle, self.locks.get(handle)?))) {
            Some((handle, lock)) if !self.is_over(lock, now.instant) => {
                self.lines.set_lock(site.place, handle);
                Some(handle)
            }
            Some((handle, lock)) => {
                let ended = match lock.delivery() {
                    Delivery::Unfetched => Ended::TakenBack,
                    Delivery::Told | Delivery::Untold => Ended::LeaseEnded,
                };
                self.pass_on(Some(handle), site.place, Some(ended), now)
            }
            None => self.pass_on(None, site.place, None, now),
        }
    }

    /// Whether [`Table::settle`] would hand the lock to somebody.
    pub fn would_hand_over(&self, site: Site<'_>, now: Instant) -> bool {
        let held = site.lock.and_then(|handle| self.locks.get(handle)).is_some_and(|lock| !self.is_over(lock, now));
        !held && self.lines.first(site.place).is_some()
    }

    /// Ends a hold, if there is one, and gives the lock to the next in line, if there is one.
    pub(super) fn pass_on(
        &mut self,
        held: Option<Handle>,
        place: Place<'_>,
        ended: Option<Ended>,
        now: Now,
    ) -> Option<Handle> {
        if let Some(ended) = ended {
            match ended {
                Ended::Released => self.counts.released += 1,
                Ended::LeaseEnded => self.counts.leases_ended += 1,
                Ended::TakenBack => self.counts.taken_back += 1,
            }
        }
        while !self.lines.is_empty() {
            let Some(waiter) = self.lines.first(place).and_then(|next| self.lines.leave(next)) else { break };
            if waiter.seat.is_none() && waiter.until.is_some_and(|until| until <= now.instant) {
                self.counts.waits_ended_empty += 1;
            } else if let Some(fence) = self.fences.issue(now.ticks) {
                return self.hand_to(waiter, fence, held, ended, now);
            } else if let Some(seat) = waiter.seat {
                self.effects.push(Effect::Answer(seat, Answer::NoFence));
            }
        }
        if let Some(handle) = held {
            self.remove(handle);
            self.effects.push(Effect::Removed);
            self.effects.extend(ended.map(Effect::Ended));
        }
        None
    }

    fn hand_to(
        &mut self,
        waiter: Waiter,
        fence: Fence,
        held: Option<Handle>,
        ended: Option<Ended>,
        now: Now,
    ) -> Option<Handle> {
        let token = Token::new(&waiter.token)?;
        let holder = Holder { token, fence, lease: waiter.lease, label: Label::cut(&waiter.label) };
        let mut lock = Lock::new(waiter.place(), &holder, waiter.client, now.instant);
        match (waiter.seat, waiter.until) {
            (None, Some(until)) => {
                lock.set_delivery(Delivery::Unfetched);
                lock.set_end(until);
            }
            _ => lock.set_delivery(Delivery::Untold),
        }
        let handle = match held {
            Some(handle) => {
                self.replace(handle, lock);
                self.effects.push(Effect::Changed(handle));
                handle
            }
            None => {
                let handle = self.insert(lock);
                self.effects.push(Effect::Created(handle));
                handle
            }
        };
        self.lines.set_lock(waiter.place(), handle);
        self.effects.extend(ended.map(Effect::Ended));
        self.effects.push(Effect::Acquired);
        let waited_ms = waiter.asked.ms_until(now.instant);
        self.counts.granted += 1;
        self.counts.handed_over += 1;
        self.counts.wait_ms_sum += waiter.joined.ms_until(now.instant);
        self.counts.wait_ms_max = self.counts.wait_ms_max.max(waiter.joined.ms_until(now.instant));
        if let Some(seat) = waiter.seat {
            let ttl_ms = waiter.lease.ms();
            self.effects.push(Effect::Answer(seat, Answer::Granted { lock: handle, fence, ttl_ms, waited_ms }));
        }
        Some(handle)
    }

    /// Lets a token wait for a lock that another one holds.
    pub(super) fn wait(&mut self, held: Handle, place: Place<'_>, request: &Acquire<'_>, now: Instant) -> Acquired {
        let (seat, until) = match request.wait {
            Wait::No => return Acquired::Held,
            Wait::Block(seat, until) => (Some(seat), until),
            Wait::Poll(until) => (None, Some(until)),
        };
        let set = |waiter: &mut Waiter| {
            waiter.lease = request.lease;
            waiter.label = request.label.bytes().into();
            waiter.client = request.client;
            waiter.asked = now;
            waiter.seat = seat;
            waiter.until = until;
        };
        let waiter = match self.lines.find(place, request.token.bytes()) {
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
                if self.would_never_end(held, place, request.token) {
                    self.counts.deadlocks += 1;
                    return Acquired::Deadlock;
                }
                let mut waiter = Waiter::new(place, request.token, &[], request.lease, now);
                set(&mut waiter);
                self.counts.waited += 1;
                let waiter = self.lines.join(waiter);
                self.lines.set_lock(place, held);
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

    /// The connection is gone, or was unblocked by somebody else: its wait is over.
    pub fn leave(&mut self, waiter: Handle) {
        if self.lines.leave(waiter).is_some() {
            self.counts.waits_ended_empty += 1;
        }
    }

    /// The wait is over; its connection gets this answer.
    pub fn end_wait(&mut self, waiter: Handle, answer: Answer) {
        if let Some(waiter) = self.lines.leave(waiter) {
            self.counts.waits_ended_empty += 1;
            self.effects.extend(waiter.seat.map(|seat| Effect::Answer(seat, answer)));
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
        self.stirred = Vec::new();
        std::mem::take(&mut self.lines).seats()
    }

    /// Whether a grant made to a waiter is its token's still, at the moment its reply is written. From then on the
    /// token knows, and the grant is not taken back.
    pub fn deliver(&mut self, lock: Handle, place: Place<'_>, token: &[u8], fence: Fence, now: Instant) -> bool {
        let Some(held) = self.locks.get(lock) else { return false };
        let same = held.place() == place && held.token() == token && held.fence() == fence;
        if !same || self.ms_left(held, now) == 0 {
            return false;
        }
        if let Some(held) = self.locks.get_mut(lock) {
            held.set_delivery(Delivery::Told);
        }
        true
    }

    /// Ends a grant whose reply could not be delivered, unless its token learned of it in another way: it is over, and
    /// the next in line may have its turn. Whether it is.
    pub fn void(&mut self, lock: Handle, fence: Fence, now: Instant) -> bool {
        let untold = |lock: &&Lock| lock.fence() == fence && lock.delivery() == Delivery::Untold;
        if self.locks.get(lock).filter(untold).is_none() {
            return false;
        }
        self.update(lock, |lock| {
            lock.set_delivery(Delivery::Unfetched);
            lock.set_end(now);
        });
        true
    }
}
