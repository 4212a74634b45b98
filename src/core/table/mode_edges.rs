//! The edges of the modes: where a shared lock, a limit, a change of mode, a named hold or a cap meets the end of a
//! lease, another of its kind, or a grant that nobody was told of.

use super::scene::{
    at, block, by, cap, downgrade, ephemeral, hold, lease, limit, poll, shared, token, upgrade, Scene, END_US, PLACE,
    START_US,
};
use super::{Acquired, Answer, Effect, Ended, ExtendOutcome, ReleaseOutcome, Site};
use crate::core::fence::Fence;
use crate::core::hold::{Mode, HOLDS_MAX};
use crate::core::line::Seat;
use crate::core::name::Place;
use crate::core::packed::Packed;
use crate::core::time::Instant;

/// Ann and bob share the lock, bob for twice as long; their fences.
fn shared_by_two() -> (Scene, Fence, Fence) {
    let mut scene = Scene::new();
    let ann = scene.take(shared(by("ann")));
    let bob = scene.take(shared(lease(by("bob"), 20)));
    (scene, ann, bob)
}

/// The answer a seat got, and the fence if it is a grant.
fn answered(effects: &[Effect], seat: u64) -> Option<Result<Fence, Answer>> {
    effects.iter().rev().find_map(|effect| match effect {
        Effect::Answer(Seat(other), Answer::Granted { fence, .. }) if *other == seat => Some(Ok(*fence)),
        Effect::Answer(Seat(other), answer) if *other == seat => Some(Err(answer.clone())),
        _ => None,
    })
}

fn mode(scene: &Scene, who: &str) -> Option<Mode> {
    let lock = scene.table.get(scene.lock?)?;
    Some(lock.holder(Packed::of(who.as_bytes()))?.mode)
}

#[test]
fn a_floor_can_give_two_sharers_one_fence() {
    let (mut scene, _, bob) = shared_by_two();
    assert_eq!(scene.raise_fence("ann", bob), ExtendOutcome::Extended(10));
    let lock = scene.lock.unwrap();
    assert_eq!(scene.effects(), [Effect::Set { lock, fence: bob, alone: false, signal: true }]);
    assert_eq!(scene.holders(), ["ann", "bob"]);
    assert_eq!((scene.check("ann"), scene.check("bob")), (10, 20));
    scene.sleep_ms(10);
    scene.settle();
    assert_eq!((scene.holders(), scene.check("bob")), (vec!["bob".to_owned()], 10), "only her lease is over");
    assert_eq!(scene.release("bob"), ReleaseOutcome::Released);
    assert_eq!(scene.table.known(), 0);
}

#[test]
fn a_lock_is_over_at_its_cap_for_everybody() {
    for request in [cap(lease(by("ann"), 50), 10), shared(cap(lease(by("ann"), 50), 10))] {
        let mut scene = Scene::new();
        let granted = scene.acquire(request);
        assert!(matches!(granted, Acquired::Granted { ttl_ms: 10, .. }), "{granted:?}");
        assert_eq!(scene.deadline(), Some(Instant::from_micros(END_US)));
        assert_eq!(scene.extend("ann", Some(40)), ExtendOutcome::Extended(10));
        assert!(matches!(scene.acquire(shared(lease(by("ann"), 40))), Acquired::Granted { ttl_ms: 10, .. }));
        scene.now_us = END_US;
        assert_eq!(scene.table.next_due(at(END_US).instant), scene.lock);
        assert!(matches!(scene.acquire(by("bob")), Acquired::Granted { new: true, .. }));
        assert_eq!(scene.holders(), ["bob"]);
    }
}

#[test]
fn a_cap_outlasts_a_promotion() {
    let mut scene = Scene::held(cap(by("ann"), 15));
    scene.sleep_ms(9);
    scene.table.begin_serving(scene.now());
    assert_eq!(scene.check("ann"), 6, "less than the lease, which starts anew");
}

#[test]
fn a_later_cap_cuts_no_promise() {
    let mut scene = Scene::held(lease(by("ann"), 30));
    scene.sleep_ms(5);
    assert!(matches!(scene.acquire(cap(by("ann"), 1)), Acquired::Granted { ttl_ms: 25, new: false, .. }));
    assert_eq!(scene.extend("ann", Some(90)), ExtendOutcome::Extended(25), "but it goes no further");
    assert!(matches!(scene.acquire(cap(by("ann"), 90)), Acquired::Granted { ttl_ms: 25, .. }), "nor is it lifted");
}

#[test]
fn on_a_replica_no_more_is_left_than_the_cap_allows() {
    let mut scene = Scene::held(cap(by("ann"), 8));
    scene.table.stop_serving();
    scene.sleep_ms(3);
    assert_eq!(scene.check("ann"), 5);
}

#[test]
fn an_upgrade_beside_others_waits_at_the_head() {
    let (mut scene, ann, _) = shared_by_two();
    scene.wait(block(by("cyd"), 1));
    scene.wait(block(shared(by("dan")), 2));
    scene.wait(block(upgrade(lease(by("ann"), 50)), 3));
    assert_eq!(scene.release("bob"), ReleaseOutcome::Released);
    let effects = scene.effects();
    let Some(Ok(fence)) = answered(&effects, 3) else { panic!("{effects:?}") };
    assert!(fence > ann);
    assert_eq!((mode(&scene, "ann"), scene.check("ann")), (Some(Mode::Exclusive), 50));
}

#[test]
fn two_upgrades_are_a_deadlock() {
    let (mut scene, ann, bob) = shared_by_two();
    scene.wait(block(upgrade(by("ann")), 1));
    assert_eq!(scene.acquire(block(upgrade(by("bob")), 2)), Acquired::Deadlock);
    assert_eq!(scene.acquire(poll(upgrade(by("bob")), END_US)), Acquired::Deadlock);
    assert_eq!(scene.acquire(upgrade(by("bob"))), Acquired::Held, "a try never is");
    assert_eq!(scene.effects(), []);
    let lock = scene.table.get(scene.lock.unwrap()).unwrap();
    let fences: Vec<Fence> = lock.holders().map(|seen| seen.hold.fence).collect();
    assert_eq!(fences, [ann, bob], "both still share it");
}

#[test]
fn an_upgrade_whose_hold_ends_meanwhile_holds_nobody_up() {
    let (mut scene, ..) = shared_by_two();
    scene.wait(block(upgrade(by("ann")), 1));
    scene.wait(block(shared(by("cyd")), 2));
    scene.now_us = END_US;
    scene.settle();
    let effects = scene.effects();
    assert_eq!(answered(&effects, 1), Some(Err(Answer::NotHeld)));
    assert!(matches!(answered(&effects, 2), Some(Ok(_))), "{effects:?}");
    assert_eq!(scene.holders(), ["bob", "cyd"]);
}

#[test]
fn an_upgrade_takes_its_other_options_along() {
    let (mut scene, ..) = shared_by_two();
    scene.wait(block(upgrade(hold(cap(lease(by("ann"), 90), 40), "inner")), 1));
    scene.release("bob");
    assert_eq!(scene.check("ann"), 40);
    assert_eq!(scene.release("ann"), ReleaseOutcome::Released);

    let mut scene = Scene::held(shared(by("ann")));
    scene.take(upgrade(hold(cap(lease(by("ann"), 90), 40), "inner")));
    assert_eq!(scene.check("ann"), 40);
    assert_eq!(scene.release_hold("ann", "inner"), ReleaseOutcome::Released);
    assert_eq!(scene.check("ann"), 40, "the hold without a name stays");
}

#[test]
fn an_upgrade_nobody_was_told_of_leaves_the_shared_hold() {
    let (mut scene, ann, _) = shared_by_two();
    scene.wait(block(upgrade(hold(lease(by("ann"), 50), "inner")), 1));
    scene.wait(block(shared(by("cyd")), 2));
    scene.release("bob");
    let effects = scene.effects();
    let Some(Ok(fence)) = answered(&effects, 1) else { panic!("{effects:?}") };
    let (lock, now) = (scene.lock.unwrap(), scene.now().instant);
    assert!(!scene.table.void(lock, ann, now), "another grant is meant");
    assert!(scene.table.void(lock, fence, now));
    scene.settle();
    assert_eq!(scene.holders(), ["ann", "cyd"], "whoever waited to share it comes in");
    assert_eq!((scene.check("ann"), scene.check("cyd")), (10, 10), "the lease is the old one, too");
    assert_eq!(scene.release_hold("ann", "inner"), ReleaseOutcome::Free);
    assert_eq!(scene.table.counts().taken_back, 1);
    assert_eq!(scene.table.get(lock).unwrap().holder(Packed::of(b"ann")).unwrap().hold.fence, ann);
}

#[test]
fn an_upgrade_its_token_heard_of_is_not_taken_back() {
    for hear in [
        |scene: &mut Scene| assert_eq!(scene.check("ann"), 20),
        |scene: &mut Scene| assert_eq!(scene.extend("ann", None), ExtendOutcome::Extended(20)),
        |scene: &mut Scene| assert!(matches!(scene.acquire(by("ann")), Acquired::Granted { new: true, .. })),
        |scene: &mut Scene| assert_eq!(scene.release_hold("ann", "outer"), ReleaseOutcome::Released),
    ] {
        let (mut scene, ..) = shared_by_two();
        scene.take(shared(hold(by("ann"), "outer")));
        scene.wait(block(upgrade(lease(by("ann"), 20)), 1));
        scene.release("bob");
        let effects = scene.effects();
        let Some(Ok(fence)) = answered(&effects, 1) else { panic!("{effects:?}") };
        hear(&mut scene);
        assert!(!scene.table.void(scene.lock.unwrap(), fence, scene.now().instant));
        assert_eq!(mode(&scene, "ann"), Some(Mode::Exclusive));
    }
}

#[test]
fn a_polled_upgrade_that_nobody_fetches_leaves_the_shared_hold() {
    // The poll ends before the shared hold does, and after it.
    for (lease_ms, left) in [(30, Some(10)), (15, None)] {
        let mut scene = Scene::held(shared(lease(by("ann"), lease_ms)));
        scene.take(shared(by("bob")));
        assert_eq!(scene.acquire(poll(upgrade(lease(by("ann"), 90)), START_US + 20_000)), Acquired::Held);
        assert_eq!(scene.release("bob"), ReleaseOutcome::Released);
        assert_eq!(mode(&scene, "ann"), Some(Mode::Exclusive));
        scene.sleep_ms(20);
        scene.settle();
        assert_eq!(mode(&scene, "ann"), left.map(|_| Mode::Shared(None)));
        assert_eq!(scene.check("ann"), left.unwrap_or(0));
    }
}

#[test]
fn a_polled_upgrade_is_fetched_by_the_next_poll() {
    let (mut scene, _, bob) = shared_by_two();
    let until_us = START_US + 8_000;
    assert_eq!(scene.acquire(poll(upgrade(lease(by("ann"), 30)), until_us)), Acquired::Held);
    scene.release("bob");
    scene.sleep_ms(7);
    let fetched = scene.acquire(poll(upgrade(lease(by("ann"), 30)), until_us));
    assert!(matches!(fetched, Acquired::Granted { fence, ttl_ms: 30, new: true } if fence > bob), "{fetched:?}");
    scene.sleep_ms(20);
    scene.settle();
    assert_eq!((mode(&scene, "ann"), scene.check("ann")), (Some(Mode::Exclusive), 10));
}

#[test]
fn a_fetch_never_shortens_what_was_shared() {
    let mut scene = Scene::held(shared(lease(by("ann"), 90)));
    scene.take(shared(by("bob")));
    assert_eq!(scene.acquire(poll(upgrade(by("ann")), END_US)), Acquired::Held);
    scene.release("bob");
    let fetched = scene.acquire(poll(upgrade(by("ann")), END_US));
    assert!(matches!(fetched, Acquired::Granted { ttl_ms: 90, new: true, .. }), "{fetched:?}");
}

#[test]
fn a_grant_is_there_to_be_fetched_to_the_end_of_its_poll() {
    let mut scene = Scene::held(by("bob"));
    assert_eq!(scene.acquire(poll(by("ann"), END_US)), Acquired::Held);
    scene.release("bob");
    scene.effects();
    scene.now_us = END_US - 1;
    let fetched = scene.acquire(poll(by("ann"), END_US + 10_000));
    assert!(matches!(fetched, Acquired::Granted { ttl_ms: 10, new: true, .. }), "{fetched:?}");
    assert_eq!(scene.table.counts().granted, 2);
}

#[test]
fn a_downgrade_keeps_the_fence_and_lets_readers_in() {
    let mut scene = Scene::new();
    let fence = scene.take(by("ann"));
    scene.wait(block(shared(by("bob")), 1));
    scene.wait(block(by("cyd"), 2));
    scene.wait(block(shared(by("dan")), 3));
    let answer = scene.acquire(downgrade(by("ann")));
    assert_eq!(answer, Acquired::Granted { fence, ttl_ms: 10, new: false });
    assert_eq!(scene.holders(), ["ann", "bob"], "up to the first who wants it alone");
    assert_eq!(scene.take(downgrade(by("ann"))), fence, "and again");
}

#[test]
fn a_refused_change_of_mode_changes_nothing() {
    let mut scene = Scene::held(by("ann"));
    let names: Vec<String> = (0..HOLDS_MAX).map(|number| number.to_string()).collect();
    for name in &names {
        scene.take(hold(by("ann"), name));
    }
    assert_eq!(scene.acquire(downgrade(hold(by("ann"), "more"))), Acquired::TooManyHolds);
    assert_eq!(scene.acquire(hold(by("ann"), "more")), Acquired::TooManyHolds);
    assert_eq!((scene.effects(), mode(&scene, "ann")), (vec![], Some(Mode::Exclusive)));
    scene.take(downgrade(by("ann")));
    assert_eq!(scene.acquire(upgrade(hold(by("ann"), "more"))), Acquired::TooManyHolds);
    assert_eq!((scene.effects(), mode(&scene, "ann")), (vec![], Some(Mode::Shared(None))));
    assert_eq!(scene.acquire(upgrade(by("bob"))), Acquired::NotHeld);
    assert_eq!(scene.acquire(downgrade(by("bob"))), Acquired::NotHeld);
    assert_eq!(scene.acquire(by("ann")), Acquired::HeldShared);
    assert_eq!(scene.effects(), []);
}

#[test]
fn whoever_is_first_and_asks_for_less_gets_it() {
    let (mut scene, ..) = shared_by_two();
    scene.wait(block(by("cyd"), 1));
    scene.wait(block(shared(by("dan")), 2));
    scene.wait(block(by("eve"), 3));
    let again = scene.acquire(block(shared(by("cyd")), 4));
    assert!(matches!(again, Acquired::Granted { new: true, .. }), "{again:?}");
    let effects = scene.effects();
    assert_eq!(answered(&effects, 1), Some(Err(Answer::Superseded)));
    assert!(matches!(answered(&effects, 2), Some(Ok(_))), "the way is free for those behind: {effects:?}");
    assert_eq!((scene.holders().len(), scene.table.lines().blocked()), (4, 1));
}

#[test]
fn a_wait_that_becomes_one_for_more_can_be_a_deadlock() {
    let mut scene = Scene::held(limit(by("ann"), 2));
    scene.take(limit(by("cyd"), 2));
    let now = scene.now();
    let other = Site { place: Place { db: 0, key: b"other" }, lock: None, legacy: None };
    assert!(matches!(scene.table.acquire(other, &by("bob"), now), Acquired::Granted { .. }));
    let Some(Effect::Created(held)) = scene.table.take_effects().into_iter().next() else { panic!("nothing created") };
    scene.wait(block(limit(by("bob"), 2), 1));
    let other = Site { lock: Some(held), ..other };
    let waits = scene.table.acquire(other, &block(by("ann"), 2), now);
    assert!(matches!(waits, Acquired::Waits(_)), "cyd will let bob in: {waits:?}");
    assert_eq!(scene.acquire(block(by("bob"), 3)), Acquired::Deadlock, "but bob would be alone only without ann");
    assert_eq!(scene.effects(), []);
    scene.release("cyd");
    assert!(matches!(answered(&scene.effects(), 1), Some(Ok(_))), "the wait that was there goes on");
}

#[test]
fn a_hold_of_another_name_leaves_the_wait_alone() {
    let mut scene = Scene::held(by("ann"));
    scene.wait(block(hold(by("bob"), "x"), 1));
    assert_eq!(scene.release_hold("bob", "y"), ReleaseOutcome::Taken);
    assert_eq!((scene.effects(), scene.table.lines().blocked()), (vec![], 1));
    assert_eq!(scene.release_hold("bob", "x"), ReleaseOutcome::Taken);
    assert_eq!(answered(&scene.effects(), 1), Some(Err(Answer::Empty)));
    scene.wait(block(hold(by("bob"), "x"), 2));
    assert_eq!(scene.release("bob"), ReleaseOutcome::Taken);
    assert_eq!(answered(&scene.effects(), 2), Some(Err(Answer::Empty)));
}

#[test]
fn an_evicted_hold_still_ends_with_its_connection() {
    let mut scene = Scene::held(ephemeral(by("ann"), 7));
    let lock = scene.lock.unwrap();
    scene.table.unlinked(lock);
    assert!(scene.table.evicted(PLACE));
    let copy = scene.table.find_evicted(PLACE).unwrap();
    scene.table.freed(lock);
    scene.table.put_back(copy);
    scene.lock = Some(copy);
    let closed = scene.table.closed(7);
    assert_eq!(closed, [(copy, Box::from(&b"ann"[..]))]);
    scene.run(|table, site, now| table.end_bound(site, b"ann", 7, now));
    assert_eq!(scene.effects(), [Effect::Ended(Ended::Released), Effect::Removed]);
}

#[test]
fn a_hold_from_before_a_demotion_ends_with_no_connection() {
    let mut scene = Scene::held(ephemeral(by("ann"), 7));
    scene.table.stop_serving();
    assert_eq!(scene.table.closed(7), []);
    scene.table.begin_serving(scene.now());
    scene.run(|table, site, now| table.end_bound(site, b"ann", 7, now));
    assert_eq!((scene.effects(), scene.check("ann")), (vec![], 10));
}

#[test]
fn an_upgrade_that_falls_back_is_bound_as_before() {
    let mut scene = Scene::held(ephemeral(shared(by("ann")), 7));
    scene.take(shared(by("bob")));
    scene.wait(block(ephemeral(upgrade(by("ann")), 8), 1));
    scene.release("bob");
    let Some(Ok(fence)) = answered(&scene.effects(), 1) else { panic!("not granted") };
    assert_eq!(scene.table.closed(8).len(), 1);
    assert!(scene.table.void(scene.lock.unwrap(), fence, scene.now().instant));
    scene.settle();
    scene.run(|table, site, now| table.end_bound(site, b"ann", 8, now));
    assert_eq!(scene.check("ann"), 10, "the connection that waited is gone, not the one that holds");
    assert_eq!(scene.table.closed(7).len(), 1);
    scene.run(|table, site, now| table.end_bound(site, b"ann", 7, now));
    assert_eq!(scene.lock, None);
}

#[test]
fn the_smallest_limit_of_all_counts() {
    let mut scene = Scene::held(limit(by("ann"), 3));
    scene.take(shared(by("bob")));
    assert_eq!(scene.acquire(limit(by("cyd"), 2)), Acquired::Held);
    scene.take(limit(lease(by("dan"), 50), 5));
    assert_eq!(scene.acquire(limit(by("eve"), 5)), Acquired::Held, "ann accepts no more than three");
    assert_eq!(scene.acquire(shared(by("eve"))), Acquired::Held);
    scene.wait(block(limit(by("eve"), 2), 1));
    scene.now_us = END_US;
    assert_eq!(scene.table.next_due(scene.now().instant), scene.lock);
    scene.settle();
    assert!(matches!(answered(&scene.effects(), 1), Some(Ok(_))), "permits that lapse come back");
    assert_eq!(scene.holders(), ["dan", "eve"]);
    assert_eq!(scene.run(|table, site, now| table.release(site, token("ann"), None, now)), ReleaseOutcome::Taken);
    assert_eq!(scene.holders(), ["dan", "eve"], "what one does not hold changes nothing");
}
