//! Lines against a plain list.

use super::*;
use proptest::prelude::*;

fn waiter(key: u8, token: u8) -> Waiter {
    let (token, label) = ([token], Label::cut(b""));
    let (token, lease) = (Token::new(&token).unwrap(), Lease::from_ms(1_000).unwrap());
    Waiter::new(i32::from(key % 2), Rc::new([key]), token, label, lease, Instant::from_micros(0))
}

proptest! {
    /// Against a plain list of (key, token) in order of arrival.
    #[test]
    fn keeps_order_and_counts(steps in proptest::collection::vec((0..3u8, 0..4u8, 0..4u8), 0..200)) {
        let mut lines = Lines::default();
        let mut model: Vec<(u8, u8, Handle)> = Vec::new();
        for (action, key, token) in steps {
            let known = model.iter().position(|&(k, t, _)| (k, t) == (key, token));
            match (action, known) {
                (0, Some(at)) => {
                    let (_, _, handle) = model.remove(at);
                    prop_assert!(lines.leave(handle).is_some());
                    prop_assert!(lines.leave(handle).is_none());
                }
                (_, None) => {
                    let mut new = waiter(key, token);
                    new.seat = (action == 1).then_some(Seat(1));
                    new.until = Some(Instant::from_micros(u64::from(token)));
                    model.push((key, token, lines.join(new, None)));
                }
                _ => {}
            }
            for key in 0..4u8 {
                let place = Place { db: i32::from(key % 2), key: &[key] };
                let expected: Vec<Handle> = model.iter().filter(|e| e.0 == key).map(|e| e.2).collect();
                let found: Vec<Handle> = lines.waiters(place).map(|(handle, _)| handle).collect();
                prop_assert_eq!(&found, &expected);
                prop_assert_eq!(lines.first(place), expected.first().copied());
                let mut waiting = model.iter().filter(|e| e.0 == key);
                let elsewhere = |e: &(u8, u8, Handle)| model.iter().filter(|o| o.1 == e.1).count() > 1;
                prop_assert_eq!(lines.is_entangled_at(place, u64::MAX), waiting.any(elsewhere));
                let orders: Vec<u64> = lines.waiters(place).map(|(_, waiter)| waiter.order()).collect();
                let between = |after, to| -> Vec<u64> { lines.waiters_between(place, after, to).map(|w| w.order()).collect() };
                prop_assert_eq!(&between(0, u64::MAX), &orders);
                if let [first, second, rest @ ..] = &*orders {
                    prop_assert_eq!(between(*first, *second), [*second]);
                    prop_assert_eq!(between(*second, u64::MAX), rest);
                }
                for (behind, &order) in orders.iter().rev().enumerate() {
                    prop_assert_eq!(lines.is_anybody_behind(place, order), behind > 0);
                }
            }
            prop_assert_eq!(lines.blocked() + lines.polled(), model.len());
            prop_assert_eq!(lines.next_end(), model.iter().map(|e| Instant::from_micros(u64::from(e.1))).min());
            let mut walk = Walk::default();
            let places = std::iter::from_fn(|| {
                let (_, next) = lines.next_place(walk)?;
                walk = next;
                Some(())
            });
            prop_assert_eq!(places.count(), {
                let mut keys: Vec<u8> = model.iter().map(|e| e.0).collect();
                keys.sort_unstable();
                keys.dedup();
                keys.len()
            });
        }
    }
}
