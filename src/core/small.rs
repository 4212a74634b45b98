//! A hold as most locks have it, in half the room: with nothing that is rare, and with numbers no larger than they are
//! after years of one server's life. Any other stays a [`Hold`].

use super::fence::Fence;
use super::hold::{Delivery, Hold, Mode};
use super::time::{Instant, Lease};

/// A number in as few bytes.
#[derive(Clone, Copy, Debug)]
struct Narrow<const BYTES: usize>([u8; BYTES]);

impl<const BYTES: usize> Narrow<BYTES> {
    /// `None` if the number takes more.
    fn of(number: u64) -> Option<Self> {
        let kept = Self(*number.to_le_bytes().first_chunk()?);
        (kept.get() == number).then_some(kept)
    }

    fn get(self) -> u64 {
        let mut bytes = [0; size_of::<u64>()];
        if let Some(kept) = bytes.first_chunk_mut() {
            *kept = self.0;
        }
        u64::from_le_bytes(bytes)
    }
}

/// A hold, and how the lock is held.
#[derive(Clone, Copy, Debug)]
pub struct SmallHold {
    fence: Fence,
    lease: Lease,
    /// Six bytes of microseconds are almost nine years of the machine's uptime.
    end: Narrow<6>,
    granted: Narrow<6>,
    /// Five bytes are ten thousand connections a second for three years.
    client: Narrow<5>,
    mode: [u8; 2],
    delivery: Delivery,
}

const _: () = assert!(size_of::<SmallHold>() == 32);

/// Modes as numbers. All others are the limit of one that is shared.
const EXCLUSIVE: u16 = 0;
const SHARED: u16 = u16::MAX;

impl SmallHold {
    /// The hold, if it is small.
    pub fn of(mode: Mode, hold: &Hold) -> Option<Self> {
        let mode = match mode {
            Mode::Exclusive => EXCLUSIVE,
            Mode::Shared(None) => SHARED,
            Mode::Shared(Some(limit)) => {
                u16::try_from(limit).ok().filter(|limit| ![EXCLUSIVE, SHARED].contains(limit))?
            }
        };
        let small = Self {
            fence: hold.fence,
            lease: hold.lease,
            end: Narrow::of(hold.end.micros())?,
            granted: Narrow::of(hold.granted.micros())?,
            client: Narrow::of(hold.client)?,
            mode: mode.to_le_bytes(),
            delivery: hold.delivery,
        };
        hold.extra.is_none().then_some(small)
    }

    /// The hold.
    pub fn hold(&self) -> Hold {
        Hold {
            fence: self.fence,
            lease: self.lease,
            end: self.end(),
            granted: Instant::from_micros(self.granted.get()),
            client: self.client.get(),
            delivery: self.delivery,
            extra: None,
        }
    }

    /// How the lock is held.
    pub fn mode(&self) -> Mode {
        match u16::from_le_bytes(self.mode) {
            EXCLUSIVE => Mode::Exclusive,
            SHARED => Mode::Shared(None),
            limit => Mode::Shared(Some(u32::from(limit))),
        }
    }

    /// The number that orders this hold.
    pub const fn fence(&self) -> Fence {
        self.fence
    }

    /// When the lease is over, as far as the hold knows by itself.
    pub fn end(&self) -> Instant {
        Instant::from_micros(self.end.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::fence::FENCE_END;
    use crate::core::time::LEASE_MS_MAX;
    use proptest::prelude::*;

    fn number() -> impl Strategy<Value = u64> {
        (any::<u64>(), 0..64u32).prop_map(|(number, shift)| number >> shift)
    }

    fn mode() -> impl Strategy<Value = Mode> {
        let limit = number().prop_map(|number| Mode::Shared(Some(number as u32)));
        prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared(None)), Just(Mode::Shared(Some(65_535))), limit]
    }

    proptest! {
        #[test]
        fn what_is_small_comes_back_and_the_rest_is_not_small(
            (fence, lease_ms) in (1..FENCE_END, 1..=LEASE_MS_MAX),
            (end, granted, client) in (number(), number(), number()),
            mode in mode(),
            delivery in prop_oneof![Just(Delivery::Told), Just(Delivery::Untold), Just(Delivery::Unfetched)],
        ) {
            let mut hold = Hold {
                fence: Fence::new(fence).unwrap(),
                lease: Lease::from_ms(lease_ms).unwrap(),
                end: Instant::from_micros(end),
                granted: Instant::from_micros(granted),
                client,
                delivery,
                extra: None,
            };
            let fits = end < 1 << 48 && granted < 1 << 48 && client < 1 << 40;
            let fits = fits && !matches!(mode, Mode::Shared(Some(0 | 65_535..)));
            let small = SmallHold::of(mode, &hold);
            prop_assert_eq!(small.is_some(), fits);
            if let Some(small) = small {
                prop_assert_eq!(format!("{:?}", small.hold()), format!("{hold:?}"));
                prop_assert_eq!((small.mode(), small.fence(), small.end()), (mode, hold.fence, hold.end));
            }
            hold.set_ephemeral(true);
            prop_assert!(SmallHold::of(mode, &hold).is_none());
        }
    }
}
