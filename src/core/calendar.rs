//! Entries by the slice of time in which they fall, in no order within one: to put one in or to take it out costs the
//! same for a million as for one. The entries of a slice stand on sheets, of which all but the first are full: the last
//! entry of the first sheet fills every gap.

use super::heap::Entry;
use super::slab::{Slab, SlotNumber};
use super::time::Instant;
use std::collections::BTreeMap;

/// The length of a slice, in us: an entry is put in order so long before its instant at most.
const SLICE_MICROS: u64 = 1_024;

/// Bits of an entry's number that say where on its sheet it is.
const INDEX_BITS: u32 = 8;
const SHEET_ENTRIES: usize = 1 << INDEX_BITS;

/// Bits of an entry's number. It says on which sheet the entry is as well, so there are only so many sheets.
pub const NUMBER_BITS: u32 = 31;
const SHEET_BITS: u32 = NUMBER_BITS - INDEX_BITS;

/// Entries that a sheet makes room for at a time, at most: few are left empty.
const ROOM_AT_ONCE: usize = 16;

#[derive(Debug)]
struct Sheet {
    slice: u64,
    is_first: bool,
    /// The next sheet of the same slice.
    next: Option<SlotNumber>,
    entries: Vec<Entry>,
}

impl Sheet {
    fn push(&mut self, entry: Entry) {
        if self.entries.len() == self.entries.capacity() {
            self.entries.reserve_exact((self.entries.len() / 2).clamp(1, ROOM_AT_ONCE));
        }
        self.entries.push(entry);
    }

    fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop();
        if self.entries.len() + 2 * ROOM_AT_ONCE <= self.entries.capacity() {
            self.entries.shrink_to(self.entries.len() + ROOM_AT_ONCE);
        }
        entry
    }
}

/// An entry of a slice that has begun.
pub struct Begun {
    /// The entry.
    pub entry: Entry,
    /// Its number.
    pub number: u32,
    /// How many entries the slice has, or more than one sheet.
    pub count: usize,
}

/// Entries by slices of time.
#[derive(Debug, Default)]
pub struct Calendar {
    sheets: Slab<Sheet>,
    /// The first sheet of each slice.
    slices: BTreeMap<u64, SlotNumber>,
    /// The slice that was emptied last. Its sheet is kept: a lone lock taken and released over and over would else make one
    /// anew each time.
    empty: Option<u64>,
    /// The sheet that got the last entry: the next one comes there as a rule.
    last_used: Option<SlotNumber>,
}

impl Calendar {
    /// When the first slice begins that has an entry: none is earlier.
    pub fn first(&self) -> Option<Instant> {
        self.first_slice().map(|(slice, _)| Instant::from_micros(slice * SLICE_MICROS))
    }

    /// Any entry of the first slice, if that slice has begun.
    pub fn begun(&self, now: Instant) -> Option<Begun> {
        let (slice, first) = self.first_slice()?;
        if slice > slice_of(now) {
            return None;
        }
        let sheet = self.sheets.at(first)?;
        let len = sheet.entries.len();
        let count = if sheet.next.is_some() { len + SHEET_ENTRIES } else { len };
        Some(Begun { entry: *sheet.entries.last()?, number: number(first, len - 1), count })
    }

    /// The entry with this number.
    pub fn get(&self, number: u32) -> Option<Entry> {
        let (sheet, index) = locate(number);
        self.sheets.at(sheet)?.entries.get(index).copied()
    }

    /// Takes an entry in, and gives it a number; none if there are too many sheets.
    pub fn insert(&mut self, entry: Entry) -> Option<u32> {
        let slice = slice_of(entry.at);
        let takes_it = |sheet: &Sheet| sheet.slice == slice && sheet.is_first && sheet.entries.len() < SHEET_ENTRIES;
        let takes_it = |sheet: &SlotNumber| self.sheets.at(*sheet).is_some_and(takes_it);
        let sheet = match self.last_used.filter(takes_it) {
            Some(sheet) => sheet,
            None => {
                let first = self.slices.get(&slice).copied();
                match first.filter(takes_it) {
                    Some(sheet) => sheet,
                    None => self.begin_sheet(slice, first)?,
                }
            }
        };
        self.last_used = Some(sheet);
        if self.empty == Some(slice) {
            self.empty = None;
        }
        let entries = self.sheets.at_mut(sheet)?;
        entries.push(entry);
        Some(number(sheet, entries.entries.len() - 1))
    }

    /// Takes an entry out. `moved` learns the number of the entry that fills the gap.
    pub fn remove(&mut self, number: u32, moved: impl FnOnce(SlotNumber, u32)) {
        if let Some(last) = self.take_last_beside(number) {
            let (sheet, index) = locate(number);
            let gap = self.sheets.at_mut(sheet).and_then(|sheet| sheet.entries.get_mut(index));
            // Without a gap the last entry was the one to take out.
            if let Some(gap) = gap {
                *gap = last;
                moved(last.slot, number);
            }
        }
    }

    /// The last entry on the first sheet of the slice of the entry with this number.
    fn take_last_beside(&mut self, number: u32) -> Option<Entry> {
        let (sheet, _) = locate(number);
        let (slice, is_first) = self.sheets.at(sheet).map(|sheet| (sheet.slice, sheet.is_first))?;
        let first = if is_first { sheet } else { *self.slices.get(&slice)? };
        let sheet = self.sheets.at_mut(first)?;
        let last = sheet.pop();
        if sheet.entries.is_empty() {
            if let Some(next) = sheet.next {
                self.slices.insert(slice, next);
                self.sheets.remove_at(first);
                self.set_first(next, true);
            } else if let Some(before) = self.empty.replace(slice) {
                self.slices.remove(&before).and_then(|sheet| self.sheets.remove_at(sheet));
            }
        }
        last
    }

    /// The first slice that has an entry.
    fn first_slice(&self) -> Option<(u64, SlotNumber)> {
        let (&slice, &first) = self.slices.first_key_value()?;
        if self.empty != Some(slice) {
            return Some((slice, first));
        }
        self.slices.iter().nth(1).map(|(&slice, &first)| (slice, first))
    }

    fn set_first(&mut self, sheet: SlotNumber, is_first: bool) {
        if let Some(sheet) = self.sheets.at_mut(sheet) {
            sheet.is_first = is_first;
        }
    }

    fn begin_sheet(&mut self, slice: u64, next: Option<SlotNumber>) -> Option<SlotNumber> {
        let sheet = self.sheets.insert(Sheet { slice, is_first: true, next, entries: Vec::new() }).slot();
        if sheet.to_bits() >> SHEET_BITS != 0 {
            self.sheets.remove_at(sheet);
            return None;
        }
        if let Some(next) = next {
            self.set_first(next, false);
        }
        self.slices.insert(slice, sheet);
        Some(sheet)
    }
}

const fn slice_of(at: Instant) -> u64 {
    at.micros() / SLICE_MICROS
}

const fn number(sheet: SlotNumber, index: usize) -> u32 {
    sheet.to_bits() << INDEX_BITS | index as u32
}

const fn locate(number: u32) -> (SlotNumber, usize) {
    (SlotNumber::from_bits(number >> INDEX_BITS), number as usize % SHEET_ENTRIES)
}
