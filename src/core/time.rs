//! Instants of the monotonic clock, lease lengths and wall-clock ticks. Three types, so that a wall-clock time can
//! never end up in a deadline, nor milliseconds where microseconds belong.

/// Microseconds in a millisecond.
const MICROS_PER_MS: u64 = 1_000;

/// Longest lease that is stored or accepted anywhere: ten years of 365 days, in ms. Keeps every sum of an instant and
/// a lease far from overflow; `lock.max-ttl` is bounded by it.
pub const LEASE_MS_MAX: u64 = 10 * 365 * 24 * 3_600 * 1_000;

/// An instant of the server's monotonic clock, in microseconds since an arbitrary start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The instant `micros` us after the clock's start.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the clock's start.
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// The instant at which a lease that starts now is over.
    pub const fn after(self, lease: Lease) -> Self {
        self.after_ms(lease.ms())
    }

    /// The instant this many ms later.
    pub const fn after_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms.saturating_mul(MICROS_PER_MS)))
    }

    /// The earliest of these.
    pub fn earliest<const N: usize>(instants: [Option<Self>; N]) -> Option<Self> {
        const NEVER: Instant = Instant(u64::MAX);
        let earliest = instants.map(|instant| instant.unwrap_or(NEVER)).into_iter().fold(NEVER, Self::min);
        (earliest != NEVER).then_some(earliest)
    }

    /// Whole milliseconds from `self` to `later`, rounded down; 0 if `later` is not later.
    pub const fn ms_until(self, later: Self) -> u64 {
        later.0.saturating_sub(self.0) / MICROS_PER_MS
    }

    /// Whole milliseconds from `self` to `later`, rounded up: how long a timer must sleep not to fire early.
    pub const fn ms_until_over(self, later: Self) -> u64 {
        later.0.saturating_sub(self.0).div_ceil(MICROS_PER_MS)
    }
}

/// The length of a lease in ms: 1 to [`LEASE_MS_MAX`]. In five bytes, since each hold has one; the highest comes first, so
/// that they are in order as the numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lease([u8; 5]);

impl Lease {
    /// A lease of `ms` milliseconds; `None` for 0 or above [`LEASE_MS_MAX`].
    pub const fn from_ms(ms: u64) -> Option<Self> {
        if ms == 0 || ms > LEASE_MS_MAX {
            return None;
        }
        let [_, _, _, a, b, c, d, e] = ms.to_be_bytes();
        Some(Self([a, b, c, d, e]))
    }

    /// The length in ms.
    pub const fn ms(self) -> u64 {
        let [a, b, c, d, e] = self.0;
        u64::from_be_bytes([0, 0, 0, a, b, c, d, e])
    }
}

const _: () = assert!(LEASE_MS_MAX < 1 << 40, "a lease fits into five bytes");

/// The wall clock in fence ticks: 10 us each, since 2025-01-01 UTC. Seeds fences, never a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticks(u64);

/// 2025-01-01T00:00:00Z in microseconds since the Unix epoch.
const EPOCH_UNIX_MICROS: u64 = 1_735_689_600_000_000;
const MICROS_PER_TICK: u64 = 10;

impl Ticks {
    /// The tick that contains this Unix time in us; a time before 2025 is tick 0.
    pub const fn from_unix_micros(micros: u64) -> Self {
        Self(micros.saturating_sub(EPOCH_UNIX_MICROS) / MICROS_PER_TICK)
    }

    /// The tick's number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Both clocks, read once per command.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The monotonic clock: leases and waits.
    pub instant: Instant,
    /// The wall clock: fences only.
    pub ticks: Ticks,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_edges() {
        assert_eq!(Lease::from_ms(0), None);
        assert_eq!(Lease::from_ms(1).map(Lease::ms), Some(1));
        assert_eq!(Lease::from_ms(LEASE_MS_MAX).map(Lease::ms), Some(LEASE_MS_MAX));
        assert_eq!(Lease::from_ms(LEASE_MS_MAX + 1), None);
        assert!(Lease::from_ms(255) < Lease::from_ms(256));
    }

    #[test]
    fn ms_round_down_for_people_and_up_for_timers() {
        let start = Instant::from_micros(10);
        assert_eq!(start.ms_until(Instant::from_micros(1_009)), 0);
        assert_eq!(start.ms_until(Instant::from_micros(1_010)), 1);
        assert_eq!(start.ms_until_over(Instant::from_micros(11)), 1);
        assert_eq!(start.ms_until_over(Instant::from_micros(1_010)), 1);
        assert_eq!(start.ms_until_over(Instant::from_micros(1_011)), 2);
        assert_eq!(Instant::from_micros(5_000).ms_until(start), 0);
    }

    #[test]
    fn ticks_start_in_2025() {
        assert_eq!(Ticks::from_unix_micros(0).get(), 0);
        assert_eq!(Ticks::from_unix_micros(EPOCH_UNIX_MICROS + 9).get(), 0);
        assert_eq!(Ticks::from_unix_micros(EPOCH_UNIX_MICROS + 10).get(), 1);
    }
}
