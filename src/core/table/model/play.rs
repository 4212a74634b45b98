//! Plays one step in both: the table under test, and the plain locks. Commands and the pump are here.

use super::super::Answer;
use super::ops::{Op, Patience, CLIENTS, TOKENS};
use super::plain::{Said, Stand};
use super::rules::Reply;
use super::world::{index_of, place, secret, token_of, Key, Pending, World};
use crate::core::fence::{Fence, FENCE_END};
use crate::core::name::Place;
use crate::core::slab::Handle;

/// Compares what the table did with what it should do.
macro_rules! same {
    ($what:expr, $found:expr, $expected:expr) => {{
        let (found, expected) = (&$found, &$expected);
        if found != expected {
            return Err(format!("{}: {found:?} instead of {expected:?}", $what));
        }
    }};
}
pub(super) use same;

impl World {
    pub fn play(&mut self, op: &Op) -> Result<(), String> {
        match *op {
            Op::Acquire(at, mut want) => {
                self.begin(at);
                want.client = self.connection(want.client);
                self.seats += 1;
                let seat = matches!(want.patience, Patience::Block(_)).then_some(self.seats);
                let found = self.acquire(at, &want);
                same!("answer", found, self.plain.acquire(at, &want, seat));
            }
            Op::Release(at, token, name) => {
                self.begin(at);
                let found = self.release(at, token, name);
                same!("answer", found, self.plain.release(at, token, name));
            }
            Op::Extend(at, token, lease_ms, floor) => {
                self.begin(at);
                let floor = floor.map(|above| self.plain.highest.saturating_add_signed(above).clamp(1, FENCE_END - 1));
                let found = self.extend(at, token, lease_ms, floor);
                same!("answer", found, self.plain.extend(at, token, lease_ms, floor));
            }
            Op::Check(at, token) => {
                self.end_legacy();
                let found = self.ask(at, |table, site, now| table.check(site, secret(token), now.instant));
                same!("answer", Reply::Number(found as i64), self.plain.check(at, token));
            }
            Op::Guard(at, token) => {
                self.begin(at);
                let found = self.ask(at, |table, site, now| table.guard(site, secret(token), now));
                same!("answer", Reply::Yes(found), self.plain.guard(at, token));
            }
            Op::Pass(us) => {
                self.plain.now += us;
                self.plain.ticks += us / 10;
            }
            Op::Wall(ticks) => self.plain.ticks = self.plain.ticks.saturating_add_signed(ticks),
            Op::Pump { allowed } => {
                self.pump(allowed)?;
                self.armed = self.table.next_deadline();
            }
            Op::Deliver(index) => self.deliver(index)?,
            Op::Lose(index) => {
                if index < self.pending.len() {
                    let pending = self.pending.remove(index);
                    self.lose(&pending);
                }
            }
            Op::Close(client) => self.close(client)?,
            Op::Unblock(index) => {
                let seat = self.blocked.keys().nth(index).copied();
                seat.into_iter().for_each(|seat| self.leave(seat));
            }
            Op::UseUpFences => {
                self.table.raise_fence(Fence::new(FENCE_END - 1).unwrap());
                self.replica.raise_fence(Fence::new(FENCE_END - 1).unwrap());
                self.plain.raise_fence(FENCE_END - 1);
            }
            _ => self.disturb(op)?,
        }
        Ok(())
    }

    /// What happens before a command sees its key.
    pub fn begin(&mut self, at: usize) {
        self.end_legacy();
        self.put_back(at);
        if let Key::Lock(handle) = self.keys[at] {
            self.table.linked(handle, place(at));
        }
    }

    /// The server ends strings whose time is over.
    pub fn end_legacy(&mut self) {
        for at in 0..self.keys.len() {
            if matches!(self.keys[at], Key::Legacy(_, end) if end <= self.plain.now) {
                self.keys[at] = Key::Nothing;
                self.plain.spots[at].stand = Stand::Nothing;
                self.table.stir_place(place(at));
                self.table.expired(place(at));
            }
        }
    }

    fn deliver(&mut self, index: usize) -> Result<(), String> {
        if index >= self.pending.len() {
            return Ok(());
        }
        let pending = self.pending.remove(index);
        let Answer::Granted { lock, fence, .. } = pending.answer else { return Ok(()) };
        let (at, now) = (pending.at, self.now().instant);
        let stands = self.keys[at] == Key::Lock(lock);
        let found = stands && self.table.deliver(lock, secret(pending.token).bytes(), fence, now);
        let now_us = self.plain.now;
        let holder = self.plain.holder_mut(at, pending.token).filter(|holder| holder.fence == fence.get() && stands);
        let holder = holder.filter(|holder| holder.left_ms(now_us) > 0);
        same!("delivery", found, holder.is_some());
        match holder {
            Some(holder) => holder.heard(now_us),
            None => self.lose(&pending),
        }
        Ok(())
    }

    /// A reply did not reach its connection.
    fn lose(&mut self, pending: &Pending) {
        if let Answer::Granted { lock, fence, .. } = pending.answer {
            self.take_backs.push((lock, fence));
        }
    }

    fn leave(&mut self, seat: u64) {
        let Some(blocked) = self.blocked.remove(&seat) else { return };
        self.table.leave(blocked.waiter);
        self.plain.spots[blocked.at].line.retain(|waiter| waiter.seat != Some(seat));
    }

    /// Connections that close are followed by others, under other numbers.
    fn connection(&self, client: u64) -> u64 {
        client + CLIENTS * self.reconnects[client as usize - 1]
    }

    fn close(&mut self, client: u64) -> Result<(), String> {
        let closes = self.connection(client);
        self.reconnects[client as usize - 1] += 1;
        let client = closes;
        let (gone, stay) = std::mem::take(&mut self.pending).into_iter().partition(|pending| pending.client == client);
        self.pending = stay;
        let gone: Vec<Pending> = gone;
        gone.iter().for_each(|pending| self.lose(pending));
        let seats: Vec<u64> = self.blocked.iter().filter(|(_, sits)| sits.client == client).map(|(&s, _)| s).collect();
        seats.into_iter().for_each(|seat| self.leave(seat));
        let bound = self.table.closed(client);
        for (at, key) in self.keys.iter().enumerate() {
            let Key::Lock(handle) = *key else { continue };
            for token in 0..TOKENS {
                let holder = self.plain.holder(at, token);
                let binds = holder.is_some_and(|holder| {
                    let before = holder.before.as_ref();
                    holder.ephemeral && holder.client == client
                        || before.is_some_and(|before| before.ephemeral && before.client == client)
                });
                let found = bound.iter().filter(|(lock, name)| (*lock, token_of(name)) == (handle, token)).count();
                same!(format!("bound to {client}"), found, usize::from(binds));
            }
        }
        for hold in bound {
            let at = self.place_of(hold.0).unwrap();
            self.closed.push((client, hold, at));
        }
        Ok(())
    }

    fn place_of(&self, lock: Handle) -> Option<usize> {
        self.table.get(lock).map(|lock| index_of(lock.place()))
    }

    fn pump(&mut self, allowed: bool) -> Result<(), String> {
        self.end_legacy();
        let ended = self.table.end_grace(self.now().instant);
        same!("the end of a grace is noted", ended && self.plain.in_grace(), false);
        for evicted in self.table.all_evicted() {
            let at = self.place_of(evicted).unwrap();
            self.put_back(at);
        }
        for (lock, fence) in std::mem::take(&mut self.take_backs) {
            self.take_back(lock, fence, allowed)?;
        }
        for (client, (lock, token), at) in std::mem::take(&mut self.closed) {
            let at = self.place_of(lock).unwrap_or(at);
            let Key::Lock(lock) = self.keys[at] else { continue };
            if allowed {
                self.ask(at, |table, site, now| table.end_bound(site, &token, client, now));
                self.plain.end_bound(at, token_of(&token), client);
            } else {
                self.closed.push((client, (lock, token), at));
            }
        }
        self.end_leases(allowed)?;
        let mut stirred: Vec<usize> = self.all_stirred().iter().map(|s| index_of(spot(s))).collect();
        if allowed {
            stirred.append(&mut self.refused);
        }
        for at in stirred {
            self.attend(at, allowed)?;
        }
        self.end_waits(allowed)?;
        let stirred = self.all_stirred();
        for stirred in stirred {
            self.attend(index_of(spot(&stirred)), allowed)?;
        }
        if allowed {
            self.is_served()?;
        }
        Ok(())
    }

    fn all_stirred(&mut self) -> Vec<(i32, Box<[u8]>)> {
        std::iter::from_fn(|| self.table.next_stirred()).collect()
    }

    /// Nobody waits for what is free, and nobody holds what is over.
    fn is_served(&self) -> Result<(), String> {
        for at in 0..self.keys.len() {
            same!("somebody has not got their turn", self.plain.would_hand_over(at), false);
            let over = self.plain.holders(at).iter().any(|holder| holder.end <= self.plain.now);
            same!("a lease is over and goes on", over, false);
        }
        Ok(())
    }

    fn take_back(&mut self, lock: Handle, fence: Fence, allowed: bool) -> Result<(), String> {
        let Some(at) = self.place_of(lock).filter(|&at| self.keys[at] == Key::Lock(lock)) else { return Ok(()) };
        let now = self.now().instant;
        let found = self.table.void(lock, fence, now);
        same!("taken back", found, self.plain.void(at, fence.get()));
        if found {
            self.attend(at, allowed)?;
        }
        Ok(())
    }

    fn end_leases(&mut self, allowed: bool) -> Result<(), String> {
        let now = self.now().instant;
        while let Some(due) = self.table.next_due(now) {
            match self.place_of(due).filter(|&at| self.keys[at] == Key::Lock(due)) {
                Some(at) => {
                    let over = self.plain.holders(at).iter().any(|holder| holder.end <= self.plain.now);
                    same!("a lease is over", true, over);
                    self.attend(at, allowed)?;
                }
                None => self.table.missing(due),
            }
        }
        Ok(())
    }

    /// Whether the server refused a hand-over.
    fn attend(&mut self, at: usize, allowed: bool) -> Result<bool, String> {
        if matches!(self.keys[at], Key::Legacy(..)) {
            return Ok(false);
        }
        let now = self.now().instant;
        let hands_over = self.ask(at, |table, site, _| table.would_hand_over(site, now));
        same!("whether it hands over", hands_over, self.plain.would_hand_over(at));
        if hands_over && !allowed {
            if let Key::Lock(handle) = self.keys[at] {
                self.table.park(handle);
            }
            self.refused.push(at);
            return Ok(true);
        }
        self.ask(at, |table, site, now| table.settle(site, now));
        self.plain.settle(at);
        Ok(false)
    }

    fn end_waits(&mut self, allowed: bool) -> Result<(), String> {
        let now = self.now().instant;
        while let Some(waiter) = self.table.lines().next_over(now) {
            let seen = self.table.lines().get(waiter).unwrap();
            let (at, token) = (index_of(seen.place()), token_of(&seen.token));
            let refused = self.attend(at, allowed)?;
            let first = self.table.lines().first(place(at)) == Some(waiter);
            let in_grace = self.table.grace_left_ms(now) > 0;
            same!("grace", in_grace, self.plain.in_grace());
            let refused = refused && first || in_grace;
            let answer = if refused { Answer::Refused("no".into()) } else { Answer::Empty };
            let waits = self.table.lines().get(waiter).is_some();
            self.ask(at, |table, _, _| table.end_wait(waiter, answer));
            let over = self.plain.waiter(at, token).is_some_and(|waiter| waiter.until <= Some(self.plain.now));
            if waits {
                same!("a wait is over", true, over);
                self.plain.drop_wait(at, token, if refused { Said::Refused } else { Said::Empty });
            }
        }
        Ok(())
    }
}

fn spot(stirred: &(i32, Box<[u8]>)) -> Place<'_> {
    Place { db: stirred.0, key: &stirred.1 }
}
