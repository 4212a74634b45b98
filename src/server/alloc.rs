//! The server's allocator as Rust's, so that what the module holds counts as used_memory. Where there is no server
//! (unit tests, benches) it is the system's.

use redis_module::raw;
use std::alloc::{GlobalAlloc, Layout, System};

/// Alignment of every block the server's allocator returns.
const SERVER_ALIGN: usize = 16;

/// Whether the system's is used in a server too: a sanitizer sees nothing of what the server's gives out.
const SYSTEM_ONLY: bool = cfg!(feature = "system-alloc");

/// The allocator of the module.
#[derive(Debug)]
pub struct ServerAlloc;

/// A block of this size is too large for glibc's caches of small ones: to find it, the cached ones are joined first.
const TIDYING_BYTES: usize = 4096;

/// Has the allocator tidy up what was freed. glibc's puts that off until somebody asks for a larger block: after a
/// million frees in a row that one waits for half a second, measured on Valkey 9.1. Other allocators do nothing of it.
pub fn tidy() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(TIDYING_BYTES)));
}

/// The size to ask for. Blocks of a multiple of a larger alignment are aligned to it by jemalloc and libc alike.
fn padded(layout: Layout) -> usize {
    if layout.align() <= SERVER_ALIGN {
        layout.size()
    } else {
        layout.size().next_multiple_of(layout.align())
    }
}

// SAFETY: each call goes to the one allocator that is in place. RedisModule_Init fills all function pointers at once
// and runs before the first allocation of a loaded module, so no block is freed by the other allocator.
unsafe impl GlobalAlloc for ServerAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout is not of size 0, by the trait's contract.
        unsafe {
            match raw::RedisModule_Alloc {
                Some(alloc) if !SYSTEM_ONLY => alloc(padded(layout)).cast(),
                _ => System.alloc(layout),
            }
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block came from `alloc` or `realloc` above.
        unsafe {
            match raw::RedisModule_Free {
                Some(free) if !SYSTEM_ONLY => free(block.cast()),
                _ => System.dealloc(block, layout),
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for `alloc`.
        unsafe {
            match raw::RedisModule_Calloc {
                Some(calloc) if !SYSTEM_ONLY => calloc(1, padded(layout)).cast(),
                _ => System.alloc_zeroed(layout),
            }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the block came from this allocator; its alignment stays, and the trait's contract rules out size 0
        // and sizes that overflow when padded.
        unsafe {
            let new = Layout::from_size_align_unchecked(new_size, layout.align());
            match raw::RedisModule_Realloc {
                Some(realloc) if !SYSTEM_ONLY => realloc(block.cast(), padded(new)).cast(),
                _ => System.realloc(block, layout, new_size),
            }
        }
    }
}
