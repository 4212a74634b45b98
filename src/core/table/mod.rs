//! All held locks of a server, and what the commands do to them. Every change is handed out as an [`Effect`] for the
//! caller to carry out in the keyspace; nothing is true for other clients before that.
//!
//! * this file: the table, its clock rules, and how locks come in and go out
//! * [`schedule`]: which lock to look at next, and when
//! * [`holding`]: acquire, extend, release, check
//! * [`turning`]: from shared to exclusive and back
//! * [`serving`]: ending holds, and giving the lock to the next in line
//! * [`waiting`]: joining a line, the end of a wait
//! * [`grace`]: after a start or a promotion, when no locks are given out
//! * [`bound`]: holds that end with their connection
//! * [`guard`]: whether a guarded command may run
//! * [`deadlock`]: whether a wait would never end
//! * [`legacy`]: locks of other libraries
//! * [`keyspace`]: what the server's own commands (RENAME, FLUSHALL, eviction) do to locks

mod bound;
mod deadlock;
mod grace;
mod guard;
mod holding;
mod keyspace;
mod legacy;
mod schedule;
mod serving;
mod turning;
mod waiting;

#[cfg(test)]
mod corners;
#[cfg(test)]
mod edges;
#[cfg(test)]
mod grace_edges;
#[cfg(test)]
mod mode_edges;
#[cfg(any(test, fuzzing))]
pub mod model;
#[cfg(test)]
mod scene;
#[cfg(test)]
mod upgrade_edges;

use super::codec::{self, Change, Corrupt};
use super::deadlines::Deadlines;
use super::fence::{Fence, Fences};
use super::hold::{Hold, Holder, Mode};
use super::line::{Lines, Seat};
use super::lock::Lock;
use super::name::Place;
use super::packed::Packed;
use super::slab::{Handle, Slab};
use super::time::{Instant, Now};
use crate::seeded::bug;
use bound::Bound;
use std::collections::BTreeSet;

pub use bound::BoundHold;
pub use holding::{Acquire, Acquired, Ask, ExtendOutcome, ReleaseOutcome, Turn};
pub use waiting::{Answer, Limits, Wait};

/// What the caller has to carry out, in this order. All of it concerns the one key it asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A lock came to be: store this handle at its key.
    Created(Handle),
    /// A holder was set, or its saved form changed: tell the replicas.
    Set {
        /// The lock.
        lock: Handle,
        /// The holder's fence.
        fence: Fence,
        /// Whether it took the place of all that were.
        alone: bool,
        /// Whether WATCH and clients' caches are told: not of another lease of the same hold.
        signal: bool,
    },
    /// This holder was removed and others stay: tell the replicas.
    Unset(Box<[u8]>),
    /// The lock is free again: delete its key, tell the replicas.
    Removed,
    /// The legacy lock is released: delete its key, tell the replicas.
    LegacyRemoved,
    /// The legacy lock is extended: this is its time to live in ms now, tell the replicas.
    LegacyExtended(u64),
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
    /// The lock of another library that stands there instead.
    pub legacy: Option<Legacy<'a>>,
}

/// A lock that a client of another library took: a string with a time to live. It is respected and never adopted.
#[derive(Clone, Copy, Debug)]
pub struct Legacy<'a> {
    /// The string: the holder's token.
    pub value: &'a [u8],
    /// Its time to live in ms.
    pub ttl_ms: u64,
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
    /// Holds granted to a token that did not have them.
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
    deadlines: Deadlines,
    /// The earliest deadline that was set since [`Table::take_sooner`] was asked.
    sooner: Option<Instant>,
    held: usize,
    lines: Lines,
    /// Places with a line where something happened: the next in line may have its turn.
    stirred: BTreeSet<(i32, Box<[u8]>)>,
    /// Databases where something happened to every key.
    stirred_dbs: BTreeSet<i32>,
    /// The walk over the lines of such databases that is under way.
    sweep: Option<keyspace::Sweep>,
    fences: Fences,
    serving: Option<Serving>,
    grace: grace::Grace,
    counts: Counts,
    effects: Vec<Effect>,
    /// The lock that left the keyspace last: the next notification says why.
    unlinked: Option<Handle>,
    /// How often a lock left the keyspace or came there by no doing of this table's.
    upheavals: u64,
    /// Locks the server evicted, to be put back.
    evicted: Vec<Handle>,
    /// Holds that end with their connection.
    bound: Bound,
}

impl Table {
    /// This node now is a serving primary: every lease counts from here at the earliest, and H leaps past what a lost
    /// predecessor can have granted.
    pub fn begin_serving(&mut self, now: Now) {
        self.upheavals += 1;
        self.fences.guard(now.ticks);
        self.serving = Some(Serving { since: now.instant, floor: self.fences.highest() });
    }

    /// This node is no serving primary (any more): leases stand still. What a connection does from now on says nothing
    /// of a hold, which may go on under another primary: its token may hear of it there, so nothing is taken back here.
    /// What was evicted is gone there, too.
    pub fn stop_serving(&mut self) {
        self.upheavals += 1;
        self.serving = None;
        self.unbind_everywhere();
        self.drop_evicted();
        let all: Vec<Handle> = self.locks.iter_mut().map(|(handle, _)| handle).collect();
        for handle in all {
            self.update(handle, |lock| lock.update_all(Hold::stand_still));
        }
    }

    /// Whether this node is a serving primary.
    pub const fn is_serving(&self) -> bool {
        self.serving.is_some()
    }

    /// Number of locks in the keyspace, the evicted ones included that are about to be back.
    pub fn held(&self) -> usize {
        self.held + self.evicted.len()
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

    /// Milliseconds left of a hold's lease, rounded down. Where leases stand still, the whole lease is left, as far as
    /// the cap allows.
    pub fn ms_left(&self, hold: &Hold, now: Instant) -> u64 {
        match self.serving {
            None if bug("lease-runs-on-replica") => now.ms_until(hold.end),
            Some(serving) => now.ms_until(match bug("upgrade-not-fetched-is-no-hold") {
                true => hold.end_since(serving.since),
                false => hold.sure_since(serving.since),
            }),
            None => hold.cap().map_or(hold.lease.ms(), |cap| now.ms_until(cap).min(hold.lease.ms())),
        }
    }

    /// Whether others may have what this hold takes. Its holder counts as lapsed up to 1 ms earlier, when 0 ms are
    /// reported as left: by the client's own clock the lease runs to its very end.
    fn is_over(&self, hold: &Hold, now: Instant) -> bool {
        self.serving.is_some_and(|serving| hold.end_since(serving.since) <= now)
    }

    /// Whether there are effects to carry out.
    pub const fn has_effects(&self) -> bool {
        !self.effects.is_empty()
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

    /// Takes in a lock from RDB or RESTORE. Its lease starts anew.
    ///
    /// # Errors
    /// Bytes that are not a lock, and a forged fence.
    pub fn load(&mut self, place: Place<'_>, bytes: &[u8], origin: Origin, now: Now) -> Result<Handle, Refused> {
        let holders = codec::decode_lock(bytes).map_err(Refused::Corrupt)?;
        let ahead = |holder: &Holder<'_>| !self.fences.accepts_from_stranger(holder.fence, now.ticks);
        if origin == Origin::Stranger && holders.iter().any(ahead) {
            return Err(Refused::FenceAhead);
        }
        let mut lock = Lock::new(place);
        // The bytes do not say, and nothing else does before it is over.
        lock.set_may_expire(true);
        for holder in &holders {
            self.fences.raise(holder.fence);
            put(&mut lock, holder.token.into(), holder.label.into(), holder.mode, Hold::new(holder, 0, now.instant));
        }
        Ok(self.insert(lock))
    }

    /// Follows a change the primary made.
    ///
    /// # Errors
    /// Bytes that are not a change.
    pub fn follow(&mut self, site: Site<'_>, bytes: &[u8], now: Now) -> Result<(), Corrupt> {
        let change = codec::decode(bytes)?;
        let known = site.lock.filter(|&handle| self.locks.get(handle).is_some());
        match change {
            Change::Set { holder, alone } => {
                if !bug("fences-of-the-primary-unknown") {
                    self.fences.raise(holder.fence);
                }
                let handle = known.unwrap_or_else(|| self.create(site.place));
                let mut hold = Hold::new(&holder, 0, now.instant);
                let mut same_fence = false;
                self.update(handle, |lock| {
                    if let Some(old) = lock.hold(holder.token.into()) {
                        hold.granted = old.granted;
                        same_fence = old.fence == holder.fence;
                    }
                    if alone {
                        lock.clear();
                    }
                    put(lock, holder.token.into(), holder.label.into(), holder.mode, hold);
                });
                self.push_set(handle, holder.fence, !same_fence);
            }
            Change::Removed(token) => {
                if let Some(handle) = known {
                    self.update(handle, |lock| {
                        lock.vacate(token.into());
                    });
                    self.effects.push(Effect::Unset(token.bytes().into()));
                }
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
        const LOCK_BYTES: usize = Slab::<Lock>::SLOT_BYTES + Deadlines::ENTRY_BYTES;
        self.locks.get(handle).map_or(0, |lock| LOCK_BYTES + lock.heap_bytes())
    }

    /// Takes in a lock that stands in the keyspace.
    fn insert(&mut self, lock: Lock) -> Handle {
        let end = lock.first_end();
        let handle = self.locks.insert(lock);
        self.held += 1;
        self.schedule_at(handle, Some(end));
        handle
    }

    /// A lock at `place` that nobody holds yet: the caller is about to give it a holder.
    fn create(&mut self, place: Place<'_>) -> Handle {
        let handle = self.insert(Lock::new(place));
        self.effects.push(Effect::Created(handle));
        handle
    }

    /// Tells of a holder that was set. Whether it is alone is decided now: others may join before this is carried out.
    fn push_set(&mut self, lock: Handle, fence: Fence, signal: bool) {
        let alone = self.locks.get(lock).is_some_and(|lock| lock.len() == 1);
        self.effects.push(Effect::Set { lock, fence, alone, signal });
    }

    fn remove(&mut self, handle: Handle) {
        self.schedule_at(handle, None);
        self.unbind_all(handle);
        if let Some(lock) = self.locks.remove(handle) {
            self.held -= usize::from(lock.linked());
        }
    }
}

/// Puts a holder into a lock, the way it holds it.
fn put(lock: &mut Lock, token: Packed<'_>, label: Packed<'_>, mode: Mode, hold: Hold) {
    match mode {
        Mode::Exclusive => lock.occupy(token, label, hold),
        Mode::Shared(limit) => lock.join(token, label, limit, hold),
    }
}
