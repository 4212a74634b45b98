//! What the server's own commands do to locks: they leave the keyspace and come back elsewhere, databases change
//! places, keys are evicted.

use super::Table;
use crate::core::name::Place;
use crate::core::slab::Handle;

impl Table {
    /// The server took this lock out of the keyspace: deleted, overwritten, or on its way to another key.
    pub fn unlinked(&mut self, handle: Handle) {
        if let Some(lock) = self.locks.get_mut(handle) {
            lock.set_linked(false);
            self.deadlines.remove(&(lock.end(), handle));
            self.unlinked = Some(handle);
        }
    }

    /// This lock stands at `place` now.
    pub fn linked(&mut self, handle: Handle, place: Place<'_>) {
        if let Some(lock) = self.locks.get_mut(handle) {
            lock.set_place(place);
            lock.set_linked(true);
            self.deadlines.insert((lock.end(), handle));
        }
    }

    /// This lock is not where it was last seen: flushed, and not freed yet.
    pub fn missing(&mut self, handle: Handle) {
        self.unlinked(handle);
        self.left_for_good();
    }

    /// Whatever left the keyspace last was not evicted.
    pub fn left_for_good(&mut self) {
        self.unlinked = None;
    }

    /// The server evicted the key at `place`, or let it expire by a TTL that is none of ours: if the lock there went
    /// with it, it is to be put back. Whether it did.
    pub fn evicted(&mut self, place: Place<'_>) -> bool {
        let Some(handle) = self.unlinked.take().filter(|_| self.serving.is_some()) else {
            return false;
        };
        let Some(lock) = self.locks.get(handle).filter(|lock| lock.place() == place && !lock.linked()) else {
            return false;
        };
        // The server frees the old handle on its own; the copy outlives it.
        let copy = self.locks.insert(lock.clone());
        self.evicted.push(copy);
        true
    }

    /// The evicted lock whose place this is: it still is held.
    pub fn find_evicted(&self, place: Place<'_>) -> Option<Handle> {
        self.evicted.iter().copied().find(|&handle| self.locks.get(handle).is_some_and(|lock| lock.place() == place))
    }

    /// Any evicted lock.
    pub fn first_evicted(&self) -> Option<Handle> {
        self.evicted.first().copied()
    }

    /// The evicted lock stands in the keyspace again.
    pub fn put_back(&mut self, handle: Handle) {
        self.evicted.retain(|&other| other != handle);
        if let Some(lock) = self.locks.get_mut(handle) {
            lock.set_linked(true);
            self.deadlines.insert((lock.end(), handle));
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

    /// An EXPIRE on a lock key was taken back.
    pub fn expire_undone(&mut self) {
        self.counts.expires_undone += 1;
    }

    /// The server flushed this database, or all of them: nothing that was evicted from it comes back.
    pub fn flushed(&mut self, db: Option<i32>) {
        let gone: Vec<Handle> = self
            .evicted
            .iter()
            .copied()
            .filter(|&handle| self.locks.get(handle).is_none_or(|lock| db.is_none_or(|db| lock.place().db == db)))
            .collect();
        for handle in gone {
            self.give_up(handle);
        }
    }

    /// Two databases changed places.
    pub fn swapped(&mut self, first: i32, second: i32) {
        for (_, lock) in self.locks.iter_mut() {
            let db = lock.place().db;
            if db == first {
                lock.set_db(second);
            } else if db == second {
                lock.set_db(first);
            }
        }
    }
}
