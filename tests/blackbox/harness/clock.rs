//! A wall clock that a test can step under a running server, forward and back, while the monotonic clocks go on. The
//! server is started with a small preloaded library, `clock_shim.c`, which reads the offset from a mapped file.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::OnceLock;

use super::scratch::Scratch;

pub const SECOND_US: i64 = 1_000_000;
pub const HOUR_US: i64 = 3600 * SECOND_US;
pub const DAY_US: i64 = 24 * HOUR_US;
pub const YEAR_US: i64 = 365 * DAY_US;

const OFFSET_BYTES: usize = size_of::<AtomicI64>();

/// The wall clock of every server that was built with it.
#[derive(Debug)]
pub struct Clock {
    offset_us: NonNull<AtomicI64>,
    file: PathBuf,
    _dir: Scratch,
}

// SAFETY: the pointer is to an atomic in a mapping that lives exactly as long as the value.
unsafe impl Send for Clock {}
// SAFETY: as above.
unsafe impl Sync for Clock {}

impl Clock {
    /// A clock that agrees with the machine's.
    pub fn new() -> Self {
        let dir = Scratch::new("clock");
        let file = dir.join("offset_us");
        fs::write(&file, [0; OFFSET_BYTES]).expect("write the clock offset");
        let open = OpenOptions::new().read(true).write(true).open(&file).expect("open the clock offset");
        // SAFETY: a new shared mapping of a file of that size; no existing memory is touched.
        let page = unsafe {
            libc::mmap(
                ptr::null_mut(),
                OFFSET_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                open.as_raw_fd(),
                0,
            )
        };
        assert_ne!(page, libc::MAP_FAILED, "map the clock offset");
        Self { offset_us: NonNull::new(page.cast()).expect("a mapping is not at zero"), file, _dir: dir }
    }

    /// Moves the wall clock by `micros`, which may be negative. Steps add up. The process sees it at once, but Valkey
    /// 9.1 reads the time of day only once in a millisecond.
    pub fn step(&self, micros: i64) {
        self.offset().fetch_add(micros, Ordering::SeqCst);
    }

    /// Sets the wall clock back to the machine's.
    pub fn reset(&self) {
        self.offset().store(0, Ordering::SeqCst);
    }

    /// What a server needs in its environment to run on this clock.
    pub(super) fn envs(&self) -> Vec<(String, OsString)> {
        vec![
            ("LD_PRELOAD".to_owned(), shim().as_os_str().to_owned()),
            ("LOCK_CLOCK_OFFSET".to_owned(), self.file.as_os_str().to_owned()),
        ]
    }

    fn offset(&self) -> &AtomicI64 {
        // SAFETY: the page is mapped until drop, aligned, and only ever accessed in whole words.
        unsafe { self.offset_us.as_ref() }
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        // SAFETY: unmaps what `new` mapped; no reference outlives `self`.
        unsafe { libc::munmap(self.offset_us.as_ptr().cast(), OFFSET_BYTES) };
    }
}

/// The compiled shim, made once in each test run.
fn shim() -> &'static PathBuf {
    static SHIM: OnceLock<(PathBuf, Scratch)> = OnceLock::new();
    let (library, _dir) = SHIM.get_or_init(|| {
        let dir = Scratch::new("clock-shim");
        let source = dir.join("clock_shim.c");
        let library = dir.join("clock_shim.so");
        fs::write(&source, include_str!("clock_shim.c")).expect("write the clock shim");
        let done = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .args([&library, &source])
            .arg("-ldl")
            .output()
            .unwrap_or_else(|error| panic!("no C compiler, install gcc or clang: {error}"));
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "compile the clock shim: {said}");
        (library, dir)
    });
    library
}
