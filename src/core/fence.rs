//! Fencing numbers: `fence = max(H + 1, T)`, then `H = fence`. H is one number per server, so nothing is kept per lock
//! name; T is the wall clock, so a server that lost its newest grants still does not issue the same numbers again.

use super::time::Ticks;
use crate::seeded::bug;
use std::fmt;

/// Fences stay below 2^53: exact in every client that keeps numbers as doubles. Issuing stops there with an error.
pub const FENCE_END: u64 = 1 << 53;

/// Added to H whenever a node becomes a serving primary: ten seconds of ticks. Covers a clock that far behind the old
/// primary's, and a burst of grants that were lost with it.
pub const SERVING_GUARD_TICKS: u64 = 1_000_000;

/// What part of the guard of a node that takes over depends on the clock alone: an eighth keeps takeovers that follow each
/// other apart, unless more grants than one in 80 us of the time between them were lost.
const CLOCK_SHARE: u64 = 8;

/// How far above the wall clock an ordinary client may raise H: 24 hours of ticks. One forged number must not poison a
/// resource.
pub const STRANGER_BOUND_TICKS: u64 = 24 * 3_600 * 100_000;

/// A fencing number: 1 to 2^53 - 1. In seven bytes, since each hold has one; the highest comes first, so that they are in
/// order as the numbers are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence([u8; 7]);

const _: () = assert!(FENCE_END <= 1 << 56, "a fence fits into seven bytes");

impl Fence {
    /// The fence with this number; `None` for 0, which is never issued, and from [`FENCE_END`] on.
    pub const fn new(number: u64) -> Option<Self> {
        if number == 0 || number >= FENCE_END {
            return None;
        }
        let [_, a, b, c, d, e, f, g] = number.to_be_bytes();
        Some(Self([a, b, c, d, e, f, g]))
    }

    /// The number.
    pub const fn get(self) -> u64 {
        let [a, b, c, d, e, f, g] = self.0;
        u64::from_be_bytes([0, a, b, c, d, e, f, g])
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fence({})", self.get())
    }
}

/// Issues fences and remembers the highest one this server knows of, H.
#[derive(Debug, Default)]
pub struct Fences {
    /// H: what the next fence is above.
    highest: u64,
    /// The highest fence that was really given out, as far as is known. H is above it by a guard.
    known: u64,
}

impl Fences {
    /// The next fence: `None` once the numbers are used up.
    pub fn issue(&mut self, wall: Ticks) -> Option<Fence> {
        let fence = Fence::new(self.highest.saturating_add(1).max(wall.get()))?;
        self.raise(fence);
        Some(fence)
    }

    /// H: the highest fence known, 0 if there is none.
    pub const fn highest(&self) -> u64 {
        self.highest
    }

    /// Raises H to a fence that was replicated, loaded or restored. Never lowers it.
    pub fn raise(&mut self, fence: Fence) {
        self.highest = self.highest.max(fence.get());
        self.known = self.known.max(fence.get());
    }

    /// Raises H as this node becomes a serving primary, past what a lost predecessor can have granted. A guard under
    /// which nothing was granted (a start, then the end of its load) is not added to again.
    pub fn guard(&mut self, wall: Ticks) {
        if bug("no-fence-guard") {
            return;
        }
        let of_clock = wall.get().saturating_add(SERVING_GUARD_TICKS);
        // Nodes that take over one after another, and lose what the one before gave out, know the same fence. Counted from
        // that alone, their guards would end at the same number, and the next fences would be the same: where the clock is
        // not far behind, it moves the guard on, so that a later one ends higher.
        let lead =
            wall.get().saturating_add(CLOCK_SHARE * SERVING_GUARD_TICKS).saturating_sub(self.known) / CLOCK_SHARE;
        let lead = if bug("guard-from-fences-alone") { 0 } else { lead };
        let of_known = self.known.saturating_add(SERVING_GUARD_TICKS).saturating_add(lead);
        let guarded = of_clock.max(of_known);
        // A clock set centuries ahead must not end issuing by itself: only a fence that was really given out can.
        self.highest = guarded.min(FENCE_END - 1).max(self.highest);
    }

    /// Whether an ordinary client may bring this fence in.
    pub fn accepts_from_stranger(&self, fence: Fence, wall: Ticks) -> bool {
        bug("fence-forged")
            || fence.get() <= self.highest
            || fence.get() <= wall.get().saturating_add(STRANGER_BOUND_TICKS)
    }

    /// H if it has to be saved beside the locks. Behind the clock it need not be: the clock finds its way back alone.
    /// With no lock held, not even within the guard: the next start adds that again, and an RDB without anything of
    /// this module loads in a server that does not have it.
    pub fn to_save(&self, locks_held: bool, wall: Ticks) -> Option<Fence> {
        let recovered = if locks_held { wall.get() } else { wall.get().saturating_add(SERVING_GUARD_TICKS) };
        if self.known <= recovered {
            return None;
        }
        Fence::new(self.known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH_2025_MICROS: u64 = 1_735_689_600_000_000;

    fn wall(ticks: u64) -> Ticks {
        Ticks::from_unix_micros(EPOCH_2025_MICROS + ticks * 10)
    }

    #[test]
    fn follows_the_clock_and_never_stands_still() {
        let mut fences = Fences::default();
        assert_eq!(fences.issue(wall(500)).map(Fence::get), Some(500));
        assert_eq!(fences.issue(wall(500)).map(Fence::get), Some(501));
        assert_eq!(fences.issue(wall(3)).map(Fence::get), Some(502));
        assert_eq!(fences.issue(wall(900)).map(Fence::get), Some(900));
    }

    #[test]
    fn zero_is_never_issued() {
        assert_eq!(Fences::default().issue(wall(0)).map(Fence::get), Some(1));
        assert_eq!(Fence::new(0), None);
    }

    #[test]
    fn issuing_stops_below_2_to_53() {
        let mut fences = Fences::default();
        fences.raise(Fence::new(FENCE_END - 2).unwrap());
        assert_eq!(fences.issue(wall(0)).map(Fence::get), Some(FENCE_END - 1));
        assert_eq!(fences.issue(wall(0)), None);
        assert_eq!(fences.highest(), FENCE_END - 1);
        assert_eq!(Fence::new(FENCE_END), None);
    }

    #[test]
    fn guard_is_ten_seconds_past_the_later_of_clock_and_highest() {
        let start = 1_000 * SERVING_GUARD_TICKS;
        let mut fences = Fences::default();
        fences.guard(wall(start));
        assert_eq!(fences.highest(), start + SERVING_GUARD_TICKS);
        fences.guard(wall(start + 10));
        assert_eq!(fences.highest(), start + 10 + SERVING_GUARD_TICKS, "nothing was granted");
        let mut granted = fences.issue(wall(start + 10)).unwrap();
        for behind in [0, start / 2, start - 10] {
            fences.guard(wall(start - behind));
            assert!(fences.highest() >= granted.get() + SERVING_GUARD_TICKS, "{behind}");
            granted = fences.issue(wall(start - behind)).unwrap();
        }
    }

    #[test]
    fn takeovers_that_follow_each_other_never_give_one_fence_twice() {
        // The first one's grant reaches everybody, the second one's nobody.
        let second = SERVING_GUARD_TICKS / 10;
        let mut first = Fences::default();
        first.guard(wall(0));
        let known = first.issue(wall(0)).unwrap();
        let taken_over = |at| {
            let mut fences = Fences::default();
            fences.raise(known);
            fences.guard(wall(at));
            fences.issue(wall(at)).unwrap()
        };
        let (lost, next) = (taken_over(second), taken_over(2 * second));
        assert!(known < lost && lost < next, "{known:?}, {lost:?}, {next:?}");
        // The second one's clock is half a minute behind.
        let mut behind = Fences::default();
        behind.raise(Fence::new(known.get() + 20 * second).unwrap());
        behind.guard(wall(0));
        assert!(behind.issue(wall(0)).unwrap().get() > known.get() + 30 * second);
    }

    #[test]
    fn raise_never_lowers() {
        let mut fences = Fences::default();
        fences.raise(Fence::new(10).unwrap());
        fences.raise(Fence::new(4).unwrap());
        assert_eq!(fences.highest(), 10);
    }

    #[test]
    fn strangers_are_bound_to_a_day_ahead_of_the_clock() {
        let mut fences = Fences::default();
        let edge = Fence::new(7 + STRANGER_BOUND_TICKS).unwrap();
        let past = Fence::new(8 + STRANGER_BOUND_TICKS).unwrap();
        assert!(fences.accepts_from_stranger(edge, wall(7)));
        assert!(!fences.accepts_from_stranger(past, wall(7)));
        fences.raise(past);
        assert!(fences.accepts_from_stranger(past, wall(7)));
    }

    #[test]
    fn saved_only_while_ahead_of_what_a_start_recovers() {
        let mut fences = Fences::default();
        fences.raise(Fence::new(1_000).unwrap());
        assert_eq!(fences.to_save(true, wall(1_000)), None);
        assert_eq!(fences.to_save(true, wall(999)).map(Fence::get), Some(1_000));
        assert_eq!(fences.to_save(false, wall(999)), None);
        fences.raise(Fence::new(1_001 + SERVING_GUARD_TICKS).unwrap());
        assert_eq!(fences.to_save(false, wall(1_001)), None);
        assert!(fences.to_save(false, wall(1_000)).is_some());
    }
}
