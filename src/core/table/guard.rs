//! The question behind LOCK.GUARD: does the token hold the lock at this instant? What is run on the strength of the
//! answer is none of core's business.

use super::{Site, Table};
use crate::core::name::Token;
use crate::core::packed::Packed;
use crate::core::time::Now;
use crate::seeded::bug;

impl Table {
    /// Whether the token holds the lock now. A token that hears yes knows of its hold, and a grant it had yet to fetch
    /// starts its lease; nothing else gets longer.
    pub fn guard(&mut self, site: Site<'_>, token: Token<'_>, now: Now) -> bool {
        if let Some(legacy) = site.legacy {
            let holds = legacy.value == token.bytes();
            self.counts.guard_refused += u64::from(!holds);
            return holds;
        }
        let token = Packed::from(token);
        self.lapse_upgrade(site, token, now);
        let Some((handle, _)) = self.held_by(site, token, now.instant) else {
            self.settle(site, now);
            self.counts.guard_refused += 1;
            return bug("guard-lets-anybody-write");
        };
        self.heard(handle, token, now.instant);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::hold::Mode;
    use crate::core::name::{Label, Place};
    use crate::core::slab::Handle;
    use crate::core::table::{Acquire, Acquired, Ask, Effect, Limits, ReleaseOutcome, Turn, Wait};
    use crate::core::time::{Instant, Lease, Ticks};

    const PLACE: Place<'_> = Place { db: 0, key: b"lock" };
    const LEASE_MS: u64 = 100;
    const POLL_MS: u64 = 20;

    /// A table that serves, and a clock in ms.
    struct Stage {
        table: Table,
        lock: Option<Handle>,
    }

    impl Stage {
        fn new() -> Self {
            let mut table = Table::default();
            table.begin_serving(at(0));
            Self { table, lock: None }
        }

        fn ask<R>(&mut self, question: impl FnOnce(&mut Table, Site<'_>) -> R) -> R {
            let answer = question(&mut self.table, Site { place: PLACE, lock: self.lock, legacy: None });
            for effect in self.table.take_effects() {
                match effect {
                    Effect::Created(handle) => self.lock = Some(handle),
                    Effect::Removed => self.lock = None,
                    _ => {}
                }
            }
            answer
        }

        fn acquire(&mut self, name: &[u8], wait: Wait, ms: u64) -> Acquired {
            let lease = Lease::from_ms(LEASE_MS).unwrap();
            let limits = Limits { blocked: 10, polled: 10 };
            let ask = Ask { mode: Mode::Exclusive, turn: Turn::No, lease, name: None, cap_ms: None, ephemeral: false };
            let wanted = Acquire { token: token(name), ask, label: Label::cut(b""), client: 1, wait, limits };
            self.ask(|table, site| table.acquire(site, &wanted, at(ms)))
        }

        fn guard(&mut self, name: &[u8], ms: u64) -> bool {
            self.ask(|table, site| table.guard(site, token(name), at(ms)))
        }

        fn check(&mut self, name: &[u8], ms: u64) -> u64 {
            self.ask(|table, site| table.check(site, token(name), at(ms).instant))
        }
    }

    fn at(ms: u64) -> Now {
        Now { instant: Instant::from_micros(1_000_000 + ms * 1_000), ticks: Ticks::from_unix_micros(0) }
    }

    fn token(name: &[u8]) -> Token<'_> {
        Token::new(name).unwrap()
    }

    #[test]
    fn only_the_holder_passes_and_only_until_its_lease_ends() {
        let mut stage = Stage::new();
        assert!(!stage.guard(b"a", 0), "a free lock guards nothing");
        stage.acquire(b"a", Wait::No, 0);
        assert!(stage.guard(b"a", 0) && !stage.guard(b"b", 0));
        assert!(stage.guard(b"a", LEASE_MS - 1));
        assert!(!stage.guard(b"a", LEASE_MS), "a passed guard extends nothing");
        assert_eq!(stage.lock, None, "a refused guard settles the lock");
        assert_eq!(stage.table.counts().guard_refused, 3);
    }

    #[test]
    fn a_guard_fetches_a_polled_grant_and_starts_its_lease() {
        let mut stage = Stage::new();
        stage.acquire(b"a", Wait::No, 0);
        stage.acquire(b"b", Wait::Poll(at(POLL_MS).instant), 0);
        let released = stage.ask(|table, site| table.release(site, token(b"a"), None, at(5)));
        assert_eq!(released, ReleaseOutcome::Released);
        assert!(stage.guard(b"b", POLL_MS - 1));
        assert_eq!(stage.check(b"b", POLL_MS - 1), LEASE_MS);
        assert!(stage.guard(b"b", POLL_MS + LEASE_MS - 2));
        assert!(!stage.guard(b"b", POLL_MS + LEASE_MS - 1));
    }

    #[test]
    fn a_grant_not_fetched_in_time_guards_nothing() {
        let mut stage = Stage::new();
        stage.acquire(b"a", Wait::No, 0);
        stage.acquire(b"b", Wait::Poll(at(POLL_MS).instant), 0);
        stage.ask(|table, site| table.release(site, token(b"a"), None, at(5)));
        assert!(!stage.guard(b"b", POLL_MS));
        assert_eq!(stage.lock, None);
    }

    #[test]
    fn a_grant_whose_token_was_answered_by_a_guard_is_not_taken_back() {
        let mut stage = Stage::new();
        stage.acquire(b"a", Wait::No, 0);
        stage.acquire(b"b", Wait::Block(crate::core::line::Seat(1), None), 0);
        stage.ask(|table, site| table.release(site, token(b"a"), None, at(5)));
        let fence = stage
            .lock
            .and_then(|lock| stage.table.get(lock))
            .and_then(|lock| lock.hold(Packed::of(b"b")))
            .map(|hold| hold.fence)
            .unwrap();
        assert!(stage.guard(b"b", 6));
        assert!(!stage.ask(|table, site| table.void(site.lock.unwrap(), fence, at(7).instant)));
        assert!(stage.guard(b"b", 8));
    }

    #[test]
    fn a_refused_guard_hands_a_lapsed_lock_to_the_line() {
        let mut stage = Stage::new();
        stage.acquire(b"a", Wait::No, 0);
        stage.acquire(b"b", Wait::Block(crate::core::line::Seat(1), None), 0);
        assert!(!stage.guard(b"a", LEASE_MS));
        assert!(stage.guard(b"b", LEASE_MS));
    }
}
