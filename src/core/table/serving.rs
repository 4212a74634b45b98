//! Ending holds, and giving the lock to the next in line. Both happen in one step, in place: a lock is never free while
//! somebody waits for it, so nothing barges past a line.

use super::holding::{Acquire, Acquired};
use super::waiting::{Answer, Limits, Wait};
use super::{put, Effect, Ended, Site, Table};
use crate::core::deadlines::Position;
use crate::core::fence::Fence;
use crate::core::hold::{Delivery, Hold, Mode};
use crate::core::line::Waiter;
use crate::core::lock::Lock;
use crate::core::name::{Label, Place, Token};
use crate::core::packed::Packed;
use crate::core::slab::Handle;
use crate::core::time::{Instant, Now};
use crate::seeded::bug;

/// Who holds a lock, as far as others are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occupancy {
    Free,
    Exclusive,
    Shared { count: usize, smallest_limit: Option<u32> },
}

impl Occupancy {
    /// Whether one more holder may come in this way.
    pub(super) fn admits(self, mode: Mode) -> bool {
        match (self, mode) {
            (Self::Free, _) => true,
            (Self::Exclusive, Mode::Shared(_)) if bug("shared-beside-exclusive") => true,
            (Self::Shared { count, smallest_limit }, Mode::Shared(limit)) => {
                let smallest = limit.into_iter().chain(smallest_limit).min();
                smallest.is_none_or(|smallest| count < smallest as usize + usize::from(bug("one-more-than-the-limit")))
            }
            _ => false,
        }
    }

    /// With one more who holds the lock this way.
    pub(super) fn with(self, mode: Mode) -> Self {
        match (self, mode) {
            (Self::Exclusive, _) | (_, Mode::Exclusive) => Self::Exclusive,
            (Self::Free, Mode::Shared(limit)) => Self::Shared { count: 1, smallest_limit: limit },
            (Self::Shared { count, smallest_limit }, Mode::Shared(limit)) => {
                Self::Shared { count: count + 1, smallest_limit: limit.into_iter().chain(smallest_limit).min() }
            }
        }
    }
}

impl Table {
    /// Brings a lock up to date: holds whose lease is over end, and whoever is next in line gets what is free. Gives
    /// back the lock if it is held.
    pub fn settle(&mut self, site: Site<'_>, now: Now) -> Option<Handle> {
        if site.legacy.is_some() {
            return None;
        }
        let handle = site.lock.filter(|&handle| self.locks.get(handle).is_some());
        let ending = if bug("lease-ends-1-ms-early") { now.instant.after_ms(1) } else { now.instant };
        if let (Some(handle), Some(serving)) = (handle, self.serving) {
            while self.locks.get_mut(handle)?.has_ended(serving.since, ending) {
                let seen = self.locks.get(handle)?.first_to_end()?;
                let (token, unfetched) = (Box::<[u8]>::from(&*seen.token), seen.hold.delivery == Delivery::Unfetched);
                match seen.hold.before_upgrade() {
                    Some(_) if unfetched => self.fall_back(handle, Packed::of(&token)),
                    _ => self.end_hold(
                        site,
                        Packed::of(&token),
                        if unfetched { Ended::TakenBack } else { Ended::LeaseEnded },
                    ),
                }
            }
        }
        let held = self.serve(handle, site.place, now)?;
        if self.locks.get(held).is_some_and(|lock| lock.deadline() == Position::NONE) {
            // It was parked for a hand-over that came to nothing.
            self.schedule(held);
        }
        Some(held)
    }

    /// Whether [`Table::settle`] would give the lock to somebody who waits.
    pub fn would_hand_over(&self, site: Site<'_>, now: Instant) -> bool {
        let first = self.lines.first(site.place).and_then(|first| self.lines.get(first));
        first.filter(|_| site.legacy.is_none()).is_some_and(|first| {
            let lock = site.lock.and_then(|handle| self.locks.get(handle));
            self.admits(lock, first, now)
        })
    }

    fn admits(&self, lock: Option<&Lock>, waiter: &Waiter, now: Instant) -> bool {
        if waiter.upgrade {
            // Alone, or without a hold to upgrade any more: both end the wait.
            let Some(lock) = lock.filter(|lock| lock.is_held_by(waiter.token.packed())) else { return true };
            let mut others = lock.holders().filter(|seen| *seen.token != *waiter.token);
            let alone = bug("upgrade-beside-readers") || others.all(|seen| self.is_over(&seen.hold, now));
            return alone && !self.in_grace(now);
        }
        // One that came to hold the lock in another way waits for nothing any more.
        let holds = lock.is_some_and(|lock| lock.is_held_by(waiter.token.packed()));
        (holds || self.occupancy(lock, now).admits(waiter.mode)) && !self.in_grace(now)
    }

    /// Who holds the lock, not counting holds whose lease is over.
    pub(super) fn occupancy(&self, lock: Option<&Lock>, now: Instant) -> Occupancy {
        let Some(lock) = lock.filter(|lock| !lock.is_empty()) else { return Occupancy::Free };
        let all_live = lock.first_end() > now;
        if all_live && lock.is_exclusive() {
            return Occupancy::Exclusive;
        }
        if all_live {
            return Occupancy::Shared { count: lock.len(), smallest_limit: lock.smallest_limit() };
        }
        let live = lock.holders().filter(|seen| !self.is_over(&seen.hold, now));
        live.fold(Occupancy::Free, |occupancy, seen| occupancy.with(seen.mode))
    }

    /// Takes the token's hold away. The caller serves the line next.
    pub(super) fn end_hold(&mut self, site: Site<'_>, token: Packed<'_>, why: Ended) {
        let Some(handle) = site.lock else { return };
        self.unbind_ended(handle, token);
        let others_stay = self.locks.get_mut(handle).is_some_and(|lock| {
            lock.vacate(token);
            !lock.is_empty()
        });
        // A lock that nobody holds now is freed or handed over next, and only that moves its deadline.
        if others_stay {
            self.schedule(handle);
            self.effects.extend((!bug("one-holder-stays-on-replicas")).then(|| Effect::Unset(token.given().into())));
        }
        self.effects.push(Effect::Ended(why));
        match why {
            Ended::Released => self.counts.released += 1,
            Ended::LeaseEnded => self.counts.leases_ended += 1,
            Ended::TakenBack => self.counts.taken_back += 1,
        }
    }

    /// Gives what is free to whoever is next in line, and frees the lock if nobody holds it then.
    pub(super) fn serve(&mut self, handle: Option<Handle>, place: Place<'_>, now: Now) -> Option<Handle> {
        let mut handle = handle;
        let line = if self.lines.is_empty() { None } else { self.lines.at(place) };
        while let Some(first) = line.and_then(|line| self.lines.first_in(line)) {
            let lock = handle.and_then(|handle| self.locks.get(handle));
            if !self.lines.get(first).is_some_and(|first| self.admits(lock, first, now.instant)) {
                break;
            }
            let Some(waiter) = self.lines.leave(first) else { break };
            handle = self.serve_one(waiter, handle, now);
        }
        let handle = handle?;
        if self.locks.get(handle).is_some_and(Lock::is_empty) {
            self.remove(handle);
            self.effects.push(Effect::Removed);
            return None;
        }
        if let Some(line) = line {
            self.lines.set_lock_of(line, handle);
        }
        Some(handle)
    }

    fn serve_one(&mut self, waiter: Waiter, handle: Option<Handle>, now: Now) -> Option<Handle> {
        let holds =
            handle.and_then(|handle| self.locks.get(handle)).is_some_and(|lock| lock.is_held_by(waiter.token.packed()));
        let lost = waiter.upgrade && !holds;
        if waiter.seat.is_none() && waiter.until.is_some_and(|until| until <= now.instant) || lost {
            self.counts.waits_ended_empty += 1;
            self.effects.extend(waiter.seat.map(|seat| Effect::Answer(seat, Answer::NotHeld)));
            return handle;
        }
        let exclusive = handle.and_then(|handle| self.locks.get(handle)).is_some_and(Lock::is_exclusive);
        if let Some(held) = handle.filter(|_| holds && (exclusive || !waiter.upgrade)) {
            self.tell_again(&waiter, held, now);
            return handle;
        }
        let Some(fence) = self.fences.issue(now.ticks) else {
            self.counts.waits_ended_empty += 1;
            self.effects.extend(waiter.seat.map(|seat| Effect::Answer(seat, Answer::NoFence)));
            return handle;
        };
        let handle = handle.unwrap_or_else(|| self.create(waiter.place()));
        self.hand_to(waiter, fence, handle, now);
        Some(handle)
    }

    /// The lock that the waiter's token holds came to where it waits (RENAME, RESTORE, SWAPDB): it is told of what it has.
    /// A poll asks by itself.
    fn tell_again(&mut self, waiter: &Waiter, handle: Handle, now: Now) {
        self.counts.waits_ended_empty += 1;
        let (Some(seat), Some(token)) = (waiter.seat, Token::new(&waiter.token)) else { return };
        let exclusive = self.locks.get(handle).is_some_and(Lock::is_exclusive);
        if !exclusive && waiter.mode == Mode::Exclusive {
            self.effects.push(Effect::Answer(seat, Answer::HeldShared));
            return;
        }
        let request = Acquire {
            token,
            ask: waiter.ask(),
            label: Label::cut(&waiter.label),
            client: waiter.client,
            wait: Wait::No,
            limits: Limits { blocked: 0, polled: 0 },
        };
        let answer = match self.repeat(handle, &request, now) {
            Acquired::Granted { fence, ttl_ms, .. } => {
                let waited_ms = waiter.asked.ms_until(now.instant);
                Answer::Granted { lock: handle, fence, ttl_ms, waited_ms }
            }
            _ => Answer::NoFence,
        };
        self.effects.push(Effect::Answer(seat, answer));
    }

    fn hand_to(&mut self, waiter: Waiter, fence: Fence, handle: Handle, now: Now) {
        let Some(token) = Token::new(&waiter.token) else { return };
        let (ask, packed) = (waiter.ask(), waiter.token.packed());
        let since = self.serving.map_or(now.instant, |serving| serving.since);
        let await_delivery = |hold: &mut Hold| match waiter.until {
            Some(until) if waiter.seat.is_none() => {
                let before = hold.before_upgrade().map(|before| before.hold.end_since(since));
                hold.delivery = Delivery::Unfetched;
                hold.end_at(before.map_or(until, |end| end.min(until)));
            }
            _ => hold.delivery = Delivery::Untold,
        };
        if waiter.upgrade {
            self.make_exclusive(handle, packed, fence);
            self.adjust(handle, packed, &ask, now.instant);
            self.update(handle, |lock| lock.update(packed, await_delivery));
        } else {
            let holder = ask.holder(token, fence, Label::cut(&waiter.label));
            let start = if bug("lease-starts-when-joining") { waiter.joined } else { now.instant };
            let mut hold = Hold::new(&holder, waiter.client, start);
            await_delivery(&mut hold);
            self.update(handle, |lock| put(lock, packed, waiter.label.packed(), holder.mode, hold));
        }
        if waiter.upgrade || waiter.ephemeral {
            self.bind(handle, packed, waiter.client, waiter.ephemeral);
        }
        self.push_set(handle, fence, true);
        self.effects.push(Effect::Acquired);
        self.counts.granted += 1;
        self.counts.handed_over += 1;
        self.counts.wait_ms_sum += waiter.joined.ms_until(now.instant);
        self.counts.wait_ms_max = self.counts.wait_ms_max.max(waiter.joined.ms_until(now.instant));
        if let Some(seat) = waiter.seat {
            let hold = self.locks.get(handle).and_then(|lock| lock.hold(packed));
            let ttl_ms = hold.map_or(0, |hold| self.ms_left(&hold, now.instant));
            let waited_ms = waiter.asked.ms_until(now.instant);
            self.effects.push(Effect::Answer(seat, Answer::Granted { lock: handle, fence, ttl_ms, waited_ms }));
        }
    }
}
