//! Changes of mode: from shared to exclusive and back. A mode never changes silently, and a change that fails leaves the
//! hold as it was.

use super::holding::{Acquire, Acquired, Ask, Turn};
use super::{Answer, Effect, Table};
use crate::core::fence::Fence;
use crate::core::hold::{Hold, Mode, SharedHold};
use crate::core::lock::Lock;
use crate::core::name::{Place, Token};
use crate::core::packed::Packed;
use crate::core::slab::Handle;
use crate::core::time::{Instant, Now};
use crate::seeded::bug;

impl Table {
    /// The token holds the lock already: repeats its grant, or changes its mode.
    pub(super) fn acquire_again(
        &mut self,
        handle: Handle,
        exclusive: bool,
        place: Place<'_>,
        request: &Acquire<'_>,
        now: Now,
    ) -> Acquired {
        let hold = self.locks.get(handle).and_then(|lock| lock.hold(request.token.into()));
        if hold.is_some_and(|hold| hold.is_full_for(request.ask.name)) {
            return Acquired::TooManyHolds;
        }
        match (exclusive, request.ask.mode, request.ask.turn) {
            (true, Mode::Shared(limit), Turn::Downgrade) => {
                let answer = self.repeat_here(handle, place, request, now);
                if matches!(answer, Acquired::Granted { .. }) {
                    self.downgrade(handle, request.token.into(), limit);
                    if !bug("downgrade-lets-nobody-in") {
                        self.serve(Some(handle), place, now);
                    }
                }
                answer
            }
            (true, ..) | (false, Mode::Shared(_), Turn::No | Turn::Upgrade) if self.in_grace(now.instant) => {
                Acquired::Grace(self.grace_left_ms(now.instant))
            }
            (true, ..) | (false, Mode::Shared(_), _) => self.repeat_here(handle, place, request, now),
            (false, Mode::Exclusive, Turn::Upgrade) => self.upgrade(handle, place, request, now),
            (false, Mode::Exclusive, _) => Acquired::HeldShared,
        }
    }

    /// Repeats the grant. The token may wait where the lock that it holds came to: that is over. A wait for an upgrade goes
    /// on.
    fn repeat_here(&mut self, handle: Handle, place: Place<'_>, request: &Acquire<'_>, now: Now) -> Acquired {
        let answer = self.repeat(handle, request, now);
        let waits = self.lines.find(place, request.token.bytes()).and_then(|waiter| self.lines.get(waiter));
        if waits.is_some_and(|waiter| !waiter.upgrade) && matches!(answer, Acquired::Granted { .. }) {
            self.supersede(place, request.token);
        }
        answer
    }

    fn upgrade(&mut self, handle: Handle, place: Place<'_>, request: &Acquire<'_>, now: Now) -> Acquired {
        let token = Packed::from(request.token);
        let alone = self.locks.get(handle).is_some_and(|lock| lock.len() == 1);
        if !alone || self.in_grace(now.instant) {
            let answer = if alone {
                self.wait_out_grace(Some(handle), place, request, now.instant)
            } else {
                self.wait_or_refuse(Some(handle), place, request, now.instant)
            };
            if matches!(answer, Acquired::Held | Acquired::Grace(_) | Acquired::Waits(_)) {
                self.heard(handle, token, now.instant);
            }
            return answer;
        }
        let Some(fence) = self.fences.issue(now.ticks) else {
            return Acquired::NoFence;
        };
        self.supersede(place, request.token);
        self.heard(handle, token, now.instant);
        self.make_exclusive(handle, token, fence);
        self.adjust(handle, token, &request.ask, now.instant);
        self.told(handle, token);
        self.bind(handle, token, request.client, request.ask.ephemeral);
        self.push_set(handle, fence, true);
        self.effects.push(Effect::Acquired);
        self.counts.granted += 1;
        let ttl_ms = self.left_of(handle, token, now.instant);
        Acquired::Granted { fence, ttl_ms, new: true }
    }

    /// Makes the only one of those who shared a lock its exclusive holder, under this fence.
    pub(super) fn make_exclusive(&mut self, handle: Handle, token: Packed<'_>, fence: Fence) {
        self.turn(handle, token, |lock, label, mut hold, limit| {
            if !lock.is_exclusive() {
                hold.remember(SharedHold { hold: hold.clone(), limit });
            }
            hold.fence = fence;
            lock.vacate(token);
            lock.occupy(token, label, hold);
        });
    }

    /// Makes the exclusive holder of a lock one of those who may share it, under the same fence.
    fn downgrade(&mut self, handle: Handle, token: Packed<'_>, limit: Option<u32>) {
        let mut fence = None;
        self.turn(handle, token, |lock, label, hold, _| {
            fence = Some(hold.fence);
            lock.clear();
            lock.join(token, label, limit, hold);
        });
        if let Some(fence) = fence {
            self.push_set(handle, fence, true);
        }
    }

    /// Takes an upgrade back that its holder never learned of: it has the shared hold that it had before.
    pub(super) fn fall_back(&mut self, handle: Handle, token: Packed<'_>) {
        let hold = self.locks.get(handle).and_then(|lock| lock.hold(token));
        let before = hold.and_then(|hold| hold.before_upgrade().cloned());
        let Some(SharedHold { mut hold, limit }) = before else { return };
        hold.confirm();
        self.unbind(handle, token);
        let (fence, client, ephemeral) = (hold.fence, hold.client, hold.is_ephemeral());
        self.turn(handle, token, |lock, label, _, _| {
            lock.clear();
            lock.join(token, label, limit, hold);
        });
        self.bind(handle, token, client, ephemeral);
        self.push_set(handle, fence, true);
        self.counts.taken_back += 1;
    }

    fn turn(
        &mut self,
        handle: Handle,
        token: Packed<'_>,
        change: impl FnOnce(&mut Lock, Packed<'_>, Hold, Option<u32>),
    ) {
        self.update(handle, |lock| {
            let Some(seen) = lock.holder(token) else { return };
            let limit = if let Mode::Shared(limit) = seen.mode { limit } else { None };
            let (label, hold) = (Box::<[u8]>::from(&*seen.label), seen.hold.into_owned());
            change(lock, Packed::of(&label), hold, limit);
        });
    }

    /// The token asks for something else now, or gets what it waits for in another way: that wait is over.
    pub(super) fn supersede(&mut self, place: Place<'_>, token: Token<'_>) {
        if let Some(waiter) = self.lines.find(place, token.bytes()).and_then(|waiter| self.lines.leave(waiter)) {
            self.counts.waits_ended_empty += 1;
            self.effects.extend(waiter.seat.map(|seat| Effect::Answer(seat, Answer::Superseded)));
        }
    }

    /// Gives a hold what a request adds to it: a hold of another name, a tighter cap, a longer lease.
    pub(super) fn adjust(&mut self, handle: Handle, token: Packed<'_>, ask: &Ask<'_>, now: Instant) -> Adjusted {
        let since = self.serving.map(|serving| serving.since);
        let mut adjusted = Adjusted::default();
        self.update(handle, |lock| {
            lock.update(token, |hold| {
                adjusted.added = hold.add(ask.name);
                // What was promised stays promised, also to the shared hold that an unfetched upgrade falls back to.
                let end_of = |hold: &Hold| since.map_or(hold.end, |since| hold.end_since(since));
                let before = hold.before_upgrade().map(|before| end_of(&before.hold));
                let promised = before.map_or(end_of(hold), |before| before.max(end_of(hold)));
                let promised = if bug("cap-breaks-a-promise") { now } else { promised };
                let cap = ask.cap_ms.map(|ms| hold.granted.after_ms(ms).max(promised));
                adjusted.changed = cap.is_some_and(|cap| hold.tighten(cap));
            });
        });
        adjusted.changed |= self.raise_lease(handle, token, ask.lease, now);
        adjusted
    }
}

/// What a request added to a hold.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Adjusted {
    /// Whether there is a hold more.
    pub(super) added: bool,
    /// Whether the saved form of lease or cap changed.
    pub(super) changed: bool,
}
