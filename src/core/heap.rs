//! Entries in order of their instants. Each is moved or taken out by its index, which whoever put it in keeps. The memory
//! comes in blocks and goes in blocks: it is never moved as a whole, so growing by a million entries costs no pause.

use super::slab::SlotNumber;
use super::time::Instant;

/// Entries below one entry: with four, what a step compares lies side by side.
const CHILDREN: usize = 4;

/// Entries in a block of memory: 6 KB.
const BLOCK_ENTRIES: usize = 512;

/// An instant, and the slot of the lock whose it is: there are as many entries as locks, and nothing between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(Rust, packed(4))]
pub struct Entry {
    /// When the lock is to be looked at.
    pub at: Instant,
    /// Where the lock is.
    pub slot: SlotNumber,
}

impl Entry {
    /// Whether its instant has come.
    pub const fn is_due(self, now: Instant) -> bool {
        self.at.micros() <= now.micros()
    }
}

/// Entries, the earliest at hand.
#[derive(Debug, Default)]
pub struct Heap {
    blocks: Vec<Vec<Entry>>,
    len: usize,
}

impl Heap {
    /// The earliest entry.
    pub fn first(&self) -> Option<Entry> {
        self.get(0)
    }

    /// The entry at an index.
    pub fn get(&self, index: usize) -> Option<Entry> {
        self.blocks.get(index / BLOCK_ENTRIES)?.get(index % BLOCK_ENTRIES).copied()
    }

    /// Takes an entry in. `moved` learns the new index of each entry that got one.
    pub fn insert(&mut self, entry: Entry, moved: &mut impl FnMut(SlotNumber, usize)) {
        self.push(entry);
        self.settle(self.len - 1, entry, moved);
    }

    /// Takes an entry out. `moved` learns the new index of each entry that got one.
    pub fn remove(&mut self, index: usize, moved: &mut impl FnMut(SlotNumber, usize)) {
        let last = self.pop();
        if let Some(last) = last.filter(|_| index < self.len) {
            self.settle(index, last, moved);
        }
    }

    /// Puts the entry where it belongs, as seen from the free place at `index`.
    fn settle(&mut self, mut index: usize, entry: Entry, moved: &mut impl FnMut(SlotNumber, usize)) {
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
        Some((above, self.get(above)?))
    }

    fn first_below(&self, index: usize) -> Option<(usize, Entry)> {
        let first = index * CHILDREN + 1;
        let below = (first..self.len.min(first + CHILDREN)).filter_map(|below| Some((below, self.get(below)?)));
        below.min_by_key(|&(_, entry)| entry)
    }

    fn write(&mut self, index: usize, entry: Entry, moved: &mut impl FnMut(SlotNumber, usize)) {
        if let Some(place) = self.blocks.get_mut(index / BLOCK_ENTRIES).and_then(|b| b.get_mut(index % BLOCK_ENTRIES)) {
            *place = entry;
            moved(entry.slot, index);
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
        self.blocks.truncate(last.div_ceil(BLOCK_ENTRIES));
        entry
    }
}
