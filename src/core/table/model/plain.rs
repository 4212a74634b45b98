//! The rules of holding a lock in their plainest form: a map of holds, every end computed at once. What the table does
//! with deadlines, handles and lazy settling must come to the same.

use super::node::Spot;
use crate::core::table::Ended;
use std::collections::{BTreeMap, BTreeSet};

const MICROS_PER_MS: u64 = 1_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    pub token: &'static str,
    pub label: &'static str,
    pub fence: u64,
    pub lease_ms: u64,
    pub end_us: u64,
    /// Up to here a reply has told the client that the lock is its own.
    pub promised_us: u64,
}

impl Hold {
    pub fn new(token: &'static str, label: &'static str, fence: u64, lease_ms: u64, now_us: u64) -> Self {
        Self { token, label, fence, lease_ms, end_us: now_us + lease_ms * MICROS_PER_MS, promised_us: 0 }
    }

    fn over(&self, now_us: u64) -> bool {
        self.end_us <= now_us
    }

    /// Keeps at least this lease from now; whether its length is another now.
    fn raise(&mut self, lease_ms: u64, now_us: u64) -> bool {
        let end_us = now_us + lease_ms * MICROS_PER_MS;
        if end_us <= self.end_us {
            return false;
        }
        self.end_us = end_us;
        std::mem::replace(&mut self.lease_ms, lease_ms) != lease_ms
    }
}

/// An effect, without its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Created,
    Changed,
    Removed(Ended),
}

/// What an acquire must come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The lock is taken, under a new fence.
    New,
    /// The grant is repeated; `refence`: it comes from before this node served.
    Repeat { refence: bool },
    /// Another token holds it.
    Held,
}

#[derive(Debug, Default)]
pub struct Plain {
    pub holds: BTreeMap<Spot, Hold>,
    /// Evicted holds, oldest first: still held, on their way back into the keyspace.
    pub evicted: Vec<(Spot, Hold)>,
    pub data: BTreeSet<Spot>,
    pub serving: bool,
    /// Fences up to here were issued before this node served.
    pub floor: u64,
    /// The highest fence ever seen.
    pub highest: u64,
}

impl Plain {
    /// Ms left of a hold, as a reply tells it.
    pub fn left_ms(&self, hold: &Hold, now_us: u64) -> u64 {
        if self.serving {
            hold.end_us.saturating_sub(now_us) / MICROS_PER_MS
        } else {
            hold.lease_ms
        }
    }

    /// Whoever asks for a lock finds it, evicted or not.
    pub fn find(&self, spot: Spot) -> Option<&Hold> {
        let evicted = || self.evicted.iter().find(|(at, _)| *at == spot).map(|(_, hold)| hold);
        self.holds.get(&spot).or_else(evicted)
    }

    /// What an acquire must come to, and its effects.
    pub fn judge(&self, spot: Spot, token: &str, lease_ms: u64, now_us: u64) -> (Verdict, Vec<Kind>) {
        let Some(hold) = self.holds.get(&spot) else {
            return (Verdict::New, vec![Kind::Created]);
        };
        if hold.token == token && self.left_ms(hold, now_us) > 0 {
            let refence = hold.fence <= self.floor;
            let changed = hold.clone().raise(lease_ms, now_us) || refence;
            return (Verdict::Repeat { refence }, if changed { vec![Kind::Changed] } else { Vec::new() });
        }
        if hold.token != token && !hold.over(now_us) {
            return (Verdict::Held, Vec::new());
        }
        (Verdict::New, vec![Kind::Removed(Ended::LeaseEnded), Kind::Created])
    }

    /// The token's grant is repeated under this fence.
    pub fn repeat(&mut self, spot: Spot, fence: u64, lease_ms: u64, now_us: u64) {
        let hold = self.holds.get_mut(&spot).expect("only a hold is repeated");
        hold.raise(lease_ms, now_us);
        hold.fence = fence;
    }

    /// Ms left and the effects of an EXTEND.
    pub fn extend(&mut self, spot: Spot, token: &str, lease_ms: Option<u64>, now_us: u64) -> (u64, Vec<Kind>) {
        let left_ms = self.holds.get(&spot).filter(|hold| hold.token == token).map(|hold| self.left_ms(hold, now_us));
        if left_ms.unwrap_or(0) == 0 {
            return (0, self.settle(spot, now_us));
        }
        let hold = self.holds.get_mut(&spot).expect("found above");
        let changed = hold.raise(lease_ms.unwrap_or(hold.lease_ms), now_us);
        let left_ms = self.holds.get(&spot).map_or(0, |hold| self.left_ms(hold, now_us));
        (left_ms, if changed { vec![Kind::Changed] } else { Vec::new() })
    }

    /// The reply and the effects of a RELEASE.
    pub fn release(&mut self, spot: Spot, token: &str, now_us: u64) -> (i64, Vec<Kind>) {
        let ended = self.settle(spot, now_us);
        match self.holds.get(&spot) {
            None => (0, ended),
            Some(hold) if hold.token != token => (-1, ended),
            Some(_) => {
                self.holds.remove(&spot);
                (1, vec![Kind::Removed(Ended::Released)])
            }
        }
    }

    pub fn check(&self, spot: Spot, token: &str, now_us: u64) -> u64 {
        self.find(spot).filter(|hold| hold.token == token).map_or(0, |hold| self.left_ms(hold, now_us))
    }

    /// A command that writes brings an evicted hold back first.
    pub fn bring_back(&mut self, spot: Spot) {
        if self.serving && !self.holds.contains_key(&spot) && !self.data.contains(&spot) {
            if let Some(index) = self.evicted.iter().position(|(at, _)| *at == spot) {
                let (_, hold) = self.evicted.remove(index);
                self.holds.insert(spot, hold);
            }
        }
    }

    /// Evicted holds come back where the key is still free; leases that are over end.
    pub fn pump(&mut self, now_us: u64, owns_slots: bool) {
        for (spot, hold) in std::mem::take(&mut self.evicted) {
            if !self.data.contains(&spot) {
                self.holds.entry(spot).or_insert(hold);
            }
        }
        if owns_slots {
            self.holds.retain(|_, hold| !hold.over(now_us));
        }
        for hold in self.holds.values_mut().filter(|hold| hold.over(now_us)) {
            hold.end_us = now_us + hold.lease_ms * MICROS_PER_MS;
        }
    }

    /// No lease ends earlier than its whole length from here.
    pub fn begin_serving(&mut self, now_us: u64, floor: u64) {
        self.serving = true;
        self.floor = floor;
        for hold in self.every_hold() {
            hold.end_us = hold.end_us.max(now_us + hold.lease_ms * MICROS_PER_MS);
        }
    }

    pub fn every_hold(&mut self) -> impl Iterator<Item = &mut Hold> {
        self.holds.values_mut().chain(self.evicted.iter_mut().map(|(_, hold)| hold))
    }

    pub fn delete(&mut self, spot: Spot) {
        self.holds.remove(&spot);
        self.data.remove(&spot);
    }

    pub fn overwrite(&mut self, spot: Spot) {
        self.delete(spot);
        self.data.insert(spot);
    }

    pub fn store(&mut self, spot: Spot, hold: Hold) {
        self.delete(spot);
        self.highest = self.highest.max(hold.fence);
        self.holds.insert(spot, hold);
    }

    pub fn rename(&mut self, from: Spot, to: Spot) {
        let (hold, data) = (self.holds.remove(&from), self.data.remove(&from));
        if let Some(hold) = hold {
            self.store(to, hold);
        } else if data {
            self.overwrite(to);
        }
    }

    pub fn swap(&mut self) {
        let across = |spot: Spot| Spot { db: 1 - spot.db, ..spot };
        let holds = std::mem::take(&mut self.holds);
        self.holds = holds.into_iter().map(|(spot, hold)| (across(spot), hold)).collect();
        self.data = self.data.iter().copied().map(across).collect();
        self.evicted.iter_mut().for_each(|(spot, _)| *spot = across(*spot));
    }

    pub fn flush(&mut self, db: Option<i32>) {
        let stays = |spot: Spot| db.is_some_and(|db| spot.db != db);
        self.holds.retain(|spot, _| stays(*spot));
        self.data.retain(|spot| stays(*spot));
        self.evicted.retain(|(spot, _)| stays(*spot));
    }

    pub fn evict(&mut self, spot: Spot) {
        self.data.remove(&spot);
        if let Some(hold) = self.holds.remove(&spot) {
            self.evicted.push((spot, hold));
        }
    }

    /// Ends the hold whose lease is over.
    fn settle(&mut self, spot: Spot, now_us: u64) -> Vec<Kind> {
        match self.holds.get(&spot) {
            Some(hold) if hold.over(now_us) => {
                self.holds.remove(&spot);
                vec![Kind::Removed(Ended::LeaseEnded)]
            }
            _ => Vec::new(),
        }
    }
}
