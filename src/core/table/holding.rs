//! Acquire, extend, release and check: the rules of holding a lock.

use super::waiting::{Limits, Wait};
use super::{put, Effect, Ended, Site, Table};
use crate::core::fence::Fence;
use crate::core::hold::{Delivery, Hold, Holder, Mode};
use crate::core::lock::Lock;
use crate::core::name::{HoldName, Label, Place, Token};
use crate::core::packed::Packed;
use crate::core::slab::Handle;
use crate::core::time::{Instant, Lease, Now};
use crate::seeded::bug;
use std::borrow::Cow;

/// What a hold is to be like.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// How the lock is to be held.
    pub mode: Mode,
    /// Whether a hold the token has is to change its mode.
    pub turn: Turn,
    /// For how long.
    pub lease: Lease,
    /// Name of the hold.
    pub name: Option<HoldName<'a>>,
    /// How long the hold may last whatever is done, in ms.
    pub cap_ms: Option<u64>,
    /// Whether the hold ends with the connection.
    pub ephemeral: bool,
}

impl<'a> Ask<'a> {
    /// A new hold as it is asked for.
    pub(super) fn holder(&self, token: Token<'a>, fence: Fence, label: Label<'a>) -> Holder<'a> {
        Holder {
            token,
            fence,
            lease: self.lease,
            label,
            mode: self.mode,
            unnamed: self.name.is_none(),
            names: self.name.into_iter().collect(),
            cap_ms: self.cap_ms,
        }
    }
}

/// A change of mode. Without one a mode never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// None.
    No,
    /// From shared to exclusive.
    Upgrade,
    /// From exclusive to shared.
    Downgrade,
}

/// A request for a lock.
#[derive(Clone, Copy, Debug)]
pub struct Acquire<'a> {
    /// Who asks.
    pub token: Token<'a>,
    /// For what.
    pub ask: Ask<'a>,
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
        /// Whether this call took the lock, or the named hold; not if the token had it already.
        new: bool,
    },
    /// Another token holds the lock or is ahead in line. A poll keeps its place.
    Held,
    /// The token waits in line and is answered at its seat.
    Waits(Handle),
    /// The token shares the lock, and did not ask for an upgrade.
    HeldShared,
    /// The token does not hold the lock whose mode it wants to change.
    NotHeld,
    /// The wait would never end.
    Deadlock,
    /// As many wait as may.
    TooMany,
    /// The token has as many holds of the lock as it may.
    TooManyHolds,
    /// Nothing but the grace stands against it, for so many ms more.
    Grace(u64),
    /// All fences are used up.
    NoFence,
}

/// The answer to [`Table::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// This call ended the hold, or gave the named hold back.
    Released,
    /// There was nothing to release.
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
    /// The floor is above H and more than a day ahead of the clock.
    FloorAhead,
}

impl Table {
    /// Takes the lock for the token, repeats its grant, or lets it wait.
    pub fn acquire(&mut self, site: Site<'_>, request: &Acquire<'_>, now: Now) -> Acquired {
        if site.legacy.is_some() {
            return match request.ask.turn {
                Turn::No => self.wait_or_refuse(None, site.place, request, now.instant),
                Turn::Upgrade | Turn::Downgrade => Acquired::NotHeld,
            };
        }
        let settled = self.settle(site, now);
        let lock = settled.and_then(|handle| Some((handle, self.locks.get(handle)?)));
        let Some((handle, lock)) = lock else {
            return match request.ask.turn {
                Turn::No if self.in_grace(now.instant) => self.wait_out_grace(None, site.place, request, now.instant),
                Turn::No => self.grant(None, site.place, request, now),
                Turn::Upgrade | Turn::Downgrade => Acquired::NotHeld,
            };
        };
        if lock.is_held_by(request.token.into()) {
            return self.acquire_again(handle, lock.is_exclusive(), site.place, request, now);
        }
        if request.ask.turn != Turn::No {
            return Acquired::NotHeld;
        }
        let admitted = self.occupancy(Some(lock), now.instant).admits(request.ask.mode);
        if admitted && self.in_grace(now.instant) {
            return self.wait_out_grace(Some(handle), site.place, request, now.instant);
        }
        let is_next = || self.lines.first(site.place) == self.lines.find(site.place, request.token.bytes());
        if admitted && (is_next() || bug("barge-past-the-line")) {
            let answer = self.grant(Some(handle), site.place, request, now);
            if matches!(answer, Acquired::Granted { .. }) {
                // One that is first in line waited for a mode that it cannot have yet.
                self.supersede(site.place, request.token);
                self.serve(Some(handle), site.place, now);
            }
            return answer;
        }
        self.wait_or_refuse(Some(handle), site.place, request, now.instant)
    }

    /// Whether a try of this token comes to nothing at first sight: another one holds the lock alone, and nobody waits
    /// for it. Counts the try if so; nothing else follows.
    pub fn turns_away(&mut self, site: Site<'_>, token: Token<'_>, now: Instant) -> bool {
        let lock = site.lock.and_then(|handle| self.locks.get(handle));
        let held =
            lock.is_some_and(|lock| lock.is_exclusive() && lock.first_end() > now && !lock.is_held_by(token.into()));
        let away = held && (self.lines.is_empty() || self.lines.at(site.place).is_none());
        self.counts.refused += u64::from(away);
        away
    }

    pub(super) fn wait_or_refuse(
        &mut self,
        held: Option<Handle>,
        place: Place<'_>,
        request: &Acquire<'_>,
        now: Instant,
    ) -> Acquired {
        let answer = self.wait(held, place, request, now);
        self.counts.refused += u64::from(answer == Acquired::Held);
        answer
    }

    /// An upgrade that was not fetched in time is over: its token has the shared hold it had before.
    pub(super) fn lapse_upgrade(&mut self, site: Site<'_>, token: Packed<'_>, now: Now) {
        let hold = site.lock.and_then(|handle| self.locks.get(handle)?.hold(token));
        let upgrade = hold.filter(|hold| hold.delivery == Delivery::Unfetched && hold.before_upgrade().is_some());
        if upgrade.is_some_and(|hold| self.is_over(&hold, now.instant)) {
            self.settle(site, now);
        }
    }

    fn grant(&mut self, lock: Option<Handle>, place: Place<'_>, request: &Acquire<'_>, now: Now) -> Acquired {
        let Some(fence) = self.fences.issue(now.ticks) else {
            return Acquired::NoFence;
        };
        let Acquire { token, label, client, ask, .. } = *request;
        let holder = ask.holder(token, fence, label);
        let hold = Hold::new(&holder, client, now.instant);
        let ttl_ms = self.ms_left(&hold, now.instant);
        let handle = match lock {
            None => {
                let handle = self.insert(Lock::held_by_one(place, token.into(), label.into(), ask.mode, hold));
                self.effects.push(Effect::Created(handle));
                handle
            }
            Some(handle) => {
                self.update(handle, |lock| put(lock, token.into(), label.into(), ask.mode, hold));
                handle
            }
        };
        if ask.ephemeral {
            self.bind(handle, token.into(), client, true);
        }
        self.push_set(handle, fence, true);
        self.effects.push(Effect::Acquired);
        self.counts.granted += 1;
        Acquired::Granted { fence, ttl_ms, new: true }
    }

    pub(super) fn repeat(&mut self, handle: Handle, request: &Acquire<'_>, now: Now) -> Acquired {
        let token = Packed::from(request.token);
        let Some(hold) = self.locks.get(handle).and_then(|lock| lock.hold(token)) else {
            return Acquired::Held;
        };
        let (mut fence, untold) = (hold.fence, hold.delivery != Delivery::Told);
        // An older node may have given the same number to another holder that was lost with it.
        let predates =
            self.serving.is_some_and(|serving| fence.get() <= serving.floor) && !bug("fence-kept-by-promotion");
        if predates {
            match self.fences.issue(now.ticks) {
                Some(issued) => fence = issued,
                None => return Acquired::NoFence,
            }
            self.update(handle, |lock| lock.update(token, |hold| hold.fence = fence));
        }
        let adjusted = self.adjust(handle, token, &request.ask, now.instant);
        self.told(handle, token);
        self.bind(handle, token, request.client, request.ask.ephemeral);
        if predates || adjusted.added || adjusted.changed {
            self.push_set(handle, fence, predates || adjusted.added);
        }
        let new = adjusted.added || untold;
        self.counts.repeated += u64::from(!new);
        Acquired::Granted { fence, ttl_ms: self.left_of(handle, token, now.instant), new }
    }

    /// Makes the token's lease at least this long from now, or its own length again. Never shorter, never a new hold.
    /// A floor raises the fence to it if that is higher.
    pub fn extend(
        &mut self,
        site: Site<'_>,
        token: Token<'_>,
        lease: Option<Lease>,
        floor: Option<Fence>,
        now: Now,
    ) -> ExtendOutcome {
        if let Some(legacy) = site.legacy {
            return self.extend_legacy(legacy, token, lease);
        }
        let token = Packed::from(token);
        self.lapse_upgrade(site, token, now);
        let Some((handle, hold)) = self.held_by(site, token, now.instant) else {
            floor.filter(|_| bug("floor-of-a-stranger")).into_iter().for_each(|floor| self.fences.raise(floor));
            self.settle(site, now);
            return ExtendOutcome::NotHeld;
        };
        if floor.is_some_and(|floor| !self.fences.accepts_from_stranger(floor, now.ticks)) {
            return ExtendOutcome::FloorAhead;
        }
        let (own, before) = (hold.lease, hold.fence);
        let fence = floor.map_or(before, |floor| floor.max(before));
        self.fences.raise(fence);
        self.update(handle, |lock| lock.update(token, |hold| hold.fence = fence));
        let raised = self.raise_lease(handle, token, lease.unwrap_or(own), now.instant);
        self.told(handle, token);
        if raised || fence != before {
            self.push_set(handle, fence, fence != before);
        }
        ExtendOutcome::Extended(self.left_of(handle, token, now.instant))
    }

    /// Ends the token's hold, or gives one named hold back, and ends the token's wait.
    pub fn release(
        &mut self,
        site: Site<'_>,
        token: Token<'_>,
        name: Option<HoldName<'_>>,
        now: Now,
    ) -> ReleaseOutcome {
        let withdrawn = self.withdraw(site.place, token, name);
        if let Some(legacy) = site.legacy {
            return self.release_legacy(site, legacy, token, name, now);
        }
        let token = Packed::from(token);
        let Some(handle) = self.settle(site, now) else {
            self.counts.late_free += u64::from(!withdrawn);
            return ReleaseOutcome::Free;
        };
        if !self.locks.get(handle).is_some_and(|lock| lock.is_held_by(token)) {
            self.counts.late_taken += u64::from(!withdrawn);
            return ReleaseOutcome::Taken;
        }
        if let Some(name) = name {
            let (mut taken, mut left, mut fence) = (false, 0, None);
            self.update(handle, |lock| {
                lock.update(token, |hold| {
                    taken = hold.take(name);
                    left = hold.count();
                    fence = Some(hold.fence);
                });
            });
            if !taken {
                return ReleaseOutcome::Free;
            }
            if let Some(fence) = fence.filter(|_| left > 0 && !bug("one-hold-back-is-all-back")) {
                self.heard(handle, token, now.instant);
                self.push_set(handle, fence, true);
                return ReleaseOutcome::Released;
            }
        }
        self.end_hold(Site { lock: Some(handle), ..site }, token, Ended::Released);
        if !bug("no-hand-over-at-release") {
            self.serve(Some(handle), site.place, now);
        }
        ReleaseOutcome::Released
    }

    /// Milliseconds left if the token holds the lock, else 0.
    pub fn check(&mut self, site: Site<'_>, token: Token<'_>, now: Instant) -> u64 {
        if let Some(legacy) = site.legacy {
            return if legacy.value == token.bytes() { legacy.ttl_ms } else { 0 };
        }
        let token = Packed::from(token);
        let Some((handle, hold)) = self.held_by(site, token, now) else { return 0 };
        let (left_ms, untold) = (self.ms_left(&hold, now), hold.delivery == Delivery::Untold);
        if untold {
            self.told(handle, token);
        }
        left_ms
    }

    /// The lock if it is held at this instant, for those who only look.
    pub fn look(&self, site: Site<'_>, now: Instant) -> Option<&Lock> {
        let lock = site.lock.and_then(|handle| self.locks.get(handle))?;
        lock.holders().any(|seen| self.ms_left(&seen.hold, now) > 0).then_some(lock)
    }

    /// This node does not own the lock's slot yet, or does so only now: every lease starts anew. Whether one is over
    /// all the same: at its cap. A grant that is to be fetched, or to be taken back, was made here, and has no lease yet.
    pub fn hold_back(&mut self, handle: Handle, now: Instant) -> bool {
        self.update(handle, |lock| {
            lock.update_all(|hold| {
                if hold.delivery != Delivery::Unfetched {
                    hold.end_at(hold.end.max(now.after(hold.lease)));
                }
            });
        });
        self.locks.get(handle).is_some_and(|lock| lock.first_end() <= now)
    }

    pub(super) fn left_of(&self, handle: Handle, token: Packed<'_>, now: Instant) -> u64 {
        let hold = self.locks.get(handle).and_then(|lock| lock.hold(token));
        hold.map_or(0, |hold| self.ms_left(&hold, now))
    }

    pub(super) fn held_by(&self, site: Site<'_>, token: Packed<'_>, now: Instant) -> Option<(Handle, Cow<'_, Hold>)> {
        let handle = site.lock?;
        let hold = self.locks.get(handle)?.hold(token)?;
        (self.ms_left(&hold, now) > 0 || bug("extend-revives")).then_some((handle, hold))
    }

    /// Moves the end of the lease out, as far as the cap allows, and starts the lease of a grant that is fetched only
    /// now, at the length its poll asked for at least. Whether the saved form of the holder changed.
    pub(super) fn raise_lease(&mut self, handle: Handle, token: Packed<'_>, lease: Lease, now: Instant) -> bool {
        let since = self.serving.map(|serving| serving.since);
        let end_of = |hold: &Hold| since.map_or(hold.end, |since| hold.end_since(since));
        let mut changed = false;
        self.update(handle, |lock| {
            lock.update(token, |hold| {
                let (mut lease, mut end) = (lease, end_of(hold));
                if hold.delivery == Delivery::Unfetched {
                    lease = lease.max(hold.lease);
                    end = hold.before_upgrade().map_or(now, |before| end_of(&before.hold));
                    hold.delivery = Delivery::Told;
                    hold.end = end;
                }
                let longer = now.after(lease) > end || bug("repeat-shortens-lease");
                if longer && hold.cap().is_none_or(|cap| end < cap) {
                    changed = hold.lease != lease;
                    hold.lease = lease;
                    hold.end_at(now.after(lease));
                }
            });
        });
        changed
    }
}
