//! The edges of a lease and of the numbers: what happens at the exact microsecond, and when fences run out.

use super::{Acquire, Acquired, Effect, Ended, ExtendOutcome, ReleaseOutcome, Table};
use crate::core::fence::{Fence, FENCE_END};
use crate::core::name::{Label, Place, Token};
use crate::core::slab::Handle;
use crate::core::time::{Instant, Lease, Now, Ticks, LEASE_MS_MAX};

const PLACE: Place<'static> = Place { db: 0, key: b"job" };
const LEASE_MS: u64 = 10;
/// Where every lease here starts, and where it ends.
const START_US: u64 = 5_000_000;
const END_US: u64 = START_US + LEASE_MS * 1_000;
/// From here on no whole millisecond is left.
const LAST_MS_US: u64 = END_US - 999;

fn at(micros: u64) -> Now {
    Now { instant: Instant::from_micros(micros), ticks: Ticks::from_unix_micros(1_780_000_000_000_000 + micros) }
}

fn token(text: &str) -> Token<'_> {
    Token::new(text.as_bytes()).unwrap()
}

fn lease(ms: u64) -> Lease {
    Lease::from_ms(ms).unwrap()
}

fn request(who: &str, lease_ms: u64) -> Acquire<'_> {
    Acquire { token: token(who), lease: lease(lease_ms), label: Label::cut(who.as_bytes()), client: 1 }
}

/// A serving table where ann holds the lock from `START_US` on.
fn held() -> (Table, Option<Handle>, Fence) {
    let mut table = Table::default();
    table.begin_serving(at(0));
    match table.acquire(None, PLACE, &request("ann", LEASE_MS), at(START_US)) {
        Acquired::Granted { fence, ttl_ms: LEASE_MS, new: true } => {
            let handle = created(&table.take_effects());
            (table, handle, fence)
        }
        other => panic!("{other:?}"),
    }
}

/// The lock that the last of these effects stores.
fn created(effects: &[Effect]) -> Option<Handle> {
    match effects.last() {
        Some(&Effect::Created(handle)) => Some(handle),
        _ => panic!("{effects:?}"),
    }
}

fn use_up_fences(table: &mut Table) {
    table.raise_fence(Fence::new(FENCE_END - 1).unwrap());
}

#[test]
fn in_its_last_millisecond_a_lease_is_over_for_its_holder_only() {
    for now in [LAST_MS_US, END_US - 1] {
        let (mut table, lock, fence) = held();
        assert_eq!(table.check(lock, token("ann"), at(LAST_MS_US - 1).instant), 1);
        assert_eq!(table.check(lock, token("ann"), at(now).instant), 0);
        assert!(table.look(lock, at(now).instant).is_none());
        assert_eq!(table.extend(lock, token("ann"), Some(lease(50)), at(now).instant), ExtendOutcome::NotHeld);
        assert_eq!(table.acquire(lock, PLACE, &request("bob", 50), at(now)), Acquired::Held);
        assert_eq!(table.next_due(at(now).instant), None);
        assert_eq!(table.take_effects(), [], "nothing changed");

        let again = table.acquire(lock, PLACE, &request("ann", 50), at(now));
        assert!(matches!(again, Acquired::Granted { fence: next, ttl_ms: 50, new: true } if next > fence), "{again:?}");
        let effects = table.take_effects();
        assert_eq!(effects.first(), Some(&Effect::Removed(Ended::LeaseEnded)));
        assert_ne!(created(&effects), lock);
    }
}

#[test]
fn in_the_last_millisecond_the_holder_still_frees_the_lock() {
    let (mut table, lock, _) = held();
    assert_eq!(table.release(lock, token("bob"), at(END_US - 1).instant), ReleaseOutcome::Taken);
    assert_eq!(table.release(lock, token("ann"), at(END_US - 1).instant), ReleaseOutcome::Released);
    assert_eq!(table.take_effects(), [Effect::Removed(Ended::Released)]);
    assert_eq!((table.held(), table.known()), (0, 0));
}

#[test]
fn at_its_end_a_lease_is_over_for_everybody() {
    let (mut table, lock, _) = held();
    assert_eq!(table.next_deadline(), Some(at(END_US).instant));
    assert_eq!(table.next_due(at(END_US).instant), lock);
    assert_eq!(table.release(lock, token("ann"), at(END_US).instant), ReleaseOutcome::Free);
    assert_eq!(table.take_effects(), [Effect::Removed(Ended::LeaseEnded)]);
    assert_eq!((table.counts().late_free, table.counts().leases_ended, table.counts().released), (1, 1, 0));

    let (mut table, lock, fence) = held();
    let taken = table.acquire(lock, PLACE, &request("bob", 50), at(END_US));
    assert!(matches!(taken, Acquired::Granted { fence: next, new: true, .. } if next > fence), "{taken:?}");

    let (mut table, lock, _) = held();
    assert_eq!(table.extend(lock, token("ann"), None, at(END_US).instant), ExtendOutcome::NotHeld);
    assert_eq!(table.take_effects(), [Effect::Removed(Ended::LeaseEnded)]);
}

#[test]
fn a_lease_that_would_end_at_the_same_instant_changes_nothing() {
    let (mut table, lock, fence) = held();
    let half = at(START_US + 4_000);
    let again = table.acquire(lock, PLACE, &request("ann", LEASE_MS - 4), half);
    assert_eq!(again, Acquired::Granted { fence, ttl_ms: LEASE_MS - 4, new: false });
    assert_eq!(table.extend(lock, token("ann"), Some(lease(LEASE_MS - 4)), half.instant), ExtendOutcome::Extended(6));
    assert_eq!(table.take_effects(), [], "the same end");
    assert_eq!(table.extend(lock, token("ann"), Some(lease(LEASE_MS - 3)), half.instant), ExtendOutcome::Extended(7));
    assert_eq!(table.take_effects(), [Effect::Changed(lock.unwrap())], "one ms later");
}

#[test]
fn an_extension_that_keeps_the_length_is_told_to_nobody() {
    let (mut table, lock, _) = held();
    let later = at(START_US + 4_000).instant;
    assert_eq!(table.extend(lock, token("ann"), None, later), ExtendOutcome::Extended(LEASE_MS));
    assert_eq!(table.take_effects(), [], "a replica counts the whole length from its promotion anyway");
    assert_eq!(table.next_deadline(), Some(Instant::from_micros(END_US + 4_000)));
}

#[test]
fn where_leases_stand_still_the_whole_lease_is_left() {
    let (mut table, lock, _) = held();
    table.stop_serving();
    let late = Instant::from_micros(END_US + 1_000_000);
    assert_eq!(table.check(lock, token("ann"), late), LEASE_MS);
    assert_eq!((table.next_deadline(), table.next_due(late)), (None, None));

    table.begin_serving(at(END_US + 2_000_000));
    let end = Instant::from_micros(END_US + 2_000_000 + LEASE_MS * 1_000);
    assert_eq!(table.check(lock, token("ann"), at(END_US + 2_000_000).instant), LEASE_MS);
    assert_eq!(table.next_due(Instant::from_micros(end.micros() - 1)), None);
    assert_eq!(table.next_due(end), lock);
}

#[test]
fn a_repeat_gets_a_new_fence_only_after_a_promotion() {
    let (mut table, lock, fence) = held();
    let now = at(START_US + 1_000);
    table.begin_serving(now);
    let again = table.acquire(lock, PLACE, &request("ann", 1), now);
    let Acquired::Granted { fence: renewed, new: false, .. } = again else { panic!("{again:?}") };
    assert!(renewed > fence);
    assert_eq!(table.take_effects(), [Effect::Changed(lock.unwrap())]);
    let third = table.acquire(lock, PLACE, &request("ann", 1), now);
    assert!(matches!(third, Acquired::Granted { fence, .. } if fence == renewed), "{third:?}");
    assert_eq!(table.take_effects(), []);
}

#[test]
fn without_fences_nothing_is_granted_and_nothing_changes() {
    let (mut table, lock, _) = held();
    use_up_fences(&mut table);
    assert_eq!(
        table.acquire(None, Place { db: 0, key: b"other" }, &request("bob", 50), at(START_US)),
        Acquired::NoFence
    );
    assert_eq!(table.acquire(lock, PLACE, &request("bob", 50), at(END_US)), Acquired::NoFence);
    assert_eq!((table.take_effects(), table.known()), (vec![], 1));
}

#[test]
fn without_fences_a_grant_is_repeated_until_a_promotion() {
    let (mut table, lock, fence) = held();
    use_up_fences(&mut table);
    let again = table.acquire(lock, PLACE, &request("ann", LEASE_MS), at(START_US));
    assert_eq!(again, Acquired::Granted { fence, ttl_ms: LEASE_MS, new: false });
    table.begin_serving(at(START_US));
    assert_eq!(table.acquire(lock, PLACE, &request("ann", 50), at(START_US)), Acquired::NoFence);
    assert_eq!(table.take_effects(), []);
    assert_eq!(table.check(lock, token("ann"), at(START_US).instant), LEASE_MS, "refused, so not prolonged either");
}

#[test]
fn the_longest_lease_has_an_end() {
    let mut table = Table::default();
    table.begin_serving(at(0));
    let granted = table.acquire(None, PLACE, &request("ann", LEASE_MS_MAX), at(START_US));
    assert!(matches!(granted, Acquired::Granted { ttl_ms: LEASE_MS_MAX, .. }), "{granted:?}");
    assert_eq!(table.next_deadline(), Some(Instant::from_micros(START_US + LEASE_MS_MAX * 1_000)));
}

#[test]
fn only_what_just_left_its_key_is_taken_for_evicted() {
    let (mut table, lock, _) = held();
    assert!(!table.evicted(PLACE), "nothing left");
    table.unlinked(lock.unwrap());
    assert!(!table.evicted(Place { db: 1, ..PLACE }), "another key was evicted");
    assert!(!table.evicted(PLACE), "the notice came before");
    table.linked(lock.unwrap(), PLACE);

    table.unlinked(lock.unwrap());
    table.left_for_good();
    assert!(!table.evicted(PLACE), "the lock was deleted, and what stood there then is evicted");
    table.linked(lock.unwrap(), PLACE);

    table.unlinked(lock.unwrap());
    assert!(table.evicted(PLACE));
    let copy = table.find_evicted(PLACE).unwrap();
    table.freed(lock.unwrap());
    assert_eq!(table.check(Some(copy), token("ann"), at(START_US).instant), LEASE_MS, "held while it is away");
    table.put_back(copy);
    assert_eq!((table.held(), table.find_evicted(PLACE)), (1, None));
}
