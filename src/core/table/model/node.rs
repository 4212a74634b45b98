//! A server reduced to what core sees of it: a keyspace of handles that asks the table and carries out its effects as
//! `engine` does, the server's own commands on that keyspace, and the stream of changes that a replica follows.

use crate::core::codec;
use crate::core::fence::Fence;
use crate::core::lock::Lock;
use crate::core::name::Place;
use crate::core::slab::Handle;
use crate::core::table::{Effect, Origin, Refused, Table};
use crate::core::time::{Instant, Now, Ticks};
use std::collections::BTreeMap;

/// A key in a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spot {
    pub db: i32,
    pub key: &'static str,
}

impl Spot {
    pub fn place(self) -> Place<'static> {
        Place { db: self.db, key: self.key.as_bytes() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    Lock(Handle),
    /// Something that is not a lock.
    Data,
}

/// One change, as a replica is told of it.
#[derive(Clone, Debug)]
pub enum Message {
    /// The internal command, with the codec's bytes.
    Set(Spot, Vec<u8>),
    Restore(Spot, Vec<u8>),
    Overwrite(Spot),
    Delete(Spot),
    Rename(Spot, Spot),
    Swap,
    Flush(Option<i32>),
}

/// Why the server, or the engine in front of core, turned a command away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    NotServing,
    WrongType,
    Busy,
    Refused(Refused),
}

/// True time and wall time in us. A node's monotonic clock leads true time by a number of its own.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    pub now_us: u64,
    pub wall_us: u64,
}

#[derive(Default)]
pub struct Node {
    pub table: Table,
    pub keys: BTreeMap<Spot, Value>,
    pub stream: Vec<Message>,
    lead_us: u64,
    /// Values the server freed, which the table has not been told of yet.
    freed: Vec<Handle>,
    /// Values of a flush that another thread has not freed yet.
    doomed: Vec<Handle>,
}

impl Node {
    /// A node that loads these locks, and the number saved beside them. It does not serve yet.
    pub fn load(locks: &BTreeMap<Spot, Vec<u8>>, aux: Option<Fence>, clocks: Clocks, lead_us: u64) -> Self {
        let mut node = Self { lead_us, ..Self::default() };
        if let Some(fence) = aux {
            node.table.raise_fence(fence);
        }
        for (&spot, bytes) in locks {
            node.restore(spot, bytes, Origin::Server, false, clocks).expect("what was saved is loaded");
        }
        node.stream.clear();
        node
    }

    pub fn now(&self, clocks: Clocks) -> Now {
        Now {
            instant: Instant::from_micros(clocks.now_us + self.lead_us),
            ticks: Ticks::from_unix_micros(clocks.wall_us),
        }
    }

    /// The saved form of every lock.
    pub fn records(&self) -> BTreeMap<Spot, Vec<u8>> {
        let locks = self.keys.iter().filter_map(|(&spot, value)| match value {
            Value::Lock(handle) => Some((spot, self.bytes(*handle))),
            Value::Data => None,
        });
        locks.collect()
    }

    /// The keyspace and the table must agree on how many locks there are.
    pub fn check_counts(&self, evicted: usize) {
        let in_keyspace = self.keys.values().filter(|value| matches!(value, Value::Lock(_))).count();
        // A flush frees values without a word that they left the keyspace.
        let on_their_way = self.freed.iter().chain(&self.doomed);
        let flushed = on_their_way.filter(|&&handle| self.table.get(handle).is_some_and(Lock::linked));
        assert_eq!(self.table.held(), in_keyspace + flushed.count(), "held() and the keyspace");
        if self.freed.is_empty() {
            assert_eq!(self.table.known(), in_keyspace + self.doomed.len() + evicted, "known() and the keyspace");
        }
    }

    /// A command that writes, as `engine::write` runs it. The effects have been carried out.
    pub fn write<R>(
        &mut self,
        spot: Spot,
        clocks: Clocks,
        ask: impl FnOnce(&mut Table, Option<Handle>, Now) -> R,
    ) -> Result<(R, Vec<Effect>), Denied> {
        self.bury();
        if !self.table.is_serving() {
            return Err(Denied::NotServing);
        }
        let mut found = self.lock_at(spot)?;
        if let (None, Some(evicted)) = (found, self.table.find_evicted(spot.place())) {
            found = self.put_back(spot, evicted).then_some(evicted);
        }
        if let Some(handle) = found {
            self.table.linked(handle, spot.place());
        }
        let now = self.now(clocks);
        let answer = ask(&mut self.table, found, now);
        Ok((answer, self.carry_out(spot, true)))
    }

    /// A command that only looks, as `engine::read` runs it.
    pub fn read<R>(
        &mut self,
        spot: Spot,
        clocks: Clocks,
        ask: impl FnOnce(&Table, Option<Handle>, Instant) -> R,
    ) -> Result<R, Denied> {
        self.bury();
        self.peek(spot, clocks, ask)
    }

    /// Looks without being a command: nothing changes, not even what is still to be buried.
    pub fn peek<R>(
        &self,
        spot: Spot,
        clocks: Clocks,
        ask: impl FnOnce(&Table, Option<Handle>, Instant) -> R,
    ) -> Result<R, Denied> {
        let found = self.lock_at(spot)?.or_else(|| self.table.find_evicted(spot.place()));
        Ok(ask(&self.table, found, self.now(clocks).instant))
    }

    /// The pump, run until nothing is left to do. In a slot of another node no lease ends.
    pub fn pump(&mut self, clocks: Clocks, owns_slots: bool) {
        self.bury();
        while let Some(handle) = self.table.first_evicted() {
            if let Some(spot) = self.spot_of(handle) {
                self.put_back(spot, handle);
            }
            self.table.give_up_if_evicted(handle);
        }
        let now = self.now(clocks).instant;
        while let Some(handle) = self.table.next_due(now) {
            match self.spot_of(handle).filter(|spot| self.keys.get(spot) == Some(&Value::Lock(handle))) {
                Some(_) if !owns_slots => self.table.hold_back(handle, now),
                Some(spot) => {
                    self.table.settle(Some(handle), now);
                    self.carry_out(spot, true);
                }
                None => self.table.missing(handle),
            }
        }
    }

    /// Follows what the primary did.
    pub fn follow(&mut self, message: &Message, clocks: Clocks) {
        match message {
            Message::Set(spot, bytes) => {
                self.bury();
                let found = self.lock_at(*spot).expect("a lock or nothing is where the primary sets one");
                let now = self.now(clocks);
                self.table.follow(found, spot.place(), bytes, now).expect("what the primary says is valid");
                self.carry_out(*spot, false);
            }
            Message::Restore(spot, bytes) => {
                self.restore(*spot, bytes, Origin::Server, true, clocks).expect("the primary took it in");
            }
            Message::Overwrite(spot) => self.overwrite(*spot),
            Message::Delete(spot) => self.delete(*spot),
            Message::Rename(from, to) => self.rename(*from, *to),
            Message::Swap => self.swap(),
            Message::Flush(db) => self.flush(*db, false),
        }
    }

    /// RESTORE, or a value of an RDB: the value is read first, then stands at its key.
    pub fn restore(
        &mut self,
        spot: Spot,
        bytes: &[u8],
        origin: Origin,
        replace: bool,
        clocks: Clocks,
    ) -> Result<(), Denied> {
        if self.keys.contains_key(&spot) && !replace {
            return Err(Denied::Busy);
        }
        let now = self.now(clocks);
        let handle = self.table.load(spot.place(), bytes, origin, now).map_err(Denied::Refused)?;
        self.store(spot, Value::Lock(handle));
        self.table.linked(handle, spot.place());
        self.stream.push(Message::Restore(spot, bytes.to_vec()));
        Ok(())
    }

    /// SET of something else over whatever is there.
    pub fn overwrite(&mut self, spot: Spot) {
        self.store(spot, Value::Data);
        self.stream.push(Message::Overwrite(spot));
    }

    pub fn delete(&mut self, spot: Spot) {
        self.take(spot);
        self.table.left_for_good();
        self.stream.push(Message::Delete(spot));
    }

    /// RENAME or MOVE: the value leaves its key and stands at another.
    pub fn rename(&mut self, from: Spot, to: Spot) {
        let Some(&value) = self.keys.get(&from) else { return };
        self.store(to, value);
        self.keys.remove(&from);
        if let Value::Lock(handle) = value {
            self.table.unlinked(handle);
            self.table.left_for_good();
            self.table.linked(handle, to.place());
        }
        self.stream.push(Message::Rename(from, to));
    }

    /// SWAPDB 0 1.
    pub fn swap(&mut self) {
        let keys = std::mem::take(&mut self.keys);
        self.keys = keys.into_iter().map(|(spot, value)| (Spot { db: 1 - spot.db, ..spot }, value)).collect();
        self.table.swapped(0, 1);
        self.stream.push(Message::Swap);
    }

    /// FLUSHDB, or FLUSHALL without a number; `late` if another thread frees the values.
    pub fn flush(&mut self, db: Option<i32>, late: bool) {
        let values = if late { &mut self.doomed } else { &mut self.freed };
        self.keys.retain(|spot, value| {
            let stays = db.is_some_and(|db| spot.db != db);
            if let (false, Value::Lock(handle)) = (stays, value) {
                values.push(*handle);
            }
            stays
        });
        self.table.flushed(db);
        self.stream.push(Message::Flush(db));
    }

    /// The other thread is done with what was flushed.
    pub fn free_late(&mut self) {
        self.freed.append(&mut self.doomed);
    }

    /// The server evicts what is there.
    pub fn evict(&mut self, spot: Spot) {
        let lock = matches!(self.keys.get(&spot), Some(Value::Lock(_)));
        if !lock {
            // What was set over a lock is not evicted in the same turn: the module's cron has come by.
            self.bury();
        }
        self.take(spot);
        assert_eq!(self.table.evicted(spot.place()), lock, "only a lock is put back");
        self.stream.push(Message::Delete(spot));
    }

    fn bury(&mut self) {
        for handle in self.freed.drain(..) {
            self.table.freed(handle);
        }
    }

    fn lock_at(&self, spot: Spot) -> Result<Option<Handle>, Denied> {
        match self.keys.get(&spot) {
            None => Ok(None),
            Some(Value::Lock(handle)) => Ok(Some(*handle)),
            Some(Value::Data) => Err(Denied::WrongType),
        }
    }

    fn spot_of(&self, handle: Handle) -> Option<Spot> {
        let place = self.table.get(handle)?.place();
        let key = super::KEYS.into_iter().find(|key| key.as_bytes() == place.key)?;
        Some(Spot { db: place.db, key })
    }

    fn put_back(&mut self, spot: Spot, handle: Handle) -> bool {
        if self.keys.contains_key(&spot) {
            return false;
        }
        self.store(spot, Value::Lock(handle));
        self.table.put_back(handle);
        self.tell(spot, handle);
        true
    }

    fn carry_out(&mut self, spot: Spot, tell: bool) -> Vec<Effect> {
        let effects = self.table.take_effects();
        for &effect in &effects {
            match effect {
                Effect::Created(handle) | Effect::Changed(handle) => {
                    if matches!(effect, Effect::Created(_)) {
                        self.store(spot, Value::Lock(handle));
                    }
                    assert_eq!(self.keys.get(&spot), Some(&Value::Lock(handle)), "an effect concerns its own key");
                    if tell {
                        self.tell(spot, handle);
                    }
                }
                Effect::Removed(_) => {
                    self.take(spot);
                    if tell {
                        self.stream.push(Message::Delete(spot));
                    }
                }
            }
        }
        effects
    }

    fn tell(&mut self, spot: Spot, handle: Handle) {
        let bytes = self.bytes(handle);
        self.stream.push(Message::Set(spot, bytes));
    }

    fn bytes(&self, handle: Handle) -> Vec<u8> {
        let lock = self.table.get(handle).expect("the keyspace holds locks the table knows");
        let mut bytes = Vec::new();
        codec::encode(&lock.holder().expect("a lock has a holder"), &mut bytes);
        bytes
    }

    fn store(&mut self, spot: Spot, value: Value) {
        self.take(spot);
        self.keys.insert(spot, value);
    }

    fn take(&mut self, spot: Spot) {
        if let Some(Value::Lock(handle)) = self.keys.remove(&spot) {
            self.table.unlinked(handle);
            self.freed.push(handle);
        }
    }
}
