//! What locks should do, written down as plainly as possible: lists that are walked from end to end, times that are
//! worked out at once, nothing indexed and nothing lazy. Times are in us.

use super::super::{Ended, Turn};
use super::ops::{Want, PLACES};
use crate::core::fence::{FENCE_END, SERVING_GUARD_TICKS};
use crate::core::hold::{Delivery, Mode};

pub const MS: u64 = 1_000;

#[derive(Clone, Debug)]
pub struct Holder {
    pub token: usize,
    pub fence: u64,
    pub lease_ms: u64,
    pub end: u64,
    pub granted: u64,
    pub mode: Mode,
    pub unnamed: bool,
    pub names: Vec<u8>,
    pub cap: Option<u64>,
    pub client: u64,
    pub ephemeral: bool,
    pub delivery: Delivery,
    /// What it had before an upgrade that it does not know of.
    pub before: Option<Box<Self>>,
}

#[derive(Clone, Debug)]
pub struct Waiter {
    pub want: Want,
    pub seat: Option<u64>,
    pub until: Option<u64>,
    pub asked: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    Granted { fence: u64, ttl_ms: u64, waited_ms: u64 },
    Empty,
    Superseded,
    NotHeld,
    HeldShared,
    NoFence,
    Refused,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Acquired,
    Ended(Ended),
    Said(u64, Said),
}

#[derive(Clone, Debug, Default)]
pub enum Stand {
    #[default]
    Nothing,
    Lock(Vec<Holder>),
    Legacy(usize, u64),
}

#[derive(Clone, Debug, Default)]
pub struct Spot {
    pub stand: Stand,
    pub line: Vec<Waiter>,
}

#[derive(Clone, Debug, Default)]
pub struct Plain {
    pub now: u64,
    pub ticks: u64,
    /// The highest fence when this node began to serve.
    pub floor: u64,
    pub highest: u64,
    pub known: u64,
    /// Until when no locks are given out.
    pub grace_end: u64,
    pub spots: [Spot; PLACES],
    pub events: Vec<Event>,
    /// Whether WATCH has to fire.
    pub touched: bool,
}

impl Holder {
    /// What its token has in any case: an upgrade that it did not fetch leaves it what it had before.
    pub fn left_ms(&self, now: u64) -> u64 {
        let before = self.before.as_ref().filter(|_| self.delivery == Delivery::Unfetched);
        before.map_or(self.end, |before| before.end.max(self.end)).saturating_sub(now) / MS
    }

    fn within_cap(&self, end: u64) -> u64 {
        end.min(self.cap.unwrap_or(u64::MAX))
    }

    /// The lease becomes at least this long. A grant that is only fetched now begins its lease.
    pub fn raise(&mut self, lease_ms: u64, now: u64) {
        let mut lease_ms = lease_ms;
        if self.delivery == Delivery::Unfetched {
            lease_ms = lease_ms.max(self.lease_ms);
            self.end = self.before.as_ref().map_or(now, |before| before.end);
        }
        let end = self.within_cap(now + lease_ms * MS);
        if end > self.end {
            (self.end, self.lease_ms) = (end, lease_ms);
        }
    }

    /// The token knows of its hold.
    pub fn heard(&mut self, now: u64) {
        if self.delivery == Delivery::Unfetched {
            self.raise(self.lease_ms, now);
        }
        (self.delivery, self.before) = (Delivery::Told, None);
    }

    /// Whether there is a hold more.
    pub fn adjust(&mut self, want: &Want, now: u64) -> bool {
        let added = match want.name {
            Some(name) if self.names.contains(&name) => false,
            Some(name) => {
                self.names.push(name);
                self.names.sort_unstable();
                true
            }
            None => !std::mem::replace(&mut self.unnamed, true),
        };
        if let Some(cap_ms) = want.cap_ms {
            let promised = self.before.as_ref().map_or(0, |before| before.end).max(self.end);
            let cap = (self.granted + cap_ms * MS).max(promised);
            self.cap = Some(cap.min(self.cap.unwrap_or(u64::MAX)));
        }
        self.raise(want.lease_ms, now);
        added
    }
}

/// Whether one more may hold a lock in this way, beside these.
pub fn admits(holders: &[Mode], wanted: Mode) -> bool {
    let Mode::Shared(limit) = wanted else { return holders.is_empty() };
    let limits = holders.iter().map(|held| match held {
        Mode::Exclusive => Some(0),
        Mode::Shared(limit) => *limit,
    });
    limits.chain([limit]).flatten().all(|limit| holders.len() < limit as usize)
}

impl Plain {
    pub fn holders(&self, at: usize) -> &[Holder] {
        if let Stand::Lock(holders) = &self.spots[at].stand {
            holders
        } else {
            &[]
        }
    }

    pub fn holders_mut(&mut self, at: usize) -> &mut Vec<Holder> {
        if !matches!(self.spots[at].stand, Stand::Lock(_)) {
            self.spots[at].stand = Stand::Lock(Vec::new());
        }
        let Stand::Lock(holders) = &mut self.spots[at].stand else { unreachable!() };
        holders
    }

    pub fn holder(&self, at: usize, token: usize) -> Option<&Holder> {
        self.holders(at).iter().find(|holder| holder.token == token)
    }

    pub fn holder_mut(&mut self, at: usize, token: usize) -> Option<&mut Holder> {
        self.holder(at, token)?;
        self.holders_mut(at).iter_mut().find(|holder| holder.token == token)
    }

    pub fn is_legacy(&self, at: usize) -> bool {
        matches!(self.spots[at].stand, Stand::Legacy(..))
    }

    pub fn issue(&mut self) -> Option<u64> {
        let fence = (self.highest + 1).max(self.ticks);
        (fence < FENCE_END).then(|| {
            self.raise_fence(fence);
            fence
        })
    }

    pub fn raise_fence(&mut self, fence: u64) {
        self.highest = self.highest.max(fence);
        self.known = self.known.max(fence);
    }

    /// This node begins to serve: every lease counts from here at the earliest, and all know what they have.
    pub fn begin_serving(&mut self) {
        let lead = (self.ticks + 8 * SERVING_GUARD_TICKS).saturating_sub(self.known) / 8;
        let guarded = self.ticks.max(self.known + lead) + SERVING_GUARD_TICKS;
        self.highest = self.highest.max(guarded.min(FENCE_END - 1));
        self.floor = self.highest;
        self.grace_end = 0;
        let now = self.now;
        for spot in &mut self.spots {
            spot.line.clear();
            let Stand::Lock(holders) = &mut spot.stand else { continue };
            for holder in holders {
                holder.end = holder.within_cap(holder.end.max(now + holder.lease_ms * MS));
                (holder.delivery, holder.before, holder.ephemeral) = (Delivery::Told, None, false);
            }
        }
    }

    /// Ends what is over, and serves the line.
    pub fn settle(&mut self, at: usize) {
        if self.is_legacy(at) {
            return;
        }
        let now = self.now;
        while let Some(over) = self.holders(at).iter().find(|holder| holder.end <= now).cloned() {
            match over {
                Holder { delivery: Delivery::Unfetched, before: Some(_), .. } => self.fall_back(at, over.token),
                Holder { delivery: Delivery::Unfetched, .. } => self.end_hold(at, over.token, Ended::TakenBack),
                _ => self.end_hold(at, over.token, Ended::LeaseEnded),
            }
        }
        self.serve(at);
    }

    pub fn fall_back(&mut self, at: usize, token: usize) {
        self.touched = true;
        let holder = self.holder_mut(at, token).unwrap();
        *holder = *holder.before.take().unwrap();
    }

    pub fn end_hold(&mut self, at: usize, token: usize, why: Ended) {
        self.touched = true;
        self.holders_mut(at).retain(|holder| holder.token != token);
        self.events.push(Event::Ended(why));
    }

    /// Whether the first in line may have its turn.
    pub fn would_hand_over(&self, at: usize) -> bool {
        let Some(first) = self.spots[at].line.first() else { return false };
        if self.is_legacy(at) {
            return false;
        }
        let token = first.want.token;
        let live: Vec<&Holder> = self.holders(at).iter().filter(|holder| holder.end > self.now).collect();
        let holds = self.holder(at, token).is_some();
        if first.want.turn == Turn::Upgrade {
            return !holds || live.iter().all(|holder| holder.token == token) && !self.in_grace();
        }
        let modes: Vec<Mode> = live.iter().map(|holder| holder.mode).collect();
        // One that came to hold the lock in another way waits for nothing.
        (holds || admits(&modes, first.want.mode)) && !self.in_grace()
    }

    pub fn in_grace(&self) -> bool {
        self.now < self.grace_end
    }

    pub fn serve(&mut self, at: usize) {
        while self.would_hand_over(at) {
            let waiter = self.spots[at].line.remove(0);
            self.serve_one(at, &waiter);
        }
        if matches!(&self.spots[at].stand, Stand::Lock(holders) if holders.is_empty()) {
            self.spots[at].stand = Stand::Nothing;
        }
    }

    pub fn say(&mut self, seat: Option<u64>, said: Said) {
        self.events.extend(seat.map(|seat| Event::Said(seat, said)));
    }

    fn serve_one(&mut self, at: usize, waiter: &Waiter) {
        let (want, now) = (&waiter.want, self.now);
        let deadline = waiter.until.filter(|_| waiter.seat.is_none());
        let holder = self.holder(at, want.token).cloned();
        let upgrade = want.turn == Turn::Upgrade;
        if deadline.is_some_and(|until| until <= now) || upgrade && holder.is_none() {
            return self.say(waiter.seat, Said::NotHeld);
        }
        if let Some(held) = holder.as_ref().filter(|held| held.mode == Mode::Exclusive || !upgrade) {
            if held.mode != Mode::Exclusive && want.mode == Mode::Exclusive {
                return self.say(waiter.seat, Said::HeldShared);
            }
            if waiter.seat.is_some() {
                match self.repeat(at, want) {
                    Some((fence, ttl_ms, _)) => self.say_granted(waiter, fence, ttl_ms),
                    None => self.say(waiter.seat, Said::NoFence),
                }
            }
            return;
        }
        let Some(fence) = self.issue() else { return self.say(waiter.seat, Said::NoFence) };
        let mut new = self.new_holder(want, fence);
        new.delivery = if deadline.is_some() { Delivery::Unfetched } else { Delivery::Untold };
        if let Some(shared) = holder {
            new = Holder { before: Some(Box::new(shared.clone())), mode: Mode::Exclusive, fence, ..shared };
            new.adjust(want, now);
            new.delivery = if deadline.is_some() { Delivery::Unfetched } else { Delivery::Untold };
            (new.client, new.ephemeral) = (want.client, want.ephemeral);
        }
        if let Some(until) = deadline {
            let before = new.before.as_ref().map_or(u64::MAX, |before| before.end);
            new.end = new.within_cap(until.min(before));
        }
        let ttl_ms = new.left_ms(now);
        self.holders_mut(at).retain(|holder| holder.token != want.token);
        self.holders_mut(at).push(new);
        self.touched = true;
        self.events.push(Event::Acquired);
        self.say_granted(waiter, fence, ttl_ms);
    }

    fn say_granted(&mut self, waiter: &Waiter, fence: u64, ttl_ms: u64) {
        let waited_ms = (self.now - waiter.asked) / MS;
        self.say(waiter.seat, Said::Granted { fence, ttl_ms, waited_ms });
    }

    pub fn new_holder(&self, want: &Want, fence: u64) -> Holder {
        let cap = want.cap_ms.map(|ms| self.now + ms * MS);
        Holder {
            token: want.token,
            fence,
            lease_ms: want.lease_ms,
            end: (self.now + want.lease_ms * MS).min(cap.unwrap_or(u64::MAX)),
            granted: self.now,
            mode: want.mode,
            unnamed: want.name.is_none(),
            names: want.name.into_iter().collect(),
            cap,
            client: want.client,
            ephemeral: want.ephemeral,
            delivery: Delivery::Told,
            before: None,
        }
    }
}
