//! A few numbers that a test and the servers it starts see alike: a mapped file.

use std::fs::{self, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use super::scratch::Scratch;

/// The numbers, all 0 at first. The file is removed with the last handle.
#[derive(Debug)]
pub struct Mapped {
    first: NonNull<AtomicU64>,
    count: usize,
    file: PathBuf,
    _dir: Scratch,
}

// SAFETY: the pointer is to atomics in a mapping that lives exactly as long as the value.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    pub fn new(label: &str, count: usize) -> Self {
        let dir = Scratch::new(label);
        let file = dir.join("numbers");
        fs::write(&file, vec![0; count * size_of::<AtomicU64>()]).expect("write the numbers");
        let open = OpenOptions::new().read(true).write(true).open(&file).expect("open the numbers");
        // SAFETY: a new shared mapping of a file of that size; no existing memory is touched.
        let page = unsafe {
            libc::mmap(
                ptr::null_mut(),
                count * size_of::<AtomicU64>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                open.as_raw_fd(),
                0,
            )
        };
        assert_ne!(page, libc::MAP_FAILED, "map the numbers");
        Self { first: NonNull::new(page.cast()).expect("a mapping is not at zero"), count, file, _dir: dir }
    }

    pub fn file(&self) -> &Path {
        &self.file
    }

    pub fn numbers(&self) -> &[AtomicU64] {
        // SAFETY: so many are mapped until drop, aligned, and only ever accessed as atomics.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: unmaps what `new` mapped; no reference outlives `self`.
        unsafe { libc::munmap(self.first.as_ptr().cast(), self.count * size_of::<AtomicU64>()) };
    }
}
