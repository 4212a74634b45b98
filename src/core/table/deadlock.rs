//! Deadlocks. A waiter waits for whoever is ahead of it and for the holders: for so many of them that the lock admits
//! it and whoever is ahead. A wait that would close a cycle over tokens would never end by itself, so it is refused.

use super::serving::Occupancy;
use super::Table;
use crate::core::hold::Mode;
use crate::core::line::Waiter;
use crate::core::lock::Lock;
use crate::core::name::Place;
use crate::core::packed::Packed;
use crate::core::slab::Handle;
use crate::seeded::bug;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

/// How many links between tokens are looked at before a deadlock is ruled out: bounds the time one command can take.
const LINKS_MAX: usize = 100_000;

/// How a token stands in the way of a wait.
#[derive(Clone, Copy)]
enum Link {
    /// It is ahead in line.
    Ahead,
    /// It holds the lock in this way.
    Holds(Mode),
}

/// A wait that can be reached from the new one.
struct Wait<'a> {
    token: &'a [u8],
    /// What the lock has to admit for it: what it wants itself, and whoever is ahead of it.
    wants: Mode,
    /// Whether the new wait will stand ahead of it.
    passed: bool,
    /// How many are ahead of it that wait elsewhere too.
    ahead: usize,
    /// How many hold the lock alone, and share it.
    exclusive: usize,
    shared: usize,
    /// The limits of those who share it, and how many have each.
    limits: BTreeMap<u32, usize>,
}

/// The waits that can be reached from the new one, which is the first.
#[derive(Default)]
struct Web<'a> {
    waits: Vec<Wait<'a>>,
    /// Which waits each token stands in the way of.
    links: HashMap<Cow<'a, [u8]>, Vec<(usize, Link)>>,
    links_count: usize,
    /// Tokens whose own waits are still to be looked at.
    open: Vec<Cow<'a, [u8]>>,
}

/// The wait that is to begin, where it will stand: instead of whatever its token waits for there now.
#[derive(Clone, Copy)]
struct New<'a> {
    waiter: &'a Waiter,
    order: u64,
}

impl New<'_> {
    /// Whether it will stand ahead of this order in that line.
    fn is_ahead(self, place: Place<'_>, order: u64) -> bool {
        self.waiter.place() == place && self.order < order
    }

    /// Whether this is what the token waits for there now.
    fn replaces(self, other: &Waiter) -> bool {
        self.waiter.token == other.token && self.waiter.place() == other.place()
    }
}

impl Table {
    /// Whether the waiter would wait for itself, in front of the lock that `held` is and with this order in its line.
    pub(super) fn would_never_end(&self, held: Option<Handle>, waiter: &Waiter, order: u64) -> bool {
        let ends = !self.passes_somebody(waiter, order) && self.waits_for_nobody_waiting(held, waiter, order);
        if ends || bug("deadlock-missed") {
            return false;
        }
        let web = self.web(held, waiter, order);
        web.links_count <= LINKS_MAX && web.leads_back(&waiter.token)
    }

    /// Every wait that can be reached from the new one, or more links than are looked at.
    fn web<'a>(&'a self, held: Option<Handle>, waiter: &'a Waiter, order: u64) -> Web<'a> {
        let mut web = Web::default();
        let mut seen: HashSet<Cow<'_, [u8]>> = HashSet::new();
        let new = New { waiter, order };
        self.weave(&mut web, held, waiter, order, new);
        if self.passes_somebody(waiter, order) {
            web.open.push((&*waiter.token).into());
        }
        while let Some(token) = web.open.pop() {
            if seen.contains(&token) {
                continue;
            }
            for wait in self.lines.waits_of(&token) {
                let Some(theirs) = self.lines.get(wait).filter(|theirs| !new.replaces(theirs)) else { continue };
                self.weave(&mut web, self.standing_at(theirs.place()), theirs, theirs.order(), new);
                // One token can wait for very many locks of very many holders.
                if web.links_count > LINKS_MAX {
                    return web;
                }
            }
            seen.insert(token);
        }
        web
    }

    /// Whether the waiter's token waits elsewhere and will now stand ahead of somebody in this line.
    fn passes_somebody(&self, waiter: &Waiter, order: u64) -> bool {
        let place = waiter.place();
        let mut waits = self.lines.waits_of(&waiter.token).filter_map(|wait| self.lines.get(wait));
        waits.any(|wait| wait.place() != place) && self.lines.is_anybody_behind(place, order)
    }

    /// Whether nobody in the waiter's way waits for anything but what the waiter waits for: then nothing leads back.
    fn waits_for_nobody_waiting(&self, held: Option<Handle>, waiter: &Waiter, order: u64) -> bool {
        let place = waiter.place();
        if self.lines.is_entangled_at(place, order) {
            return false;
        }
        let Some(lock) = held.and_then(|held| self.locks.get(held)) else { return true };
        if lock.len() <= self.lines.tokens_count() {
            return lock.tokens().all(|token| *token == *waiter.token || self.lines.waits_nowhere(&token));
        }
        self.lines.tokens().all(|token| *token == *waiter.token || !lock.is_held_by(Packed::of(token)))
    }

    /// The lock that stands at a place where somebody waits, or was evicted from there.
    fn standing_at(&self, place: Place<'_>) -> Option<Handle> {
        let standing = |lock: &Handle| {
            let seen = self.locks.get(*lock).filter(|seen| seen.place() == place);
            seen.is_some_and(|seen| seen.linked() || self.evicted.contains(lock))
        };
        self.lines.lock_at(place).filter(standing)
    }

    /// Adds a wait. Of those ahead only tokens that wait elsewhere too are named, the one whose wait begins among them:
    /// any other waits for nothing that is not looked at anyway.
    fn weave<'a>(&'a self, web: &mut Web<'a>, lock: Option<Handle>, waiter: &'a Waiter, order: u64, new: New<'a>) {
        let place = waiter.place();
        let ahead = |other: &&Waiter| other.order() < order && !new.replaces(other);
        let new_ahead = new.is_ahead(place, order).then_some(new.waiter);
        let line = self.lines.waiters(place).map(|(_, other)| other).take_while(|other| other.order() < order);
        let wants = most_of(waiter.mode, line.filter(ahead).chain(new_ahead).map(|ahead| ahead.mode));
        let index = web.waits.len();
        web.waits.push(Wait::new(&waiter.token, wants, new_ahead.is_some()));
        let others = |token: &&[u8]| **token != *waiter.token;
        let holders = lock.and_then(|lock| self.locks.get(lock)).into_iter().flat_map(Lock::holders);
        for seen in holders.filter(|seen| others(&&*seen.token)) {
            web.link(index, seen.token.into(), Link::Holds(seen.mode));
        }
        // A token that waits for an upgrade holds the lock as well as waits for it.
        let upgrader = self.lines.first(place).and_then(|first| self.lines.get(first)).filter(|first| first.upgrade);
        let entangled = self.lines.entangled_before(place, order).into_iter().filter_map(|wait| self.lines.get(wait));
        let own = self.lines.find(place, &new.waiter.token).and_then(|own| self.lines.get(own));
        let known = upgrader.into_iter().chain(own).chain(entangled).filter(ahead);
        for token in known.chain(new_ahead).map(|ahead| &*ahead.token).filter(others) {
            web.link(index, token.into(), Link::Ahead);
        }
    }
}

/// What is admitted only where all are. There is no more than an exclusive lock.
fn most_of(first: Mode, others: impl Iterator<Item = Mode>) -> Mode {
    let shared = |mode: Mode| (mode != Mode::Exclusive).then_some(mode);
    let all = shared(first).and_then(|first| others.map(shared).try_fold(first, |all, other| Some(all.and(other?))));
    all.unwrap_or(Mode::Exclusive)
}

impl<'a> Web<'a> {
    fn link(&mut self, wait: usize, token: Cow<'a, [u8]>, link: Link) {
        if let Some(wait) = self.waits.get_mut(wait) {
            wait.count(link, true);
        }
        self.links.entry(token.clone()).or_default().push((wait, link));
        self.links_count += 1;
        self.open.push(token);
    }

    /// Whether the new wait closes a circle: it cannot end before its own token moves on, which waits for just that. Or
    /// it keeps somebody waiting behind it whom its token waits for elsewhere.
    fn leads_back(mut self, token: &'a [u8]) -> bool {
        self.let_all_finish(token);
        let passed = self.waits.iter().filter(|wait| wait.passed).map(|wait| wait.token).collect();
        self.keep_waiting(vec![token], |index, _| index == 0)
            || self.keep_waiting(passed, |_, wait| *wait.token == *token)
    }

    /// Whether a wait like this cannot end as long as these tokens do not move.
    fn keep_waiting(&self, tokens: Vec<&'a [u8]>, is_like: impl Fn(usize, &Wait<'_>) -> bool) -> bool {
        let mut new = tokens;
        let mut stuck: HashSet<&[u8]> = new.iter().copied().collect();
        while let Some(token) = new.pop() {
            for &(index, _) in self.links.get(token).into_iter().flatten() {
                let Some(wait) = self.waits.get(index).filter(|wait| !wait.can_end()) else { continue };
                if is_like(index, wait) {
                    return true;
                }
                if stuck.insert(wait.token) {
                    new.push(wait.token);
                }
            }
        }
        false
    }

    /// Takes everybody out of the way who finishes some time though this token does not move: who waits for nothing, then
    /// whose waits can end without those, and so on.
    fn let_all_finish(&mut self, token: &[u8]) {
        let mut waiting: HashMap<&[u8], usize> = HashMap::new();
        for wait in self.waits.iter().filter(|wait| !wait.can_end()) {
            *waiting.entry(wait.token).or_default() += 1;
        }
        let finishes = |other: &&[u8]| **other != *token && !waiting.contains_key(*other);
        let mut finished: Vec<Cow<'_, [u8]>> =
            self.links.keys().filter(|other| finishes(&&***other)).cloned().collect();
        while let Some(other) = finished.pop() {
            for &(index, link) in self.links.get(&other).into_iter().flatten() {
                let Some(wait) = self.waits.get_mut(index).filter(|wait| !wait.can_end()) else { continue };
                wait.count(link, false);
                let left = waiting.get_mut(wait.token).filter(|_| wait.can_end());
                if let Some(left) = left {
                    *left -= 1;
                    if *left == 0 && *wait.token != *token {
                        finished.push(wait.token.into());
                    }
                }
            }
        }
    }
}

impl<'a> Wait<'a> {
    const fn new(token: &'a [u8], wants: Mode, passed: bool) -> Self {
        Self { token, wants, passed, ahead: 0, exclusive: 0, shared: 0, limits: BTreeMap::new() }
    }

    /// One more is in its way, or one less.
    fn count(&mut self, link: Link, more: bool) {
        let change = |count: &mut usize| *count = if more { *count + 1 } else { count.saturating_sub(1) };
        match link {
            Link::Ahead => change(&mut self.ahead),
            Link::Holds(Mode::Exclusive) => change(&mut self.exclusive),
            Link::Holds(Mode::Shared(limit)) => {
                change(&mut self.shared);
                if let Some(limit) = limit {
                    let same = self.limits.entry(limit).or_default();
                    change(same);
                    if *same == 0 {
                        self.limits.remove(&limit);
                    }
                }
            }
        }
    }

    /// Whether nobody is in its way who keeps it from ending.
    fn can_end(&self) -> bool {
        let smallest_limit = self.limits.first_key_value().map(|(&limit, _)| limit);
        let held = match (self.exclusive, self.shared) {
            (0, 0) => Occupancy::Free,
            (0, count) => Occupancy::Shared { count, smallest_limit },
            _ => Occupancy::Exclusive,
        };
        self.ahead == 0 && held.admits(self.wants)
    }
}

#[cfg(test)]
mod tests {
    use super::super::holding::{Acquire, Acquired};
    use super::super::scene::{at, by, lease, poll, shared, END_US, START_US};
    use super::super::{Effect, Limits, Site};
    use super::*;

    const HOLDERS: usize = 300;
    const LONG_MS: u64 = 1_000_000;

    /// Locks by their keys.
    struct Scene {
        table: Table,
        locks: HashMap<String, Handle>,
    }

    impl Scene {
        /// `p` polls for so many locks of many holders each, and for one of `z`; it holds what `z` is about to want.
        fn new(locks: usize) -> Self {
            let mut table = Table::default();
            table.begin_serving(at(0));
            let mut scene = Self { table, locks: HashMap::new() };
            for lock in 0..locks {
                let key = format!("shared {lock}");
                for holder in 0..HOLDERS {
                    scene.acquire(&key, lease(shared(by(&format!("h{holder}"))), LONG_MS));
                }
                assert_eq!(scene.acquire(&key, poll(by("p"), END_US)), Acquired::Held);
            }
            scene.acquire("of p", lease(by("p"), LONG_MS));
            scene.acquire("of z", lease(by("z"), LONG_MS));
            assert_eq!(scene.acquire("of z", poll(by("p"), END_US)), Acquired::Held);
            scene
        }

        fn acquire(&mut self, key: &str, mut request: Acquire<'_>) -> Acquired {
            request.limits = Limits { blocked: 100, polled: 10_000 };
            let site = Site { place: place(key), lock: self.locks.get(key).copied(), legacy: None };
            let acquired = self.table.acquire(site, &request, at(START_US));
            for effect in self.table.take_effects() {
                if let Effect::Created(lock) = effect {
                    self.locks.insert(key.to_owned(), lock);
                }
            }
            acquired
        }
    }

    fn place(key: &str) -> Place<'_> {
        Place { db: 0, key: key.as_bytes() }
    }

    #[test]
    fn a_circle_is_found_among_very_many_holders() {
        let mut scene = Scene::new(300);
        assert_eq!(scene.acquire("of p", poll(by("z"), END_US)), Acquired::Deadlock);
    }

    #[test]
    fn the_search_ends_within_the_waits_of_one_token() {
        let mut scene = Scene::new(2 * LINKS_MAX / HOLDERS);
        assert_eq!(scene.acquire("of p", poll(by("z"), END_US)), Acquired::Held);
        let lines = &scene.table.lines;
        let waiter = lines.find(place("of p"), b"z").and_then(|waiter| lines.get(waiter)).unwrap();
        let web = scene.table.web(scene.locks.get("of p").copied(), waiter, waiter.order());
        assert!((LINKS_MAX..=LINKS_MAX + HOLDERS).contains(&web.links_count), "{}", web.links_count);
    }
}
