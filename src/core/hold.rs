//! One token's hold of a lock: its fence, its lease, and the rarer things a hold can have.

use super::fence::Fence;
use super::name::{HoldName, Label, Token};
use super::names::{NameList, Names};
use super::time::{Instant, Lease};
use crate::seeded::bug;

/// How a lock is held or asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By one token alone.
    Exclusive,
    /// By several tokens, at most this many as far as this one is concerned.
    Shared(Option<u32>),
}

impl Mode {
    /// How many holders it accepts, itself included; none that shares without a limit.
    pub const fn limit(self) -> Option<u32> {
        match self {
            Self::Shared(limit) => limit,
            Self::Exclusive => None,
        }
    }

    /// What is admitted only where both are.
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Shared(mine), Self::Shared(theirs)) => Self::Shared(mine.into_iter().chain(theirs).min()),
            _ => Self::Exclusive,
        }
    }
}

/// What the holder knows of its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It was told that it holds the lock.
    Told,
    /// Its reply is on the way to a blocked connection. If that fails, the grant is taken back.
    Untold,
    /// It has to ask: its place was kept by polling. Its lease starts when it does; until then the end is that of its
    /// poll.
    Unfetched,
}

/// Most holds one token can name on one lock: bounds what a client can make the server keep.
pub const HOLDS_MAX: usize = 1_000;

/// What a hold is made of, as it is asked for, saved and replicated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder<'a> {
    /// The secret that proves the hold.
    pub token: Token<'a>,
    /// The number that orders this hold among all holds of this lock.
    pub fence: Fence,
    /// Length of the lease: that of the last grant or extension that moved its end.
    pub lease: Lease,
    /// Description for people.
    pub label: Label<'a>,
    /// How the lock is held.
    pub mode: Mode,
    /// Whether there is a hold without a name.
    pub unnamed: bool,
    /// The named holds, in order.
    pub names: NameList<'a>,
    /// Milliseconds until the hold ends whatever is done.
    pub cap_ms: Option<u64>,
}

/// What only some holds have.
#[derive(Clone, Debug, Default)]
pub struct Extra {
    /// Nested holds by name.
    pub names: Names,
    /// Whether there is no hold without a name.
    pub only_named: bool,
    /// When the hold ends whatever is done.
    pub cap: Option<Instant>,
    /// Whether the hold ends with the connection that acquired it last.
    pub ephemeral: bool,
    /// The shared hold that an upgrade nobody was told of yet falls back to.
    pub before_upgrade: Option<Box<SharedHold>>,
}

/// A hold that shares the lock.
#[derive(Clone, Debug)]
pub struct SharedHold {
    /// The hold.
    pub hold: Hold,
    /// How many holders it accepts, itself included.
    pub limit: Option<u32>,
}

/// One token's hold.
#[derive(Clone, Debug)]
pub struct Hold {
    /// The number that orders this hold.
    pub fence: Fence,
    /// Length of the lease.
    pub lease: Lease,
    /// When the lease is over, as far as the hold knows by itself; never past the cap.
    pub end: Instant,
    /// When this node granted, loaded or received the hold.
    pub granted: Instant,
    /// Id of the connection that acquired it last here; 0 if there was none.
    pub client: u64,
    /// What the holder knows.
    pub delivery: Delivery,
    /// The rest, if there is any.
    pub extra: Option<Box<Extra>>,
}

impl Hold {
    /// A hold as it is granted, loaded or received now.
    pub fn new(holder: &Holder<'_>, client: u64, now: Instant) -> Self {
        let plain = holder.unnamed && holder.names.is_empty() && holder.cap_ms.is_none();
        let extra = (!plain).then(|| {
            Box::new(Extra {
                names: Names::in_order(&holder.names),
                only_named: !holder.unnamed,
                cap: holder.cap_ms.map(|ms| now.after_ms(ms)),
                ephemeral: false,
                before_upgrade: None,
            })
        });
        let end = now.after(holder.lease);
        let mut hold = Self {
            fence: holder.fence,
            lease: holder.lease,
            end,
            granted: now,
            client,
            delivery: Delivery::Told,
            extra,
        };
        hold.end_at(end);
        hold
    }

    /// When the hold ends on a node that serves since `serving`: the lease counts from there at the earliest, and the
    /// cap is the end of it all. The time in which a polled grant has to be fetched is none of the lease.
    pub fn end_since(&self, serving: Instant) -> Instant {
        if self.delivery == Delivery::Unfetched {
            return self.end;
        }
        let serving = if bug("lease-not-whole-after-promotion") { Instant::from_micros(0) } else { serving };
        self.within_cap(self.end.max(serving.after(self.lease)))
    }

    /// When its token stops having the lock in any way, on a node that serves since `serving`: whatever becomes of an
    /// upgrade that is to be fetched, the token has what it had before.
    pub fn sure_since(&self, serving: Instant) -> Instant {
        let end = self.end_since(serving);
        let before = self.before_upgrade().filter(|_| self.delivery == Delivery::Unfetched);
        before.map_or(end, |before| end.max(before.hold.end_since(serving)))
    }

    /// Lets the hold end at this instant, or at its cap if that is earlier.
    pub fn end_at(&mut self, end: Instant) {
        self.end = self.within_cap(end);
    }

    fn within_cap(&self, end: Instant) -> Instant {
        self.cap().filter(|_| !bug("maxhold-ignored")).map_or(end, |cap| end.min(cap))
    }

    /// When the hold ends whatever is done.
    pub fn cap(&self) -> Option<Instant> {
        self.extra.as_ref()?.cap
    }

    /// Whether the hold ends with its connection.
    pub fn is_ephemeral(&self) -> bool {
        self.extra.as_ref().is_some_and(|extra| extra.ephemeral)
    }

    /// Binds the hold to its connection, or unbinds it.
    pub fn set_ephemeral(&mut self, ephemeral: bool) {
        if ephemeral || self.extra.is_some() {
            self.extra_mut().ephemeral = ephemeral;
        }
    }

    /// The holder was told: nothing is taken back any more.
    pub fn confirm(&mut self) {
        self.delivery = Delivery::Told;
        self.forget_before();
    }

    /// This node no longer serves: the holder may hear of its hold elsewhere, and no connection of this node ends it.
    pub fn stand_still(&mut self) {
        if self.delivery == Delivery::Unfetched {
            // That was the end of a poll, and none of the lease.
            self.end = Instant::from_micros(0);
        }
        self.confirm();
        self.set_ephemeral(false);
    }

    /// Nothing is left that an upgrade could fall back to.
    pub fn forget_before(&mut self) {
        if let Some(extra) = &mut self.extra {
            extra.before_upgrade = None;
        }
    }

    /// The holder cannot be told: the grant is over at this instant.
    pub fn void(&mut self, at: Instant) {
        self.delivery = Delivery::Unfetched;
        self.end = at;
    }

    /// Notes what an upgrade falls back to if its holder cannot be told.
    pub fn remember(&mut self, before: SharedHold) {
        self.extra_mut().before_upgrade = Some(Box::new(before));
    }

    /// What an upgrade falls back to.
    pub fn before_upgrade(&self) -> Option<&SharedHold> {
        self.extra.as_ref()?.before_upgrade.as_deref()
    }

    /// Sets the cap, or makes it tighter. Whether it changed.
    pub fn tighten(&mut self, cap: Instant) -> bool {
        if self.cap().is_some_and(|now| now <= cap) {
            return false;
        }
        self.extra_mut().cap = Some(cap);
        self.end_at(self.end);
        true
    }

    /// Whether one more hold of this name is more than one token may have.
    pub fn is_full_for(&self, name: Option<HoldName<'_>>) -> bool {
        let Some(name) = name else { return false };
        self.extra.as_ref().is_some_and(|extra| extra.names.count() >= HOLDS_MAX && !extra.names.contains(name))
    }

    /// How many holds the token has: named ones and the one without a name.
    pub fn count(&self) -> usize {
        self.extra.as_ref().map_or(1, |extra| extra.names.count() + usize::from(!extra.only_named))
    }

    /// Adds a hold; whether it was not there yet. One too many is left out.
    pub fn add(&mut self, name: Option<HoldName<'_>>) -> bool {
        if self.is_full_for(name) {
            return false;
        }
        match (name, self.extra.as_mut()) {
            (None, None) => false,
            (None, Some(extra)) => std::mem::take(&mut extra.only_named),
            (Some(name), Some(extra)) if bug("holds-counted") && extra.names.contains(name) => {
                HoldName::new(&[name.bytes(), b"'"].concat()).is_some_and(|other| extra.names.insert(other))
            }
            (Some(name), _) => self.extra_mut().names.insert(name),
        }
    }

    /// Takes a named hold away; whether it was there.
    pub fn take(&mut self, name: HoldName<'_>) -> bool {
        self.extra.as_mut().is_some_and(|extra| extra.names.remove(name))
    }

    /// Bytes the hold occupies elsewhere.
    pub fn heap_bytes(&self) -> usize {
        self.extra.as_ref().map_or(0, |extra| size_of::<Extra>() + extra.names.heap_bytes())
    }

    fn extra_mut(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Hold {
        let holder = Holder {
            token: Token::new(b"t").unwrap(),
            fence: Fence::new(1).unwrap(),
            lease: Lease::from_ms(10).unwrap(),
            label: Label::new(b"").unwrap(),
            mode: Mode::Exclusive,
            unnamed: true,
            names: NameList::Many(Vec::new()),
            cap_ms: None,
        };
        Hold::new(&holder, 0, Instant::from_micros(0))
    }

    #[test]
    fn a_plain_hold_has_nothing_extra() {
        let mut hold = plain();
        assert!(!hold.add(None));
        hold.set_ephemeral(false);
        assert!(hold.extra.is_none());
        assert_eq!(hold.count(), 1);
    }

    #[test]
    fn names_are_counted_once() {
        let mut hold = plain();
        let name = HoldName::new(b"a").unwrap();
        assert!(hold.add(Some(name)) && !hold.add(Some(name)));
        assert_eq!(hold.count(), 2);
        assert!(hold.take(name) && !hold.take(name));
        assert_eq!(hold.count(), 1);
    }

    #[test]
    fn a_cap_only_gets_tighter_and_ends_the_lease() {
        let mut hold = plain();
        assert!(hold.tighten(Instant::from_micros(4_000)));
        assert!(!hold.tighten(Instant::from_micros(5_000)));
        assert_eq!((hold.end, hold.end_since(Instant::from_micros(0))), (Instant::from_micros(4_000), hold.end));
        assert!(hold.tighten(Instant::from_micros(3_000)));
        hold.end_at(Instant::from_micros(8_000));
        assert_eq!((hold.end, hold.end_since(Instant::from_micros(9_000))), (Instant::from_micros(3_000), hold.end));
    }

    #[test]
    fn there_are_as_many_names_as_there_may_be() {
        let mut hold = plain();
        let names: Vec<String> = (0..HOLDS_MAX).map(|number| number.to_string()).collect();
        for name in &names {
            assert!(hold.add(HoldName::new(name.as_bytes())));
        }
        let (more, known) = (HoldName::new(b"more"), HoldName::new(b"0"));
        assert!(hold.is_full_for(more) && !hold.add(more));
        assert!(!hold.is_full_for(known) && !hold.add(known));
        assert!(!hold.is_full_for(None));
        assert_eq!(hold.count(), HOLDS_MAX + 1);
    }
}
