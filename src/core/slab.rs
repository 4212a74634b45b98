//! A store that hands out small handles and takes them back. Unlike a growing array it never moves what it holds, so
//! a million locks cost no pause when it grows, and it gives a chunk back once the last value in it is gone.

/// Slots in a chunk: of those that a lock takes, as many as 16 KB have room for.
const CHUNK_SLOTS: usize = 272;

/// Bits of a slot's number that say where in its chunk it is.
const INDEX_BITS: u32 = 9;
const _: () = assert!(CHUNK_SLOTS <= 1 << INDEX_BITS);

/// Names one value of a [`Slab`]. Never equal to the handle of an earlier value in the same slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle {
    stamp: u32,
    slot: u32,
}

impl Handle {
    /// The handle as one number, never 0.
    pub const fn to_bits(self) -> u64 {
        ((self.stamp as u64) << 32) | self.slot as u64
    }

    /// The handle that [`Handle::to_bits`] gave this number for.
    pub const fn from_bits(bits: u64) -> Self {
        Self { stamp: (bits >> 32) as u32, slot: bits as u32 }
    }

    /// Where the value is. Of all values that there are, no other is there.
    pub const fn slot(self) -> SlotNumber {
        SlotNumber(self.slot)
    }
}

/// Names a slot of a [`Slab`], whatever value is in it: half of a [`Handle`], for those who know that it is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotNumber(u32);

impl SlotNumber {
    const fn new(chunk: usize, index: usize) -> Self {
        Self((chunk << INDEX_BITS | index) as u32)
    }

    /// The number, for one who keeps it as a part of another.
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// The slot that [`SlotNumber::to_bits`] gave this number for.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The number of its chunk, and where in that it is.
    const fn locate(self) -> (usize, usize) {
        let number = self.0 as usize;
        (number >> INDEX_BITS, number % (1 << INDEX_BITS))
    }
}

/// What is in a slot.
#[derive(Debug)]
enum Content<T> {
    Free { next: u16 },
    Used(T),
}

/// Two slots: a stamp takes half the room that it would take beside one value alone.
#[derive(Debug)]
struct Pair<T> {
    stamps: [u32; PAIR],
    contents: [Content<T>; PAIR],
}

const PAIR: usize = 2;

/// Marks the end of a chunk's list of free slots.
const NO_SLOT: u16 = u16::MAX;

#[derive(Debug)]
struct Chunk<T> {
    pairs: Box<[Pair<T>]>,
    first_free: u16,
    used: u16,
}

impl<T> Chunk<T> {
    fn new() -> Self {
        let last = CHUNK_SLOTS - 1;
        let free = |slot| Content::Free { next: if slot == last { NO_SLOT } else { slot as u16 + 1 } };
        let pairs = (0..CHUNK_SLOTS).step_by(PAIR);
        let pairs = pairs.map(|slot| Pair { stamps: [0; PAIR], contents: [free(slot), free(slot + 1)] });
        Self { pairs: pairs.collect(), first_free: 0, used: 0 }
    }

    fn insert(&mut self, stamp: u32, value: T) -> Option<usize> {
        let index = self.first_free as usize;
        let (its_stamp, content) = self.slot_mut(index)?;
        let Content::Free { next } = *content else { return None };
        (*its_stamp, *content) = (stamp, Content::Used(value));
        self.first_free = next;
        self.used += 1;
        Some(index)
    }

    fn remove(&mut self, index: usize, wanted: u32) -> Option<T> {
        let next = self.first_free;
        let (stamp, content) = self.slot_mut(index)?;
        if *stamp != wanted || matches!(content, Content::Free { .. }) {
            return None;
        }
        let old = std::mem::replace(content, Content::Free { next });
        self.first_free = index as u16;
        self.used -= 1;
        match old {
            Content::Used(value) => Some(value),
            Content::Free { .. } => None,
        }
    }

    /// What is used in a slot, and its stamp.
    fn get(&self, index: usize) -> Option<(u32, &T)> {
        let pair = self.pairs.get(index / PAIR)?;
        match (pair.stamps.get(index % PAIR)?, pair.contents.get(index % PAIR)?) {
            (&stamp, Content::Used(value)) => Some((stamp, value)),
            (_, Content::Free { .. }) => None,
        }
    }

    /// What is used in a slot, and its stamp.
    fn get_mut(&mut self, index: usize) -> Option<(u32, &mut T)> {
        match self.slot_mut(index)? {
            (&mut stamp, Content::Used(value)) => Some((stamp, value)),
            (_, Content::Free { .. }) => None,
        }
    }

    fn slot_mut(&mut self, index: usize) -> Option<(&mut u32, &mut Content<T>)> {
        let pair = self.pairs.get_mut(index / PAIR)?;
        Some((pair.stamps.get_mut(index % PAIR)?, pair.contents.get_mut(index % PAIR)?))
    }
}

/// Values of one type, each with a [`Handle`].
#[derive(Debug)]
pub struct Slab<T> {
    chunks: Vec<Option<Chunk<T>>>,
    /// Chunks with a free slot; may name one that has been given back, which is then made anew.
    open: Vec<u32>,
    /// The chunk that was emptied last, and is kept.
    empty: Option<usize>,
    stamp: u32,
    len: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), open: Vec::new(), empty: None, stamp: 0, len: 0 }
    }
}

impl<T> Slab<T> {
    /// Bytes a value occupies.
    pub const SLOT_BYTES: usize = size_of::<Pair<T>>() / PAIR;

    /// Number of values.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no value.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes the value in.
    pub fn insert(&mut self, value: T) -> Handle {
        // 0 is left out so that no handle is 0: the server takes handles as pointers.
        self.stamp = self.stamp.wrapping_add(1).max(1);
        let number = self.open_chunk();
        let chunk = self.chunks.get_mut(number as usize).and_then(Option::as_mut);
        let index = chunk.and_then(|chunk| {
            let index = chunk.insert(self.stamp, value);
            if chunk.first_free == NO_SLOT {
                self.open.pop();
            }
            index
        });
        self.len += 1;
        // `open_chunk` names a chunk that exists and has a free slot, so there is an index.
        Handle { stamp: self.stamp, slot: SlotNumber::new(number as usize, index.unwrap_or(0)).0 }
    }

    /// The value with this handle.
    pub fn get(&self, handle: Handle) -> Option<&T> {
        let (number, index) = handle.slot().locate();
        let (stamp, value) = self.chunks.get(number)?.as_ref()?.get(index)?;
        (stamp == handle.stamp).then_some(value)
    }

    /// The value with this handle, to change it.
    pub fn get_mut(&mut self, handle: Handle) -> Option<&mut T> {
        let (number, index) = handle.slot().locate();
        let (stamp, value) = self.chunks.get_mut(number)?.as_mut()?.get_mut(index)?;
        (stamp == handle.stamp).then_some(value)
    }

    /// The handle of the value in this slot.
    pub fn handle_at(&self, slot: SlotNumber) -> Option<Handle> {
        let (number, index) = slot.locate();
        let (stamp, _) = self.chunks.get(number)?.as_ref()?.get(index)?;
        Some(Handle { stamp, slot: slot.0 })
    }

    /// The value in this slot.
    pub fn at(&self, slot: SlotNumber) -> Option<&T> {
        let (number, index) = slot.locate();
        let (_, value) = self.chunks.get(number)?.as_ref()?.get(index)?;
        Some(value)
    }

    /// Takes the value in this slot out.
    pub fn remove_at(&mut self, slot: SlotNumber) -> Option<T> {
        self.remove(self.handle_at(slot)?)
    }

    /// The value in this slot, to change it.
    pub fn at_mut(&mut self, slot: SlotNumber) -> Option<&mut T> {
        let (number, index) = slot.locate();
        let (_, value) = self.chunks.get_mut(number)?.as_mut()?.get_mut(index)?;
        Some(value)
    }

    /// Takes the value out.
    pub fn remove(&mut self, handle: Handle) -> Option<T> {
        let (number, index) = handle.slot().locate();
        let entry = self.chunks.get_mut(number)?;
        let chunk = entry.as_mut()?;
        let was_full = chunk.first_free == NO_SLOT;
        let value = chunk.remove(index, handle.stamp)?;
        let emptied = chunk.used == 0;
        if was_full {
            self.open.push(number as u32);
        }
        self.len -= 1;
        if emptied {
            self.give_back(number);
        }
        Some(value)
    }

    /// Every value with its handle, in no particular order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Handle, &mut T)> {
        self.chunks.iter_mut().enumerate().flat_map(|(number, chunk)| {
            let pairs = chunk.iter_mut().flat_map(|chunk| chunk.pairs.iter_mut());
            let slots = pairs.flat_map(|pair| pair.stamps.iter().zip(&mut pair.contents));
            slots.enumerate().filter_map(move |(index, (&stamp, content))| match content {
                Content::Used(value) => Some((Handle { stamp, slot: SlotNumber::new(number, index).0 }, value)),
                Content::Free { .. } => None,
            })
        })
    }

    /// The first value at or behind a place, and the place behind it: for one who walks over all of them little by little.
    /// Places begin with 0.
    pub fn next_from(&self, place: usize) -> Option<(&T, usize)> {
        let (first, begin) = (place / CHUNK_SLOTS, place % CHUNK_SLOTS);
        let chunks = self.chunks.iter().enumerate().skip(first);
        let mut used = chunks.flat_map(|(number, chunk)| {
            let from = if number == first { begin } else { 0 };
            let slots =
                chunk.iter().flat_map(move |chunk| (from..CHUNK_SLOTS).map(move |index| (index, chunk.get(index))));
            slots.filter_map(move |(index, content)| Some((content?.1, number * CHUNK_SLOTS + index + 1)))
        });
        used.next()
    }

    /// Keeps the chunk that was emptied last: a lone lock taken and released over and over would else make one anew
    /// each time.
    fn give_back(&mut self, emptied: usize) {
        let before = self.empty.replace(emptied);
        if let Some(before) = before.filter(|&before| before != emptied) {
            if let Some(entry) = self.chunks.get_mut(before) {
                if entry.as_ref().is_some_and(|chunk| chunk.used == 0) {
                    *entry = None;
                }
            }
        }
        if self.len == 0 && self.chunks.len() > 1 {
            *self = Self { stamp: self.stamp, ..Self::default() };
        }
    }

    fn open_chunk(&mut self) -> u32 {
        let number = match self.open.last() {
            Some(&number) => number,
            None => {
                self.chunks.push(None);
                let number = (self.chunks.len() - 1) as u32;
                self.open.push(number);
                number
            }
        };
        if let Some(entry @ None) = self.chunks.get_mut(number as usize) {
            *entry = Some(Chunk::new());
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn a_used_slot_does_not_answer_to_an_old_handle() {
        let mut slab = Slab::default();
        let old = slab.insert('a');
        assert_eq!(slab.remove(old), Some('a'));
        let new = slab.insert('b');
        assert_eq!((old.slot, new.slot), (0, 0));
        assert_eq!(slab.get(old), None);
        assert_eq!(slab.remove(old), None);
        assert_eq!(slab.get(new), Some(&'b'));
    }

    #[test]
    fn chunks_are_given_back() {
        let mut slab = Slab::default();
        let handles: Vec<_> = (0..10 * CHUNK_SLOTS).map(|n| slab.insert(n)).collect();
        for handle in handles {
            slab.remove(handle);
        }
        assert_eq!(slab.chunks.len(), 0);
    }

    proptest! {
        #[test]
        fn behaves_as_a_map(steps in proptest::collection::vec((any::<bool>(), any::<u16>()), 0..3_000)) {
            let mut slab = Slab::default();
            let mut model: HashMap<Handle, u16> = HashMap::new();
            let mut order = Vec::new();
            for (insert, number) in steps {
                if insert || order.is_empty() {
                    let handle = slab.insert(number);
                    prop_assert_ne!(handle.to_bits(), 0);
                    prop_assert_eq!(Handle::from_bits(handle.to_bits()), handle);
                    prop_assert!(model.insert(handle, number).is_none());
                    order.push(handle);
                } else {
                    let handle = order.swap_remove(number as usize % order.len());
                    prop_assert_eq!(slab.remove(handle), model.remove(&handle));
                }
                prop_assert_eq!(slab.len(), model.len());
            }
            let (mut at, mut walked) = (0, 0);
            while let Some((_, next)) = slab.next_from(at) {
                (at, walked) = (next, walked + 1);
            }
            prop_assert_eq!(walked, model.len());
            let mut seen = 0;
            for (handle, value) in slab.iter_mut() {
                prop_assert_eq!(model.get(&handle), Some(&*value));
                seen += 1;
            }
            prop_assert_eq!(seen, model.len());
        }
    }
}
