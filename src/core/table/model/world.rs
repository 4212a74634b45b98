//! A primary, a replica and the plain rules side by side. Every step is taken by all three; what the primary replies,
//! what it tells the replica and what all of them hold afterwards must agree.

use super::node::{Clocks, Denied, Node, Spot, Value};
use super::plain::{Hold, Kind, Plain, Verdict};
use super::{spots, TOKENS};
use crate::core::fence::Fence;
use crate::core::name::{Label, Token};
use crate::core::table::{Acquire, Acquired, Effect, ExtendOutcome, ReleaseOutcome};
use crate::core::time::Lease;

const MICROS_PER_MS: u64 = 1_000;
/// Where the wall clock starts: some time in 2026.
const WALL_START_US: u64 = 1_780_000_000_000_000;

pub struct World {
    pub(super) clocks: Clocks,
    pub(super) primary: Node,
    pub(super) replica: Node,
    pub(super) plain: Plain,
    /// Saved locks to restore: bytes, and the hold they are of.
    pub(super) dumps: Vec<(Vec<u8>, Hold)>,
}

impl World {
    pub fn new() -> Self {
        let clocks = Clocks { now_us: 0, wall_us: WALL_START_US };
        let (primary, replica) = (Node::default(), Node::default());
        let mut world = Self { clocks, primary, replica, plain: Plain::default(), dumps: Vec::new() };
        world.begin_serving();
        world
    }

    pub fn acquire(&mut self, spot: Spot, token: &'static str, lease_ms: u64, label: &'static str) {
        self.plain.bring_back(spot);
        let now_us = self.clocks.now_us;
        let (verdict, expected) = self.plain.judge(spot, token, lease_ms, now_us);
        let request = Acquire {
            token: Token::new(token.as_bytes()).unwrap(),
            lease: Lease::from_ms(lease_ms).unwrap(),
            label: Label::new(label.as_bytes()).unwrap(),
            client: 7,
        };
        let answer = self
            .primary
            .write(spot, self.clocks, |table, found, now| table.acquire(found, spot.place(), &request, now));
        let Some(acquired) = self.answered(spot, answer, &expected) else { return };
        match (verdict, acquired) {
            (Verdict::New, Acquired::Granted { fence, ttl_ms, new: true }) => {
                assert_eq!(ttl_ms, lease_ms, "a grant is for the whole lease");
                self.issued(fence);
                self.plain.store(spot, Hold::new(token, label, fence.get(), lease_ms, now_us));
            }
            (Verdict::Repeat { refence }, Acquired::Granted { fence, new: false, .. }) => {
                if refence {
                    self.issued(fence);
                } else {
                    assert_eq!(Some(fence.get()), self.plain.find(spot).map(|hold| hold.fence), "a repeat's fence");
                }
                self.plain.repeat(spot, fence.get(), lease_ms, now_us);
            }
            (Verdict::Held, Acquired::Held) => return,
            other => panic!("acquire of {spot:?} by {token}: {other:?}"),
        }
        if let Acquired::Granted { ttl_ms, .. } = acquired {
            assert_eq!(ttl_ms, self.plain.check(spot, token, now_us), "the ttl of a grant");
            self.promised(spot, ttl_ms);
        }
    }

    pub fn extend(&mut self, spot: Spot, token: &str, lease_ms: Option<u64>) {
        self.plain.bring_back(spot);
        let lease = lease_ms.map(|ms| Lease::from_ms(ms).unwrap());
        let secret = Token::new(token.as_bytes()).unwrap();
        let answer =
            self.primary.write(spot, self.clocks, |table, found, now| table.extend(found, secret, lease, now.instant));
        let (left_ms, expected) = match answer {
            Ok(_) => self.plain.extend(spot, token, lease_ms, self.clocks.now_us),
            Err(_) => (0, Vec::new()),
        };
        let Some(outcome) = self.answered(spot, answer, &expected) else { return };
        match outcome {
            ExtendOutcome::Extended(ms) => assert_eq!(ms, left_ms, "ms left of {spot:?}"),
            ExtendOutcome::NotHeld => assert_eq!(left_ms, 0, "{spot:?} is held by {token}"),
        }
        self.promised(spot, left_ms);
    }

    pub fn release(&mut self, spot: Spot, token: &str) {
        self.plain.bring_back(spot);
        let secret = Token::new(token.as_bytes()).unwrap();
        let answer =
            self.primary.write(spot, self.clocks, |table, found, now| table.release(found, secret, now.instant));
        let (reply, expected) = match answer {
            Ok(_) => self.plain.release(spot, token, self.clocks.now_us),
            Err(_) => (0, Vec::new()),
        };
        let Some(outcome) = self.answered(spot, answer, &expected) else { return };
        let expected = match reply {
            1 => ReleaseOutcome::Released,
            0 => ReleaseOutcome::Free,
            _ => ReleaseOutcome::Taken,
        };
        assert_eq!(outcome, expected, "release of {spot:?} by {token}");
    }

    pub fn check(&mut self, spot: Spot, token: &str) {
        let secret = Token::new(token.as_bytes()).unwrap();
        let answer = self.primary.read(spot, self.clocks, |table, found, now| table.check(found, secret, now));
        let left_ms = self.checked(spot, token, answer);
        self.promised(spot, left_ms);
    }

    pub fn pump(&mut self, owns_slots: bool) {
        if !self.plain.serving {
            return;
        }
        self.primary.pump(self.clocks, owns_slots);
        self.plain.pump(self.clocks.now_us, owns_slots);
        let now = self.primary.now(self.clocks).instant;
        let next = self.primary.table.next_deadline();
        assert!(next.is_none_or(|next| next > now), "the pump ran, and a lease is due");
    }

    pub fn sleep(&mut self, us: u64) {
        self.clocks.now_us += us;
        self.clocks.wall_us += us;
    }

    /// Sleeps until this long before or after the next lease ends.
    pub fn sleep_to_edge(&mut self, offset_us: i64) {
        if let Some(end_us) = self.plain.every_hold().map(|hold| hold.end_us).min() {
            let wake_us = end_us.saturating_add_signed(offset_us);
            self.sleep(wake_us.saturating_sub(self.clocks.now_us));
        }
    }

    /// Somebody sets the wall clock.
    pub fn step_wall(&mut self, us: i64) {
        self.clocks.wall_us = self.clocks.wall_us.saturating_add_signed(us);
    }

    pub fn delete(&mut self, spot: Spot) {
        self.primary.delete(spot);
        self.plain.delete(spot);
    }

    pub fn overwrite(&mut self, spot: Spot) {
        self.primary.overwrite(spot);
        self.plain.overwrite(spot);
    }

    /// RENAME within a database, which replaces what is there; MOVE between two, which does not.
    pub fn rename(&mut self, from: Spot, to: Spot) {
        let moves = from.db != to.db;
        let refused = from == to || moves && (from.key != to.key || self.primary.keys.contains_key(&to));
        if !refused && self.primary.keys.contains_key(&from) {
            self.primary.rename(from, to);
            self.plain.rename(from, to);
        }
    }

    pub fn swap(&mut self) {
        self.primary.swap();
        self.plain.swap();
    }

    pub fn flush(&mut self, db: Option<i32>, late: bool) {
        self.primary.flush(db, late);
        self.plain.flush(db);
    }

    pub fn free_late(&mut self) {
        self.primary.free_late();
    }

    /// Only a serving primary evicts.
    pub fn evict(&mut self, spot: Spot) {
        if self.plain.serving && self.primary.keys.contains_key(&spot) {
            self.primary.evict(spot);
            self.plain.evict(spot);
        }
    }

    fn issued(&mut self, fence: Fence) {
        let ticks = self.primary.now(self.clocks).ticks;
        assert!(fence.get() > self.plain.highest, "fence {} after {}", fence.get(), self.plain.highest);
        assert!(fence.get() >= ticks.get(), "fence {} behind the clock {}", fence.get(), ticks.get());
        self.plain.highest = fence.get();
    }

    fn promised(&mut self, spot: Spot, left_ms: u64) {
        let until_us = self.clocks.now_us + left_ms * MICROS_PER_MS;
        if let Some(hold) = self.plain.holds.get_mut(&spot).filter(|_| left_ms > 0) {
            hold.promised_us = hold.promised_us.max(until_us);
        }
    }

    /// The answer of core, after its effects were compared; `None` if it was not asked, for a reason that is right.
    fn answered<R>(&self, spot: Spot, answer: Result<(R, Vec<Effect>), Denied>, expected: &[Kind]) -> Option<R> {
        match answer {
            Ok((answer, effects)) => {
                let kinds: Vec<Kind> = effects.iter().copied().map(kind).collect();
                assert_eq!(kinds, expected, "effects at {spot:?}");
                Some(answer)
            }
            Err(Denied::NotServing) if !self.plain.serving => None,
            Err(Denied::WrongType) if self.plain.data.contains(&spot) => None,
            Err(denied) => panic!("{spot:?}: {denied:?}"),
        }
    }

    fn checked(&self, spot: Spot, token: &str, answer: Result<u64, Denied>) -> u64 {
        match answer {
            Ok(left_ms) => {
                assert_eq!(left_ms, self.plain.check(spot, token, self.clocks.now_us), "check of {spot:?} by {token}");
                left_ms
            }
            Err(denied) => {
                assert_eq!(denied, Denied::WrongType);
                assert!(self.plain.data.contains(&spot));
                0
            }
        }
    }

    /// What must be true after every step.
    pub fn verify(&mut self) {
        let messages = std::mem::take(&mut self.primary.stream);
        for message in &messages {
            self.replica.follow(message, self.clocks);
        }
        self.replica.stream.clear();
        let held_highest = self.plain.holds.values().map(|hold| hold.fence).max().unwrap_or(0);
        assert!(self.replica.table.fences().highest() >= held_highest, "H of the replica");
        assert_eq!(self.replica.records(), self.primary.records(), "what the replica holds");
        self.verify_holds();
        self.primary.check_counts(self.plain.evicted.len());
        self.replica.check_counts(0);
    }

    fn verify_holds(&mut self) {
        let now_us = self.clocks.now_us;
        for spot in spots() {
            let mut holders = 0;
            for token in TOKENS {
                let secret = Token::new(token.as_bytes()).unwrap();
                let answer = self.primary.peek(spot, self.clocks, |table, found, now| table.check(found, secret, now));
                holders += usize::from(self.checked(spot, token, answer) > 0);
            }
            assert!(holders <= 1, "{holders} holders of {spot:?}");
        }
        let mut seen = Vec::new();
        for (&spot, value) in &self.primary.keys {
            let Value::Lock(handle) = *value else { continue };
            let lock = self.primary.table.get(handle).expect("the table knows every lock of the keyspace");
            let hold = self.plain.holds.get(&spot).unwrap_or_else(|| panic!("a lock at {spot:?}"));
            assert_eq!(lock.place(), spot.place());
            assert_eq!((lock.token(), lock.label()), (hold.token.as_bytes(), hold.label.as_bytes()));
            assert_eq!((lock.fence().get(), lock.lease().ms()), (hold.fence, hold.lease_ms), "at {spot:?}");
            seen.push(spot);
        }
        assert!(self.plain.holds.keys().eq(&seen), "locks at {seen:?}, holds at {:?}", self.plain.holds.keys());
        if !self.plain.serving {
            assert_eq!(self.primary.table.next_deadline(), None);
            return;
        }
        let first_us = self.plain.holds.values().map(|hold| hold.end_us).min();
        let wake = self.primary.table.next_deadline();
        let lead_us = self.primary.now(self.clocks).instant.micros() - now_us;
        assert!(
            first_us.is_none_or(|end_us| wake.is_some_and(|wake| wake.micros() <= end_us + lead_us)),
            "the pump wakes at {wake:?}, a lease ends at {first_us:?}"
        );
        for hold in self.plain.every_hold() {
            assert!(hold.end_us >= hold.promised_us, "a promise was cut short: {hold:?}");
        }
    }
}

fn kind(effect: Effect) -> Kind {
    match effect {
        Effect::Created(_) => Kind::Created,
        Effect::Changed(_) => Kind::Changed,
        Effect::Removed(why) => Kind::Removed(why),
    }
}
