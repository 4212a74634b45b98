//! One lock on a table whose clock a test sets: what edge cases are told in. Whoever asks is described in words:
//! `shared(by("ann"))`, `block(upgrade(by("bob")), 2)`.

use super::{Acquire, Acquired, Ask, Effect, ExtendOutcome, Limits, ReleaseOutcome, Site, Table, Turn, Wait};
use crate::core::fence::Fence;
use crate::core::hold::Mode;
use crate::core::line::Seat;
use crate::core::name::{HoldName, Label, Place, Token};
use crate::core::slab::Handle;
use crate::core::time::{Instant, Lease, Now, Ticks};

pub const PLACE: Place<'static> = Place { db: 0, key: b"job" };
/// The lease of whoever names none.
pub const LEASE_MS: u64 = 10;
/// Where a scene starts, and where a lease that starts there ends.
pub const START_US: u64 = 5_000_000;
pub const END_US: u64 = START_US + LEASE_MS * 1_000;

pub struct Scene {
    pub table: Table,
    pub lock: Option<Handle>,
    pub now_us: u64,
    effects: Vec<Effect>,
}

impl Scene {
    /// A serving table without any lock.
    pub fn new() -> Self {
        let mut table = Table::default();
        table.begin_serving(at(0));
        Self { table, lock: None, now_us: START_US, effects: Vec::new() }
    }

    /// A table where this request was granted.
    pub fn held(request: Acquire<'_>) -> Self {
        let mut scene = Self::new();
        scene.take(request);
        scene
    }

    pub fn site(&self) -> Site<'static> {
        Site { place: PLACE, lock: self.lock, legacy: None }
    }

    pub fn now(&self) -> Now {
        at(self.now_us)
    }

    /// When the next lease ends: what is asked for just before has been put in order.
    pub fn deadline(&mut self) -> Option<Instant> {
        let about = self.table.next_deadline()?;
        self.table.next_due(about);
        self.table.next_deadline()
    }

    pub fn sleep_ms(&mut self, ms: u64) {
        self.now_us += ms * 1_000;
    }

    /// Runs a command; its effects are kept and the key follows them.
    pub fn run<R>(&mut self, command: impl FnOnce(&mut Table, Site<'_>, Now) -> R) -> R {
        let (site, now) = (self.site(), self.now());
        let answer = command(&mut self.table, site, now);
        for effect in self.table.take_effects() {
            match effect {
                Effect::Created(handle) => self.lock = Some(handle),
                Effect::Removed => self.lock = None,
                _ => {}
            }
            self.effects.push(effect);
        }
        answer
    }

    pub fn acquire(&mut self, request: Acquire<'_>) -> Acquired {
        self.run(|table, site, now| table.acquire(site, &request, now))
    }

    /// Acquires what must be granted. The fence; effects are forgotten.
    pub fn take(&mut self, request: Acquire<'_>) -> Fence {
        let acquired = self.acquire(request);
        self.effects.clear();
        match acquired {
            Acquired::Granted { fence, .. } => fence,
            other => panic!("{other:?}"),
        }
    }

    /// Acquires what must be waited for. Effects are forgotten.
    pub fn wait(&mut self, request: Acquire<'_>) -> Handle {
        let acquired = self.acquire(request);
        self.effects.clear();
        match acquired {
            Acquired::Waits(waiter) => waiter,
            other => panic!("{other:?}"),
        }
    }

    pub fn release(&mut self, who: &str) -> ReleaseOutcome {
        self.run(|table, site, now| table.release(site, token(who), None, now))
    }

    pub fn release_hold(&mut self, who: &str, name: &str) -> ReleaseOutcome {
        self.run(|table, site, now| table.release(site, token(who), HoldName::new(name.as_bytes()), now))
    }

    pub fn extend(&mut self, who: &str, lease_ms: Option<u64>) -> ExtendOutcome {
        self.run(|table, site, now| table.extend(site, token(who), lease_ms.map(ms), None, now))
    }

    pub fn raise_fence(&mut self, who: &str, floor: Fence) -> ExtendOutcome {
        self.run(|table, site, now| table.extend(site, token(who), None, Some(floor), now))
    }

    pub fn check(&mut self, who: &str) -> u64 {
        self.run(|table, site, now| table.check(site, token(who), now.instant))
    }

    pub fn settle(&mut self) {
        self.run(|table, site, now| {
            table.settle(site, now);
        });
    }

    /// The effects since the last look.
    pub fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Who holds the lock, in the order of fences.
    pub fn holders(&self) -> Vec<String> {
        let lock = self.lock.and_then(|lock| self.table.get(lock));
        let tokens = lock.into_iter().flat_map(|lock| lock.holders());
        tokens.map(|seen| String::from_utf8_lossy(&seen.token).into_owned()).collect()
    }
}

pub fn at(micros: u64) -> Now {
    Now { instant: Instant::from_micros(micros), ticks: Ticks::from_unix_micros(1_780_000_000_000_000 + micros) }
}

pub fn token(text: &str) -> Token<'_> {
    Token::new(text.as_bytes()).unwrap()
}

pub fn ms(ms: u64) -> Lease {
    Lease::from_ms(ms).unwrap()
}

/// A try of this token for an exclusive lock.
pub fn by(who: &str) -> Acquire<'_> {
    let ask =
        Ask { mode: Mode::Exclusive, turn: Turn::No, lease: ms(LEASE_MS), name: None, cap_ms: None, ephemeral: false };
    let limits = Limits { blocked: 100, polled: 100 };
    Acquire { token: token(who), ask, label: Label::cut(who.as_bytes()), client: 1, wait: Wait::No, limits }
}

pub fn lease(mut request: Acquire<'_>, lease_ms: u64) -> Acquire<'_> {
    request.ask.lease = ms(lease_ms);
    request
}

pub fn shared(mut request: Acquire<'_>) -> Acquire<'_> {
    request.ask.mode = Mode::Shared(None);
    request
}

pub fn limit(mut request: Acquire<'_>, limit: u32) -> Acquire<'_> {
    request.ask.mode = Mode::Shared(Some(limit));
    request
}

pub fn upgrade(mut request: Acquire<'_>) -> Acquire<'_> {
    request.ask.turn = Turn::Upgrade;
    request
}

pub fn downgrade(request: Acquire<'_>) -> Acquire<'_> {
    let mut request = shared(request);
    request.ask.turn = Turn::Downgrade;
    request
}

pub fn hold<'a>(mut request: Acquire<'a>, name: &'a str) -> Acquire<'a> {
    request.ask.name = HoldName::new(name.as_bytes());
    request
}

pub fn cap(mut request: Acquire<'_>, cap_ms: u64) -> Acquire<'_> {
    request.ask.cap_ms = Some(cap_ms);
    request
}

pub fn ephemeral(mut request: Acquire<'_>, client: u64) -> Acquire<'_> {
    request.ask.ephemeral = true;
    request.client = client;
    request
}

pub fn block(mut request: Acquire<'_>, seat: u64) -> Acquire<'_> {
    request.wait = Wait::Block(Seat(seat), None);
    request
}

/// A place kept until this instant.
pub fn poll(mut request: Acquire<'_>, until_us: u64) -> Acquire<'_> {
    request.wait = Wait::Poll(Instant::from_micros(until_us));
    request
}
