//! Which lock to look at next: a heap of instants, each with its lock. An entry is moved or taken out by its position,
//! which its lock keeps, so a lock costs one entry here and nothing else. The memory comes in blocks and goes in blocks:
//! it is never moved as a whole, so growing by a million entries costs no pause.

use super::slab::SlotNumber;
use super::time::Instant;

/// Entries below one entry: with four, what a step compares lies side by side.
const CHILDREN: usize = 4;

/// Entries in a block of memory: 6 KB.
const BLOCK_ENTRIES: usize = 512;

/// Where an entry stands. Half the size of an option, since a lock keeps one for as long as it is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position(u32);

impl Position {
    /// Of what is not in the heap.
    pub const NONE: Self = Self(u32::MAX);

    const fn index(self) -> Option<usize> {
        if self.0 == Self::NONE.0 {
            return None;
        }
        Some(self.0 as usize)
    }
}

/// An instant, and the slot of the lock whose it is: there are as many entries as locks, and nothing between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(Rust, packed(4))]
struct Entry {
    at: Instant,
    slot: SlotNumber,
}

/// Instants and their locks, the earliest at hand.
#[derive(Debug, Default)]
pub struct Deadlines {
    blocks: Vec<Vec<Entry>>,
    len: usize,
}

impl Deadlines {
    /// Bytes an entry occupies.
    pub const ENTRY_BYTES: usize = size_of::<Entry>();

    /// The earliest instant, and whose it is.
    pub fn first(&self) -> Option<(Instant, SlotNumber)> {
        self.entry(0).map(|entry| (entry.at, entry.slot))
    }

    /// The instant at a position.
    pub fn at(&self, position: Position) -> Option<Instant> {
        self.entry(position.index()?).map(|entry| entry.at)
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
        match (position.index(), at) {
            (Some(index), Some(at)) => self.settle(index, Entry { at, slot }, &mut moved),
            (None, Some(at)) => {
                self.push(Entry { at, slot });
                self.settle(self.len - 1, Entry { at, slot }, &mut moved);
            }
            (Some(index), None) => {
                let last = self.pop();
                if let Some(last) = last.filter(|_| index < self.len) {
                    self.settle(index, last, &mut moved);
                }
                moved(slot, Position::NONE);
            }
            (None, None) => {}
        }
    }

    /// Puts the entry where it belongs, as seen from the free place at `index`.
    fn settle(&mut self, mut index: usize, entry: Entry, moved: &mut impl FnMut(SlotNumber, Position)) {
        while let Some((above, other)) = self.above(index).filter(|(_, other)| entry < *other) {
            self.write(index, other, moved);
            index = above;
        }
        while let Some((below, other)) = self.first_below(index).filter(|(_, other)| *other < entry) {
            self.write(index, other, moved);
            index = below;
        }
        self.write(index, entry, moved);
    }

    fn above(&self, index: usize) -> Option<(usize, Entry)> {
        let above = index.checked_sub(1)? / CHILDREN;
        Some((above, self.entry(above)?))
    }

    fn first_below(&self, index: usize) -> Option<(usize, Entry)> {
        let first = index * CHILDREN + 1;
        let below = (first..self.len.min(first + CHILDREN)).filter_map(|below| Some((below, self.entry(below)?)));
        below.min_by_key(|&(_, entry)| entry)
    }

    fn entry(&self, index: usize) -> Option<Entry> {
        self.blocks.get(index / BLOCK_ENTRIES)?.get(index % BLOCK_ENTRIES).copied()
    }

    fn write(&mut self, index: usize, entry: Entry, moved: &mut impl FnMut(SlotNumber, Position)) {
        if let Some(place) = self.blocks.get_mut(index / BLOCK_ENTRIES).and_then(|b| b.get_mut(index % BLOCK_ENTRIES)) {
            *place = entry;
            moved(entry.slot, Position(index as u32));
        }
    }

    fn push(&mut self, entry: Entry) {
        if self.len == self.blocks.len() * BLOCK_ENTRIES {
            self.blocks.push(Vec::with_capacity(BLOCK_ENTRIES));
        }
        if let Some(block) = self.blocks.get_mut(self.len / BLOCK_ENTRIES) {
            block.push(entry);
            self.len += 1;
        }
    }

    fn pop(&mut self) -> Option<Entry> {
        let last = self.len.checked_sub(1)?;
        let entry = self.blocks.get_mut(last / BLOCK_ENTRIES)?.pop();
        self.len = last;
        // One empty block is kept: a lone lock taken and released over and over would else make one anew each time.
        self.blocks.truncate(last / BLOCK_ENTRIES + 1);
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::super::slab::Slab;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Against an ordered set.
        #[test]
        fn the_earliest_is_first_whatever_moves(
            steps in proptest::collection::vec((any::<u16>(), proptest::option::weighted(0.7, 0..500u64)), 0..3_000),
        ) {
            let mut locks = Slab::default();
            let slots: Vec<SlotNumber> = (0..1_200).map(|_| locks.insert(Position::NONE).slot()).collect();
            let mut deadlines = Deadlines::default();
            let mut model = BTreeSet::new();
            for (which, at) in steps {
                let slot = slots[which as usize % slots.len()];
                let at = at.map(Instant::from_micros);
                let position = *locks.at_mut(slot).unwrap();
                if let Some(before) = deadlines.at(position) {
                    prop_assert!(model.remove(&(before, slot)));
                }
                deadlines.set(position, at, slot, |slot, position| *locks.at_mut(slot).unwrap() = position);
                model.extend(at.map(|at| (at, slot)));
                prop_assert_eq!(deadlines.first(), model.first().copied());
                prop_assert_eq!(deadlines.len, model.len());
                prop_assert_eq!(locks.at_mut(slot).map(|position| deadlines.at(*position)), Some(at));
            }
            for (at, slot) in model {
                prop_assert_eq!(deadlines.first(), Some((at, slot)));
                let position = *locks.at_mut(slot).unwrap();
                deadlines.set(position, None, slot, |slot, position| *locks.at_mut(slot).unwrap() = position);
                prop_assert_eq!(locks.at_mut(slot).copied(), Some(Position::NONE));
            }
            prop_assert!(deadlines.blocks.len() <= 1);
        }
    }
}
