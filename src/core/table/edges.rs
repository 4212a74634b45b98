//! The edges of a lease and of the numbers: what happens at the exact microsecond, and when fences run out.

use super::scene::{at, block, by, lease, shared, token, Scene, END_US, LEASE_MS, PLACE, START_US};
use super::{Acquired, Effect, Ended, ExtendOutcome, ReleaseOutcome, Site};
use crate::core::fence::{Fence, FENCE_END};
use crate::core::name::Place;
use crate::core::time::{Instant, LEASE_MS_MAX};

/// From here on no whole millisecond of the lease is left.
const LAST_MS_US: u64 = END_US - 999;

/// A serving table where ann holds the lock from `START_US` on, and her fence.
fn held() -> (Scene, Fence) {
    let mut scene = Scene::new();
    let fence = scene.take(by("ann"));
    (scene, fence)
}

fn instant(micros: u64) -> Instant {
    Instant::from_micros(micros)
}

fn use_up_fences(scene: &mut Scene) {
    scene.table.raise_fence(Fence::new(FENCE_END - 1).unwrap());
}

#[test]
fn in_its_last_millisecond_a_lease_is_over_for_its_holder_only() {
    for now_us in [LAST_MS_US, END_US - 1] {
        let (mut scene, fence) = held();
        scene.now_us = LAST_MS_US - 1;
        assert_eq!(scene.check("ann"), 1);
        scene.now_us = now_us;
        assert_eq!(scene.check("ann"), 0);
        assert!(scene.table.look(scene.site(), instant(now_us)).is_none());
        assert_eq!(scene.extend("ann", Some(50)), ExtendOutcome::NotHeld);
        assert_eq!(scene.acquire(lease(by("bob"), 50)), Acquired::Held);
        assert_eq!(scene.table.next_due(instant(now_us)), None);
        assert_eq!(scene.effects(), [], "nothing changed");

        // What it counts on runs to the very end, and a copy of its request can come late: nobody else has the lock yet.
        scene.wait(block(by("bob"), 1));
        let again = scene.acquire(lease(by("ann"), 50));
        assert_eq!(again, Acquired::Granted { fence, ttl_ms: 50, new: false });
        assert_eq!(scene.holders(), ["ann"]);
    }
}

#[test]
fn in_the_last_millisecond_the_holder_still_frees_the_lock() {
    let (mut scene, _) = held();
    scene.now_us = END_US - 1;
    assert_eq!(scene.release("bob"), ReleaseOutcome::Taken);
    assert_eq!(scene.release("ann"), ReleaseOutcome::Released);
    assert_eq!(scene.effects(), [Effect::Ended(Ended::Released), Effect::Removed]);
    assert_eq!((scene.table.held(), scene.table.known()), (0, 0));
}

#[test]
fn at_its_end_a_lease_is_over_for_everybody() {
    let over = [Effect::Ended(Ended::LeaseEnded), Effect::Removed];
    let (mut scene, _) = held();
    assert_eq!(scene.deadline(), Some(instant(END_US)));
    assert_eq!(scene.table.next_due(instant(END_US)), scene.lock);
    scene.now_us = END_US;
    assert_eq!(scene.release("ann"), ReleaseOutcome::Free);
    assert_eq!(scene.effects(), over);
    let counts = scene.table.counts();
    assert_eq!((counts.late_free, counts.leases_ended, counts.released), (1, 1, 0));

    let (mut scene, fence) = held();
    scene.now_us = END_US;
    let taken = scene.acquire(by("bob"));
    assert!(matches!(taken, Acquired::Granted { fence: next, new: true, .. } if next > fence), "{taken:?}");

    let (mut scene, _) = held();
    scene.now_us = END_US;
    assert_eq!(scene.extend("ann", None), ExtendOutcome::NotHeld);
    assert_eq!(scene.effects(), over);
}

#[test]
fn a_lease_that_would_end_at_the_same_instant_changes_nothing() {
    let (mut scene, fence) = held();
    scene.sleep_ms(4);
    let again = scene.acquire(lease(by("ann"), LEASE_MS - 4));
    assert_eq!(again, Acquired::Granted { fence, ttl_ms: LEASE_MS - 4, new: false });
    assert_eq!(scene.extend("ann", Some(LEASE_MS - 4)), ExtendOutcome::Extended(6));
    assert_eq!(scene.effects(), [], "the same end");
    assert_eq!(scene.extend("ann", Some(LEASE_MS - 3)), ExtendOutcome::Extended(7));
    let lock = scene.lock.unwrap();
    assert_eq!(scene.effects(), [Effect::Set { lock, fence, alone: true, signal: false }], "one ms later");
}

#[test]
fn an_extension_that_keeps_the_length_is_told_to_nobody() {
    let (mut scene, _) = held();
    scene.sleep_ms(4);
    assert_eq!(scene.extend("ann", None), ExtendOutcome::Extended(LEASE_MS));
    assert_eq!(scene.effects(), [], "a replica counts the whole length from its promotion anyway");
    assert_eq!(scene.deadline(), Some(instant(END_US + 4_000)));
}

#[test]
fn where_leases_stand_still_the_whole_lease_is_left() {
    let (mut scene, _) = held();
    scene.table.stop_serving();
    scene.now_us = END_US + 1_000_000;
    assert_eq!(scene.check("ann"), LEASE_MS);
    assert_eq!((scene.table.next_deadline(), scene.table.next_due(scene.now().instant)), (None, None));

    scene.sleep_ms(1_000);
    scene.table.begin_serving(scene.now());
    assert_eq!(scene.check("ann"), LEASE_MS);
    let end_us = scene.now_us + LEASE_MS * 1_000;
    assert_eq!(scene.table.next_due(instant(end_us - 1)), None);
    assert_eq!(scene.table.next_due(instant(end_us)), scene.lock);
}

#[test]
fn a_repeat_gets_a_new_fence_only_after_a_promotion() {
    let (mut scene, fence) = held();
    scene.sleep_ms(1);
    scene.table.begin_serving(scene.now());
    let again = scene.acquire(lease(by("ann"), 1));
    let Acquired::Granted { fence: renewed, new: false, .. } = again else { panic!("{again:?}") };
    assert!(renewed > fence);
    let lock = scene.lock.unwrap();
    assert_eq!(scene.effects(), [Effect::Set { lock, fence: renewed, alone: true, signal: true }]);
    let third = scene.acquire(lease(by("ann"), 1));
    assert!(matches!(third, Acquired::Granted { fence, .. } if fence == renewed), "{third:?}");
    assert_eq!(scene.effects(), []);
}

#[test]
fn without_fences_nothing_is_granted_and_nothing_changes() {
    let (mut scene, _) = held();
    use_up_fences(&mut scene);
    let other = Site { place: Place { db: 0, key: b"other" }, lock: None, legacy: None };
    assert_eq!(scene.table.acquire(other, &by("bob"), at(START_US)), Acquired::NoFence);
    assert_eq!((scene.effects(), scene.table.known()), (vec![], 1));
    assert_eq!(scene.acquire(shared(by("bob"))), Acquired::Held);
    scene.now_us = END_US;
    assert_eq!(scene.acquire(by("bob")), Acquired::NoFence);
    assert_eq!(scene.effects(), [Effect::Ended(Ended::LeaseEnded), Effect::Removed], "the lease is over all the same");
}

#[test]
fn without_fences_a_grant_is_repeated_until_a_promotion() {
    let (mut scene, fence) = held();
    use_up_fences(&mut scene);
    let again = scene.acquire(by("ann"));
    assert_eq!(again, Acquired::Granted { fence, ttl_ms: LEASE_MS, new: false });
    scene.table.begin_serving(at(START_US));
    assert_eq!(scene.acquire(lease(by("ann"), 50)), Acquired::NoFence);
    assert_eq!(scene.effects(), []);
    assert_eq!(scene.check("ann"), LEASE_MS, "refused, so not prolonged either");
}

#[test]
fn the_longest_lease_has_an_end() {
    let mut scene = Scene::new();
    let granted = scene.acquire(lease(by("ann"), LEASE_MS_MAX));
    assert!(matches!(granted, Acquired::Granted { ttl_ms: LEASE_MS_MAX, .. }), "{granted:?}");
    assert_eq!(scene.deadline(), Some(instant(START_US + LEASE_MS_MAX * 1_000)));
}

#[test]
fn only_what_just_left_its_key_is_taken_for_evicted() {
    let (mut scene, _) = held();
    let (lock, table) = (scene.lock.unwrap(), &mut scene.table);
    assert!(!table.evicted(PLACE), "nothing left");
    table.unlinked(lock);
    assert!(!table.evicted(Place { db: 1, ..PLACE }), "another key was evicted");
    assert!(!table.evicted(PLACE), "the notice came before");
    table.linked(lock, PLACE);

    table.unlinked(lock);
    table.left_for_good();
    assert!(!table.evicted(PLACE), "the lock was deleted, and what stood there then is evicted");
    table.linked(lock, PLACE);

    table.unlinked(lock);
    assert!(table.evicted(PLACE));
    let copy = table.find_evicted(PLACE);
    table.freed(lock);
    let site = Site { place: PLACE, lock: copy, legacy: None };
    assert_eq!(table.check(site, token("ann"), at(START_US).instant), LEASE_MS, "held while it is away");
    table.put_back(copy.unwrap());
    assert_eq!((table.held(), table.find_evicted(PLACE)), (1, None));
}
