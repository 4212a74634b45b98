//! All held locks of a server, and what the commands do to them. Every change is handed out as an [`Effect`] for the
//! caller to carry out in the keyspace; nothing is true for other clients before that.
//!
//! * this file: the table, its clock rules, and how locks come in and go out
//! * [`holding`]: acquire, extend, release, check
//! * [`guard`]: whether a guarded command may run
//! * [`waiting`]: joining a line, hand-over, the end of a wait
//! * [`deadlock`]: whether a wait would never end
//! * [`keyspace`]: what the server's own commands (RENAME, FLUSHALL, eviction) do to locks

mod deadlock;
mod guard;
mod holding;
mod keyspace;
mod waiting;

use super::codec::{self, Corrupt};
use super::fence::{Fence, Fences};
use super::line::{Lines, Seat};
use super::lock::{Delivery, Lock};
use super::name::Place;
use super::slab::{Handle, Slab};
use super::time::{Instant, Now};
use std::collections::BTreeSet;

pub use holding::{Acquire, Acquired, ExtendOutcome, ReleaseOutcome};
pub use waiting::{Answer, Limits, Wait};

/// What the caller has to carry out, in this order. All of it concerns the one key it asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A lock was taken: store this handle at its key, tell the replicas.
    Created(Handle),
    /// The holder, or its saved form, changed: tell the replicas.
    Changed(Handle),
    /// The lock is free again: delete its key, tell the replicas.
    Removed,
    /// Publish that the lock was taken.
    Acquired,
    /// Publish that a hold ended.
    Ended(Ended),
    /// Answer a blocked connection.
    Answer(Seat, Answer),
}

/// Why a lock became free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its holder released it.
    Released,
    /// Its lease was over.
    LeaseEnded,
    /// Its token never learned of it.
    TakenBack,
}

/// Where a command acts: a key, and the lock that stands there.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// The key.
    pub place: Place<'a>,
    /// The lock that stands there, as the keyspace has it.
    pub lock: Option<Handle>,
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
    /// Commands that joined a line.
    pub waited: u64,
    /// Waits that ended without the lock.
    pub waits_ended_empty: u64,
    /// Locks handed to the next in line.
    pub handed_over: u64,
    /// Waits withdrawn by a release.
    pub withdrawn: u64,
    /// Waits refused because they would never have ended.
    pub deadlocks: u64,
    /// Grants taken back because their token never learned of them.
    pub taken_back: u64,
    /// Time waited until a grant, summed up, in ms.
    pub wait_ms_sum: u64,
    /// Longest wait until a grant, in ms.
    pub wait_ms_max: u64,
    /// Guarded commands that did not run because the token did not hold the lock.
    pub guard_refused: u64,
    /// EXPIREs on lock keys that were taken back.
    pub expires_undone: u64,
    /// Evicted locks that were put back.
    pub evictions_undone: u64,
}

/// All held locks of a server.
#[derive(Default)]
pub struct Table {
    locks: Slab<Lock>,
    /// Every linked lock under the end of its lease, but for those parked until they can be handed over.
    deadlines: BTreeSet<(Instant, Handle)>,
    held: usize,
    lines: Lines,
    /// Places with a line where something happened: the next in line may have its turn.
    stirred: Vec<(i32, Box<[u8]>)>,
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
    pub const fn held(&self) -> usize {
        self.held
    }

    /// Who waits for what.
    pub const fn lines(&self) -> &Lines {
        &self.lines
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

    /// When the next lease or wait ends, or earlier: on a node that serves for less time than the lease.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.serving?;
        let lease_end = self.deadlines.first().map(|&(at, _)| at);
        lease_end.into_iter().chain(self.lines.next_end()).min()
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

    /// Leaves a lock whose lease is over to the one who hands it over later: it is not due again.
    pub fn park(&mut self, handle: Handle) {
        if let Some(lock) = self.locks.get(handle) {
            self.deadlines.remove(&(lock.end(), handle));
        }
    }

    /// Follows a change the primary made: an exclusive holder takes the place of whatever held the lock before.
    ///
    /// # Errors
    /// Bytes that are not a lock.
    pub fn follow(&mut self, site: Site<'_>, bytes: &[u8], now: Now) -> Result<(), Corrupt> {
        let holder = codec::decode(bytes)?;
        self.fences.raise(holder.fence);
        let mut lock = Lock::new(site.place, &holder, 0, now.instant);
        match site.lock.and_then(|handle| Some((handle, self.locks.get(handle)?))) {
            Some((handle, old)) => {
                if old.token() == lock.token() {
                    lock.set_granted(old.granted());
                }
                self.replace(handle, lock);
                self.effects.push(Effect::Changed(handle));
            }
            None => {
                let handle = self.insert(lock);
                self.effects.push(Effect::Created(handle));
            }
        }
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
        self.held += 1;
        handle
    }

    /// Puts another hold in a lock's stead.
    fn replace(&mut self, handle: Handle, lock: Lock) {
        let Some(entry) = self.locks.get_mut(handle) else { return };
        self.deadlines.remove(&(entry.end(), handle));
        self.deadlines.insert((lock.end(), handle));
        self.held += usize::from(!entry.linked());
        *entry = lock;
    }

    fn remove(&mut self, handle: Handle) {
        if let Some(lock) = self.locks.remove(handle) {
            self.deadlines.remove(&(lock.end(), handle));
            self.held -= usize::from(lock.linked());
        }
    }

    /// Notes that a lock went into the keyspace or out of it.
    fn set_linked(&mut self, handle: Handle, linked: bool) {
        let Some(lock) = self.locks.get_mut(handle) else { return };
        match (lock.linked(), linked) {
            (false, true) => {
                self.deadlines.insert((lock.end(), handle));
                self.held += 1;
            }
            (true, false) => {
                self.deadlines.remove(&(lock.end(), handle));
                self.held -= 1;
            }
            _ => {}
        }
        lock.set_linked(linked);
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

/// The end of a lease on a node that serves since `serving`: it counts from there at the earliest. The time in which a
/// polled grant has to be fetched is none of the lease.
fn end(lock: &Lock, serving: Serving) -> Instant {
    if lock.delivery() == Delivery::Unfetched && lock.granted() >= serving.since {
        return lock.end();
    }
    lock.end().max(serving.since.after(lock.lease()))
}
