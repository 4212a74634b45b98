//! An upgrade that waits to be fetched by a poll: whatever becomes of it, its token has the shared hold that it had.

use super::scene::{by, cap, lease, poll, shared, token, upgrade, Scene, START_US};
use super::{Acquired, ExtendOutcome};
use crate::core::hold::Mode;
use crate::core::packed::Packed;

const POLL_MS: u64 = 20;
/// What ann shares the lock for.
const SHARED_MS: u64 = 30;

/// Ann shares the lock, and its upgrade is to be fetched.
fn to_be_fetched() -> Scene {
    let mut scene = Scene::held(shared(lease(by("ann"), SHARED_MS)));
    scene.take(shared(by("bob")));
    assert_eq!(scene.acquire(poll(upgrade(by("ann")), START_US + POLL_MS * 1_000)), Acquired::Held);
    scene.release("bob");
    scene
}

#[test]
fn the_token_holds_the_lock_while_its_upgrade_is_not_fetched() {
    let asks: [fn(&mut Scene) -> bool; 3] = [
        |scene| scene.check("ann") >= SHARED_MS - POLL_MS - 1,
        |scene| matches!(scene.extend("ann", None), ExtendOutcome::Extended(SHARED_MS)),
        |scene| scene.run(|table, site, now| table.guard(site, token("ann"), now)),
    ];
    // In the last ms of the poll, and after it, before anything else looked at the lock.
    for since_us in [POLL_MS * 1_000 - 500, POLL_MS * 1_000 + 1] {
        for holds in asks {
            let mut scene = to_be_fetched();
            scene.now_us = START_US + since_us;
            assert!(holds(&mut scene), "{since_us} us later");
        }
    }
}

#[test]
fn an_upgrade_is_not_fetched_after_its_poll() {
    let mut scene = to_be_fetched();
    scene.now_us = START_US + POLL_MS * 1_000;
    scene.extend("ann", None);
    let mode = scene.lock.and_then(|lock| scene.table.get(lock)?.holder(Packed::of(b"ann")).map(|seen| seen.mode));
    assert_eq!(mode, Some(Mode::Shared(None)));
}

#[test]
fn a_cap_takes_nothing_of_what_was_shared() {
    let mut scene = to_be_fetched();
    scene.take(cap(shared(by("ann")), 1));
    assert_eq!(scene.check("ann"), SHARED_MS);
}
