//! Changes of mode: from shared to exclusive and back. A mode never changes silently, and a change that fails leaves the
//! hold as it was.

use super::holding::{Acquire, Acquired, Turn};
use super::{Answer, Effect, Table};
use crate::core::fence::Fence;
use crate::core::hold::{Mode, SharedHold};
use crate::core::name::{Place, Token};
use crate::core::slab::Handle;
use crate::core::time::{Instant, Lease, Now};

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
        match (exclusive, request.ask.mode, request.ask.turn) {
            (true, Mode::Shared(limit), Turn::Downgrade) => {
                self.make_shared(handle, request.token.bytes(), limit, None);
                let answer = self.repeat(handle, request, now);
                self.serve(Some(handle), place, now);
                answer
            }
            (true, ..) | (false, Mode::Shared(_), _) => self.repeat(handle, request, now),
            (false, Mode::Exclusive, Turn::Upgrade) => self.upgrade(handle, place, request, now),
            (false, Mode::Exclusive, _) => Acquired::HeldShared,
        }
    }

    fn upgrade(&mut self, handle: Handle, place: Place<'_>, request: &Acquire<'_>, now: Now) -> Acquired {
        if self.locks.get(handle).is_some_and(|lock| lock.len() > 1) {
            return self.wait_or_refuse(Some(handle), place, request, now.instant);
        }
        let Some(fence) = self.fences.issue(now.ticks) else {
            return Acquired::NoFence;
        };
        self.withdraw_silently(place, request.token);
        self.make_exclusive(handle, request.token, fence, request.ask.lease, now.instant);
        self.told(handle, request.token.bytes());
        self.bind(handle, request.token.bytes(), request.client, request.ask.ephemeral);
        self.push_set(handle, fence, true);
        self.effects.push(Effect::Acquired);
        self.counts.granted += 1;
        let ttl_ms = self.left_of(handle, request.token, now.instant);
        Acquired::Granted { fence, ttl_ms, new: true }
    }

    /// Makes the only one of those who shared a lock its exclusive holder.
    pub(super) fn make_exclusive(
        &mut self,
        handle: Handle,
        token: Token<'_>,
        fence: Fence,
        lease: Lease,
        now: Instant,
    ) {
        self.update(handle, |lock| {
            let label = lock.holders().next().map(|seen| Box::<[u8]>::from(seen.label)).unwrap_or_default();
            let limit = lock.limit_of(token.bytes());
            if let Some(mut hold) = lock.vacate(token.bytes()) {
                hold.remember(SharedHold { fence: hold.fence, limit });
                hold.fence = fence;
                lock.occupy(token.bytes(), &label, hold);
            }
        });
        self.raise_lease(handle, token, lease, now);
    }

    /// Makes the exclusive holder of a lock one of those who may share it, under its own fence or an older one of its.
    pub(super) fn make_shared(&mut self, handle: Handle, token: &[u8], limit: Option<u32>, older: Option<Fence>) {
        let mut fence = None;
        self.update(handle, |lock| {
            let label = lock.holders().next().map(|seen| Box::<[u8]>::from(seen.label)).unwrap_or_default();
            if let Some(mut hold) = lock.vacate(token) {
                hold.fence = older.unwrap_or(hold.fence);
                fence = Some(hold.fence);
                lock.join(token, &label, limit, hold);
            }
        });
        if let Some(fence) = fence {
            self.push_set(handle, fence, true);
        }
    }

    /// The token gets what it waits for in another way: its wait is over without an answer to count.
    fn withdraw_silently(&mut self, place: Place<'_>, token: Token<'_>) {
        if let Some(waiter) = self.lines.find(place, token.bytes()).and_then(|waiter| self.lines.leave(waiter)) {
            self.effects.extend(waiter.seat.map(|seat| Effect::Answer(seat, Answer::Superseded)));
        }
    }
}
