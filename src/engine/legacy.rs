//! Lines in front of locks of other libraries, by when each of those ends: the server alone would end it late.

use super::pump::Spot;
use crate::core::time::Instant;
use std::collections::{BTreeSet, HashMap};

/// So many are no burden, even if nobody waits for them any more.
const FEW: usize = 64;

/// The end of each legacy lock that somebody waits for, or waited for.
#[derive(Default)]
pub(super) struct Ends {
    of: HashMap<Spot, Instant>,
    in_order: BTreeSet<(Instant, Spot)>,
}

impl Ends {
    /// The legacy lock there ends at this instant, whatever was known of it.
    pub(super) fn set(&mut self, spot: Spot, end: Instant) {
        if let Some(before) = self.of.insert(spot.clone(), end) {
            self.in_order.remove(&(before, spot.clone()));
        }
        self.in_order.insert((end, spot));
    }

    /// Forgets those that nobody waits for any more, once there are more of these than of others: it costs a walk.
    pub(super) fn forget_unless(&mut self, waiters: usize, waited_for: impl Fn(&Spot) -> bool) {
        if self.of.len() <= 2 * waiters + FEW {
            return;
        }
        self.of.retain(|spot, _| waited_for(spot));
        self.in_order.retain(|(_, spot)| waited_for(spot));
    }

    /// When the next of them ends.
    pub(super) fn first(&self) -> Option<Instant> {
        self.in_order.first().map(|&(end, _)| end)
    }

    /// Takes out one that ended.
    pub(super) fn take_over(&mut self, now: Instant) -> Option<Spot> {
        self.first().filter(|&end| end <= now)?;
        let (_, spot) = self.in_order.pop_first()?;
        self.of.remove(&spot);
        Some(spot)
    }
}
