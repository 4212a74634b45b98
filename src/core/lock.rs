//! A held lock: where it stands and who holds it.

use super::crowd::{Crowd, Member};
use super::deadlines::Position;
use super::fence::Fence;
use super::hold::{Hold, Holder, Mode};
use super::name::{HoldName, Label, Place, Token};
use super::time::Instant;

/// Who holds a lock.
#[derive(Clone)]
enum Holders {
    /// Nobody: for as long as it takes to free the lock or to hand it on.
    Nobody,
    /// One token, alone or as the only one so far that shares it; its token and label stand in the lock's text.
    One(Hold),
    /// Tokens that share it.
    Many(Box<Crowd>),
}

/// A holder, for those who look.
#[derive(Clone, Copy)]
pub struct Seen<'a> {
    /// Its token.
    pub token: &'a [u8],
    /// Its label.
    pub label: &'a [u8],
    /// How it holds the lock.
    pub mode: Mode,
    /// Its hold.
    pub hold: &'a Hold,
}

/// A held lock. With one holder it is one allocation: key, token and label.
#[derive(Clone)]
pub struct Lock {
    text: Box<[u8]>,
    key_len: u32,
    token_len: u8,
    linked: bool,
    may_expire: bool,
    db: i32,
    deadline: Position,
    /// How the lock is held while one token does.
    mode: Mode,
    holders: Holders,
}

impl Lock {
    /// A lock at `place` that nobody holds yet.
    pub fn new(place: Place<'_>) -> Self {
        Self {
            text: place.key.into(),
            key_len: place.key.len() as u32,
            token_len: 0,
            linked: true,
            may_expire: false,
            db: place.db,
            deadline: Position::NONE,
            mode: Mode::Exclusive,
            holders: Holders::Nobody,
        }
    }

    /// A lock at `place` that one token holds in this way.
    pub fn held_by_one(place: Place<'_>, token: &[u8], label: &[u8], mode: Mode, hold: Hold) -> Self {
        Self {
            text: join(place.key, token, label),
            key_len: place.key.len() as u32,
            token_len: token.len() as u8,
            linked: true,
            may_expire: false,
            db: place.db,
            deadline: Position::NONE,
            mode,
            holders: Holders::One(hold),
        }
    }

    /// Where the lock was last seen.
    pub fn place(&self) -> Place<'_> {
        Place { db: self.db, key: self.key() }
    }

    /// Follows the lock to where RENAME, MOVE or RESTORE put it.
    pub fn set_place(&mut self, place: Place<'_>) {
        if self.place() != place {
            let text = join(place.key, self.text_token(), self.text_label());
            self.text = text;
            self.key_len = place.key.len() as u32;
            self.db = place.db;
        }
    }

    /// Follows the lock to another database, as SWAPDB does.
    pub fn set_db(&mut self, db: i32) {
        self.db = db;
    }

    /// Whether the lock stands in the keyspace, as far as is known.
    pub const fn linked(&self) -> bool {
        self.linked
    }

    /// Notes that the lock went into the keyspace or out of it.
    pub fn set_linked(&mut self, linked: bool) {
        self.linked = linked;
    }

    /// Whether the lock's key may have a time to live, which none of this module's doing is.
    pub const fn may_expire(&self) -> bool {
        self.may_expire
    }

    /// Notes that the lock's key may have a time to live, or has none.
    pub fn set_may_expire(&mut self, may_expire: bool) {
        self.may_expire = may_expire;
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
            Holders::One(_) => 1,
            Holders::Many(crowd) => crowd.len(),
        }
    }

    /// Whether nobody holds the lock.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether one token holds the lock exclusively.
    pub const fn is_exclusive(&self) -> bool {
        matches!((&self.holders, self.mode), (Holders::One(_), Mode::Exclusive))
    }

    /// The smallest limit of any holder.
    pub fn smallest_limit(&self) -> Option<u32> {
        match &self.holders {
            Holders::Many(crowd) => crowd.smallest_limit(),
            Holders::One(_) => self.mode.limit(),
            Holders::Nobody => None,
        }
    }

    /// The token's hold.
    pub fn hold(&self, token: &[u8]) -> Option<&Hold> {
        self.holder(token).map(|seen| seen.hold)
    }

    /// The holder with this token.
    pub fn holder(&self, token: &[u8]) -> Option<Seen<'_>> {
        match &self.holders {
            Holders::One(_) => self.one().filter(|seen| seen.token == token),
            Holders::Many(crowd) => {
                let (token, member) = crowd.get(token)?;
                Some(seen(token, member))
            }
            Holders::Nobody => None,
        }
    }

    /// The holders with this fence: hardly ever more than one.
    pub fn holders_with(&self, fence: Fence) -> impl Iterator<Item = Seen<'_>> {
        let one = self.one().filter(|seen| seen.hold.fence == fence);
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
        self.one().into_iter().chain(many.into_iter().flatten())
    }

    /// The first end of a hold, as far as the holds know by themselves; a lock nobody holds is over long since.
    pub fn first_end(&self) -> Instant {
        self.first_to_end().map_or(Instant::from_micros(0), |seen| seen.hold.end)
    }

    /// The holder whose hold ends first, as far as the holds know by themselves.
    pub fn first_to_end(&self) -> Option<Seen<'_>> {
        match &self.holders {
            Holders::Nobody => None,
            Holders::One(_) => self.one(),
            Holders::Many(crowd) => crowd.first_to_end().map(|(token, member)| seen(token, member)),
        }
    }

    /// Whether the hold that ends first has ended at `now`, on a node that serves since `serving`. A hold that knows
    /// less than the node does learns it, and may be the first no longer.
    pub fn has_ended(&mut self, serving: Instant, now: Instant) -> bool {
        match &mut self.holders {
            Holders::Nobody => false,
            Holders::One(hold) => {
                hold.end = hold.end_since(serving);
                hold.end <= now
            }
            Holders::Many(crowd) => loop {
                let Some((token, member)) = crowd.first_to_end() else { return false };
                let (known, end) = (member.hold.end, member.hold.end_since(serving));
                if known > now || end <= now {
                    return known <= now;
                }
                let token = token.clone();
                crowd.update(&token, |hold| hold.end = end);
            },
        }
    }

    /// Makes the token the only holder, exclusively.
    pub fn occupy(&mut self, token: &[u8], label: &[u8], hold: Hold) {
        self.set_one(token, label, Mode::Exclusive, hold);
    }

    fn set_one(&mut self, token: &[u8], label: &[u8], mode: Mode, hold: Hold) {
        let text = join(self.key(), token, label);
        self.text = text;
        self.token_len = token.len() as u8;
        self.mode = mode;
        self.holders = Holders::One(hold);
    }

    /// Makes the token one of those who share the lock.
    pub fn join(&mut self, token: &[u8], label: &[u8], limit: Option<u32>, hold: Hold) {
        let is_first = match &self.holders {
            Holders::Nobody => true,
            Holders::One(_) => self.is_exclusive() || self.text_token() == token,
            Holders::Many(_) => false,
        };
        if is_first {
            return self.set_one(token, label, Mode::Shared(limit), hold);
        }
        let mut crowd = match std::mem::replace(&mut self.holders, Holders::Nobody) {
            Holders::Many(crowd) => crowd,
            Holders::One(first) => {
                let member = Member { label: self.text_label().into(), limit: self.mode.limit(), hold: first };
                let mut crowd = Box::<Crowd>::default();
                crowd.insert(self.text_token(), member);
                self.text = self.key().into();
                self.token_len = 0;
                crowd
            }
            Holders::Nobody => Box::default(),
        };
        crowd.insert(token, Member { label: label.into(), limit, hold });
        self.holders = Holders::Many(crowd);
    }

    /// Takes the token's hold away.
    pub fn vacate(&mut self, token: &[u8]) -> Option<Hold> {
        if let Holders::Many(crowd) = &mut self.holders {
            return crowd.remove(token).map(|member| member.hold);
        }
        self.hold(token)?;
        match std::mem::replace(&mut self.holders, Holders::Nobody) {
            Holders::One(hold) => Some(hold),
            Holders::Nobody | Holders::Many(_) => None,
        }
    }

    /// Takes every hold away.
    pub fn clear(&mut self) {
        self.holders = Holders::Nobody;
    }

    /// Changes the token's hold.
    pub fn update(&mut self, token: &[u8], change: impl FnOnce(&mut Hold)) {
        let own = self.text_token() == token;
        match &mut self.holders {
            Holders::One(hold) if own => change(hold),
            Holders::Many(crowd) => crowd.update(token, change),
            _ => {}
        }
    }

    /// Changes every hold.
    pub fn update_all(&mut self, mut change: impl FnMut(&mut Hold)) {
        let tokens: Vec<Box<[u8]>> = self.holders().map(|seen| seen.token.into()).collect();
        for token in tokens {
            self.update(&token, &mut change);
        }
    }

    /// Bytes beside the lock's own size.
    pub fn heap_bytes(&self) -> usize {
        let crowd = match &self.holders {
            Holders::Many(crowd) => size_of::<Crowd>() + crowd.bytes(),
            _ => 0,
        };
        self.text.len() + crowd
    }

    /// The only holder.
    fn one(&self) -> Option<Seen<'_>> {
        match &self.holders {
            Holders::One(hold) => {
                Some(Seen { token: self.text_token(), label: self.text_label(), mode: self.mode, hold })
            }
            _ => None,
        }
    }

    fn key(&self) -> &[u8] {
        self.text.get(..self.key_len as usize).unwrap_or_default()
    }

    fn text_token(&self) -> &[u8] {
        let start = self.key_len as usize;
        self.text.get(start..start + self.token_len as usize).unwrap_or_default()
    }

    fn text_label(&self) -> &[u8] {
        self.text.get(self.key_len as usize + self.token_len as usize..).unwrap_or_default()
    }
}

impl<'a> Seen<'a> {
    /// The holder as it is saved and replicated; `None` only for one that was never valid.
    pub fn holder(&self, now: Instant) -> Option<Holder<'a>> {
        let extra = self.hold.extra.as_deref();
        Some(Holder {
            token: Token::new(self.token)?,
            fence: self.hold.fence,
            lease: self.hold.lease,
            label: Label::cut(self.label),
            mode: self.mode,
            unnamed: extra.is_none_or(|extra| !extra.only_named),
            names: extra.into_iter().flat_map(|extra| &extra.names).filter_map(|name| HoldName::new(name)).collect(),
            cap_ms: self.hold.cap().map(|cap| now.ms_until(cap)),
        })
    }
}

fn seen<'a>(token: &'a [u8], member: &'a Member) -> Seen<'a> {
    Seen { token, label: &member.label, mode: Mode::Shared(member.limit), hold: &member.hold }
}

fn join(key: &[u8], token: &[u8], label: &[u8]) -> Box<[u8]> {
    let mut text = Vec::with_capacity(key.len() + token.len() + label.len());
    text.extend_from_slice(key);
    text.extend_from_slice(token);
    text.extend_from_slice(label);
    text.into_boxed_slice()
}

#[cfg(test)]
#[path = "lock_tests.rs"]
mod tests;
