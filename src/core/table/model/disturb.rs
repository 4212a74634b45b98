//! Plays what the server and its operators do to keys, and what happens to the server itself.

use super::super::{Origin, Table};
use super::ops::{Op, PLACES};
use super::plain::{Holder, Stand, MS};
use super::play::same;
use super::world::{place, secret, Key, World};
use crate::core::hold::Delivery;

impl World {
    pub fn disturb(&mut self, op: &Op) -> Result<(), String> {
        self.end_legacy();
        match *op {
            Op::Delete(at) => self.delete(at),
            Op::Rename(from, to) => self.rename(from, to),
            Op::Restore(from, to) => self.restore(from, to),
            Op::Evict(at) => self.evict(at, false),
            Op::Expire(at) => self.evict(at, true),
            Op::Bury => self.bury(),
            Op::Flush(db) => self.flush(db),
            Op::Swap => {
                self.bury();
                self.swap();
            }
            Op::Legacy(at, token, us) => {
                self.put_back(at);
                self.overwrite(at);
                let end = self.plain.now + us;
                self.keys[at] = Key::Legacy(token, end);
                self.plain.spots[at].stand = Stand::Legacy(token, end);
                self.table.stir_place(place(at));
            }
            Op::Grace(ms) => {
                let now = self.now().instant;
                self.table.set_grace_ms(ms, now);
                self.table.begin_grace(now);
                self.plain.grace_end = self.plain.now + ms * MS;
            }
            Op::Restart => self.restart(),
            Op::Failover => self.fail_over()?,
            _ => {}
        }
        Ok(())
    }

    fn delete(&mut self, at: usize) {
        if self.keys[at] != Key::Nothing {
            self.overwrite(at);
            self.table.left_for_good();
        }
    }

    /// What stands at a key is no more.
    fn overwrite(&mut self, at: usize) {
        if let Key::Lock(handle) = self.keys[at] {
            self.table.unlinked(handle);
            self.table.freed(handle);
            self.delete_copy(at);
        } else {
            // A legacy lock leaves no other trace.
            self.table.stir_place(place(at));
        }
        self.keys[at] = Key::Nothing;
        self.plain.spots[at].stand = Stand::Nothing;
    }

    fn arrived(&mut self, at: usize) {
        self.table.stir_place(place(at));
        self.table.left_for_good();
        if let Key::Lock(handle) = self.keys[at] {
            self.table.came(handle, place(at));
        }
    }

    fn rename(&mut self, from: usize, to: usize) {
        self.put_back(from);
        self.put_back(to);
        if from == to || self.keys[from] == Key::Nothing {
            return;
        }
        self.overwrite(to);
        if let Key::Lock(handle) = self.keys[from] {
            self.table.unlinked(handle);
        } else {
            self.table.stir_place(place(from));
        }
        self.keys[to] = std::mem::take(&mut self.keys[from]);
        self.plain.spots[to].stand = std::mem::take(&mut self.plain.spots[from].stand);
        self.arrived(to);
        if let Some(copy) = self.copies[from].take() {
            self.replica.unlinked(copy);
            self.copies[to] = Some(copy);
            self.replica.linked(copy, place(to));
        }
    }

    fn restore(&mut self, from: usize, to: usize) {
        self.put_back(from);
        self.put_back(to);
        let Some(bytes) = self.saved(from).map(|changes| changes.concat()) else { return };
        let mut holders = self.plain.holders(from).to_vec();
        self.overwrite(to);
        let now = self.now();
        let handle = self.table.load(place(to), &bytes, Origin::Stranger, now).unwrap();
        self.keys[to] = Key::Lock(handle);
        self.arrived(to);
        self.load_copy(to, &bytes);
        holders.iter_mut().for_each(|holder| holder.start_anew(self.plain.now));
        holders.iter_mut().for_each(|holder| holder.client = 0);
        self.plain.spots[to].stand = Stand::Lock(holders);
    }

    fn evict(&mut self, at: usize, expires: bool) {
        match self.keys[at] {
            Key::Nothing => {}
            Key::Legacy(..) => {
                self.overwrite(at);
                assert!(!self.table.evicted(place(at)), "a string is kept");
            }
            Key::Lock(handle) => {
                if expires {
                    self.table.expire_set(handle);
                }
                self.table.unlinked(handle);
                let kept = if expires { self.table.expired(place(at)) } else { self.table.evicted(place(at)) };
                assert!(kept, "an evicted lock is lost");
                self.keys[at] = Key::Nothing;
                self.table.freed(handle);
                self.delete_copy(at);
                // The reply names a value that is gone: it will not be delivered.
                for holder in self.plain.holders_mut(at) {
                    if holder.delivery == Delivery::Untold {
                        (holder.delivery, holder.end) = (Delivery::Unfetched, 0);
                    }
                }
            }
        }
    }

    fn bury(&mut self) {
        std::mem::take(&mut self.graves).into_iter().for_each(|handle| self.table.freed(handle));
    }

    fn flush(&mut self, db: i32) {
        for at in (0..PLACES).filter(|&at| place(at).db == db) {
            if let Key::Lock(handle) = std::mem::take(&mut self.keys[at]) {
                self.graves.push(handle);
                let copy = self.copies[at].take();
                copy.into_iter().for_each(|copy| self.replica.freed(copy));
            }
            self.plain.spots[at].stand = Stand::Nothing;
        }
        self.table.flushed(Some(db));
    }

    fn swap(&mut self) {
        let half = PLACES / 2;
        for at in 0..half {
            self.keys.swap(at, at + half);
            self.copies.swap(at, at + half);
            let stand = std::mem::take(&mut self.plain.spots[at].stand);
            self.plain.spots[at].stand = std::mem::replace(&mut self.plain.spots[at + half].stand, stand);
        }
        self.closed.iter_mut().for_each(|(_, _, at)| *at = (*at + half) % PLACES);
        self.table.swapped(0, 1);
        self.replica.swapped(0, 1);
    }

    fn forget_connections(&mut self) {
        self.blocked.clear();
        self.pending.clear();
        self.take_backs.clear();
        self.closed.clear();
        self.refused.clear();
    }

    /// The server starts again from its RDB, and its replica from that.
    fn restart(&mut self) {
        let saved: Vec<Option<Vec<u8>>> = (0..PLACES).map(|at| self.saved(at).map(|bytes| bytes.concat())).collect();
        let now = self.now();
        let highest = self.table.fences().to_save(self.table.held() > 0, now.ticks);
        (self.table, self.replica, self.copies) = (Table::default(), Table::default(), <[_; PLACES]>::default());
        self.graves.clear();
        self.forget_connections();
        (self.plain.highest, self.plain.known) = (0, 0);
        if let Some(fence) = highest {
            self.table.raise_fence(fence);
            self.replica.raise_fence(fence);
            self.plain.raise_fence(fence.get());
        }
        for (at, bytes) in saved.iter().enumerate() {
            let Some(bytes) = bytes else { continue };
            self.keys[at] = Key::Lock(self.table.load(place(at), bytes, Origin::Server, now).unwrap());
            self.load_copy(at, bytes);
            let mut holders = self.plain.holders(at).to_vec();
            for holder in &mut holders {
                holder.start_anew(now.instant.micros());
                holder.client = 0;
                self.plain.raise_fence(holder.fence);
            }
            self.plain.spots[at].stand = Stand::Lock(holders);
        }
        self.serve_again();
    }

    fn serve_again(&mut self) {
        self.serve();
        self.table.stir(None);
    }

    /// The replica is promoted. What was the primary follows it, with all it knew.
    fn fail_over(&mut self) -> Result<(), String> {
        self.bury();
        self.table.stop_serving();
        self.table.drop_grace();
        let mut seats: Vec<u64> = self.table.drop_lines().iter().map(|seat| seat.0).collect();
        seats.sort_unstable();
        same!("connections that wait", seats, self.blocked.keys().copied().collect::<Vec<_>>());
        same!("holds bound on a replica", self.table.has_bound(), false);
        same!("locks kept on a replica that evicted them", self.table.all_evicted(), vec![]);
        self.forget_connections();
        self.lease_left_on_a_replica()?;
        std::mem::swap(&mut self.table, &mut self.replica);
        for at in 0..PLACES {
            let old = std::mem::take(&mut self.copies[at]);
            match self.keys[at] {
                Key::Legacy(..) => {}
                Key::Lock(handle) => {
                    self.keys[at] = Key::Lock(old.unwrap());
                    self.copies[at] = Some(handle);
                    self.adopt(at);
                }
                Key::Nothing => self.plain.spots[at].stand = Stand::Nothing,
            }
        }
        let (highest, known) = (self.table.fences().highest(), self.plain.known);
        same!("the fence a replica knows", highest >= known, true);
        self.plain.highest = highest;
        self.serve_again();
        Ok(())
    }

    /// What travels in whole ms is as the replica has it.
    fn adopt(&mut self, at: usize) {
        let Key::Lock(handle) = self.keys[at] else { return };
        let lock = self.table.get(handle).unwrap();
        for holder in self.plain.holders_mut(at) {
            let seen = lock.hold(secret(holder.token).into()).unwrap();
            holder.cap = seen.cap().map(crate::core::time::Instant::micros);
            holder.granted = seen.granted.micros();
            holder.client = seen.client;
            (holder.delivery, holder.before) = (Delivery::Told, None);
            holder.end = 0;
        }
    }

    fn lease_left_on_a_replica(&self) -> Result<(), String> {
        for at in 0..PLACES {
            for holder in self.plain.holders(at) {
                let Key::Lock(handle) = self.keys[at] else { continue };
                let lock = self.table.get(handle).unwrap();
                let hold = lock.hold(secret(holder.token).into()).unwrap();
                let cap_ms = holder.cap.map_or(u64::MAX, |cap| cap.saturating_sub(self.plain.now) / MS);
                let found = self.table.ms_left(&hold, self.now().instant);
                same!("left where leases stand still", found, holder.lease_ms.min(cap_ms));
            }
        }
        Ok(())
    }
}

impl Holder {
    /// Saved and loaded: its lease starts anew, and only whole ms of its cap are left.
    fn start_anew(&mut self, now: u64) {
        self.cap = self.cap.map(|cap| now + cap.saturating_sub(now) / MS * MS);
        (self.granted, self.delivery, self.before, self.ephemeral) = (now, Delivery::Told, None, false);
        self.end = (now + self.lease_ms * MS).min(self.cap.unwrap_or(u64::MAX));
    }
}
