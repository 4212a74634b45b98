//! A held lock: where it stands and who holds it.

use super::crowd::{Crowd, Member};
use super::deadlines::Position;
use super::fence::Fence;
use super::hold::{Hold, Holder, Mode};
use super::name::{Label, Place, Token};
use super::packed::{Packed, Text};
use super::small::SmallHold;
use super::texts::{Mark, Texts};
use super::time::Instant;
use std::borrow::Cow;

/// Who holds a lock.
#[derive(Clone)]
enum Holders {
    /// Nobody: for as long as it takes to free the lock or to hand it on.
    Nobody,
    /// One token, alone or as the only one so far that shares it; its token and label stand in the lock's texts.
    One(SmallHold),
    /// One token as well, with a hold that is not small.
    Large(Box<(Mode, Hold)>),
    /// Tokens that share it.
    Many(Box<Crowd>),
}

impl Holders {
    fn one(mode: Mode, hold: Hold) -> Self {
        SmallHold::of(mode, &hold).map_or_else(|| Self::Large(Box::new((mode, hold))), Self::One)
    }
}

/// A holder, for those who look.
#[derive(Clone)]
pub struct Seen<'a> {
    /// Its token.
    pub token: Text<'a>,
    /// Its label.
    pub label: Text<'a>,
    /// How it holds the lock.
    pub mode: Mode,
    /// Its hold.
    pub hold: Cow<'a, Hold>,
}

/// A held lock. With one holder and a small hold it is one allocation: token, label and key.
#[derive(Clone)]
pub struct Lock {
    texts: Texts,
    db: i32,
    deadline: Position,
    holders: Holders,
}

impl Lock {
    /// A lock at `place` that nobody holds yet.
    pub fn new(place: Place<'_>) -> Self {
        Self::with(place.db, Texts::of_key(place.key), Holders::Nobody)
    }

    /// A lock at `place` that one token holds in this way.
    pub fn held_by_one(place: Place<'_>, token: Packed<'_>, label: Packed<'_>, mode: Mode, hold: Hold) -> Self {
        let texts = Texts::new(place.key, &token, &label);
        Self::with(place.db, texts, Holders::one(mode, hold))
    }

    const fn with(db: i32, texts: Texts, holders: Holders) -> Self {
        Self { texts, db, deadline: Position::NONE, holders }
    }

    /// Where the lock was last seen.
    pub fn place(&self) -> Place<'_> {
        Place { db: self.db, key: self.texts.key() }
    }

    /// Follows the lock to where RENAME, MOVE or RESTORE put it.
    pub fn set_place(&mut self, place: Place<'_>) {
        if self.place() != place {
            self.texts.set_key(place.key);
            self.db = place.db;
        }
    }

    /// Follows the lock to another database, as SWAPDB does.
    pub fn set_db(&mut self, db: i32) {
        self.db = db;
    }

    /// Whether the lock stands in the keyspace, as far as is known.
    pub fn linked(&self) -> bool {
        !self.texts.has(Mark::Unlinked)
    }

    /// Notes that the lock went into the keyspace or out of it.
    pub fn set_linked(&mut self, linked: bool) {
        self.texts.set(Mark::Unlinked, !linked);
    }

    /// Whether the lock's key may have a time to live, which none of this module's doing is.
    pub fn may_expire(&self) -> bool {
        self.texts.has(Mark::MayExpire)
    }

    /// Notes that the lock's key may have a time to live, or has none.
    pub fn set_may_expire(&mut self, may_expire: bool) {
        self.texts.set(Mark::MayExpire, may_expire);
    }

    /// Where the lock stands among the deadlines.
    pub const fn deadline(&self) -> Position {
        self.deadline
    }

    /// Notes where the lock stands among the deadlines.
    pub fn set_deadline(&mut self, deadline: Position) {
        self.deadline = deadline;
    }

    /// How many tokens hold the lock.
    pub fn len(&self) -> usize {
        match &self.holders {
            Holders::Nobody => 0,
            Holders::One(_) | Holders::Large(_) => 1,
            Holders::Many(crowd) => crowd.len(),
        }
    }

    /// Whether nobody holds the lock.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How the only holder holds the lock.
    fn mode(&self) -> Option<Mode> {
        match &self.holders {
            Holders::One(small) => Some(small.mode()),
            Holders::Large(large) => Some(large.0),
            Holders::Nobody | Holders::Many(_) => None,
        }
    }

    /// Whether one token holds the lock exclusively.
    pub fn is_exclusive(&self) -> bool {
        self.mode() == Some(Mode::Exclusive)
    }

    /// The smallest limit of any holder.
    pub fn smallest_limit(&self) -> Option<u32> {
        match &self.holders {
            Holders::Many(crowd) => crowd.smallest_limit(),
            _ => self.mode()?.limit(),
        }
    }

    /// The token's hold.
    pub fn hold(&self, token: Packed<'_>) -> Option<Cow<'_, Hold>> {
        match &self.holders {
            Holders::Many(crowd) => crowd.get(token.given()).map(|(_, member)| Cow::Borrowed(&member.hold)),
            _ if self.texts.is_of(&token) => self.one(),
            _ => None,
        }
    }

    /// Whether the token holds the lock.
    pub fn is_held_by(&self, token: Packed<'_>) -> bool {
        match &self.holders {
            Holders::Nobody => false,
            Holders::One(_) | Holders::Large(_) => self.texts.is_of(&token),
            Holders::Many(crowd) => crowd.get(token.given()).is_some(),
        }
    }

    /// The holder with this token.
    pub fn holder(&self, token: Packed<'_>) -> Option<Seen<'_>> {
        match &self.holders {
            Holders::Many(crowd) => crowd.get(token.given()).map(|(token, member)| seen(token, member)),
            _ if self.texts.is_of(&token) => self.seen_one(),
            _ => None,
        }
    }

    /// The holders with this fence: hardly ever more than one.
    pub fn holders_with(&self, fence: Fence) -> impl Iterator<Item = Seen<'_>> {
        let one = self.seen_one().filter(|seen| seen.hold.fence == fence);
        let many = match &self.holders {
            Holders::Many(crowd) => Some(crowd.with_fence(fence).map(|(token, member)| seen(token, member))),
            _ => None,
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// Every holder, in the order of fences.
    pub fn holders(&self) -> impl Iterator<Item = Seen<'_>> {
        let many = match &self.holders {
            Holders::Many(crowd) => Some(crowd.iter().map(|(token, member)| seen(token, member))),
            _ => None,
        };
        self.seen_one().into_iter().chain(many.into_iter().flatten())
    }

    /// Every holder's token, in the order of fences.
    pub fn tokens(&self) -> impl Iterator<Item = Text<'_>> {
        let one = self.mode().map(|_| self.texts.token());
        let many = match &self.holders {
            Holders::Many(crowd) => Some(crowd.iter().map(|(token, _)| Text::Kept(token))),
            _ => None,
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// The first end of a hold, as far as the holds know by themselves; a lock nobody holds is over long since.
    pub fn first_end(&self) -> Instant {
        let end = match &self.holders {
            Holders::Nobody => None,
            Holders::One(small) => Some(small.end()),
            Holders::Large(large) => Some(large.1.end),
            Holders::Many(crowd) => crowd.first_to_end().map(|(_, member)| member.hold.end),
        };
        end.unwrap_or(Instant::from_micros(0))
    }

    /// The holder whose hold ends first, as far as the holds know by themselves.
    pub fn first_to_end(&self) -> Option<Seen<'_>> {
        match &self.holders {
            Holders::Many(crowd) => crowd.first_to_end().map(|(token, member)| seen(token, member)),
            _ => self.seen_one(),
        }
    }

    /// Whether the hold that ends first has ended at `now`, on a node that serves since `serving`. A hold that knows
    /// less than the node does learns it, and may be the first no longer.
    pub fn has_ended(&mut self, serving: Instant, now: Instant) -> bool {
        if let Holders::Many(crowd) = &mut self.holders {
            loop {
                let Some((token, member)) = crowd.first_to_end() else { return false };
                let (known, end) = (member.hold.end, member.hold.end_since(serving));
                if known > now || end <= now {
                    return known <= now;
                }
                let token = token.clone();
                crowd.update(&token, |hold| hold.end = end);
            }
        }
        if self.first_end() > now {
            // What it would learn only makes it end later.
            return false;
        }
        let Some(hold) = self.one() else { return false };
        let (known, end) = (hold.end, hold.end_since(serving));
        if end != known {
            self.update_one(|hold| hold.end = end);
        }
        end <= now
    }

    /// Makes the token the only holder, exclusively.
    pub fn occupy(&mut self, token: Packed<'_>, label: Packed<'_>, hold: Hold) {
        self.set_one(token, label, Mode::Exclusive, hold);
    }

    fn set_one(&mut self, token: Packed<'_>, label: Packed<'_>, mode: Mode, hold: Hold) {
        self.texts.set_holder(&token, &label);
        self.holders = Holders::one(mode, hold);
    }

    /// Makes the token one of those who share the lock.
    pub fn join(&mut self, token: Packed<'_>, label: Packed<'_>, limit: Option<u32>, hold: Hold) {
        let is_first = match &self.holders {
            Holders::Nobody => true,
            Holders::One(_) | Holders::Large(_) => self.is_exclusive() || self.texts.is_of(&token),
            Holders::Many(_) => false,
        };
        if is_first {
            return self.set_one(token, label, Mode::Shared(limit), hold);
        }
        let member = Member { label: label.given().into(), limit, hold };
        if let Holders::Many(crowd) = &mut self.holders {
            return crowd.insert(token.given(), member);
        }
        let mut crowd = Box::<Crowd>::default();
        if let Some(first) = self.seen_one() {
            let (label, limit, hold) = ((*first.label).into(), first.mode.limit(), first.hold.into_owned());
            crowd.insert(&first.token, Member { label, limit, hold });
        }
        crowd.insert(token.given(), member);
        self.texts.set_holder(&Packed::of(b""), &Packed::of(b""));
        self.holders = Holders::Many(crowd);
    }

    /// Takes the token's hold away.
    pub fn vacate(&mut self, token: Packed<'_>) {
        if let Holders::Many(crowd) = &mut self.holders {
            crowd.remove(token.given());
        } else if self.texts.is_of(&token) {
            self.clear();
        }
    }

    /// Takes every hold away.
    pub fn clear(&mut self) {
        self.holders = Holders::Nobody;
    }

    /// Changes the token's hold.
    pub fn update(&mut self, token: Packed<'_>, change: impl FnOnce(&mut Hold)) {
        if let Holders::Many(crowd) = &mut self.holders {
            crowd.update(token.given(), change);
        } else if self.texts.is_of(&token) {
            self.update_one(change);
        }
    }

    /// Changes every hold.
    pub fn update_all(&mut self, mut change: impl FnMut(&mut Hold)) {
        if let Holders::Many(crowd) = &mut self.holders {
            let tokens: Vec<Box<[u8]>> = crowd.iter().map(|(token, _)| token.into()).collect();
            tokens.iter().for_each(|token| crowd.update(token, &mut change));
        } else {
            self.update_one(change);
        }
    }

    fn update_one(&mut self, change: impl FnOnce(&mut Hold)) {
        match &mut self.holders {
            Holders::One(small) => {
                let (mode, mut hold) = (small.mode(), small.hold());
                change(&mut hold);
                self.holders = Holders::one(mode, hold);
            }
            Holders::Large(large) => {
                let (mode, hold) = &mut **large;
                change(hold);
                if let Some(small) = SmallHold::of(*mode, hold) {
                    self.holders = Holders::One(small);
                }
            }
            Holders::Nobody | Holders::Many(_) => {}
        }
    }

    /// Bytes beside the lock's own size.
    pub fn heap_bytes(&self) -> usize {
        let more = match &self.holders {
            Holders::Nobody | Holders::One(_) => 0,
            Holders::Large(large) => size_of_val(&**large) + large.1.heap_bytes(),
            Holders::Many(crowd) => size_of::<Crowd>() + crowd.bytes(),
        };
        self.texts.heap_bytes() + more
    }

    /// The hold of the only holder.
    fn one(&self) -> Option<Cow<'_, Hold>> {
        match &self.holders {
            Holders::One(small) => Some(Cow::Owned(small.hold())),
            Holders::Large(large) => Some(Cow::Borrowed(&large.1)),
            Holders::Nobody | Holders::Many(_) => None,
        }
    }

    /// The only holder.
    fn seen_one(&self) -> Option<Seen<'_>> {
        let (token, label) = (self.texts.token(), self.texts.label());
        Some(Seen { token, label, mode: self.mode()?, hold: self.one()? })
    }
}

impl Seen<'_> {
    /// The holder as it is saved and replicated; `None` only for one that was never valid.
    pub fn holder(&self, now: Instant) -> Option<Holder<'_>> {
        let extra = self.hold.extra.as_deref();
        Some(Holder {
            token: Token::new(&self.token)?,
            fence: self.hold.fence,
            lease: self.hold.lease,
            label: Label::cut(&self.label),
            mode: self.mode,
            unnamed: extra.is_none_or(|extra| !extra.only_named),
            names: extra.into_iter().flat_map(|extra| extra.names.iter()).collect(),
            cap_ms: self.hold.cap().map(|cap| now.ms_until(cap)),
        })
    }
}

fn seen<'a>(token: &'a [u8], member: &'a Member) -> Seen<'a> {
    let (token, label) = (Text::Kept(token), Text::Kept(&member.label));
    Seen { token, label, mode: Mode::Shared(member.limit), hold: Cow::Borrowed(&member.hold) }
}

#[cfg(test)]
#[path = "lock_tests.rs"]
mod tests;
