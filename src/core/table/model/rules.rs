//! What the commands should do to the plain locks.

use super::super::{Ended, Turn};
use super::ops::{Patience, Want};
use super::plain::{admits, Event, Holder, Plain, Said, Stand, Waiter, MS};
use crate::core::fence::STRANGER_BOUND_TICKS;
use crate::core::hold::{Delivery, Mode};

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Granted { fence: u64, ttl_ms: u64, new: bool },
    Held,
    Waits,
    HeldShared,
    NotHeld,
    Deadlock,
    TooMany,
    NoFence,
    Grace,
    FloorAhead,
    Number(i64),
    Yes(bool),
}

impl Plain {
    pub fn acquire(&mut self, at: usize, want: &Want, seat: Option<u64>) -> Reply {
        let (token, now) = (want.token, self.now);
        if self.is_legacy(at) {
            return if want.turn == Turn::No { self.wait(at, want, seat) } else { Reply::NotHeld };
        }
        self.settle(at);
        if let Some(holder) = self.holder(at, token) {
            return match (holder.mode, want.mode, want.turn) {
                (Mode::Exclusive, mode, Turn::Downgrade) => self.downgrade(at, want, mode),
                (Mode::Exclusive, ..) if self.in_grace() => Reply::Grace,
                (_, Mode::Shared(_), Turn::No) if self.in_grace() => Reply::Grace,
                (Mode::Exclusive, ..) | (_, Mode::Shared(_), _) => self.again(at, want),
                (_, _, Turn::Upgrade) => self.upgrade(at, want, seat),
                _ => Reply::HeldShared,
            };
        }
        if want.turn != Turn::No {
            return Reply::NotHeld;
        }
        let modes: Vec<Mode> = self.holders(at).iter().map(|holder| holder.mode).collect();
        if self.in_grace() && admits(&modes, want.mode) {
            return self.wait_out_grace(at, want, seat);
        }
        let first = self.spots[at].line.first().is_none_or(|first| first.want.token == token);
        if !first || !admits(&modes, want.mode) {
            return self.wait(at, want, seat);
        }
        let Some(fence) = self.issue() else { return Reply::NoFence };
        self.drop_wait(at, token, Said::Superseded);
        let holder = self.new_holder(want, fence);
        let ttl_ms = holder.left_ms(now);
        self.holders_mut(at).push(holder);
        self.touched = true;
        self.events.push(Event::Acquired);
        self.serve(at);
        Reply::Granted { fence, ttl_ms, new: true }
    }

    fn again(&mut self, at: usize, want: &Want) -> Reply {
        let Some((fence, ttl_ms, new)) = self.repeat(at, want) else { return Reply::NoFence };
        if self.waiter(at, want.token).is_some_and(|waiter| waiter.want.turn != Turn::Upgrade) {
            self.drop_wait(at, want.token, Said::Superseded);
        }
        Reply::Granted { fence, ttl_ms, new }
    }

    /// The grant of a token that has it: fence, ms left, and whether there is something new.
    pub fn repeat(&mut self, at: usize, want: &Want) -> Option<(u64, u64, bool)> {
        let (now, old) = (self.now, self.holder(at, want.token)?.fence);
        let fence = if old <= self.floor { self.issue()? } else { old };
        let holder = self.holder_mut(at, want.token)?;
        holder.fence = fence;
        let untold = holder.delivery != Delivery::Told;
        let added = holder.adjust(want, now);
        (holder.delivery, holder.before) = (Delivery::Told, None);
        (holder.client, holder.ephemeral) = (want.client, want.ephemeral);
        let ttl_ms = holder.left_ms(now);
        self.touched |= added || fence != old;
        Some((fence, ttl_ms, added || untold))
    }

    fn downgrade(&mut self, at: usize, want: &Want, mode: Mode) -> Reply {
        let answer = self.again(at, want);
        if answer != Reply::NoFence {
            self.holder_mut(at, want.token).unwrap().mode = mode;
            self.touched = true;
            self.serve(at);
        }
        answer
    }

    fn upgrade(&mut self, at: usize, want: &Want, seat: Option<u64>) -> Reply {
        let now = self.now;
        let alone = self.holders(at).len() == 1;
        if !alone || self.in_grace() {
            let answer = if alone { self.wait_out_grace(at, want, seat) } else { self.wait(at, want, seat) };
            if matches!(answer, Reply::Held | Reply::Waits | Reply::Grace) {
                self.holder_mut(at, want.token).unwrap().heard(now);
            }
            return answer;
        }
        let Some(fence) = self.issue() else { return Reply::NoFence };
        self.drop_wait(at, want.token, Said::Superseded);
        let holder = self.holder_mut(at, want.token).unwrap();
        holder.heard(now);
        (holder.fence, holder.mode) = (fence, Mode::Exclusive);
        holder.adjust(want, now);
        (holder.client, holder.ephemeral) = (want.client, want.ephemeral);
        let ttl_ms = holder.left_ms(now);
        self.touched = true;
        self.events.push(Event::Acquired);
        Reply::Granted { fence, ttl_ms, new: true }
    }

    pub fn waiter(&self, at: usize, token: usize) -> Option<&Waiter> {
        self.spots[at].line.iter().find(|waiter| waiter.want.token == token)
    }

    pub fn drop_wait(&mut self, at: usize, token: usize, said: Said) -> bool {
        let line = &mut self.spots[at].line;
        let Some(index) = line.iter().position(|waiter| waiter.want.token == token) else { return false };
        let waiter = line.remove(index);
        self.say(waiter.seat, said);
        true
    }

    fn wait_out_grace(&mut self, at: usize, want: &Want, seat: Option<u64>) -> Reply {
        match self.wait(at, want, seat) {
            Reply::Held => Reply::Grace,
            other => other,
        }
    }

    fn wait(&mut self, at: usize, want: &Want, seat: Option<u64>) -> Reply {
        let until = match want.patience {
            Patience::None => return Reply::Held,
            Patience::Block(us) => us.map(|us| self.now + us),
            Patience::Poll(us) => Some(self.now + us),
        };
        let waiter = Waiter { want: *want, seat, until, asked: self.now };
        let known = self.waiter(at, want.token).cloned();
        let blocks = |waiter: &Waiter| waiter.seat.is_some();
        let own = |other: &Waiter| other.want.token == want.token;
        let lines = self.spots.iter().enumerate().flat_map(|(place, spot)| spot.line.iter().map(move |w| (place, w)));
        let others = lines.filter(|(place, other)| blocks(other) == seat.is_some() && !(*place == at && own(other)));
        let keeps = known.as_ref().is_some_and(|known| blocks(known) == seat.is_some());
        if !keeps && others.count() >= want.room {
            return Reply::TooMany;
        }
        // A token that waits for something else now waits at the end.
        let same = known.as_ref().filter(|known| known.want.turn == want.turn);
        let mut line = self.spots[at].line.clone();
        let index = if same.is_some() {
            let index = line.iter().position(own).unwrap();
            line[index] = waiter;
            index
        } else {
            line.retain(|other| !own(other));
            let upgrades = line.iter().filter(|other| other.want.turn == Turn::Upgrade).count();
            let index = if want.turn == Turn::Upgrade { upgrades } else { line.len() };
            line.insert(index, waiter);
            index
        };
        let before = std::mem::replace(&mut self.spots[at].line, line);
        if same.is_none_or(|same| same.want.mode != want.mode) && self.never_ends(at, index) {
            self.spots[at].line = before;
            return Reply::Deadlock;
        }
        self.say(known.and_then(|known| known.seat), Said::Superseded);
        if seat.is_some() {
            Reply::Waits
        } else {
            Reply::Held
        }
    }

    /// Whether this wait closes a circle: its token does not move, all others do as soon as they can, and what then still
    /// waits leads from the wait back to the token. Or from another wait of the token to somebody behind this one.
    fn never_ends(&self, at: usize, index: usize) -> bool {
        let new = self.spots[at].line[index].want.token;
        let places = 0..self.spots.len();
        let token = |(place, rank): (usize, usize)| self.spots[place].line[rank].want.token;
        let waits: Vec<(usize, usize)> =
            places.clone().flat_map(|place| (0..self.spots[place].line.len()).map(move |rank| (place, rank))).collect();
        // Who holds or comes in and stays, for each place, and how many of its line come in, as long as these wait.
        let handed_on = |waiting: &[usize]| -> Vec<(Vec<(usize, Mode)>, usize)> {
            places
                .clone()
                .map(|place| self.handed_on(place, |other| other == new || waiting.contains(&other)))
                .collect()
        };
        let mut waiting: Vec<usize> = waits.iter().map(|&wait| token(wait)).collect();
        let all = loop {
            let all = handed_on(&waiting);
            let still = |other: usize| waits.iter().any(|&wait| token(wait) == other && wait.1 >= all[wait.0].1);
            let count = waiting.len();
            waiting.retain(|&other| still(other));
            if waiting.len() == count {
                break all;
            }
        };
        let keep = |mut back: Vec<usize>, is_like: &dyn Fn((usize, usize)) -> bool| loop {
            let count = back.len();
            for &(place, rank) in waits.iter().filter(|wait| wait.1 >= all[wait.0].1) {
                let (own, (staying, came_in)) = (token((place, rank)), &all[place]);
                let ahead = self.spots[place].line[*came_in..rank].iter().map(|ahead| ahead.want.token);
                let mut in_way = ahead.chain(staying.iter().map(|staying| staying.0)).filter(|&other| other != own);
                if in_way.any(|other| back.contains(&other)) {
                    if is_like((place, rank)) {
                        return true;
                    }
                    if !back.contains(&own) {
                        back.push(own);
                    }
                }
            }
            if back.len() == count {
                return false;
            }
        };
        let behind = waits.iter().filter(|wait| wait.0 == at && wait.1 > index && wait.1 >= all[at].1);
        let passed = behind.map(|&wait| token(wait)).collect();
        keep(vec![new], &|wait| wait == (at, index)) || keep(passed, &|wait| token(wait) == new && wait != (at, index))
    }

    /// Who holds a lock or comes in and does not let go, one after the other, and how many of the line come in.
    fn handed_on(&self, at: usize, stays: impl Fn(usize) -> bool) -> (Vec<(usize, Mode)>, usize) {
        let holders = self.holders(at).iter().map(|holder| (holder.token, holder.mode));
        let mut staying: Vec<(usize, Mode)> = holders.filter(|holder| stays(holder.0)).collect();
        for (rank, waiter) in self.spots[at].line.iter().enumerate() {
            if waiter.want.turn != Turn::Upgrade && self.holder(at, waiter.want.token).is_some() {
                // The lock came here from elsewhere: it has what it gets.
                continue;
            }
            let others = staying.iter().filter(|other| other.0 != waiter.want.token);
            if !admits(&others.map(|other| other.1).collect::<Vec<_>>(), waiter.want.mode) {
                return (staying, rank);
            }
            if stays(waiter.want.token) {
                staying.push((waiter.want.token, waiter.want.mode));
            }
        }
        (staying, self.spots[at].line.len())
    }

    pub fn release(&mut self, at: usize, token: usize, name: Option<u8>) -> Reply {
        let now = self.now;
        if self.waiter(at, token).is_some_and(|waiter| name.is_none() || waiter.want.name == name) {
            self.drop_wait(at, token, Said::Empty);
        }
        if let Stand::Legacy(owner, _) = self.spots[at].stand {
            if owner != token || name.is_some() {
                return Reply::Number(if owner == token { 0 } else { -1 });
            }
            self.spots[at].stand = Stand::Nothing;
            self.touched = true;
            self.events.push(Event::Ended(Ended::Released));
            self.serve(at);
            return Reply::Number(1);
        }
        self.settle(at);
        let taken = !self.holders(at).is_empty();
        let Some(holder) = self.holder_mut(at, token) else {
            return Reply::Number(if taken { -1 } else { 0 });
        };
        if let Some(name) = name {
            let Some(index) = holder.names.iter().position(|&other| other == name) else { return Reply::Number(0) };
            holder.names.remove(index);
            if holder.unnamed || !holder.names.is_empty() {
                holder.heard(now);
                self.touched = true;
                return Reply::Number(1);
            }
        }
        self.end_hold(at, token, Ended::Released);
        self.serve(at);
        Reply::Number(1)
    }

    pub fn extend(&mut self, at: usize, token: usize, lease_ms: Option<u64>, floor: Option<u64>) -> Reply {
        let now = self.now;
        if let Stand::Legacy(owner, end) = &mut self.spots[at].stand {
            if *owner != token {
                return Reply::Number(0);
            }
            let left_ms = (*end - now) / MS;
            if let Some(ms) = lease_ms.filter(|&ms| ms > left_ms) {
                *end = now + ms * MS;
                self.touched = true;
                return Reply::Number(ms as i64);
            }
            return Reply::Number(left_ms as i64);
        }
        self.lapse_upgrade(at, token);
        let Some(holder) = self.holder(at, token).filter(|holder| holder.left_ms(now) > 0) else {
            self.settle(at);
            return Reply::Number(0);
        };
        let fence = floor.unwrap_or(0).max(holder.fence);
        if floor.is_some_and(|floor| floor > self.highest && floor > self.ticks + STRANGER_BOUND_TICKS) {
            return Reply::FloorAhead;
        }
        self.raise_fence(fence);
        let holder = self.holder_mut(at, token).unwrap();
        let raised = holder.fence != fence;
        holder.fence = fence;
        holder.raise(lease_ms.unwrap_or(holder.lease_ms), now);
        (holder.delivery, holder.before) = (Delivery::Told, None);
        let left_ms = holder.left_ms(now) as i64;
        self.touched |= raised;
        Reply::Number(left_ms)
    }

    pub fn check(&mut self, at: usize, token: usize) -> Reply {
        let now = self.now;
        if let Stand::Legacy(owner, end) = self.spots[at].stand {
            return Reply::Number(if owner == token { (end - now) / MS } else { 0 } as i64);
        }
        let Some(holder) = self.holder_mut(at, token) else { return Reply::Number(0) };
        let left_ms = holder.left_ms(now);
        if left_ms > 0 && holder.delivery == Delivery::Untold {
            holder.heard(now);
        }
        Reply::Number(left_ms as i64)
    }

    /// An upgrade that was not fetched in time is over.
    fn lapse_upgrade(&mut self, at: usize, token: usize) {
        let now = self.now;
        let unfetched = |holder: &Holder| holder.delivery == Delivery::Unfetched && holder.before.is_some();
        if self.holder(at, token).is_some_and(|holder| unfetched(holder) && holder.end <= now) {
            self.settle(at);
        }
    }

    pub fn guard(&mut self, at: usize, token: usize) -> Reply {
        let now = self.now;
        if let Stand::Legacy(owner, _) = self.spots[at].stand {
            return Reply::Yes(owner == token);
        }
        self.lapse_upgrade(at, token);
        match self.holder_mut(at, token).filter(|holder| holder.left_ms(now) > 0) {
            Some(holder) => holder.heard(now),
            None => {
                self.settle(at);
                return Reply::Yes(false);
            }
        }
        Reply::Yes(true)
    }

    /// Ends what ends with this connection. An upgrade nobody heard of only leaves the hold from before it.
    pub fn end_bound(&mut self, at: usize, token: usize, client: u64) {
        let Some(holder) = self.holder_mut(at, token) else { return };
        let bound = |client_id: u64, ephemeral: bool| ephemeral && client_id == client;
        let before_ends = holder.before.as_ref().is_some_and(|before| bound(before.client, before.ephemeral));
        if before_ends {
            holder.before = None;
        }
        if !bound(holder.client, holder.ephemeral) {
            return;
        }
        if holder.before.is_some() {
            self.fall_back(at, token);
        } else {
            self.end_hold(at, token, Ended::Released);
        }
        self.settle(at);
    }

    /// Takes a grant back that nobody heard of. Whether there is one.
    pub fn void(&mut self, at: usize, fence: u64) -> bool {
        let now = self.now;
        if !matches!(self.spots[at].stand, Stand::Lock(_)) {
            return false;
        }
        let untold = |holder: &&mut Holder| holder.fence == fence && holder.delivery == Delivery::Untold;
        let Some(holder) = self.holders_mut(at).iter_mut().find(untold) else { return false };
        (holder.delivery, holder.end) = (Delivery::Unfetched, now);
        true
    }
}
