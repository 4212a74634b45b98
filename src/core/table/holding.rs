//! Acquire, extend, release and check: the rules of holding a lock.

use super::{Effect, Ended, Table};
use crate::core::fence::Fence;
use crate::core::lock::{Holder, Lock};
use crate::core::name::{Label, Place, Token};
use crate::core::slab::Handle;
use crate::core::time::{Instant, Lease, Now};

/// A request for a lock.
#[derive(Clone, Copy, Debug)]
pub struct Acquire<'a> {
    /// Who asks.
    pub token: Token<'a>,
    /// For how long.
    pub lease: Lease,
    /// Description for people.
    pub label: Label<'a>,
    /// Id of the connection.
    pub client: u64,
}

/// The answer to [`Table::acquire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The token holds the lock.
    Granted {
        /// The hold's fence.
        fence: Fence,
        /// Milliseconds left of the lease.
        ttl_ms: u64,
        /// Whether this call took the lock; not if the token had it already.
        new: bool,
    },
    /// Another token holds the lock.
    Held,
    /// All fences are used up.
    NoFence,
}

/// The answer to [`Table::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// This call freed the lock.
    Released,
    /// Nobody holds the lock.
    Free,
    /// Another token holds the lock.
    Taken,
}

/// The answer to [`Table::extend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtendOutcome {
    /// The token holds the lock, for this many ms.
    Extended(u64),
    /// The token does not hold the lock.
    NotHeld,
}

impl Table {
    /// Takes the lock at `place` for the token, or repeats its grant.
    pub fn acquire(&mut self, found: Option<Handle>, place: Place<'_>, request: &Acquire<'_>, now: Now) -> Acquired {
        let held = found.and_then(|handle| Some((handle, self.locks.get(handle)?)));
        match held {
            Some((handle, lock)) if lock.token() == request.token.bytes() && self.ms_left(lock, now.instant) > 0 => {
                return self.repeat(handle, request, now);
            }
            Some((_, lock)) if lock.token() != request.token.bytes() && !self.is_over(lock, now.instant) => {
                self.counts.refused += 1;
                return Acquired::Held;
            }
            _ => {}
        }
        self.grant(held.map(|(handle, _)| handle), place, request, now)
    }

    fn grant(&mut self, lapsed: Option<Handle>, place: Place<'_>, request: &Acquire<'_>, now: Now) -> Acquired {
        let Some(fence) = self.fences.issue(now.ticks) else {
            return Acquired::NoFence;
        };
        if let Some(handle) = lapsed {
            self.end_hold(handle, Ended::LeaseEnded);
        }
        let Acquire { token, lease, label, client } = *request;
        let holder = Holder { token, fence, lease, label };
        let handle = self.insert(Lock::new(place, &holder, client, now.instant));
        self.effects.push(Effect::Created(handle));
        self.counts.granted += 1;
        Acquired::Granted { fence, ttl_ms: lease.ms(), new: true }
    }

    fn repeat(&mut self, handle: Handle, request: &Acquire<'_>, now: Now) -> Acquired {
        let Some(lock) = self.locks.get(handle) else {
            return Acquired::Held;
        };
        let mut fence = lock.fence();
        // An older node may have given the same number to another holder that was lost with it.
        let predates = self.serving.is_some_and(|serving| fence.get() <= serving.floor);
        if predates {
            match self.fences.issue(now.ticks) {
                Some(issued) => fence = issued,
                None => return Acquired::NoFence,
            }
        }
        let extended = self.raise_lease(handle, request.lease, now.instant);
        self.update(handle, |lock| {
            lock.set_fence(fence);
            lock.set_client(request.client);
        });
        if predates {
            self.effects.push(Effect::Changed(handle));
        } else if extended {
            self.effects.push(Effect::Extended(handle));
        }
        self.counts.repeated += 1;
        let ttl_ms = self.locks.get(handle).map_or(0, |lock| self.ms_left(lock, now.instant));
        Acquired::Granted { fence, ttl_ms, new: false }
    }

    /// Makes the token's lease at least this long from now, or its own length again. Never shorter, never a new hold.
    pub fn extend(
        &mut self,
        found: Option<Handle>,
        token: Token<'_>,
        lease: Option<Lease>,
        now: Instant,
    ) -> ExtendOutcome {
        let Some((handle, own)) = self.held_by(found, token, now) else {
            self.settle(found, now);
            return ExtendOutcome::NotHeld;
        };
        if self.raise_lease(handle, lease.unwrap_or(own), now) {
            self.effects.push(Effect::Extended(handle));
        }
        let left = self.locks.get(handle).map_or(0, |lock| self.ms_left(lock, now));
        ExtendOutcome::Extended(left)
    }

    /// Frees the lock if the token holds it.
    pub fn release(&mut self, found: Option<Handle>, token: Token<'_>, now: Instant) -> ReleaseOutcome {
        let Some((handle, lock)) = self.settle(found, now).and_then(|handle| Some((handle, self.locks.get(handle)?)))
        else {
            self.counts.late_free += 1;
            return ReleaseOutcome::Free;
        };
        if lock.token() != token.bytes() {
            self.counts.late_taken += 1;
            return ReleaseOutcome::Taken;
        }
        self.end_hold(handle, Ended::Released);
        ReleaseOutcome::Released
    }

    /// Milliseconds left if the token holds the lock, else 0.
    pub fn check(&self, found: Option<Handle>, token: Token<'_>, now: Instant) -> u64 {
        let lock = found.and_then(|handle| self.locks.get(handle));
        lock.filter(|lock| lock.token() == token.bytes()).map_or(0, |lock| self.ms_left(lock, now))
    }

    /// The lock that is held at this instant, for those who only look.
    pub fn look(&self, found: Option<Handle>, now: Instant) -> Option<&Lock> {
        found.and_then(|handle| self.locks.get(handle)).filter(|lock| self.ms_left(lock, now) > 0)
    }

    /// Ends the lock if its lease is over; otherwise gives it back.
    pub fn settle(&mut self, found: Option<Handle>, now: Instant) -> Option<Handle> {
        let handle = found?;
        let lock = self.locks.get(handle)?;
        if !self.is_over(lock, now) {
            return Some(handle);
        }
        self.end_hold(handle, Ended::LeaseEnded);
        None
    }

    /// The lease is over, but this node does not own the lock's slot: the lease starts anew.
    pub fn hold_back(&mut self, handle: Handle, now: Instant) {
        self.update(handle, |lock| lock.restart(lock.lease(), now));
    }

    fn held_by(&self, found: Option<Handle>, token: Token<'_>, now: Instant) -> Option<(Handle, Lease)> {
        let handle = found?;
        let lock = self.locks.get(handle)?;
        let holds = lock.token() == token.bytes() && self.ms_left(lock, now) > 0;
        holds.then_some((handle, lock.lease()))
    }

    /// Moves the end of the lease out; whether the saved form of the holder changed.
    fn raise_lease(&mut self, handle: Handle, lease: Lease, now: Instant) -> bool {
        let serving = self.serving;
        let mut changed = false;
        self.update(handle, |lock| {
            let end = serving.map_or(lock.end(), |serving| super::end(lock, serving));
            if now.after(lease) > end {
                changed = lock.lease() != lease;
                lock.restart(lease, now);
            }
        });
        changed
    }

    fn end_hold(&mut self, handle: Handle, why: Ended) {
        self.remove(handle);
        self.effects.push(Effect::Removed(why));
        match why {
            Ended::Released => self.counts.released += 1,
            Ended::LeaseEnded => self.counts.leases_ended += 1,
        }
    }
}
