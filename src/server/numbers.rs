//! Maps by numbers that no client chooses: seats, addresses of the server's own structures. Nobody can aim at collisions
//! there, so the hash is one multiplication.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by such a number.
pub type NumberMap<T> = HashMap<u64, T, BuildHasherDefault<NumberHasher>>;

/// A map with nothing in it.
pub const fn empty<T>() -> NumberMap<T> {
    HashMap::with_hasher(BuildHasherDefault::new())
}

/// Spreads one number.
#[derive(Clone, Copy, Debug, Default)]
pub struct NumberHasher(u64);

/// Odd, with bits all over: 2^64 divided by the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, number: u64) {
        // The map takes its bits from both ends, and the product's low ones say little.
        let product = (self.0 ^ number).wrapping_mul(FACTOR);
        self.0 = product ^ (product >> 32);
    }
}
