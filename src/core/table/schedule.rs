//! Which lock to look at next, and when: every lock in the keyspace under the end of the first of its leases.

use super::Table;
use crate::core::deadlines::Position;
use crate::core::lock::Lock;
use crate::core::slab::{Handle, Slab, SlotNumber};
use crate::core::time::Instant;
use crate::seeded::bug;

impl Table {
    /// When the next lease or wait ends, or the grace, or earlier: on a node that serves for less time than the lease.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.serving?;
        Instant::earliest([self.deadlines.first(), self.lines.next_end(), self.grace_end()])
    }

    /// As [`Table::next_deadline`], for one who knew it when this was last asked: of leases, what was set since then. It
    /// costs the same however many locks there are.
    pub fn take_sooner(&mut self) -> Option<Instant> {
        let sooner = self.sooner.take();
        self.serving?;
        Instant::earliest([sooner, self.lines.next_end(), self.grace_end()])
    }

    /// A lock whose lease is over; the caller opens its key and settles it, or forgets the lock if it is not there.
    pub fn next_due(&mut self, now: Instant) -> Option<Handle> {
        let serving = self.serving?;
        loop {
            let locks = &mut self.locks;
            let slot = self.deadlines.due(now, |moved, position| note(locks, moved, position))?;
            // A lock is taken from the deadlines before it goes.
            let handle = self.locks.handle_at(slot)?;
            let lock = self.locks.get_mut(handle)?;
            if lock.has_ended(serving.since, now) || lock.is_empty() {
                return Some(handle);
            }
            self.schedule(handle);
        }
    }

    /// Leaves a lock whose lease is over to the one who hands it over later: it is not due again.
    pub fn park(&mut self, handle: Handle) {
        self.schedule_at(handle, None);
    }

    /// Notes that a lock went into the keyspace or out of it.
    pub(super) fn set_linked(&mut self, handle: Handle, linked: bool) {
        let Some(lock) = self.locks.get_mut(handle) else { return };
        if lock.linked() == linked {
            return;
        }
        lock.set_linked(linked);
        self.held = if linked { self.held + 1 } else { self.held - 1 };
        self.schedule(handle);
    }

    /// Changes a lock under its deadline.
    pub(super) fn update(&mut self, handle: Handle, change: impl FnOnce(&mut Lock)) {
        if let Some(lock) = self.locks.get_mut(handle) {
            change(lock);
            if bug("change-without-a-deadline") {
                return;
            }
            self.schedule(handle);
        }
    }

    /// Puts the lock's next end among the deadlines.
    pub(super) fn schedule(&mut self, handle: Handle) {
        let at = self.locks.get(handle).filter(|lock| lock.linked()).map(Lock::first_end);
        self.schedule_at(handle, at);
    }

    pub(super) fn schedule_at(&mut self, handle: Handle, at: Option<Instant>) {
        let Some(position) = self.locks.get(handle).map(Lock::deadline) else { return };
        if self.deadlines.at(position) == at {
            return;
        }
        self.sooner = Instant::earliest([self.sooner, at]);
        let locks = &mut self.locks;
        self.deadlines.set(position, at, handle.slot(), |moved, position| note(locks, moved, position));
    }
}

/// A lock's place among the deadlines is another one now.
fn note(locks: &mut Slab<Lock>, moved: SlotNumber, position: Position) {
    if let Some(lock) = locks.at_mut(moved) {
        lock.set_deadline(position);
    }
}
