//! The table under test in a world of its own: a keyspace that follows its effects, a replica that follows them too,
//! connections that wait, and replies on their way.

use super::super::{Acquired, Answer, Effect, ExtendOutcome, Legacy, Origin, ReleaseOutcome, Site, Table};
use super::ops::{Patience, Want, CLIENTS, PLACES};
use super::plain::{Event, Plain, Said};
use super::rules::Reply;
use crate::core::codec::{self, Change};
use crate::core::fence::Fence;
use crate::core::line::Seat;
use crate::core::name::{HoldName, Label, Place, Token};
use crate::core::slab::Handle;
use crate::core::table::{Acquire, Ask, BoundHold, Limits, Turn, Wait};
use crate::core::time::{Instant, Lease, Now, Ticks};
use std::collections::BTreeMap;

/// What stands at a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Key {
    #[default]
    Nothing,
    Lock(Handle),
    /// Whose token, and when it ends.
    Legacy(usize, u64),
}

/// A reply on its way to the connection at a seat.
pub struct Pending {
    pub client: u64,
    pub at: usize,
    pub token: usize,
    pub answer: Answer,
}

/// A connection that is blocked.
pub struct Blocked {
    pub client: u64,
    pub at: usize,
    pub token: usize,
    pub waiter: Handle,
}

#[derive(Default)]
pub struct World {
    pub plain: Plain,
    pub table: Table,
    pub keys: [Key; PLACES],
    pub replica: Table,
    pub copies: [Option<Handle>; PLACES],
    pub blocked: BTreeMap<u64, Blocked>,
    pub seats: u64,
    pub pending: Vec<Pending>,
    pub take_backs: Vec<(Handle, Fence)>,
    pub closed: Vec<(u64, BoundHold, usize)>,
    /// How often each connection was closed and opened again.
    pub reconnects: [u64; CLIENTS as usize],
    pub refused: Vec<usize>,
    /// Values the server is still to free.
    pub graves: Vec<Handle>,
    pub events: Vec<Event>,
    pub touched: bool,
    /// Since when the table serves.
    pub since: u64,
    /// When the pump is to run, as far as it was told.
    pub armed: Option<Instant>,
}

/// Where the monotonic and the wall clock start.
const START_US: u64 = 1_000_000;
const START_TICKS: u64 = 4_000_000_000;
const KEYS: [&[u8]; 2] = [b"red", b"blue"];
const TOKENS: [&[u8]; 5] = [b"a", b"b", b"c", b"d", b"e"];
const NAMES: [&[u8]; 2] = [b"in", b"out"];

pub fn place(at: usize) -> Place<'static> {
    Place { db: (at / KEYS.len()) as i32, key: KEYS[at % KEYS.len()] }
}

pub fn index_of(place: Place<'_>) -> usize {
    place.db as usize * KEYS.len() + KEYS.iter().position(|key| *key == place.key).unwrap()
}

pub fn secret(token: usize) -> Token<'static> {
    Token::new(TOKENS[token]).unwrap()
}

pub fn token_of(bytes: &[u8]) -> usize {
    TOKENS.iter().position(|token| *token == bytes).unwrap()
}

pub fn name_of(name: u8) -> HoldName<'static> {
    HoldName::new(NAMES[name as usize]).unwrap()
}

impl World {
    pub fn new() -> Self {
        let mut world = Self::default();
        (world.plain.now, world.plain.ticks) = (START_US, START_TICKS);
        world.serve();
        world
    }

    pub fn serve(&mut self) {
        self.table.begin_serving(self.now());
        self.plain.begin_serving();
        self.since = self.plain.now;
        self.armed = self.table.next_deadline();
    }

    pub fn now(&self) -> Now {
        const EPOCH_2025_MICROS: u64 = 1_735_689_600_000_000;
        let ticks = Ticks::from_unix_micros(EPOCH_2025_MICROS + self.plain.ticks * 10);
        Now { instant: Instant::from_micros(self.plain.now), ticks }
    }

    pub fn lock(&self, at: usize) -> Option<Handle> {
        match self.keys[at] {
            Key::Lock(handle) => Some(handle),
            _ => self.table.find_evicted(place(at)),
        }
    }

    /// Asks the table about a key, as a command or the pump does, and carries out what follows.
    pub fn ask<R>(&mut self, at: usize, question: impl FnOnce(&mut Table, Site<'_>, Now) -> R) -> R {
        let now = self.now();
        let legacy = if let Key::Legacy(owner, end) = self.keys[at] {
            Some(Legacy { value: TOKENS[owner], ttl_ms: (end - self.plain.now) / 1_000 })
        } else {
            None
        };
        let site = Site { place: place(at), lock: self.lock(at), legacy };
        let answer = question(&mut self.table, site, now);
        self.carry_out(at);
        answer
    }

    fn carry_out(&mut self, at: usize) {
        for effect in self.table.take_effects() {
            match effect {
                Effect::Created(handle) => {
                    assert_eq!(self.keys[at], Key::Nothing, "a lock is stored over something");
                    self.keys[at] = Key::Lock(handle);
                }
                Effect::Set { lock, fence, alone, signal } => {
                    self.touched |= signal;
                    self.send_set(at, lock, fence, alone);
                }
                Effect::Unset(token) => {
                    self.touched = true;
                    self.follow(at, &Change::Removed(Token::new(&token).unwrap()));
                }
                Effect::Removed | Effect::LegacyRemoved => {
                    self.touched = true;
                    assert_ne!(self.keys[at], Key::Nothing, "nothing is deleted");
                    self.keys[at] = Key::Nothing;
                    self.delete_copy(at);
                }
                Effect::LegacyExtended(ms) => {
                    self.touched = true;
                    let Key::Legacy(_, end) = &mut self.keys[at] else { panic!("no legacy lock is extended") };
                    *end = self.plain.now + ms * 1_000;
                }
                Effect::Acquired => self.events.push(Event::Acquired),
                Effect::Ended(why) => self.events.push(Event::Ended(why)),
                Effect::Answer(seat, answer) => {
                    let Blocked { client, at, token, .. } = self.blocked.remove(&seat.0).expect("nobody sits there");
                    self.events.push(Event::Said(seat.0, said(&answer)));
                    self.pending.push(Pending { client, at, token, answer });
                }
            }
        }
    }

    fn send_set(&mut self, at: usize, lock: Handle, fence: Fence, alone: bool) {
        let now = self.now().instant;
        let lock = self.table.get(lock);
        let seen = lock.into_iter().flat_map(|lock| lock.holders_with(fence));
        let changes = seen.filter_map(|seen| Some(encoded(&Change::Set { holder: seen.holder(now)?, alone })));
        let changes: Vec<Vec<u8>> = changes.collect();
        changes.iter().for_each(|bytes| self.follow_bytes(at, bytes));
    }

    fn follow(&mut self, at: usize, change: &Change<'_>) {
        self.follow_bytes(at, &encoded(change));
    }

    fn follow_bytes(&mut self, at: usize, bytes: &[u8]) {
        let site = Site { place: place(at), lock: self.copies[at], legacy: None };
        let now = self.now();
        self.replica.follow(site, bytes, now).unwrap();
        for effect in self.replica.take_effects() {
            if let Effect::Created(handle) = effect {
                self.copies[at] = Some(handle);
            }
        }
    }

    pub fn delete_copy(&mut self, at: usize) {
        if let Some(copy) = self.copies[at].take() {
            self.replica.unlinked(copy);
            self.replica.left_for_good();
            self.replica.freed(copy);
        }
    }

    /// The bytes of a lock, as RDB, DUMP and a full resync have them.
    pub fn saved(&self, at: usize) -> Option<Vec<Vec<u8>>> {
        let lock = self.table.get(self.lock(at)?)?;
        let changes = lock.holders().enumerate().filter_map(|(index, seen)| {
            Some(encoded(&Change::Set { holder: seen.holder(self.now().instant)?, alone: index == 0 }))
        });
        Some(changes.collect())
    }

    pub fn load_copy(&mut self, at: usize, bytes: &[u8]) {
        let now = self.now();
        self.delete_copy(at);
        self.copies[at] = Some(self.replica.load(place(at), bytes, Origin::Server, now).unwrap());
    }

    /// The server puts an evicted lock back before anything else happens to its key.
    pub fn put_back(&mut self, at: usize) {
        let Some(evicted) = self.table.find_evicted(place(at)) else { return };
        if self.keys[at] != Key::Nothing {
            self.table.give_up_if_evicted(evicted);
            return;
        }
        self.keys[at] = Key::Lock(evicted);
        self.table.put_back(evicted);
        for bytes in self.saved(at).unwrap() {
            self.follow_bytes(at, &bytes);
        }
    }

    pub fn acquire(&mut self, at: usize, want: &Want) -> Reply {
        let now_us = self.plain.now;
        let after = |us: u64| Instant::from_micros(now_us + us);
        let wait = match want.patience {
            Patience::None => Wait::No,
            Patience::Block(us) => Wait::Block(Seat(self.seats), us.map(after)),
            Patience::Poll(us) => Wait::Poll(after(us)),
        };
        let ask = Ask {
            mode: want.mode,
            turn: want.turn,
            lease: Lease::from_ms(want.lease_ms).unwrap(),
            name: want.name.map(name_of),
            cap_ms: want.cap_ms,
            ephemeral: want.ephemeral,
        };
        let limits = Limits { blocked: want.room, polled: want.room };
        let label = Label::cut(TOKENS[want.token]);
        let request = Acquire { token: secret(want.token), ask, label, client: want.client, wait, limits };
        let seat = self.seats;
        let is_try = request.wait == Wait::No && request.ask.turn == Turn::No;
        let answer = self.ask(at, |table, site, now| {
            if is_try && table.turns_away(site, request.token, now.instant) {
                return Acquired::Held;
            }
            table.acquire(site, &request, now)
        });
        match answer {
            Acquired::Granted { fence, ttl_ms, new } => Reply::Granted { fence: fence.get(), ttl_ms, new },
            Acquired::Held => Reply::Held,
            Acquired::Waits(waiter) => {
                let blocked = Blocked { client: want.client, at, token: want.token, waiter };
                assert!(self.blocked.insert(seat, blocked).is_none());
                Reply::Waits
            }
            Acquired::HeldShared => Reply::HeldShared,
            Acquired::NotHeld => Reply::NotHeld,
            Acquired::Deadlock => Reply::Deadlock,
            Acquired::TooMany => Reply::TooMany,
            Acquired::TooManyHolds => panic!("there are two names"),
            Acquired::NoFence => Reply::NoFence,
            Acquired::Grace(_) => Reply::Grace,
        }
    }

    pub fn release(&mut self, at: usize, token: usize, name: Option<u8>) -> Reply {
        let name = name.map(name_of);
        Reply::Number(match self.ask(at, |table, site, now| table.release(site, secret(token), name, now)) {
            ReleaseOutcome::Released => 1,
            ReleaseOutcome::Free => 0,
            ReleaseOutcome::Taken => -1,
        })
    }

    pub fn extend(&mut self, at: usize, token: usize, lease_ms: Option<u64>, floor: Option<u64>) -> Reply {
        let (lease, floor) = (lease_ms.and_then(Lease::from_ms), floor.and_then(Fence::new));
        match self.ask(at, |table, site, now| table.extend(site, secret(token), lease, floor, now)) {
            ExtendOutcome::Extended(left_ms) => Reply::Number(left_ms as i64),
            ExtendOutcome::NotHeld => Reply::Number(0),
            ExtendOutcome::FloorAhead => Reply::FloorAhead,
        }
    }
}

pub fn encoded(change: &Change<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec::encode(change, &mut bytes);
    bytes
}

fn said(answer: &Answer) -> Said {
    match *answer {
        Answer::Granted { fence, ttl_ms, waited_ms, .. } => Said::Granted { fence: fence.get(), ttl_ms, waited_ms },
        Answer::Empty => Said::Empty,
        Answer::Superseded => Said::Superseded,
        Answer::NotHeld => Said::NotHeld,
        Answer::HeldShared => Said::HeldShared,
        Answer::NoFence => Said::NoFence,
        Answer::Refused(_) | Answer::Grace(_) => Said::Refused,
        Answer::NotALock | Answer::SlotGone | Answer::Demoted => panic!("{answer:?}"),
    }
}
