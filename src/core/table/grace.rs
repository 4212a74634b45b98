//! The time in which this node gives no locks out, because what it knows may be older than what was granted: from the
//! start of the process or its promotion on. Nothing that adds a holder or makes a hold stronger succeeds meanwhile.
//! Who holds a lock keeps it, and who waits goes on waiting.

use super::holding::{Acquire, Acquired};
use super::Table;
use crate::core::name::Place;
use crate::core::slab::Handle;
use crate::core::time::Instant;
use crate::seeded::bug;

/// When this node gives no locks out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Grace {
    /// How long, in ms.
    length_ms: u64,
    /// Since when it counts; not on a replica.
    since: Option<Instant>,
    /// Whether its end was not noted yet.
    running: bool,
}

impl Grace {
    fn end(&self) -> Option<Instant> {
        Some(self.since?.after_ms(self.length_ms))
    }

    fn lasts(&self, now: Instant) -> bool {
        self.end().is_some_and(|end| now < end)
    }
}

impl Table {
    /// The process started as a primary, or this node was promoted: the grace counts from here.
    pub fn begin_grace(&mut self, now: Instant) {
        self.grace.since = Some(now);
        self.grace.running = self.grace.lasts(now);
    }

    /// Sets how long the grace is, in ms. Its end moves to its start and so much; one that is over can begin again.
    /// Whether the length changed.
    pub fn set_grace_ms(&mut self, ms: u64, now: Instant) -> bool {
        let changed = self.grace.length_ms != ms;
        self.grace.length_ms = ms;
        self.grace.running |= self.grace.lasts(now);
        changed
    }

    /// This node is no primary any more: it gives no locks out anyway.
    pub fn drop_grace(&mut self) {
        self.grace = Grace { length_ms: self.grace.length_ms, ..Grace::default() };
    }

    /// Notes the end of a grace that was not noted yet: whoever is first in line anywhere may have its turn. Whether it
    /// ended.
    pub fn end_grace(&mut self, now: Instant) -> bool {
        if !self.grace.running || self.grace.lasts(now) {
            return false;
        }
        self.grace.running = false;
        self.stir(None);
        true
    }

    /// Milliseconds until locks are given out, rounded up; 0 if they are.
    pub fn grace_left_ms(&self, now: Instant) -> u64 {
        self.grace.end().map_or(0, |end| now.ms_until_over(end))
    }

    /// When the grace ends, if its end is still to be noted.
    pub(super) fn grace_end(&self) -> Option<Instant> {
        self.grace.end().filter(|_| self.grace.running)
    }

    /// Whether no locks are given out.
    pub(super) fn in_grace(&self, now: Instant) -> bool {
        self.grace.lasts(now) && !bug("grace-ignored")
    }

    /// Answers a request that only the grace stands against: a wait joins the line.
    pub(super) fn wait_out_grace(
        &mut self,
        held: Option<Handle>,
        place: Place<'_>,
        request: &Acquire<'_>,
        now: Instant,
    ) -> Acquired {
        match self.wait(held, place, request, now) {
            Acquired::Held => Acquired::Grace(self.grace_left_ms(now)),
            other => other,
        }
    }
}
