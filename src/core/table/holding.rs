//! Acquire, extend, release and check: the rules of holding a lock.

use super::waiting::{Limits, Wait};
use super::{Effect, Ended, Site, Table};
use crate::core::fence::Fence;
use crate::core::lock::{Delivery, Holder, Lock};
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
    /// What to do while another token holds the lock.
    pub wait: Wait,
    /// How many may wait.
    pub limits: Limits,
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
    /// Another token holds the lock or is ahead in line. A poll keeps its place.
    Held,
    /// The token waits in line and is answered at its seat.
    Waits(Handle),
    /// The wait would never end.
    Deadlock,
    /// As many wait as may.
    TooMany,
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
    /// Takes the lock at `place` for the token, repeats its grant, or lets it wait.
    pub fn acquire(&mut self, site: Site<'_>, request: &Acquire<'_>, now: Now) -> Acquired {
        let lock = self.give_up_lapsed(site, request.token, now);
        let Some(handle) = self.settle(Site { lock, ..site }, now) else {
            return self.grant(site.place, request, now);
        };
        let own = self.locks.get(handle).is_some_and(|lock| lock.token() == request.token.bytes());
        if own {
            return self.repeat(handle, request, now);
        }
        let answer = self.wait(handle, site.place, request, now.instant);
        if answer == Acquired::Held {
            self.counts.refused += 1;
        }
        answer
    }

    /// A token that asks again in the last millisecond of its lease, when it counts as lapsed already, gives way to
    /// whoever is next in line.
    fn give_up_lapsed(&mut self, site: Site<'_>, token: Token<'_>, now: Now) -> Option<Handle> {
        let handle = site.lock?;
        let lock = self.locks.get(handle)?;
        if lock.token() != token.bytes() || self.ms_left(lock, now.instant) > 0 {
            return Some(handle);
        }
        self.pass_on(Some(handle), site.place, Some(Ended::LeaseEnded), now)
    }

    fn grant(&mut self, place: Place<'_>, request: &Acquire<'_>, now: Now) -> Acquired {
        let Some(fence) = self.fences.issue(now.ticks) else {
            return Acquired::NoFence;
        };
        let Acquire { token, lease, label, client, .. } = *request;
        let holder = Holder { token, fence, lease, label };
        let handle = self.insert(Lock::new(place, &holder, client, now.instant));
        self.effects.extend([Effect::Created(handle), Effect::Acquired]);
        self.counts.granted += 1;
        Acquired::Granted { fence, ttl_ms: lease.ms(), new: true }
    }

    fn repeat(&mut self, handle: Handle, request: &Acquire<'_>, now: Now) -> Acquired {
        let Some(lock) = self.locks.get(handle) else {
            return Acquired::Held;
        };
        let (mut fence, new) = (lock.fence(), lock.delivery() != Delivery::Told);
        // An older node may have given the same number to another holder that was lost with it.
        let predates = self.serving.is_some_and(|serving| fence.get() <= serving.floor);
        if predates {
            match self.fences.issue(now.ticks) {
                Some(issued) => fence = issued,
                None => return Acquired::NoFence,
            }
        }
        let changed = self.raise_lease(handle, request.lease, now.instant);
        self.update(handle, |lock| {
            lock.set_fence(fence);
            lock.set_client(request.client);
        });
        if predates || changed {
            self.effects.push(Effect::Changed(handle));
        }
        self.counts.repeated += u64::from(!new);
        Acquired::Granted { fence, ttl_ms: self.left_of(handle, now.instant), new }
    }

    /// Makes the token's lease at least this long from now, or its own length again. Never shorter, never a new hold.
    pub fn extend(&mut self, site: Site<'_>, token: Token<'_>, lease: Option<Lease>, now: Now) -> ExtendOutcome {
        let Some(handle) = self.held_by(site, token, now.instant) else {
            self.settle(site, now);
            return ExtendOutcome::NotHeld;
        };
        let own = self.locks.get(handle).map(Lock::lease);
        if lease.or(own).is_some_and(|lease| self.raise_lease(handle, lease, now.instant)) {
            self.effects.push(Effect::Changed(handle));
        }
        ExtendOutcome::Extended(self.left_of(handle, now.instant))
    }

    /// Frees the lock if the token holds it, and ends its wait if it waits.
    pub fn release(&mut self, site: Site<'_>, token: Token<'_>, now: Now) -> ReleaseOutcome {
        let withdrawn = self.withdraw(site.place, token);
        let held = self.settle(site, now).and_then(|handle| Some((handle, self.locks.get(handle)?)));
        match held {
            Some((handle, lock)) if lock.token() == token.bytes() => {
                self.pass_on(Some(handle), site.place, Some(Ended::Released), now);
                ReleaseOutcome::Released
            }
            Some(_) => {
                self.counts.late_taken += u64::from(!withdrawn);
                ReleaseOutcome::Taken
            }
            None => {
                self.counts.late_free += u64::from(!withdrawn);
                ReleaseOutcome::Free
            }
        }
    }

    /// Milliseconds left if the token holds the lock, else 0.
    pub fn check(&mut self, site: Site<'_>, token: Token<'_>, now: Instant) -> u64 {
        let Some(handle) = self.held_by(site, token, now) else { return 0 };
        if let Some(lock) = self.locks.get_mut(handle).filter(|lock| lock.delivery() == Delivery::Untold) {
            lock.set_delivery(Delivery::Told);
        }
        self.left_of(handle, now)
    }

    /// The lock that is held at this instant, for those who only look.
    pub fn look(&self, site: Site<'_>, now: Instant) -> Option<&Lock> {
        site.lock.and_then(|handle| self.locks.get(handle)).filter(|lock| self.ms_left(lock, now) > 0)
    }

    /// This node does not own the lock's slot yet, or does so only now: the lease starts anew.
    pub fn hold_back(&mut self, handle: Handle, now: Instant) {
        self.update(handle, |lock| lock.restart(lock.lease(), now));
    }

    fn left_of(&self, handle: Handle, now: Instant) -> u64 {
        self.locks.get(handle).map_or(0, |lock| self.ms_left(lock, now))
    }

    pub(super) fn held_by(&self, site: Site<'_>, token: Token<'_>, now: Instant) -> Option<Handle> {
        let lock = self.locks.get(site.lock?)?;
        site.lock.filter(|_| lock.token() == token.bytes() && self.ms_left(lock, now) > 0)
    }

    /// Moves the end of the lease out, and starts the lease of a grant that was not fetched yet: whoever gets here is
    /// told. Whether the saved form of the holder changed.
    fn raise_lease(&mut self, handle: Handle, lease: Lease, now: Instant) -> bool {
        let serving = self.serving;
        let mut changed = false;
        self.update(handle, |lock| {
            let end = serving.map_or(lock.end(), |serving| super::end(lock, serving));
            if now.after(lease) > end || lock.delivery() == Delivery::Unfetched {
                changed = lock.lease() != lease;
                lock.restart(lease, now);
            }
            lock.set_delivery(Delivery::Told);
        });
        changed
    }
}
