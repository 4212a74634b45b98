//! All held locks of a server, and what the commands do to them. Every change is handed out as an [`Effect`] for the
//! caller to carry out in the keyspace; nothing is true for other clients before that.
//!
//! * this file: the table, its clock rules, and how locks come in and go out
//! * [`holding`]: acquire, extend, release, check
//! * [`keyspace`]: what the server's own commands (RENAME, FLUSHALL, eviction) do to locks

#[cfg(test)]
mod edges;
mod holding;
mod keyspace;
#[cfg(test)]
mod model;

use super::codec::{self, Corrupt};
use super::fence::{Fence, Fences};
use super::lock::Lock;
use super::name::Place;
use super::slab::{Handle, Slab};
use super::time::{Instant, Now};
use std::collections::BTreeSet;

pub use holding::{Acquire, Acquired, ExtendOutcome, ReleaseOutcome};

/// A change the keyspace, the replicas and the append-only file have to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A lock was taken: store this handle at its key, tell the replicas.
    Created(Handle),
    /// The holder's saved form changed: tell the replicas.
    Changed(Handle),
    /// The lock is free again: delete its key, tell the replicas.
    Removed(Ended),
}

/// Why a lock became free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its holder released it.
    Released,
    /// Its lease was over.
    LeaseEnded,
}

/// Since when this node is a serving primary.
#[derive(Clone, Copy, Debug)]
struct Serving {
    since: Instant,
    /// H at that instant: a fence up to here predates it.
    floor: u64,
}

/// Where bytes of a lock come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The server's own RDB, AOF or replication stream.
    Server,
    /// A RESTORE by an ordinary client.
    Stranger,
}

/// Why a lock was not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The bytes are not a lock.
    Corrupt(Corrupt),
    /// The fence is above H and more than a day ahead of the clock.
    FenceAhead,
}

/// Totals since the start of the server, for INFO.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Locks granted to a token that did not hold them.
    pub granted: u64,
    /// Grants repeated for a token that held the lock already.
    pub repeated: u64,
    /// Tries answered null because another token holds the lock.
    pub refused: u64,
    /// Locks whose lease ended without a release.
    pub leases_ended: u64,
    /// Locks released by their token.
    pub released: u64,
    /// Releases of a lock that nobody held.
    pub late_free: u64,
    /// Releases of a lock that another token held.
    pub late_taken: u64,
    /// EXPIREs on lock keys that were taken back.
    pub expires_undone: u64,
    /// Evicted locks that were put back.
    pub evictions_undone: u64,
}

/// All held locks of a server.
#[derive(Default)]
pub struct Table {
    locks: Slab<Lock>,
    /// Every linked lock under the end of its lease.
    deadlines: BTreeSet<(Instant, Handle)>,
    fences: Fences,
    serving: Option<Serving>,
    counts: Counts,
    effects: Vec<Effect>,
    /// The lock that left the keyspace last: the next notification says why.
    unlinked: Option<Handle>,
    /// Locks the server evicted, to be put back.
    evicted: Vec<Handle>,
}

impl Table {
    /// This node now is a serving primary: every lease counts from here at the earliest, and H leaps past what a lost
    /// predecessor can have granted.
    pub fn begin_serving(&mut self, now: Now) {
        self.fences.guard(now.ticks);
        self.serving = Some(Serving { since: now.instant, floor: self.fences.highest() });
    }

    /// This node is no serving primary (any more): leases stand still.
    pub fn stop_serving(&mut self) {
        self.serving = None;
    }

    /// Whether this node is a serving primary.
    pub const fn is_serving(&self) -> bool {
        self.serving.is_some()
    }

    /// Number of locks in the keyspace.
    pub fn held(&self) -> usize {
        self.deadlines.len()
    }

    /// Number of locks known, the ones on their way out included.
    pub const fn known(&self) -> usize {
        self.locks.len()
    }

    /// Totals for INFO.
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The source of fences.
    pub const fn fences(&self) -> &Fences {
        &self.fences
    }

    /// Raises H to a fence that was loaded beside the locks.
    pub fn raise_fence(&mut self, fence: Fence) {
        self.fences.raise(fence);
    }

    /// The lock with this handle.
    pub fn get(&self, handle: Handle) -> Option<&Lock> {
        self.locks.get(handle)
    }

    /// Milliseconds left of a lock's lease, rounded down. Where leases stand still, the whole lease is left.
    pub fn ms_left(&self, lock: &Lock, now: Instant) -> u64 {
        match self.serving {
            Some(serving) => now.ms_until(end(lock, serving)),
            None => lock.lease().ms(),
        }
    }

    /// Whether others may take the lock. Its holder counts as lapsed up to 1 ms earlier, when 0 ms are reported as
    /// left: by the client's own clock the lease runs to its very end.
    fn is_over(&self, lock: &Lock, now: Instant) -> bool {
        self.serving.is_some_and(|serving| end(lock, serving) <= now)
    }

    /// The effects since this was last called.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Takes the list of effects back for its memory: one is needed for every change.
    pub fn reuse_effects(&mut self, mut effects: Vec<Effect>) {
        if self.effects.is_empty() {
            effects.clear();
            self.effects = effects;
        }
    }

    /// When the next lease ends, or earlier: on a node that serves for less time than the lease.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.serving?;
        self.deadlines.first().map(|&(at, _)| at)
    }

    /// A lock whose lease is over; the caller opens its key and settles it, or forgets the lock if it is not there.
    pub fn next_due(&mut self, now: Instant) -> Option<Handle> {
        let serving = self.serving?;
        loop {
            let &(at, handle) = self.deadlines.first()?;
            if at > now {
                return None;
            }
            self.deadlines.pop_first();
            let Some(lock) = self.locks.get_mut(handle) else { continue };
            lock.set_end(end(lock, serving));
            self.deadlines.insert((lock.end(), handle));
            if lock.end() <= now {
                return Some(handle);
            }
        }
    }

    /// Takes in a lock from RDB or RESTORE. Its lease starts anew.
    ///
    /// # Errors
    /// Bytes that are not a lock, and a forged fence.
    pub fn load(&mut self, place: Place<'_>, bytes: &[u8], origin: Origin, now: Now) -> Result<Handle, Refused> {
        let holder = codec::decode(bytes).map_err(Refused::Corrupt)?;
        if origin == Origin::Stranger && !self.fences.accepts_from_stranger(holder.fence, now.ticks) {
            return Err(Refused::FenceAhead);
        }
        self.fences.raise(holder.fence);
        Ok(self.insert(Lock::new(place, &holder, 0, now.instant)))
    }

    /// Follows a change the primary made: an exclusive holder takes the place of whatever held the lock before.
    ///
    /// # Errors
    /// Bytes that are not a lock.
    pub fn follow(&mut self, found: Option<Handle>, place: Place<'_>, bytes: &[u8], now: Now) -> Result<(), Corrupt> {
        let holder = codec::decode(bytes)?;
        self.fences.raise(holder.fence);
        let same =
            found.filter(|&handle| self.locks.get(handle).is_some_and(|lock| lock.token() == holder.token.bytes()));
        let Some(handle) = same else {
            let handle = self.insert(Lock::new(place, &holder, 0, now.instant));
            self.effects.push(Effect::Created(handle));
            return Ok(());
        };
        let mut lock = Lock::new(place, &holder, 0, now.instant);
        if let Some(old) = self.locks.get(handle) {
            lock.set_granted(old.granted());
        }
        self.replace(handle, lock);
        self.effects.push(Effect::Changed(handle));
        Ok(())
    }

    /// Drops a lock whose value the server freed.
    pub fn freed(&mut self, handle: Handle) {
        self.remove(handle);
    }

    /// Bytes a lock occupies beside its key and value in the keyspace.
    pub fn memory_bytes(&self, handle: Handle) -> usize {
        // A tree node holds 11 entries and is two thirds full in the long run.
        const DEADLINE_BYTES: usize = size_of::<(Instant, Handle)>() * 3 / 2;
        self.locks.get(handle).map_or(0, |lock| Slab::<Lock>::SLOT_BYTES + lock.text_bytes() + DEADLINE_BYTES)
    }

    fn insert(&mut self, lock: Lock) -> Handle {
        let end = lock.end();
        let handle = self.locks.insert(lock);
        self.deadlines.insert((end, handle));
        handle
    }

    fn replace(&mut self, handle: Handle, lock: Lock) {
        let Some(entry) = self.locks.get_mut(handle) else { return };
        self.deadlines.remove(&(entry.end(), handle));
        self.deadlines.insert((lock.end(), handle));
        *entry = lock;
    }

    fn remove(&mut self, handle: Handle) {
        if let Some(lock) = self.locks.remove(handle) {
            self.deadlines.remove(&(lock.end(), handle));
        }
    }

    /// Changes a lock under its deadline.
    fn update(&mut self, handle: Handle, change: impl FnOnce(&mut Lock)) {
        let Some(lock) = self.locks.get_mut(handle) else { return };
        let before = lock.end();
        change(lock);
        let after = lock.end();
        if before != after && self.deadlines.remove(&(before, handle)) {
            self.deadlines.insert((after, handle));
        }
    }
}

/// The end of a lease on a node that serves since `serving`: it counts from there at the earliest.
fn end(lock: &Lock, serving: Serving) -> Instant {
    lock.end().max(serving.since.after(lock.lease()))
}
