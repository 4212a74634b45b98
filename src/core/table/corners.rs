//! The corners where several rare things meet, each a story that the model came upon: an upgrade, a poll or a bound hold
//! and an eviction, a refused hand-over, a demotion, or a key that comes and goes.

use super::scene::{
    block, by, cap, ephemeral, hold, lease, limit, poll, shared, token, upgrade, Scene, END_US, PLACE, START_US,
};
use super::{Acquired, Answer, Effect, ReleaseOutcome, Site};
use crate::core::fence::{Fence, FENCE_END};
use crate::core::hold::Mode;
use crate::core::line::Seat;
use crate::core::name::Place;
use crate::core::packed::Packed;

const OTHER: Place<'static> = Place { db: 0, key: b"other" };

fn mode(scene: &Scene, who: &str) -> Option<Mode> {
    Some(scene.table.get(scene.lock?)?.holder(Packed::of(who.as_bytes()))?.mode)
}

/// What a seat was told, and the fence of a grant.
fn told(effects: &[Effect], seat: u64) -> Option<Result<Fence, Answer>> {
    effects.iter().rev().find_map(|effect| match effect {
        Effect::Answer(Seat(other), Answer::Granted { fence, .. }) if *other == seat => Some(Ok(*fence)),
        Effect::Answer(Seat(other), answer) if *other == seat => Some(Err(answer.clone())),
        _ => None,
    })
}

/// The lock is evicted, and put back.
fn evict(scene: &mut Scene) {
    let lock = scene.lock.unwrap();
    scene.table.unlinked(lock);
    assert!(scene.table.evicted(PLACE));
    scene.table.freed(lock);
    scene.lock = scene.table.find_evicted(PLACE);
    scene.table.put_back(scene.lock.unwrap());
}

#[test]
fn who_asks_for_an_upgrade_has_fetched_what_was_shared() {
    for beside in [false, true] {
        let mut scene = Scene::held(by("bob"));
        assert_eq!(scene.acquire(poll(shared(lease(by("ann"), 50)), END_US)), Acquired::Held);
        assert_eq!(scene.release("bob"), ReleaseOutcome::Released);
        if beside {
            scene.take(shared(by("cyd")));
        }
        scene.sleep_ms(1);
        let answer = scene.acquire(upgrade(by("ann")));
        assert_eq!(answer == Acquired::Held, beside, "{answer:?}");
        assert_eq!(scene.check("ann"), 50, "the lease that its poll asked for begins");
    }
}

#[test]
fn a_hold_given_back_fetches_the_upgrade() {
    let mut scene = Scene::held(hold(shared(lease(by("ann"), 30)), "outer"));
    scene.take(shared(by("ann")));
    scene.take(shared(by("bob")));
    assert_eq!(scene.acquire(poll(upgrade(by("ann")), START_US + 5_000)), Acquired::Held);
    assert_eq!(scene.release("bob"), ReleaseOutcome::Released);
    assert_eq!(scene.release_hold("ann", "outer"), ReleaseOutcome::Released);
    assert_eq!((mode(&scene, "ann"), scene.check("ann")), (Some(Mode::Exclusive), 30), "no lease gets shorter");
}

#[test]
fn a_fetched_upgrade_has_the_lease_of_the_poll_that_found_it() {
    let mut scene = Scene::held(shared(by("ann")));
    scene.take(shared(by("bob")));
    assert_eq!(scene.acquire(poll(upgrade(lease(by("ann"), 50)), END_US)), Acquired::Held);
    scene.release("bob");
    let fetched = scene.acquire(poll(upgrade(lease(by("ann"), 1)), END_US));
    assert!(matches!(fetched, Acquired::Granted { ttl_ms: 50, new: true, .. }), "{fetched:?}");
}

#[test]
fn a_cap_on_a_fetched_upgrade_leaves_what_was_shared() {
    let mut scene = Scene::held(shared(lease(by("ann"), 50)));
    scene.take(shared(by("bob")));
    assert_eq!(scene.acquire(poll(upgrade(by("ann")), START_US + 5_000)), Acquired::Held);
    scene.release("bob");
    let fetched = scene.acquire(cap(by("ann"), 8));
    assert!(matches!(fetched, Acquired::Granted { ttl_ms: 50, .. }), "{fetched:?}");
}

#[test]
fn a_first_in_line_that_gets_no_fence_waits_on() {
    let mut scene = Scene::held(shared(by("ann")));
    scene.wait(block(by("bob"), 1));
    scene.table.raise_fence(Fence::new(FENCE_END - 1).unwrap());
    assert_eq!(scene.acquire(shared(by("bob"))), Acquired::NoFence);
    assert_eq!((scene.effects(), scene.table.lines().blocked()), (vec![], 1));
}

#[test]
fn an_upgrade_waits_for_nobody_behind_it() {
    let mut scene = Scene::held(shared(by("ann")));
    scene.take(shared(by("bob")));
    let (now, other) = (scene.now(), Site { place: OTHER, lock: None, legacy: None });
    assert!(matches!(scene.table.acquire(other, &by("ann"), now), Acquired::Granted { .. }));
    let Some(Effect::Created(held)) = scene.table.take_effects().into_iter().next() else { panic!("nothing created") };
    let other = Site { lock: Some(held), ..other };
    scene.wait(block(by("cyd"), 1));
    assert!(matches!(scene.table.acquire(other, &block(by("cyd"), 2), now), Acquired::Waits(_)));
    assert!(matches!(scene.acquire(block(upgrade(by("ann")), 3)), Acquired::Waits(_)), "cyd is behind ann");
}

#[test]
fn whoever_stood_first_waits_for_an_upgrade_that_comes_before_it() {
    let mut scene = Scene::new();
    for who in ["ann", "bob", "dan"] {
        scene.take(limit(by(who), 3));
    }
    let (now, other) = (scene.now(), Site { place: OTHER, lock: None, legacy: None });
    assert!(matches!(scene.table.acquire(other, &by("cyd"), now), Acquired::Granted { .. }));
    let Some(Effect::Created(held)) = scene.table.take_effects().into_iter().next() else { panic!("nothing created") };
    let other = Site { lock: Some(held), ..other };
    scene.wait(block(limit(by("cyd"), 3), 1));
    assert!(matches!(scene.table.acquire(other, &block(by("bob"), 2), now), Acquired::Waits(_)), "dan lets cyd in");
    assert_eq!(scene.acquire(block(upgrade(by("ann")), 3)), Acquired::Deadlock, "but not while ann waits for bob");
}

#[test]
fn a_demoted_node_takes_nothing_back() {
    for request in [block(lease(by("ann"), 50), 1), poll(lease(by("ann"), 50), START_US + 5_000)] {
        let mut scene = Scene::held(by("bob"));
        scene.acquire(request);
        scene.release("bob");
        let fence = told(&scene.effects(), 1);
        scene.table.stop_serving();
        scene.sleep_ms(1_000);
        scene.table.begin_serving(scene.now());
        if let Some(Ok(fence)) = fence {
            assert!(!scene.table.void(scene.lock.unwrap(), fence, scene.now().instant), "others may have told ann");
        }
        scene.settle();
        assert_eq!(scene.check("ann"), 50);
    }
}

#[test]
fn what_a_primary_evicted_is_gone_once_it_is_a_replica() {
    let mut scene = Scene::held(by("ann"));
    let lock = scene.lock.unwrap();
    scene.table.unlinked(lock);
    assert!(scene.table.evicted(PLACE));
    scene.table.freed(lock);
    scene.table.stop_serving();
    assert_eq!((scene.table.find_evicted(PLACE), scene.table.known()), (None, 0));
}

#[test]
fn a_closed_connection_binds_nothing_after_a_demotion() {
    let mut scene = Scene::held(ephemeral(by("ann"), 7));
    assert_eq!(scene.table.closed(7).len(), 1);
    scene.table.stop_serving();
    scene.table.begin_serving(scene.now());
    assert!(!scene.table.is_bound(scene.lock.unwrap(), b"ann", 7));
}

#[test]
fn a_hold_that_was_bound_anew_outlives_the_old_connection() {
    let mut scene = Scene::held(ephemeral(by("ann"), 7));
    assert_eq!(scene.table.closed(7).len(), 1);
    let again = scene.acquire(ephemeral(by("ann"), 8));
    assert!(matches!(again, Acquired::Granted { new: false, .. }), "{again:?}");
    assert!(!scene.table.is_bound(scene.lock.unwrap(), b"ann", 7));
    scene.run(|table, site, now| table.end_bound(site, b"ann", 7, now));
    assert_eq!(mode(&scene, "ann"), Some(Mode::Exclusive));
    assert_eq!(scene.table.closed(8).len(), 1);
}

#[test]
fn an_upgrade_falls_back_to_nothing_once_that_connection_is_closed() {
    let mut scene = Scene::held(ephemeral(shared(by("ann")), 7));
    scene.take(shared(by("bob")));
    scene.wait(block(upgrade(by("ann")), 1));
    scene.release("bob");
    let Some(Ok(fence)) = told(&scene.effects(), 1) else { panic!("not granted") };
    assert_eq!(scene.table.closed(7).len(), 1, "what was shared ends with it");
    scene.run(|table, site, now| table.end_bound(site, b"ann", 7, now));
    assert_eq!(mode(&scene, "ann"), Some(Mode::Exclusive), "the upgrade does not");
    assert!(scene.table.void(scene.lock.unwrap(), fence, scene.now().instant));
    scene.settle();
    assert_eq!((scene.lock, scene.table.has_bound()), (None, false));
}

#[test]
fn an_upgrade_nobody_heard_of_falls_back_when_its_connection_closes() {
    let mut scene = Scene::held(shared(by("ann")));
    scene.take(shared(by("bob")));
    scene.wait(block(ephemeral(upgrade(by("ann")), 8), 1));
    scene.release("bob");
    assert_eq!(scene.table.closed(8).len(), 1);
    scene.run(|table, site, now| table.end_bound(site, b"ann", 8, now));
    assert_eq!((mode(&scene, "ann"), scene.table.has_bound()), (Some(Mode::Shared(None)), false));
}

#[test]
fn an_undelivered_grant_of_an_evicted_lock_is_taken_back() {
    let mut scene = Scene::held(by("bob"));
    scene.wait(block(by("ann"), 1));
    scene.release("bob");
    evict(&mut scene);
    scene.settle();
    assert_eq!(scene.lock, None, "the reply names the value that went");
}

#[test]
fn a_lock_parked_for_nothing_still_ends_on_time() {
    let mut scene = Scene::held(by("ann"));
    scene.table.park(scene.lock.unwrap());
    scene.settle();
    scene.now_us = END_US;
    assert_eq!(scene.table.next_due(scene.now().instant), scene.lock);

    let mut scene = Scene::held(by("ann"));
    scene.table.park(scene.lock.unwrap());
    scene.table.swapped(0, 1);
    scene.now_us = END_US;
    assert_eq!(scene.table.next_due(scene.now().instant), scene.lock, "nobody comes back to where it stood");
}

#[test]
fn who_waits_where_its_own_lock_comes_to_is_told_so() {
    for (held, wanted, granted) in [
        (by("ann"), by("ann"), true),
        (shared(by("ann")), shared(by("ann")), true),
        (shared(by("ann")), by("ann"), false),
    ] {
        let mut scene = Scene::held(by("bob"));
        scene.wait(block(hold(wanted, "inner"), 1));
        let (now, other) = (scene.now(), Site { place: OTHER, lock: None, legacy: None });
        let answer = scene.table.acquire(other, &lease(held, 50), now);
        let Acquired::Granted { fence, .. } = answer else { panic!("{answer:?}") };
        let Some(Effect::Created(moved)) = scene.table.take_effects().into_iter().next() else { panic!("no lock") };
        let old = scene.lock.replace(moved).unwrap();
        scene.table.unlinked(old);
        scene.table.freed(old);
        scene.table.unlinked(moved);
        scene.table.linked(moved, PLACE);
        scene.settle();
        let expected = if granted { Ok(fence) } else { Err(Answer::HeldShared) };
        assert_eq!(told(&scene.effects(), 1), Some(expected));
        assert_eq!(scene.check("ann"), 50, "its lease and its first hold stay");
        assert_eq!(scene.release_hold("ann", "inner") == ReleaseOutcome::Released, granted);
        assert_eq!(
            scene.run(|table, site, now| table.release(site, token("ann"), None, now)),
            ReleaseOutcome::Released
        );
    }
}
