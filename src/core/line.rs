//! The lines in front of locks: who waits where, in order of arrival. Nothing here decides who gets a lock; it keeps
//! the order and finds a waiter by place, by token or by the end of its wait, each without walking a line.

use super::hold::Mode;
use super::name::{Label, Place, Token};
use super::packed::{Packed, Shared};
use super::slab::{Handle, Slab};
use super::time::{Instant, Lease};
use crate::seeded::bug;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::rc::Rc;

/// A blocked connection, by the number the engine gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seat(pub u64);

/// A token's place in a line.
pub struct Waiter {
    /// The lock's database.
    pub db: i32,
    /// The lock's key.
    pub key: Rc<[u8]>,
    /// Who waits.
    pub token: Shared,
    /// The label a grant gets.
    pub label: Shared,
    /// The lease a grant gets.
    pub lease: Lease,
    /// How the token wants to hold the lock.
    pub mode: Mode,
    /// The name of the hold, if it has one.
    pub name: Option<Box<[u8]>>,
    /// How long the hold may last whatever is done, in ms.
    pub cap_ms: Option<u64>,
    /// Whether the hold ends with its connection.
    pub ephemeral: bool,
    /// Whether the token shares the lock already and wants it alone: it waits at the head.
    pub upgrade: bool,
    /// Id of the connection that asked last.
    pub client: u64,
    /// The connection that is blocked until there is an answer; none if the token polls.
    pub seat: Option<Seat>,
    /// When the token joined the line.
    pub joined: Instant,
    /// When the command came in that is to be answered.
    pub asked: Instant,
    /// When the wait ends by itself; a poll's place is lost then.
    pub until: Option<Instant>,
    order: u64,
    line: Option<Handle>,
    /// Whether its token waits elsewhere too.
    entangled: bool,
}

impl Waiter {
    /// A waiter that has not joined a line yet.
    pub fn new(db: i32, key: Rc<[u8]>, token: Token<'_>, label: Label<'_>, lease: Lease, now: Instant) -> Self {
        Self {
            db,
            key,
            token: Packed::from(token).into(),
            label: Packed::from(label).into(),
            lease,
            mode: Mode::Exclusive,
            name: None,
            cap_ms: None,
            ephemeral: false,
            upgrade: false,
            client: 0,
            seat: None,
            joined: now,
            asked: now,
            until: None,
            order: 0,
            line: None,
            entangled: false,
        }
    }

    /// The place of the lock.
    pub fn place(&self) -> Place<'_> {
        Place { db: self.db, key: &self.key }
    }

    /// Rank in the order of arrival, over all lines.
    pub const fn order(&self) -> u64 {
        self.order
    }

    /// Whether its token waits elsewhere too.
    pub const fn waits_elsewhere(&self) -> bool {
        self.entangled
    }
}

/// The waiters of one lock.
struct Line {
    db: i32,
    key: Rc<[u8]>,
    waiters: BTreeMap<u64, Handle>,
    /// The lock they wait for, when last seen.
    lock: Option<Handle>,
    /// How many of them belong to a token that waits elsewhere too.
    entangled: usize,
}

/// How far a walk over all lines is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Walk(usize);

/// Names a line.
#[derive(Clone, Copy)]
pub struct LineHandle(Handle);

impl Line {
    fn first(&self) -> Option<Handle> {
        let next =
            if bug("last-come-first-served") { self.waiters.last_key_value() } else { self.waiters.first_key_value() };
        next.map(|(_, &waiter)| waiter)
    }
}

/// Where one token waits: in one line as a rule, which takes no memory of its own.
enum Waits {
    One(Handle),
    /// By their lines: a token can poll for very many locks.
    #[expect(
        clippy::box_collection,
        reason = "one token in many has such a map, and each has room for what may be here"
    )]
    Many(Box<BTreeMap<Handle, Handle>>),
}

impl Waits {
    fn iter(&self) -> impl Iterator<Item = Handle> + '_ {
        let (one, many) = match self {
            Self::One(waiter) => (Some(*waiter), None),
            Self::Many(waiters) => (None, Some(waiters.values().copied())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

/// Where the orders of all but upgrades begin.
const FIRST_ORDER: u64 = 1 << 62;

/// Every line of a server.
#[derive(Default)]
pub struct Lines {
    waiters: Slab<Waiter>,
    lines: Slab<Line>,
    by_place: BTreeMap<i32, HashMap<Rc<[u8]>, Handle>>,
    /// The line that was asked for last: a command asks for the same one several times, and so does the next command
    /// where many want one lock.
    last: Cell<Option<Handle>>,
    by_token: HashMap<Rc<[u8]>, Waits>,
    ends: BTreeSet<(Instant, Handle)>,
    joined: u64,
    blocked: usize,
}

impl Lines {
    /// Whether nobody waits anywhere.
    pub const fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// How many wait anywhere.
    pub const fn len(&self) -> usize {
        self.waiters.len()
    }

    /// How many connections are blocked.
    pub const fn blocked(&self) -> usize {
        self.blocked
    }

    /// How many places are kept for tokens that poll.
    pub const fn polled(&self) -> usize {
        self.len() - self.blocked
    }

    /// Every blocked connection.
    pub fn seats(&self) -> Vec<Seat> {
        let waiters = self.by_token.values().flat_map(Waits::iter);
        waiters.filter_map(|waiter| self.waiters.get(waiter)?.seat).collect()
    }

    /// The waiter with this handle.
    pub fn get(&self, waiter: Handle) -> Option<&Waiter> {
        self.waiters.get(waiter)
    }

    /// Where a waiter that is about to join stands in the order: behind all, an upgrade behind other upgrades only.
    pub const fn order_of_new(upgrade: bool) -> u64 {
        if upgrade {
            FIRST_ORDER
        } else {
            u64::MAX
        }
    }

    /// Puts a waiter at the end of its lock's line; an upgrade at the head. `lock` is the one that stands there.
    pub fn join(&mut self, mut waiter: Waiter, lock: Option<Handle>) -> Handle {
        self.joined += 1;
        let order = if waiter.upgrade { self.joined } else { FIRST_ORDER + self.joined };
        let line = self.line_at(waiter.place()).unwrap_or_else(|| self.begin_line(&waiter));
        (waiter.order, waiter.line) = (order, Some(line));
        let (until, blocks, token) = (waiter.until, waiter.seat.is_some(), waiter.token.given().clone());
        let handle = self.waiters.insert(waiter);
        self.blocked += usize::from(blocks);
        if let Some(until) = until {
            self.ends.insert((until, handle));
        }
        if let Some(line) = self.lines.get_mut(line) {
            line.waiters.insert(order, handle);
            line.lock = lock.or(line.lock);
        }
        self.note_wait(token, line, handle);
        handle
    }

    fn note_wait(&mut self, token: Rc<[u8]>, line: Handle, handle: Handle) {
        let mut newly_entangled = (None, None);
        self.by_token
            .entry(token)
            .and_modify(|waits| match waits {
                Waits::One(first) => {
                    newly_entangled = (Some(*first), Some(handle));
                    let first_line = self.waiters.get(*first).and_then(|first| first.line);
                    let first = first_line.map(|line| (line, *first));
                    *waits = Waits::Many(Box::new(first.into_iter().chain([(line, handle)]).collect()));
                }
                Waits::Many(waiters) => {
                    newly_entangled = (None, Some(handle));
                    waiters.insert(line, handle);
                }
            })
            .or_insert(Waits::One(handle));
        let (first, second) = newly_entangled;
        first.into_iter().chain(second).for_each(|waiter| self.entangle(waiter, true));
    }

    /// Takes a waiter out of its line.
    pub fn leave(&mut self, handle: Handle) -> Option<Waiter> {
        let waiter = self.waiters.remove(handle)?;
        self.blocked -= usize::from(waiter.seat.is_some());
        if let Some(until) = waiter.until {
            self.ends.remove(&(until, handle));
        }
        self.forget_wait(&waiter);
        self.leave_line(&waiter);
        Some(waiter)
    }

    fn forget_wait(&mut self, waiter: &Waiter) {
        let Some((token, Waits::Many(mut waits))) = self.by_token.remove_entry(&*waiter.token) else { return };
        waiter.line.and_then(|line| waits.remove(&line));
        self.count_entangled(waiter.line, false);
        let mut left = waits.values();
        let waits = match (left.next(), left.next()) {
            (Some(&last), None) => {
                self.entangle(last, false);
                Waits::One(last)
            }
            _ => Waits::Many(waits),
        };
        self.by_token.insert(token, waits);
    }

    /// The same token asked again: it keeps its place and is answered where it asked last. Gives back the connection
    /// that was blocked before.
    pub fn take_over(&mut self, handle: Handle, again: Waiter) -> Option<Seat> {
        let waiter = self.waiters.get_mut(handle)?;
        let (seat, until) = (waiter.seat, waiter.until);
        self.blocked += usize::from(again.seat.is_some());
        self.blocked -= usize::from(seat.is_some());
        if let Some(until) = until {
            self.ends.remove(&(until, handle));
        }
        if let Some(until) = again.until {
            self.ends.insert((until, handle));
        }
        let Waiter { joined, order, line, entangled, .. } = *waiter;
        *waiter = Waiter { joined, order, line, entangled, ..again };
        seat
    }

    /// The waiter whose turn is next.
    pub fn first(&self, place: Place<'_>) -> Option<Handle> {
        self.line(place)?.first()
    }

    /// The line at a place.
    pub fn at(&self, place: Place<'_>) -> Option<LineHandle> {
        self.line_at(place).map(LineHandle)
    }

    /// The waiter of this line whose turn is next; none if the line is gone.
    pub fn first_in(&self, line: LineHandle) -> Option<Handle> {
        self.lines.get(line.0)?.first()
    }

    /// Notes which lock those in this line wait for.
    pub fn set_lock_of(&mut self, line: LineHandle, lock: Handle) {
        if let Some(line) = self.lines.get_mut(line.0) {
            line.lock = Some(lock);
        }
    }

    /// The token's place in a line.
    pub fn find(&self, place: Place<'_>, token: &[u8]) -> Option<Handle> {
        match self.by_token.get(token)? {
            Waits::One(waiter) => {
                Some(*waiter).filter(|&waiter| self.get(waiter).is_some_and(|one| one.place() == place))
            }
            Waits::Many(waiters) => waiters.get(&self.line_at(place)?).copied(),
        }
    }

    /// Everywhere the token waits.
    pub fn waits_of(&self, token: &[u8]) -> impl Iterator<Item = Handle> + '_ {
        self.by_token.get(token).into_iter().flat_map(Waits::iter)
    }

    /// Whether the token waits for nothing.
    pub fn waits_nowhere(&self, token: &[u8]) -> bool {
        !self.by_token.contains_key(token)
    }

    /// How many wait for a lock.
    pub fn count(&self, place: Place<'_>) -> usize {
        self.line(place).map_or(0, |line| line.waiters.len())
    }

    /// The waiters of a lock, the next one first.
    pub fn waiters(&self, place: Place<'_>) -> impl Iterator<Item = (Handle, &Waiter)> {
        let line = self.line(place).into_iter().flat_map(|line| line.waiters.values());
        line.filter_map(|&handle| Some((handle, self.waiters.get(handle)?)))
    }

    /// Whether anybody in a line came after `order`.
    pub fn is_anybody_behind(&self, place: Place<'_>, order: u64) -> bool {
        self.line(place).and_then(|line| line.waiters.last_key_value()).is_some_and(|(&last, _)| last > order)
    }

    /// The waiters of a lock that came after one order and not after another, the next one first.
    pub fn waiters_between(&self, place: Place<'_>, after: u64, to: u64) -> impl Iterator<Item = &Waiter> {
        let line = self.line(place).into_iter();
        let waiters = line.flat_map(move |line| line.waiters.range((Bound::Excluded(after), Bound::Included(to))));
        waiters.filter_map(|(_, &waiter)| self.waiters.get(waiter))
    }

    /// Whether anybody in a line waits elsewhere too, or is ahead of `order` with a hold of the lock to upgrade.
    pub fn is_entangled_at(&self, place: Place<'_>, order: u64) -> bool {
        self.line(place).is_some_and(|line| {
            let first = line.first().and_then(|first| self.waiters.get(first));
            line.entangled > 0 || first.is_some_and(|first| first.upgrade && first.order < order)
        })
    }

    /// Every token that waits for anything.
    pub fn tokens(&self) -> impl Iterator<Item = &[u8]> {
        self.by_token.keys().map(|token| &**token)
    }

    /// How many tokens wait for anything.
    pub fn tokens_count(&self) -> usize {
        self.by_token.len()
    }

    /// Notes which lock stands at a place, if anybody waits there.
    pub fn set_lock(&mut self, place: Place<'_>, lock: Handle) {
        if self.is_empty() {
            return;
        }
        if let Some(line) = self.line_at(place).and_then(|line| self.lines.get_mut(line)) {
            line.lock = Some(lock);
        }
    }

    /// Forgets which locks stood in a database (`None`: in any).
    pub fn forget_locks(&mut self, db: Option<i32>) {
        let lines = self.lines.iter_mut().map(|(_, line)| line);
        lines.filter(|line| db.is_none_or(|db| db == line.db)).for_each(|line| line.lock = None);
    }

    /// The lock that stood at a place when last seen, if anybody waits there.
    pub fn lock_at(&self, place: Place<'_>) -> Option<Handle> {
        self.line(place)?.lock
    }

    /// When the next wait ends by itself.
    pub fn next_end(&self) -> Option<Instant> {
        self.ends.first().map(|&(at, _)| at)
    }

    /// A waiter whose wait is over.
    pub fn next_over(&self, now: Instant) -> Option<Handle> {
        self.ends.first().filter(|&&(at, _)| at <= now).map(|&(_, waiter)| waiter)
    }

    /// The databases that have a line.
    pub fn dbs(&self) -> impl Iterator<Item = i32> + '_ {
        self.by_place.keys().copied()
    }

    /// The next of all lines for one who walks over them, and how far the walk is then. A line that begins meanwhile may be
    /// left out.
    pub fn next_place(&self, walk: Walk) -> Option<(Place<'_>, Walk)> {
        let (line, next) = self.lines.next_from(walk.0)?;
        Some((Place { db: line.db, key: &line.key }, Walk(next)))
    }

    /// The key of a place, for one who is about to join its line: all in a line share it.
    pub fn key_at(&self, place: Place<'_>) -> Rc<[u8]> {
        self.line(place).map_or_else(|| place.key.into(), |line| line.key.clone())
    }

    fn line(&self, place: Place<'_>) -> Option<&Line> {
        self.lines.get(self.line_at(place)?)
    }

    fn line_at(&self, place: Place<'_>) -> Option<Handle> {
        let stands_at = |line: &Line| line.db == place.db && *line.key == *place.key;
        let last = self.last.get().filter(|&last| self.lines.get(last).is_some_and(stands_at));
        if last.is_some() {
            return last;
        }
        let found = *self.by_place.get(&place.db)?.get(place.key)?;
        self.last.set(Some(found));
        Some(found)
    }

    fn begin_line(&mut self, waiter: &Waiter) -> Handle {
        let (db, key) = (waiter.db, waiter.key.clone());
        let line = self.lines.insert(Line { db, key: key.clone(), waiters: BTreeMap::new(), lock: None, entangled: 0 });
        self.by_place.entry(db).or_default().insert(key, line);
        self.last.set(Some(line));
        line
    }

    fn entangle(&mut self, waiter: Handle, entangled: bool) {
        let Some(waiter) = self.waiters.get_mut(waiter) else { return };
        waiter.entangled = entangled;
        let line = waiter.line;
        self.count_entangled(line, entangled);
    }

    fn count_entangled(&mut self, line: Option<Handle>, more: bool) {
        if let Some(line) = line.and_then(|line| self.lines.get_mut(line)) {
            line.entangled = if more { line.entangled + 1 } else { line.entangled - 1 };
        }
    }

    fn leave_line(&mut self, waiter: &Waiter) {
        let Some(handle) = waiter.line else { return };
        let Some(line) = self.lines.get_mut(handle) else { return };
        line.waiters.remove(&waiter.order);
        if !line.waiters.is_empty() {
            return;
        }
        self.lines.remove(handle);
        if let Some(lines) = self.by_place.get_mut(&waiter.db) {
            lines.remove(&*waiter.key);
            if lines.is_empty() {
                self.by_place.remove(&waiter.db);
            }
        }
    }
}

#[cfg(test)]
#[path = "line_tests.rs"]
mod tests;
