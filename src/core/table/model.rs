//! A state machine: random commands on one exclusive lock, against a model of a few plain fields, with a clock of its
//! own. After each step the answer, the keyspace, a replica that follows the effects, and the promises of earlier
//! replies are compared.

use super::{Acquire, Acquired, Ask, Effect, ExtendOutcome, Limits, Origin, ReleaseOutcome, Site, Table, Turn, Wait};
use crate::core::codec::{self, Change};
use crate::core::hold::Mode;
use crate::core::name::{Label, Place, Token};
use crate::core::slab::Handle;
use crate::core::time::{Instant, Lease, Now, Ticks};
use proptest::prelude::*;

const PLACE: Place<'_> = Place { db: 0, key: b"lock" };
const TOKENS: [&[u8]; 3] = [b"a", b"b", b"c"];

/// How long a restart takes, in us.
const RESTART_MICROS: u64 = 1_000_000;

#[derive(Clone, Debug)]
enum Op {
    Acquire(usize, u64),
    Extend(usize, Option<u64>),
    Release(usize),
    Pass(u64),
    Pump,
    Delete,
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let (token, ms) = (0..TOKENS.len(), 1..40u64);
    prop_oneof![
        4 => (token.clone(), ms.clone()).prop_map(|(token, ms)| Op::Acquire(token, ms)),
        2 => (token.clone(), proptest::option::of(ms.clone())).prop_map(|(token, ms)| Op::Extend(token, ms)),
        2 => token.prop_map(Op::Release),
        4 => (1..15_000u64).prop_map(Op::Pass),
        2 => Just(Op::Pump),
        1 => Just(Op::Delete),
        1 => Just(Op::Restart),
    ]
}

/// What the lock should be: who holds it, for how long, and the last lease's length.
#[derive(Clone, Copy)]
struct Held {
    token: usize,
    end_us: u64,
    lease_ms: u64,
    fence: u64,
    /// Whether this node granted it since it last began to serve.
    own: bool,
}

struct World {
    table: Table,
    stands: Option<Handle>,
    replica: Table,
    copy: Option<Handle>,
    now_us: u64,
    held: Option<Held>,
    last_fence: u64,
}

impl World {
    fn new() -> Self {
        let mut table = Table::default();
        table.begin_serving(at(1_000_000));
        let replica = Table::default();
        Self { table, stands: None, replica, copy: None, now_us: 1_000_000, held: None, last_fence: 0 }
    }

    fn ask<R>(&mut self, question: impl FnOnce(&mut Table, Site<'_>, Now) -> R) -> R {
        let answer = question(&mut self.table, site(self.stands), at(self.now_us));
        self.carry_out();
        answer
    }

    fn carry_out(&mut self) {
        for effect in self.table.take_effects() {
            match effect {
                Effect::Created(handle) => self.stands = Some(handle),
                Effect::Removed => {
                    self.stands = None;
                    self.copy.take().into_iter().for_each(|copy| self.replica.freed(copy));
                }
                Effect::Set { lock, fence, alone, .. } => self.tell(lock, fence, alone),
                _ => {}
            }
        }
    }

    fn tell(&mut self, lock: Handle, fence: crate::core::fence::Fence, alone: bool) {
        let now = at(self.now_us);
        let seen = self.table.get(lock).unwrap().holders_with(fence).next().unwrap();
        let mut bytes = Vec::new();
        codec::encode(&Change::Set { holder: seen.holder(now.instant).unwrap(), alone }, &mut bytes);
        self.replica.follow(site(self.copy), &bytes, now).unwrap();
        for effect in self.replica.take_effects() {
            if let Effect::Created(handle) = effect {
                self.copy = Some(handle);
            }
        }
    }

    /// The holder whose lease is not over; its own commands need a whole ms left.
    fn live(&self) -> Option<Held> {
        self.held.filter(|held| held.end_us > self.now_us)
    }

    fn left_ms(&self, token: usize) -> u64 {
        self.live().filter(|held| held.token == token).map_or(0, |held| (held.end_us - self.now_us) / 1_000)
    }

    fn acquire(&mut self, token: usize, ms: u64) {
        let lease = Lease::from_ms(ms).unwrap();
        let ask = Ask { mode: Mode::Exclusive, turn: Turn::No, lease, name: None, cap_ms: None, ephemeral: false };
        let limits = Limits { blocked: 0, polled: 0 };
        let label = Label::cut(b"");
        let wanted = Acquire { token: secret(token), ask, label, client: 1, wait: Wait::No, limits };
        let before = (self.live(), self.left_ms(token));
        let answer = self.ask(|table, site, now| table.acquire(site, &wanted, now));
        match (before, answer) {
            ((Some(held), _), Acquired::Held) => assert_ne!(held.token, token),
            ((Some(held), 1..), Acquired::Granted { fence, ttl_ms, new: false }) => {
                assert_eq!(held.token, token);
                assert_eq!(fence.get() == held.fence, held.own, "a fence is repeated where it was given");
                self.hold(Held { fence: fence.get(), own: true, ..held });
                self.raise(ms);
                assert_eq!(ttl_ms, self.left_ms(token));
            }
            ((held, 0), Acquired::Granted { fence, ttl_ms, new: true }) => {
                assert!(held.is_none_or(|held| held.token == token), "two holders");
                assert!(fence.get() > self.last_fence);
                self.hold(Held { token, end_us: 0, lease_ms: ms, fence: fence.get(), own: true });
                self.raise(ms);
                assert_eq!(ttl_ms, ms);
            }
            (before, answer) => panic!("{:?} ms left, {answer:?}", before.1),
        }
    }

    fn hold(&mut self, held: Held) {
        self.last_fence = self.last_fence.max(held.fence);
        self.held = Some(held);
    }

    fn raise(&mut self, ms: u64) {
        let end_us = self.now_us + ms * 1_000;
        if let Some(held) = self.held.as_mut().filter(|held| held.end_us < end_us) {
            (held.end_us, held.lease_ms) = (end_us, ms);
        }
    }

    fn extend(&mut self, token: usize, ms: Option<u64>) {
        let held = self.left_ms(token) > 0;
        let lease = ms.and_then(Lease::from_ms);
        let answer = self.ask(|table, site, now| table.extend(site, secret(token), lease, None, now));
        if held {
            self.raise(ms.unwrap_or(self.held.unwrap().lease_ms));
            assert_eq!(answer, ExtendOutcome::Extended(self.left_ms(token)));
        } else {
            assert_eq!(answer, ExtendOutcome::NotHeld, "an extension revives nothing");
        }
    }

    fn release(&mut self, token: usize) {
        let expected = match self.live() {
            None => ReleaseOutcome::Free,
            Some(held) if held.token == token => ReleaseOutcome::Released,
            Some(_) => ReleaseOutcome::Taken,
        };
        assert_eq!(self.ask(|table, site, now| table.release(site, secret(token), None, now)), expected);
        if expected == ReleaseOutcome::Released {
            self.held = None;
        }
    }

    fn pump(&mut self) {
        while let Some(due) = self.table.next_due(at(self.now_us).instant) {
            assert_eq!(Some(due), self.stands);
            self.ask(|table, site, now| table.settle(site, now));
        }
        assert_eq!(self.stands.is_some(), self.live().is_some(), "a lease ends when its time is over, not before");
    }

    fn delete(&mut self) {
        if let Some(handle) = self.stands.take() {
            self.table.unlinked(handle);
            self.table.freed(handle);
            self.copy.take().into_iter().for_each(|copy| self.replica.freed(copy));
        }
        self.held = None;
    }

    /// The server starts again from what it saved: whoever stood in the keyspace has a whole lease.
    fn restart(&mut self) {
        // Fences of a server that held nothing come from the clock alone: one for each 10 us that a restart takes.
        self.now_us += RESTART_MICROS;
        let now = at(self.now_us);
        let saved = self.stands.map(|handle| {
            let mut bytes = Vec::new();
            for seen in self.table.get(handle).unwrap().holders() {
                let holder = seen.holder(now.instant).unwrap();
                codec::encode(&Change::Set { holder, alone: true }, &mut bytes);
            }
            bytes
        });
        let aux = self.table.fences().to_save(self.table.held() > 0, now.ticks);
        self.table = Table::default();
        aux.into_iter().for_each(|fence| self.table.raise_fence(fence));
        self.stands = saved.map(|bytes| self.table.load(PLACE, &bytes, Origin::Server, now).unwrap());
        self.table.begin_serving(now);
        self.held = self.held.filter(|_| self.stands.is_some());
        if let Some(held) = &mut self.held {
            (held.end_us, held.own) = (self.now_us + held.lease_ms * 1_000, false);
        }
    }

    fn check_all(&mut self) {
        for token in 0..TOKENS.len() {
            let left_ms = self.left_ms(token);
            let site = site(self.stands);
            assert_eq!(self.table.check(site, secret(token), at(self.now_us).instant), left_ms);
        }
        assert!(self.live().is_none() || self.stands.is_some());
        assert_eq!(self.table.held(), usize::from(self.stands.is_some()));
        let saved = |table: &Table, lock: Option<Handle>| {
            lock.and_then(|lock| table.get(lock)?.holders().next()?.holder(at(0).instant).map(|h| format!("{h:?}")))
        };
        if self.held.is_none_or(|held| held.own) {
            assert_eq!(saved(&self.table, self.stands), saved(&self.replica, self.copy), "the replica follows");
        }
    }
}

fn at(micros: u64) -> Now {
    Now { instant: Instant::from_micros(micros), ticks: Ticks::from_unix_micros(1_800_000_000_000_000 + micros) }
}

fn secret(token: usize) -> Token<'static> {
    Token::new(TOKENS[token]).unwrap()
}

fn site(lock: Option<Handle>) -> Site<'static> {
    Site { place: PLACE, lock, legacy: None }
}

proptest! {
    #[test]
    fn an_exclusive_lock_is_what_the_model_says(ops in proptest::collection::vec(op(), 1..120)) {
        let mut world = World::new();
        for op in ops {
            match op {
                Op::Acquire(token, ms) => world.acquire(token, ms),
                Op::Extend(token, ms) => world.extend(token, ms),
                Op::Release(token) => world.release(token),
                Op::Pass(micros) => world.now_us += micros,
                Op::Pump => world.pump(),
                Op::Delete => world.delete(),
                Op::Restart => world.restart(),
            }
            world.check_all();
        }
    }
}
