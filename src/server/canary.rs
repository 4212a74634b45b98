//! Misuse of memory on purpose. `make asan` and `make valgrind` have to find each of these before their silence about the
//! rest says anything.

use crate::seeded::bug;
use std::hint::black_box;

/// Misuses memory as the seeded bug says, if it is one of these.
pub(super) fn sing() {
    if bug("use-after-free") {
        let block = Box::into_raw(black_box(Box::new(0_u64)));
        // SAFETY: none, that is the point: the block is read after it was freed.
        let read = unsafe {
            drop(Box::from_raw(block));
            block.read_volatile()
        };
        black_box(read);
    }
    if bug("heap-overflow") {
        let block = black_box(vec![0_u8; 24].into_boxed_slice());
        // SAFETY: none, that is the point: the byte behind the block is read.
        black_box(unsafe { block.as_ptr().add(block.len()).read_volatile() });
    }
}
