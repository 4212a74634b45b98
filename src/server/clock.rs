//! The two clocks, read here and nowhere else. Leases and waits run on CLOCK_BOOTTIME, which no one can set and which
//! goes on while the machine sleeps; fences are seeded from CLOCK_REALTIME.

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

/// Both clocks. The wall clock is the one that the kernel keeps at hand, a few ms old at most: it is read in a third of the
/// time, and a fence is no time.
pub fn now() -> Now {
    Now { instant: instant(), ticks: Ticks::from_unix_micros(micros(libc::CLOCK_REALTIME_COARSE)) }
}

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
