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

/// Both clocks.
pub fn now() -> Now {
    Now { instant: instant(), ticks: Ticks::from_unix_micros(micros(libc::CLOCK_REALTIME)) }
}

/// The wall clock as the server's own times to live are kept: Unix ms.
pub fn unix_ms() -> u64 {
    micros(libc::CLOCK_REALTIME) / MICROS_PER_MS
}

fn micros(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec to write to. Both clocks exist on every Linux that runs these servers.
    unsafe { libc::clock_gettime(clock, &mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(MICROS_PER_SECOND) + nanos / NANOS_PER_MICRO
}
