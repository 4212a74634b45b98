//! The grace at its edges: what it refuses, what goes on, and how lines move once it is over.

use super::scene::{
    at, block, by, cap, downgrade, ephemeral, hold, lease, limit, poll, shared, token, upgrade, Scene, END_US,
    LEASE_MS, PLACE, START_US,
};
use super::{Acquire, Acquired, Answer, Effect, Ended, ExtendOutcome, Legacy, ReleaseOutcome, Site, Table};
use crate::core::line::Seat;
use crate::core::packed::Packed;
use crate::core::time::Instant;

const GRACE_MS: u64 = 100;
/// The end of a grace that begins where a scene starts.
const GRACE_END_US: u64 = START_US + GRACE_MS * 1_000;

fn instant(micros: u64) -> Instant {
    Instant::from_micros(micros)
}

/// Begins a grace now.
fn begin(scene: &mut Scene) {
    let now = scene.now().instant;
    scene.table.set_grace_ms(GRACE_MS, now);
    scene.table.begin_grace(now);
}

/// A table in its grace, without any lock.
fn graced() -> Scene {
    let mut scene = Scene::new();
    begin(&mut scene);
    scene
}

/// A table that began its grace while this request held the lock, for longer than that.
fn graced_with(request: Acquire<'_>) -> Scene {
    let mut scene = Scene::held(lease(request, 10 * GRACE_MS));
    begin(&mut scene);
    scene
}

fn answers(scene: &mut Scene) -> Vec<(Seat, bool)> {
    let granted = |effect| match effect {
        Effect::Answer(seat, answer) => Some((seat, matches!(answer, Answer::Granted { .. }))),
        _ => None,
    };
    scene.effects().into_iter().filter_map(granted).collect()
}

#[test]
fn a_try_of_a_free_lock_is_told_how_long_until_the_very_end() {
    let mut scene = graced();
    for (now_us, left_ms) in [(START_US, GRACE_MS), (START_US + 1, GRACE_MS), (GRACE_END_US - 1, 1)] {
        scene.now_us = now_us;
        assert_eq!(scene.acquire(by("ann")), Acquired::Grace(left_ms));
        assert_eq!(scene.acquire(shared(by("ann"))), Acquired::Grace(left_ms));
        assert_eq!(scene.acquire(limit(by("ann"), 2)), Acquired::Grace(left_ms));
        assert_eq!(scene.table.grace_left_ms(instant(now_us)), left_ms);
    }
    assert_eq!((scene.effects(), scene.table.known(), scene.table.counts().refused), (vec![], 0, 0));
    scene.now_us = GRACE_END_US;
    assert_eq!(scene.table.grace_left_ms(instant(GRACE_END_US)), 0);
    scene.take(by("ann"));
}

#[test]
fn a_grace_of_nothing_is_none() {
    let mut scene = Scene::new();
    scene.table.begin_grace(scene.now().instant);
    assert_eq!(scene.table.grace_left_ms(scene.now().instant), 0);
    assert!(!scene.table.end_grace(scene.now().instant));
    scene.take(by("ann"));
}

#[test]
fn what_another_holds_is_answered_as_ever() {
    let mut scene = graced_with(by("ann"));
    assert_eq!(scene.acquire(by("bob")), Acquired::Held);
    assert_eq!(scene.acquire(shared(by("bob"))), Acquired::Held);
    assert_eq!(scene.acquire(upgrade(by("bob"))), Acquired::NotHeld);
    assert_eq!(scene.table.counts().refused, 2);

    let mut scene = graced_with(shared(by("ann")));
    assert_eq!(scene.acquire(by("bob")), Acquired::Held);
    assert_eq!(scene.acquire(by("ann")), Acquired::HeldShared);

    let mut scene = graced_with(limit(by("ann"), 1));
    assert_eq!(scene.acquire(limit(by("bob"), 1)), Acquired::Held, "the only permit is out");
}

#[test]
fn nobody_joins_those_who_share() {
    let mut scene = graced_with(shared(by("ann")));
    assert_eq!(scene.acquire(shared(by("bob"))), Acquired::Grace(GRACE_MS));
    assert_eq!(scene.acquire(limit(by("bob"), 5)), Acquired::Grace(GRACE_MS));
    assert_eq!((scene.holders(), scene.effects()), (vec!["ann".to_owned()], vec![]));
    let waits = scene.acquire(block(shared(by("bob")), 1));
    assert!(matches!(waits, Acquired::Waits(_)), "{waits:?}");
}

#[test]
fn a_repeat_changes_nothing_of_the_hold() {
    for mode in [by as fn(_) -> _, |who| shared(by(who)), |who| limit(by(who), 3)] {
        let mut scene = graced_with(mode("ann"));
        let left_ms = scene.check("ann");
        for again in [mode("ann"), lease(mode("ann"), 90 * GRACE_MS), hold(mode("ann"), "inner"), cap(mode("ann"), 5)] {
            assert_eq!(scene.acquire(again), Acquired::Grace(GRACE_MS));
            assert_eq!(scene.acquire(block(again, 1)), Acquired::Grace(GRACE_MS), "served ahead of any line, or not");
        }
        scene.acquire(ephemeral(mode("ann"), 7));
        assert!(!scene.table.has_bound());
        assert_eq!((scene.check("ann"), scene.effects(), scene.table.counts().repeated), (left_ms, vec![], 0));
    }
}

#[test]
fn an_upgrade_is_refused_and_the_shared_hold_stays() {
    let mut scene = graced_with(shared(by("ann")));
    assert_eq!(scene.acquire(upgrade(by("ann"))), Acquired::Grace(GRACE_MS));
    assert!(!scene.table.get(scene.lock.unwrap()).unwrap().is_exclusive());
    scene.wait(block(upgrade(by("ann")), 1));
    scene.settle();
    assert_eq!(scene.effects(), []);
    scene.now_us = GRACE_END_US;
    scene.settle();
    assert_eq!(answers(&mut scene), [(Seat(1), true)]);
    assert!(scene.table.get(scene.lock.unwrap()).unwrap().is_exclusive());
}

#[test]
fn an_upgrade_whose_hold_is_gone_ends_in_the_grace_too() {
    let mut scene = Scene::held(shared(by("ann")));
    begin(&mut scene);
    scene.wait(block(upgrade(by("ann")), 1));
    scene.now_us = END_US;
    scene.settle();
    assert!(scene.effects().contains(&Effect::Answer(Seat(1), Answer::NotHeld)));
}

#[test]
fn what_gives_nothing_out_works() {
    let mut scene = graced_with(by("ann"));
    let fence = scene.table.get(scene.lock.unwrap()).unwrap().hold(Packed::of(b"ann")).unwrap().fence;
    assert_eq!(scene.extend("ann", Some(30 * GRACE_MS)), ExtendOutcome::Extended(30 * GRACE_MS));
    let floor = crate::core::fence::Fence::new(fence.get() + 5).unwrap();
    assert!(matches!(scene.raise_fence("ann", floor), ExtendOutcome::Extended(_)));
    assert_eq!(scene.check("ann"), 30 * GRACE_MS);
    assert!(scene.run(|table, site, now| table.guard(site, token("ann"), now)));
    assert_eq!(scene.release("bob"), ReleaseOutcome::Taken);
    assert_eq!(scene.release("ann"), ReleaseOutcome::Released);
    assert_eq!(scene.acquire(by("ann")), Acquired::Grace(GRACE_MS));
}

#[test]
fn a_downgrade_works_and_lets_nobody_in() {
    let mut scene = graced_with(by("ann"));
    scene.wait(block(shared(by("bob")), 1));
    for new in [false, false] {
        let weaker = scene.acquire(downgrade(by("ann")));
        assert!(matches!(weaker, Acquired::Granted { new: seen, .. } if seen == new), "{weaker:?}");
    }
    assert_eq!((scene.holders(), answers(&mut scene)), (vec!["ann".to_owned()], vec![]));
    scene.now_us = GRACE_END_US;
    scene.settle();
    assert_eq!((scene.holders().len(), answers(&mut scene)), (2, vec![(Seat(1), true)]));
}

#[test]
fn a_released_lock_stays_free_until_the_end_and_then_goes_to_the_first_in_line() {
    let mut scene = graced_with(by("ann"));
    scene.wait(block(by("bob"), 1));
    assert_eq!(scene.release("ann"), ReleaseOutcome::Released);
    assert_eq!(scene.effects(), [Effect::Ended(Ended::Released), Effect::Removed]);
    // A lock that is free and has a line: whoever comes is behind it.
    scene.wait(block(by("cid"), 2));
    assert_eq!(scene.acquire(by("dan")), Acquired::Grace(GRACE_MS));
    assert_eq!(scene.acquire(by("bob")), Acquired::Grace(GRACE_MS), "a try ends no wait of its token");
    scene.now_us = GRACE_END_US - 1;
    scene.settle();
    assert_eq!((scene.lock, scene.effects()), (None, vec![]));
    assert!(!scene.table.would_hand_over(scene.site(), scene.now().instant));

    scene.now_us = GRACE_END_US;
    assert!(scene.table.would_hand_over(scene.site(), scene.now().instant));
    assert_eq!(scene.acquire(by("dan")), Acquired::Held, "not past the line, however soon");
    assert_eq!((scene.holders(), answers(&mut scene)), (vec!["bob".to_owned()], vec![(Seat(1), true)]));
}

#[test]
fn a_lease_that_ends_frees_the_lock_for_nobody() {
    let mut scene = Scene::held(by("ann"));
    begin(&mut scene);
    scene.wait(block(by("bob"), 1));
    scene.now_us = END_US;
    scene.settle();
    assert_eq!(scene.effects(), [Effect::Ended(Ended::LeaseEnded), Effect::Removed]);
    assert_eq!(scene.table.lines().count(PLACE), 1);
}

#[test]
fn a_poll_keeps_its_place_and_is_told_why() {
    let mut scene = graced();
    let until_us = GRACE_END_US + 5_000;
    assert_eq!(scene.acquire(poll(by("ann"), until_us)), Acquired::Grace(GRACE_MS));
    scene.wait(block(by("bob"), 1));
    scene.now_us = GRACE_END_US;
    scene.settle();
    assert_eq!((scene.holders(), answers(&mut scene)), (vec!["ann".to_owned()], vec![]));
    let fetched = scene.acquire(poll(by("ann"), until_us));
    assert!(matches!(fetched, Acquired::Granted { new: true, ttl_ms: LEASE_MS, .. }), "{fetched:?}");
}

#[test]
fn a_grant_to_be_fetched_is_fetched_by_extend_only() {
    let scene = || {
        let mut scene = Scene::held(by("ann"));
        scene.acquire(poll(by("bob"), GRACE_END_US));
        scene.release("ann");
        begin(&mut scene);
        scene.effects();
        scene
    };
    let mut polled = scene();
    assert_eq!(polled.acquire(poll(by("bob"), GRACE_END_US)), Acquired::Grace(GRACE_MS));
    polled.now_us = GRACE_END_US - 1;
    polled.settle();
    assert_eq!(polled.holders(), ["bob"], "its time to fetch is what it was");
    let mut extended = scene();
    assert_eq!(extended.extend("bob", Some(3 * GRACE_MS)), ExtendOutcome::Extended(3 * GRACE_MS));
}

#[test]
fn a_lock_of_another_library_is_respected_and_its_end_gives_nothing_out() {
    let mut scene = graced();
    let foreign = Site { place: PLACE, lock: None, legacy: Some(Legacy { value: b"theirs", ttl_ms: 50 }) };
    let now = scene.now();
    assert_eq!(scene.table.acquire(foreign, &by("ann"), now), Acquired::Held);
    let waits = scene.table.acquire(foreign, &block(by("ann"), 1), now);
    assert!(matches!(waits, Acquired::Waits(_)), "{waits:?}");
    assert_eq!(scene.table.extend(foreign, token("theirs"), None, None, now), ExtendOutcome::Extended(50));
    assert_eq!(scene.table.release(foreign, token("theirs"), None, now), ReleaseOutcome::Released);
    assert_eq!(scene.table.take_effects(), [Effect::LegacyRemoved, Effect::Ended(Ended::Released)]);
    scene.settle();
    assert_eq!(scene.effects(), []);
    scene.now_us = GRACE_END_US;
    scene.settle();
    assert_eq!(answers(&mut scene), [(Seat(1), true)]);
}

#[test]
fn a_wait_that_would_never_end_is_seen_in_the_grace_too() {
    let mut scene = graced_with(by("ann"));
    let other = Site { place: crate::core::name::Place { db: 0, key: b"other" }, lock: None, legacy: None };
    let now = scene.now();
    // bob is first in line of a free lock and ann behind it; then bob wants what ann holds.
    assert!(matches!(scene.table.acquire(other, &block(by("bob"), 1), now), Acquired::Waits(_)));
    assert!(matches!(scene.table.acquire(other, &block(by("ann"), 2), now), Acquired::Waits(_)));
    assert_eq!(scene.acquire(block(by("bob"), 3)), Acquired::Deadlock);
}

#[test]
fn its_end_is_due_once_and_stirs_every_line() {
    let mut scene = graced();
    assert_eq!(scene.table.next_deadline(), Some(instant(GRACE_END_US)));
    scene.wait(block(by("ann"), 1));
    assert!(!scene.table.end_grace(instant(GRACE_END_US - 1)) && !scene.table.is_stirred());
    assert!(scene.table.end_grace(instant(GRACE_END_US)));
    assert_eq!(scene.table.next_stirred(), Some((PLACE.db, Box::from(PLACE.key))));
    assert_eq!(scene.table.next_stirred(), None);
    assert!(!scene.table.end_grace(instant(GRACE_END_US)), "once");
    assert_eq!(scene.table.next_deadline(), None);
}

#[test]
fn another_length_moves_the_end_from_the_same_start() {
    let mut scene = graced();
    scene.sleep_ms(GRACE_MS / 2);
    let now = scene.now().instant;
    assert!(scene.table.set_grace_ms(3 * GRACE_MS, now) && !scene.table.set_grace_ms(3 * GRACE_MS, now));
    assert_eq!(scene.table.grace_left_ms(now), 3 * GRACE_MS - GRACE_MS / 2);
    scene.table.set_grace_ms(GRACE_MS / 2, now);
    assert_eq!(scene.table.grace_left_ms(now), 0);
    assert!(scene.table.end_grace(now));
    scene.take(by("ann"));

    // What was granted meanwhile stays; from here on nothing is.
    scene.table.set_grace_ms(GRACE_MS, now);
    assert_eq!(scene.acquire(by("ann")), Acquired::Grace(GRACE_MS / 2));
    assert_eq!(scene.check("ann"), LEASE_MS);
    scene.now_us = GRACE_END_US;
    assert!(scene.table.end_grace(instant(GRACE_END_US)));
    scene.take(by("ann"));
}

#[test]
fn it_counts_from_a_promotion_and_not_at_all_on_a_replica() {
    let mut table = Table::default();
    table.set_grace_ms(GRACE_MS, instant(START_US));
    assert_eq!(table.grace_left_ms(instant(START_US)), 0, "neither started as a primary nor promoted");
    table.begin_grace(instant(START_US));
    table.begin_serving(at(START_US));
    table.stop_serving();
    table.drop_grace();
    assert_eq!((table.grace_left_ms(instant(START_US)), table.end_grace(instant(GRACE_END_US))), (0, false));
    let promoted_us = GRACE_END_US + 7;
    table.begin_grace(instant(promoted_us));
    table.begin_serving(at(promoted_us));
    assert_eq!(table.grace_left_ms(instant(promoted_us + 1_000)), GRACE_MS - 1);
}

#[test]
fn a_load_in_between_does_not_make_it_longer() {
    let mut scene = graced();
    scene.table.stop_serving();
    scene.sleep_ms(GRACE_MS - 1);
    scene.table.begin_serving(scene.now());
    assert_eq!(scene.acquire(by("ann")), Acquired::Grace(1));
    scene.sleep_ms(1);
    scene.take(by("ann"));
}
