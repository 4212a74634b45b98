//! One simulated server: core's table, a keyspace of handles, two clocks, a disk. It does what the engine does, in the
//! same order, and writes down what the engine would replicate.

use redis_lock::core::codec::{self, Change};
use redis_lock::core::fence::Fence;
use redis_lock::core::hold::Mode;
use redis_lock::core::line::Seat;
use redis_lock::core::lock::Seen;
use redis_lock::core::name::{self, Token};
use redis_lock::core::slab::Handle;
use redis_lock::core::table::{Answer, BoundHold, Effect, Origin, Site, Table};
use redis_lock::core::time::{Instant, Now, Ticks};
use std::collections::BTreeMap;

use super::world::MS;

/// Simulated time begins here, in us since 1970: after fences began.
const EPOCH_US: u64 = 1_790_000_000_000_000;

/// One change of one key, as it is replicated and appended to a file.
#[derive(Clone, Debug)]
pub struct Record {
    /// Number of the change among all that any server ever made.
    pub id: u64,
    pub key: u8,
    pub change: Option<Vec<u8>>,
}

/// A holder in its saved form, without the cap, which counts down.
pub type Saved = (Vec<u8>, u64, u64, Mode, bool, Vec<Vec<u8>>);

/// A place in a line: whose, and its number.
pub type Place = (Vec<u8>, u64);

/// What a server finds when it starts again.
#[derive(Default)]
struct Disk {
    snapshot: Vec<(u8, Vec<u8>)>,
    aux: Option<Fence>,
    /// The last change that is part of the snapshot.
    snapshot_id: u64,
    records: Vec<Record>,
    /// How many of them survive a loss of power.
    synced: usize,
}

/// A blocked connection.
#[derive(Clone, Debug)]
pub struct Sitter {
    pub waiter: Handle,
    pub key: u8,
    pub token: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Primary,
    Replica,
    Down,
}

pub struct Node {
    pub table: Table,
    pub keys: BTreeMap<u8, Handle>,
    pub role: Role,
    /// Which history it continues.
    pub lineage: u64,
    /// The last change it knows of.
    pub last_id: u64,
    /// The monotonic clock's lead over true time, in us.
    pub mono_us: u64,
    /// The wall clock's lead over true time, in us.
    pub wall_us: i64,
    /// It does nothing before this.
    pub frozen_until: u64,
    /// When the pump runs next.
    pub pump_at: Option<u64>,
    pub seats: BTreeMap<u64, Sitter>,
    pub closed: Vec<(u64, BoundHold)>,
    pub answers: Vec<(Seat, Answer)>,
    /// Changes made since they were last looked at.
    pub made: Vec<Record>,
    /// It cannot follow from where it is.
    pub diverged: bool,
    disk: Disk,
    /// Every change reaches the disk before anybody hears of it.
    fsync_always: bool,
    /// For how long after it began to serve it gives no locks out.
    grace_ms: u64,
    /// Until when it gives none out.
    pub grace_until: u64,
}

impl Node {
    pub fn new(mono_us: u64, wall_us: i64, fsync_always: bool, grace_ms: u64) -> Self {
        Self {
            table: Table::default(),
            keys: BTreeMap::new(),
            role: Role::Replica,
            lineage: 0,
            last_id: 0,
            mono_us,
            wall_us,
            frozen_until: 0,
            pump_at: None,
            seats: BTreeMap::new(),
            closed: Vec::new(),
            answers: Vec::new(),
            made: Vec::new(),
            diverged: false,
            disk: Disk::default(),
            fsync_always,
            grace_ms,
            grace_until: 0,
        }
    }

    pub fn now(&self, true_us: u64) -> Now {
        let wall = (EPOCH_US + true_us).saturating_add_signed(self.wall_us);
        Now { instant: Instant::from_micros(true_us + self.mono_us), ticks: Ticks::from_unix_micros(wall) }
    }

    /// The true time at which this server's monotonic clock shows `at`.
    pub fn true_us(&self, at: Instant) -> u64 {
        at.micros().saturating_sub(self.mono_us)
    }

    /// Asks core about a key and carries out what follows; `next_id` numbers the changes.
    pub fn ask<R>(
        &mut self,
        key: u8,
        true_us: u64,
        next_id: &mut u64,
        question: impl FnOnce(&mut Table, Site<'_>, Now) -> R,
    ) -> R {
        let (now, name) = (self.now(true_us), [key]);
        let site = Site { place: place(&name), lock: self.keys.get(&key).copied(), legacy: None };
        if let Some(handle) = site.lock {
            self.table.linked(handle, site.place);
        }
        let answer = question(&mut self.table, site, now);
        self.carry_out(key, now.instant, next_id);
        answer
    }

    fn carry_out(&mut self, key: u8, now: Instant, next_id: &mut u64) {
        let mut effects = self.table.take_effects();
        for effect in effects.drain(..) {
            match effect {
                Effect::Created(handle) => {
                    assert_eq!(self.keys.insert(key, handle), None, "a lock where one is");
                }
                Effect::Set { lock, fence, alone, .. } => {
                    let holders: Vec<Vec<u8>> = self.table.get(lock).map_or(Vec::new(), |lock| {
                        let found = lock.holders_with(fence);
                        found
                            .filter_map(|seen| Some(encoded(&Change::Set { holder: seen.holder(now)?, alone })))
                            .collect()
                    });
                    holders.into_iter().for_each(|bytes| self.write(key, Some(bytes), next_id));
                }
                Effect::Unset(token) => {
                    let token = Token::new(&token).expect("a token that held the lock");
                    self.write(key, Some(encoded(&Change::Removed(token))), next_id);
                }
                Effect::Removed => {
                    self.keys.remove(&key).expect("a lock that can be removed");
                    self.write(key, None, next_id);
                }
                Effect::Answer(seat, answer) => self.answers.push((seat, answer)),
                Effect::Acquired | Effect::Ended(_) => {}
                Effect::LegacyRemoved | Effect::LegacyExtended(_) => panic!("no legacy lock is here"),
            }
        }
        self.table.reuse_effects(effects);
    }

    fn write(&mut self, key: u8, change: Option<Vec<u8>>, next_id: &mut u64) {
        *next_id += 1;
        let record = Record { id: *next_id, key, change };
        self.made.push(record.clone());
        self.append(record);
    }

    fn append(&mut self, record: Record) {
        self.last_id = record.id;
        self.disk.records.push(record);
        if self.fsync_always {
            self.fsync();
        }
    }

    /// DEL by an administrator.
    pub fn delete(&mut self, key: u8, next_id: &mut u64) {
        if let Some(handle) = self.keys.remove(&key) {
            self.table.unlinked(handle);
            self.table.left_for_good();
            self.table.freed(handle);
            self.write(key, None, next_id);
        }
    }

    /// Follows a change of its primary.
    pub fn follow(&mut self, record: &Record, true_us: u64) {
        self.apply(record, true_us);
        self.append(record.clone());
    }

    fn apply(&mut self, record: &Record, true_us: u64) {
        let (now, name) = (self.now(true_us), [record.key]);
        match &record.change {
            Some(bytes) => {
                let site = Site { place: place(&name), lock: self.keys.get(&record.key).copied(), legacy: None };
                self.table.follow(site, bytes, now).expect("a primary's change");
                for effect in self.table.take_effects() {
                    if let Effect::Created(handle) = effect {
                        self.keys.insert(record.key, handle);
                    }
                }
            }
            None => {
                if let Some(handle) = self.keys.remove(&record.key) {
                    self.table.unlinked(handle);
                    self.table.freed(handle);
                }
            }
        }
        self.last_id = record.id;
    }

    pub fn begin_serving(&mut self, true_us: u64) {
        let now = self.now(true_us);
        self.role = Role::Primary;
        self.table.begin_serving(now);
        self.table.set_grace_ms(self.grace_ms, now.instant);
        self.table.begin_grace(now.instant);
        self.grace_until = true_us + self.grace_ms * MS;
        self.table.stir(None);
    }

    /// Becomes a replica. Whoever waited here is told.
    pub fn stop_serving(&mut self) -> Vec<(u64, Sitter)> {
        self.role = Role::Replica;
        self.table.stop_serving();
        self.table.drop_grace();
        let blocked = self.table.drop_lines();
        assert_eq!(blocked.len(), self.seats.len(), "whoever is blocked is known");
        self.closed.clear();
        self.pump_at = None;
        std::mem::take(&mut self.seats).into_iter().collect()
    }

    /// A full copy of another server takes the place of all that was here. H stays.
    pub fn resync(&mut self, from: &Self, true_us: u64) {
        let snapshot = from.snapshot(true_us);
        let aux = from.aux(true_us);
        for (_, handle) in std::mem::take(&mut self.keys) {
            self.table.unlinked(handle);
            self.table.freed(handle);
        }
        self.table.flushed(None);
        self.load(&snapshot, aux, true_us);
        self.disk = Disk { snapshot, aux, snapshot_id: from.last_id, records: Vec::new(), synced: 0 };
        self.last_id = from.last_id;
        self.lineage = from.lineage;
        self.diverged = false;
    }

    fn load(&mut self, snapshot: &[(u8, Vec<u8>)], aux: Option<Fence>, true_us: u64) {
        let now = self.now(true_us);
        aux.into_iter().for_each(|fence| self.table.raise_fence(fence));
        for (key, bytes) in snapshot {
            let handle = self.table.load(place(&[*key]), bytes, Origin::Server, now).expect("what was saved");
            self.keys.insert(*key, handle);
        }
    }

    fn snapshot(&self, true_us: u64) -> Vec<(u8, Vec<u8>)> {
        let now = self.now(true_us).instant;
        let saved = |(&key, &handle): (&u8, &Handle)| {
            let mut bytes = Vec::new();
            let holders = self.table.get(handle).expect("a lock that stands").holders();
            for (index, seen) in holders.enumerate() {
                let holder = seen.holder(now).expect("a holder that is valid");
                codec::encode(&Change::Set { holder, alone: index == 0 }, &mut bytes);
            }
            (key, bytes)
        };
        self.keys.iter().map(saved).collect()
    }

    fn aux(&self, true_us: u64) -> Option<Fence> {
        self.table.fences().to_save(self.table.held() > 0, self.now(true_us).ticks)
    }

    /// Rewrites the append-only file.
    pub fn rewrite(&mut self, true_us: u64) {
        self.disk = Disk {
            snapshot: self.snapshot(true_us),
            aux: self.aux(true_us),
            snapshot_id: self.last_id,
            records: Vec::new(),
            synced: 0,
        };
    }

    pub fn fsync(&mut self) {
        self.disk.synced = self.disk.records.len();
    }

    pub fn file_len(&self) -> usize {
        self.disk.records.len()
    }

    /// Dies. Without power, what was not synced is lost too.
    pub fn crash(&mut self, power: bool) -> Vec<(u64, Sitter)> {
        self.role = Role::Down;
        self.pump_at = None;
        self.closed.clear();
        self.made.clear();
        if power {
            self.disk.records.truncate(self.disk.synced);
        }
        std::mem::take(&mut self.seats).into_iter().collect()
    }

    /// Starts again from its disk.
    pub fn restart(&mut self, true_us: u64) {
        self.table = Table::default();
        self.keys.clear();
        self.role = Role::Replica;
        let disk = std::mem::take(&mut self.disk);
        self.load(&disk.snapshot, disk.aux, true_us);
        self.last_id = disk.snapshot_id;
        for record in &disk.records {
            self.apply(record, true_us);
        }
        self.disk = disk;
        self.fsync();
    }

    pub fn holders(&self, key: u8) -> impl Iterator<Item = Seen<'_>> {
        let lock = self.keys.get(&key).and_then(|&handle| self.table.get(handle));
        lock.into_iter().flat_map(|lock| lock.holders())
    }

    /// The holders of a lock, as a replica must have them.
    pub fn saved(&self, key: u8) -> Vec<Saved> {
        let mut saved: Vec<Saved> = self
            .holders(key)
            .filter_map(|seen| {
                let holder = seen.holder(Instant::from_micros(0))?;
                let names = holder.names.iter().map(|name| name.bytes().to_vec()).collect();
                let (fence, lease) = (holder.fence.get(), holder.lease.ms());
                Some((seen.token.to_vec(), fence, lease, holder.mode, holder.unnamed, names))
            })
            .collect();
        saved.sort_by(|left, right| (left.1, &left.0).cmp(&(right.1, &right.0)));
        saved
    }

    /// Who waits for a lock, in order.
    pub fn line(&self, key: u8) -> Vec<Place> {
        let waiters = self.table.lines().waiters(place(&[key])).map(|(_, waiter)| waiter);
        waiters.map(|waiter| (waiter.token.to_vec(), waiter.order())).collect()
    }

    /// A lock in words, for people.
    pub fn told(&self, key: u8) -> String {
        let micros = |at: Instant| at.micros().saturating_sub(self.mono_us);
        let holder = |seen: Seen<'_>| {
            let (token, hold) = (seen.token.escape_ascii(), seen.hold);
            let cap = hold.cap().map(micros);
            format!("{token} {:?} {:?} until {} cap {cap:?}", seen.mode, hold.delivery, micros(hold.end))
        };
        let holders: Vec<String> = self.holders(key).map(holder).collect();
        let line = self.line(key).into_iter().map(|(token, _)| token.escape_ascii().to_string());
        format!("{holders:?}, then {:?}", line.collect::<Vec<_>>())
    }
}

pub fn place(key: &[u8; 1]) -> name::Place<'_> {
    name::Place { db: 0, key }
}

fn encoded(change: &Change<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec::encode(change, &mut bytes);
    bytes
}
