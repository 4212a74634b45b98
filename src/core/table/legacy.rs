//! Locks that clients of other libraries took: strings with a time to live, which the server keeps and ends by itself.
//! Their holder can release and extend them here, so a fleet moves over service by service.

use super::{Effect, Ended, ExtendOutcome, Legacy, ReleaseOutcome, Site, Table};
use crate::core::name::{HoldName, Token};
use crate::core::time::{Lease, Now};

impl Table {
    /// Makes the time to live at least this long. Without a length it stays: the string does not say what its own was.
    pub(super) fn extend_legacy(
        &mut self,
        legacy: Legacy<'_>,
        token: Token<'_>,
        lease: Option<Lease>,
    ) -> ExtendOutcome {
        if legacy.value != token.bytes() {
            return ExtendOutcome::NotHeld;
        }
        match lease.map(Lease::ms).filter(|&ms| ms > legacy.ttl_ms) {
            Some(ms) => {
                self.effects.push(Effect::LegacyExtended(ms));
                ExtendOutcome::Extended(ms)
            }
            None => ExtendOutcome::Extended(legacy.ttl_ms),
        }
    }

    /// Deletes the string if it is the token, and gives the lock to the next in line. It has no named holds.
    pub(super) fn release_legacy(
        &mut self,
        site: Site<'_>,
        legacy: Legacy<'_>,
        token: Token<'_>,
        name: Option<HoldName<'_>>,
        now: Now,
    ) -> ReleaseOutcome {
        if legacy.value != token.bytes() {
            self.counts.late_taken += 1;
            return ReleaseOutcome::Taken;
        }
        if name.is_some() {
            return ReleaseOutcome::Free;
        }
        self.counts.released += 1;
        self.effects.extend([Effect::LegacyRemoved, Effect::Ended(Ended::Released)]);
        self.serve(None, site.place, now);
        ReleaseOutcome::Released
    }
}
