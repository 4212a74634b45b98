//! What the server's own commands do to locks: they leave the keyspace and come back elsewhere, databases change
//! places, keys are evicted.

use super::Table;
use crate::core::deadlines::Position;
use crate::core::fence::Fences;
use crate::core::hold::Delivery;
use crate::core::line::Walk;
use crate::core::lock::Lock;
use crate::core::name::Place;
use crate::core::slab::Handle;
use crate::core::time::Instant;
use crate::seeded::bug;
use std::collections::BTreeSet;

/// A walk over the lines of databases where something happened to every key.
pub(super) struct Sweep {
    dbs: BTreeSet<i32>,
    walk: Walk,
}

impl Table {
    /// The server took this lock out of the keyspace: deleted, overwritten, or on its way to another key.
    pub fn unlinked(&mut self, handle: Handle) {
        self.upheavals += 1;
        self.set_linked(handle, false);
        if let Some(lock) = self.locks.get(handle) {
            let place = lock.place();
            if self.lines.count(place) > 0 && !bug("no-wake-up-on-del") {
                self.stirred.insert((place.db, place.key.into()));
            }
            self.unlinked = Some(handle);
        }
    }

    /// This lock is found at `place`. Those who wait there know of it already, or learn of it as it is settled. Whether it
    /// was not known to stand in the keyspace: then it has a deadline again.
    pub fn linked(&mut self, handle: Handle, place: Place<'_>) -> bool {
        let Some(lock) = self.locks.get_mut(handle) else { return false };
        lock.set_place(place);
        let is_news = !lock.linked();
        if is_news {
            self.set_linked(handle, true);
        }
        is_news
    }

    /// This lock came to `place`.
    pub fn came(&mut self, handle: Handle, place: Place<'_>) {
        self.upheavals += 1;
        self.linked(handle, place);
        self.lines.set_lock(place, handle);
    }

    /// A number that stays as it is while every lock stands where it was, as far as others than this table go.
    pub const fn upheavals(&self) -> u64 {
        self.upheavals
    }

    /// Something happened at a place: if anybody waits there, it is looked at.
    pub fn stir_place(&mut self, place: Place<'_>) {
        if self.lines.count(place) > 0 && !bug("no-wake-up-on-del") {
            self.stirred.insert((place.db, place.key.into()));
        }
    }

    /// Whether something happened where somebody waits.
    pub fn is_stirred(&self) -> bool {
        !self.stirred.is_empty() || !self.stirred_dbs.is_empty() || self.sweep.is_some()
    }

    /// A place where the next in line may have its turn. One at a time: a flush stirs all lines that there are.
    pub fn next_stirred(&mut self) -> Option<(i32, Box<[u8]>)> {
        if let Some(place) = self.stirred.pop_first() {
            return Some(place);
        }
        loop {
            if self.sweep.is_none() && !self.stirred_dbs.is_empty() {
                self.sweep = Some(Sweep { dbs: std::mem::take(&mut self.stirred_dbs), walk: Walk::default() });
            }
            let sweep = self.sweep.as_mut()?;
            match self.lines.next_place(sweep.walk) {
                Some((place, walk)) => {
                    sweep.walk = walk;
                    if sweep.dbs.contains(&place.db) {
                        return Some((place.db, place.key.into()));
                    }
                }
                None => self.sweep = None,
            }
        }
    }

    /// Something happened to every key of a database (`None`: of all).
    pub fn stir(&mut self, db: Option<i32>) {
        self.stirred_dbs.extend(self.lines.dbs().filter(|&here| db.is_none_or(|db| db == here)));
    }

    /// Whatever left the keyspace last left for good, or went elsewhere: what is evicted from there later is something
    /// else.
    pub fn left_for_good(&mut self) {
        self.unlinked = None;
    }

    /// Whether a lock left the keyspace and nothing said why yet.
    pub const fn has_left(&self) -> bool {
        self.unlinked.is_some()
    }

    /// This lock is not where it was last seen: flushed, and not freed yet.
    pub fn missing(&mut self, handle: Handle) {
        self.unlinked(handle);
        self.left_for_good();
    }

    /// The server evicted the key at `place`: if the lock there went with it, it is to be put back. Whether it did.
    pub fn evicted(&mut self, place: Place<'_>) -> bool {
        self.keep_lost(place, |_| true)
    }

    /// As [`Table::evicted`], for a key whose time to live was over. A lock's key has one only if somebody gave it.
    pub fn expired(&mut self, place: Place<'_>) -> bool {
        self.keep_lost(place, Lock::may_expire)
    }

    fn keep_lost(&mut self, place: Place<'_>, possible: impl FnOnce(&Lock) -> bool) -> bool {
        let Some(handle) = self.unlinked.take().filter(|_| self.serving.is_some() && !bug("eviction-frees")) else {
            return false;
        };
        let Some(lock) = self.locks.get(handle).filter(|lock| lock.place() == place && !lock.linked()) else {
            return false;
        };
        if !possible(lock) {
            return false;
        }
        // The server frees the old handle on its own; the copy outlives it.
        let mut copy = lock.clone();
        copy.set_deadline(Position::NONE);
        // A reply that is still on its way names the value that is gone: it will not be delivered.
        copy.update_all(|hold| {
            if hold.delivery == Delivery::Untold {
                hold.void(Instant::from_micros(0));
            }
        });
        let copy = self.locks.insert(copy);
        self.lines.set_lock(place, copy);
        if self.has_bound() {
            self.bind_copy(copy);
        }
        self.evicted.push(copy);
        true
    }

    /// The evicted lock whose place this is: it still is held.
    pub fn find_evicted(&self, place: Place<'_>) -> Option<Handle> {
        self.evicted.iter().copied().find(|&handle| self.locks.get(handle).is_some_and(|lock| lock.place() == place))
    }

    /// All evicted locks.
    pub fn all_evicted(&self) -> Vec<Handle> {
        self.evicted.clone()
    }

    /// Any evicted lock.
    pub fn first_evicted(&self) -> Option<Handle> {
        self.evicted.first().copied()
    }

    /// The evicted lock stands in the keyspace again.
    pub fn put_back(&mut self, handle: Handle) {
        self.evicted.retain(|&other| other != handle);
        if let Some(lock) = self.locks.get_mut(handle) {
            lock.set_may_expire(false);
            self.set_linked(handle, true);
            self.counts.evictions_undone += 1;
        }
    }

    /// The evicted lock cannot be put back: something else took its key. Does nothing if it was.
    pub fn give_up_if_evicted(&mut self, handle: Handle) {
        if self.evicted.contains(&handle) {
            self.give_up(handle);
        }
    }

    fn give_up(&mut self, handle: Handle) {
        self.evicted.retain(|&other| other != handle);
        self.remove(handle);
    }

    /// Nothing that was evicted comes back.
    pub(super) fn drop_evicted(&mut self) {
        while let Some(handle) = self.first_evicted() {
            self.give_up(handle);
        }
    }

    /// Somebody gave the lock's key a time to live.
    pub fn expire_set(&mut self, handle: Handle) {
        if let Some(lock) = self.locks.get_mut(handle) {
            lock.set_may_expire(true);
        }
    }

    /// An EXPIRE on the lock's key was taken back.
    pub fn expire_undone(&mut self, handle: Handle) {
        if let Some(lock) = self.locks.get_mut(handle) {
            lock.set_may_expire(false);
        }
        self.counts.expires_undone += 1;
    }

    /// The server flushed this database, or all of them: nothing that was evicted from it comes back.
    pub fn flushed(&mut self, db: Option<i32>) {
        self.upheavals += 1;
        let gone: Vec<Handle> = self
            .evicted
            .iter()
            .copied()
            .filter(|&handle| self.locks.get(handle).is_none_or(|lock| db.is_none_or(|db| lock.place().db == db)))
            .collect();
        for handle in gone {
            self.give_up(handle);
        }
        if bug("fences-flushed") {
            self.fences = Fences::default();
        }
        self.lines.forget_locks(db);
        self.stir(db);
    }

    /// Two databases changed places.
    pub fn swapped(&mut self, first: i32, second: i32) {
        self.upheavals += 1;
        let mut parked = Vec::new();
        for (handle, lock) in self.locks.iter_mut() {
            let db = lock.place().db;
            if db == first {
                lock.set_db(second);
            } else if db == second {
                lock.set_db(first);
            }
            if lock.linked() || self.evicted.contains(&handle) {
                self.lines.set_lock(lock.place(), handle);
            }
            if lock.deadline() == Position::NONE {
                parked.push(handle);
            }
        }
        // Whoever parked a lock comes back to where it stood.
        parked.into_iter().for_each(|handle| self.schedule(handle));
        self.stir(Some(first));
        self.stir(Some(second));
    }
}
