//! The two clocks, read here and nowhere else. Leases and waits run on CLOCK_BOOTTIME, which no one can set and which
//! goes on while the machine sleeps; fences are seeded from CLOCK_REALTIME.

use super::cell::MainThread;
use crate::core::time::{Instant, Now, Ticks};
use crate::seeded::bug;

const MICROS_PER_SECOND: u64 = 1_000_000;
const MICROS_PER_MS: u64 = 1_000;
const NANOS_PER_MICRO: u64 = 1_000;

/// The monotonic clock.
pub fn instant() -> Instant {
    let clock = if bug("wall-clock-deadline") { libc::CLOCK_REALTIME } else { libc::CLOCK_BOOTTIME };
    Instant::from_micros(micros(clock))
}

/// Both clocks. The wall clock is read anew every ms; in between it goes on as the other does: a fence is no time, and a
/// clock takes long to read beside all else that a command does.
pub fn now() -> Now {
    let instant = instant();
    let unix_micros = WALL.with(|wall| {
        let mut passed = instant.micros().wrapping_sub(wall.read.micros());
        if passed >= MICROS_PER_MS {
            *wall = Wall { read: instant, unix_micros: micros(libc::CLOCK_REALTIME) };
            passed = 0;
        }
        wall.unix_micros + passed
    });
    Now { instant, ticks: Ticks::from_unix_micros(unix_micros) }
}

/// The wall clock as it was read.
struct Wall {
    read: Instant,
    unix_micros: u64,
}

static WALL: MainThread<Wall> = MainThread::new(Wall { read: Instant::from_micros(0), unix_micros: 0 });

/// The wall clock as the server's own times to live are kept: Unix ms.
pub fn unix_ms() -> u64 {
    micros(libc::CLOCK_REALTIME) / MICROS_PER_MS
}

fn micros(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec to write to. Both clocks exist on every Linux that runs these servers.
    unsafe { libc::clock_gettime(clock, &mut time) };
    // A wall clock may stand before 1970.
    time.tv_sec.max(0).unsigned_abs() * MICROS_PER_SECOND + time.tv_nsec.unsigned_abs() / NANOS_PER_MICRO
}
