//! What a lock knows of its place and its holders.

use super::super::deadlines::Deadlines;
use super::super::names::NameList;
use super::super::slab::Slab;
use super::super::time::Lease;
use super::*;
use std::slice;

fn holder(mode: Mode) -> Holder<'static> {
    Holder {
        token: Token::new(b"\0tok\xff").unwrap(),
        fence: Fence::new(7).unwrap(),
        lease: Lease::from_ms(5).unwrap(),
        label: Label::new(b"web 3").unwrap(),
        mode,
        unnamed: true,
        names: NameList::Many(Vec::new()),
        cap_ms: None,
    }
}

fn put(lock: &mut Lock, holder: &Holder<'_>) {
    let hold = Hold::new(holder, 9, Instant::from_micros(100));
    match holder.mode {
        Mode::Exclusive => lock.occupy(holder.token.into(), holder.label.into(), hold),
        Mode::Shared(limit) => lock.join(holder.token.into(), holder.label.into(), limit, hold),
    }
}

#[test]
fn parts_come_back_as_they_went_in() {
    for mode in [Mode::Exclusive, Mode::Shared(None), Mode::Shared(Some(3))] {
        let place = Place { db: 4, key: b"a key" };
        let holder = holder(mode);
        let mut lock = Lock::new(place);
        put(&mut lock, &holder);
        let now = Instant::from_micros(100);
        let seen = lock.holders().next().unwrap();
        assert_eq!(seen.holder(now), Some(holder.clone()));
        assert_eq!(lock.first_end(), Instant::from_micros(5_100));
        for moved in [Place { db: 1, key: b"" }, place] {
            lock.set_place(moved);
            assert_eq!(lock.place(), moved);
            let seen: Vec<_> = lock.holders_with(holder.fence).collect();
            let found: Vec<_> = seen.iter().filter_map(|seen| seen.holder(now)).collect();
            assert_eq!(found, slice::from_ref(&holder));
        }
    }
}

/// What it takes to keep a hundred thousand locks: a slot, an entry among the deadlines, and one allocation.
#[test]
fn a_usual_lock_is_small() {
    assert_eq!(Slab::<Lock>::SLOT_BYTES, 60);
    assert_eq!(Deadlines::ENTRY_BYTES, 12);
    let holder =
        Holder { token: Token::new(b"550e8400-e29b-41d4-a716-446655440000").unwrap(), ..holder(Mode::Exclusive) };
    let holder = Holder { label: Label::new(b"127.0.0.1:54321").unwrap(), ..holder };
    let mut lock = Lock::new(Place { db: 0, key: b"held:job:00000001" });
    put(&mut lock, &holder);
    assert!(lock.heap_bytes() <= 40);
}

#[test]
fn a_hold_learns_when_its_node_began_to_serve() {
    for mode in [Mode::Exclusive, Mode::Shared(None)] {
        let mut lock = Lock::new(Place { db: 0, key: b"k" });
        put(&mut lock, &holder(mode));
        let serving = Instant::from_micros(1_000);
        assert!(!lock.has_ended(serving, Instant::from_micros(5_999)));
        assert!(lock.has_ended(serving, Instant::from_micros(6_000)));
    }
}
