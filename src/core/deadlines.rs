//! Which lock to look at next: each lock's instant, with its lock. Most locks are released long before theirs, so those
//! stand in a calendar, where they come and go at no cost that grows with their number; only what is about to be due is
//! put in order, in a heap. An entry is moved or taken out by its position, which its lock keeps, so a lock costs one
//! entry here and nothing else.

use super::calendar::{Begun, Calendar, NUMBER_BITS};
use super::heap::{Entry, Heap};
use super::slab::SlotNumber;
use super::time::Instant;

/// Where an entry stands: by its number in the calendar, or by its index in the heap. Half the size of an option, since a
/// lock keeps one for as long as it is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position(u32);

/// Marks numbers of the calendar. An index in the heap has fewer bits.
const IN_CALENDAR: u32 = 1 << NUMBER_BITS;

impl Position {
    /// Of what has no entry. No sheet of the calendar has that number, since a slab's chunks are not full in numbers.
    pub const NONE: Self = Self(u32::MAX);

    const fn calendar_number(self) -> Option<u32> {
        if self.0 == Self::NONE.0 || self.0 & IN_CALENDAR == 0 {
            return None;
        }
        Some(self.0 & !IN_CALENDAR)
    }

    const fn heap_index(self) -> Option<usize> {
        if self.0 & IN_CALENDAR != 0 {
            return None;
        }
        Some(self.0 as usize)
    }
}

/// Entries put in order by one question for what is due, at most: it is never long, and asked again soon. Where more are
/// due within the same ms, they need no order.
const ORDERED_AT_ONCE: usize = 64;

/// Instants and their locks.
#[derive(Debug, Default)]
pub struct Deadlines {
    calendar: Calendar,
    heap: Heap,
}

impl Deadlines {
    /// Bytes an entry occupies.
    pub const ENTRY_BYTES: usize = size_of::<Entry>();

    /// Before this instant nothing is due; by then, ask [`Deadlines::due`].
    pub fn first(&self) -> Option<Instant> {
        Instant::earliest([self.heap.first().map(|entry| entry.at), self.calendar.first()])
    }

    /// The lock of any entry that is due. There can be more than are found while [`Deadlines::first`] is not after `now`.
    /// `moved` learns the new position of each entry that got one.
    pub fn due(&mut self, now: Instant, mut moved: impl FnMut(SlotNumber, Position)) -> Option<SlotNumber> {
        for _ in 0..ORDERED_AT_ONCE {
            let Some(Begun { entry, number, count }) = self.calendar.begun(now) else { break };
            if count > ORDERED_AT_ONCE && entry.is_due(now) {
                return Some(entry.slot);
            }
            self.calendar.remove(number, |slot, number| moved(slot, in_calendar(number)));
            self.heap.insert(entry, &mut |slot, index| moved(slot, in_heap(index)));
        }
        self.heap.first().filter(|first| first.is_due(now)).map(|first| first.slot)
    }

    /// The instant at a position.
    pub fn at(&self, position: Position) -> Option<Instant> {
        let number = position.calendar_number().and_then(|number| self.calendar.get(number));
        number.or_else(|| self.heap.get(position.heap_index()?)).map(|entry| entry.at)
    }

    /// Sets the instant of the lock that has this position, takes it in if it has none, takes it out for no instant.
    /// `moved` learns the new position of each entry that got one.
    pub fn set(
        &mut self,
        position: Position,
        at: Option<Instant>,
        slot: SlotNumber,
        mut moved: impl FnMut(SlotNumber, Position),
    ) {
        if let Some(number) = position.calendar_number() {
            self.calendar.remove(number, |slot, number| moved(slot, in_calendar(number)));
        } else if let Some(index) = position.heap_index() {
            self.heap.remove(index, &mut |slot, index| moved(slot, in_heap(index)));
        }
        let Some(at) = at else { return moved(slot, Position::NONE) };
        let entry = Entry { at, slot };
        match self.calendar.insert(entry) {
            Some(number) => moved(slot, in_calendar(number)),
            None => self.heap.insert(entry, &mut |slot, index| moved(slot, in_heap(index))),
        }
    }
}

const fn in_calendar(number: u32) -> Position {
    Position(number | IN_CALENDAR)
}

const fn in_heap(index: usize) -> Position {
    Position(index as u32)
}

#[cfg(test)]
mod tests {
    use super::super::slab::Slab;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const LOCKS: usize = 1_200;

    struct Scene {
        locks: Slab<Position>,
        deadlines: Deadlines,
        model: BTreeSet<(Instant, SlotNumber)>,
    }

    impl Scene {
        fn set(&mut self, slot: SlotNumber, at: Option<Instant>) {
            let Self { locks, deadlines, model } = self;
            let position = *locks.at(slot).unwrap();
            if let Some(before) = deadlines.at(position) {
                assert!(model.remove(&(before, slot)));
            }
            deadlines.set(position, at, slot, |slot, position| *locks.at_mut(slot).unwrap() = position);
            model.extend(at.map(|at| (at, slot)));
        }

        fn due(&mut self, now: Instant) -> Option<SlotNumber> {
            let Self { locks, deadlines, .. } = self;
            deadlines.due(now, |slot, position| *locks.at_mut(slot).unwrap() = position)
        }

        /// Takes out all that is due: neither more nor less than in an ordered set.
        fn end(&mut self, now: Instant) {
            while self.deadlines.first().is_some_and(|first| first <= now) {
                if let Some(slot) = self.due(now) {
                    assert!(self.deadlines.at(*self.locks.at(slot).unwrap()).unwrap() <= now);
                    self.set(slot, None);
                }
            }
            assert_eq!(self.due(now), None);
            assert!(self.model.first().is_none_or(|(at, _)| *at > now));
        }
    }

    proptest! {
        #[test]
        fn all_that_is_due_is_found_whatever_moves(
            steps in proptest::collection::vec((any::<u16>(), proptest::option::weighted(0.8, 0..9_000u64)), 0..4_000),
            crowded in any::<bool>(),
        ) {
            let mut scene =
                Scene { locks: Slab::default(), deadlines: Deadlines::default(), model: BTreeSet::new() };
            let slots: Vec<SlotNumber> = (0..LOCKS).map(|_| scene.locks.insert(Position::NONE).slot()).collect();
            let mut now = Instant::from_micros(0);
            for (which, at) in steps {
                // Some slices get more than one sheet.
                let at = at.map(|at| now.micros() + if crowded { at / 4 } else { at });
                scene.set(slots[which as usize % slots.len()], at.map(Instant::from_micros));
                if which % 64 == 0 {
                    now = Instant::from_micros(now.micros() + u64::from(which) / 128);
                    scene.end(now);
                }
                let (first, earliest) = (scene.deadlines.first(), scene.model.first().map(|(at, _)| *at));
                prop_assert_eq!(first.is_some(), earliest.is_some());
                prop_assert!(first <= earliest);
                prop_assert!(earliest.is_none_or(|at| at.micros() - first.unwrap().micros() < 1_024));
            }
            for &(at, slot) in &scene.model {
                prop_assert_eq!(scene.locks.at(slot).map(|position| scene.deadlines.at(*position)), Some(Some(at)));
            }
            scene.end(Instant::from_micros(u64::MAX));
            prop_assert!(scene.model.is_empty());
            prop_assert!(slots.iter().all(|&slot| scene.locks.at(slot) == Some(&Position::NONE)));
            prop_assert_eq!(scene.deadlines.first(), None);
        }
    }
}
