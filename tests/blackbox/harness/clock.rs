//! A wall clock that a test can step under a running server, forward and back, while the monotonic clocks go on. The
//! server is started with a small preloaded library, `clock_shim.c`, which reads the offset from a mapped file.

use std::sync::atomic::Ordering;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use super::builder::Builder;
use super::library::Library;
use super::mapped::Mapped;

pub const SECOND_US: i64 = 1_000_000;
pub const HOUR_US: i64 = 3600 * SECOND_US;
pub const DAY_US: i64 = 24 * HOUR_US;
pub const YEAR_US: i64 = 365 * DAY_US;

/// What fences count in: 10 us.
pub const TICKS_PER_SECOND: u64 = 100_000;
/// Where they count from.
const EPOCH_2025_S: u64 = 1_735_689_600;

/// The wall clock of this machine as fences count it.
pub fn now_ticks() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as u64;
    since_1970 / 10 - EPOCH_2025_S * TICKS_PER_SECOND
}

/// The wall clock of every server that was built with it.
#[derive(Debug)]
pub struct Clock {
    offset_us: Mapped,
}

impl Clock {
    /// A clock that agrees with the machine's.
    pub fn new() -> Self {
        Self { offset_us: Mapped::new("clock", 1) }
    }

    /// Moves the wall clock by `micros`, which may be negative. Steps add up. The process sees it at once, but Valkey
    /// 9.1 reads the time of day only once in a millisecond.
    pub fn step(&self, micros: i64) {
        self.offset_us.numbers()[0].fetch_add(micros.cast_unsigned(), Ordering::SeqCst);
    }

    /// Sets the wall clock back to the machine's.
    pub fn reset(&self) {
        self.offset_us.numbers()[0].store(0, Ordering::SeqCst);
    }
}

impl Builder {
    /// Runs the server on a wall clock that the test can step.
    pub fn clock(self, clock: &Clock) -> Self {
        static SHIM: OnceLock<Library> = OnceLock::new();
        let shim = SHIM.get_or_init(|| Library::compile("clock_shim", include_str!("clock_shim.c")));
        self.preload(shim).env("LOCK_CLOCK_OFFSET", clock.offset_us.file())
    }
}
