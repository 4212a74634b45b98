//! Deadlocks. A waiter waits for whoever keeps it out: holders that stay, and those ahead in line that cannot come in or
//! come in and stay. A wait that would close a circle over tokens would never end by itself, so it is refused.
//!
//! Looked at is every lock and every wait that can be reached from the new wait. Then all locks are handed on as they
//! would be if everybody released everything once all its waits are over, but for the new wait's token, which does not
//! move. Whoever still waits then, waits for that token or for a circle of others.

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
use std::collections::{BTreeMap, HashMap};

/// How much is looked at before a deadlock is ruled out: bounds the time one command can take to some 50 ms.
const STEPS_MAX: usize = 100_000;

/// What it takes to look at one who waits elsewhere too, by what it takes to look at a holder or another waiter.
const STEPS_OF_WAIT: usize = 3;

/// The token whose wait is new, and the lock it is to wait for.
const NEW: usize = 0;
const NEW_SPOT: usize = 0;

/// A token that waits, and where.
#[derive(Default)]
struct Party<'a> {
    token: Cow<'a, [u8]>,
    /// How many of its waits are not over.
    waits: usize,
    /// Where it stands in line: the lock, and how many are ahead.
    stands: Vec<(usize, usize)>,
    /// What it holds as long as it waits.
    has: Vec<(usize, Mode)>,
}

/// One who stands in line.
struct Standing {
    order: u64,
    /// Who it is; none if it waits only here and has nothing that is looked at: once it came in it lets go.
    party: Option<usize>,
    mode: Mode,
    upgrade: bool,
    /// How it holds the lock already: it waits for an upgrade, or the lock came here from elsewhere.
    has: Option<Mode>,
}

/// A lock and its line, as far as they can be reached from the new wait.
struct Spot {
    line: Vec<Standing>,
    /// Up to which order the line is looked at.
    seen_to: u64,
    /// How many of the line came in.
    came_in: usize,
    staying: Staying,
}

/// Those who hold a lock and do not let go of it.
#[derive(Default)]
struct Staying {
    exclusive: usize,
    shared: usize,
    /// The limits of those who share it, and how many have each.
    limits: BTreeMap<u32, usize>,
}

/// All that can be reached from the new wait.
#[derive(Default)]
struct Web<'a> {
    parties: Vec<Party<'a>>,
    by_token: HashMap<Cow<'a, [u8]>, usize>,
    spots: Vec<Spot>,
    by_place: HashMap<Place<'a>, usize>,
    /// Parties whose waits are still to be looked at.
    open: Vec<usize>,
    steps: usize,
}

/// The wait that is to begin, where it will stand: instead of whatever its token waits for there now.
#[derive(Clone, Copy)]
struct New<'a> {
    held: Option<Handle>,
    waiter: &'a Waiter,
    order: u64,
    /// Whether it will stand ahead of somebody whom other waits of its token can lead to.
    passes: bool,
}

impl Table {
    /// Whether the waiter would wait for itself, in front of the lock that `held` is and with this order in its line.
    pub(super) fn would_never_end(&self, held: Option<Handle>, waiter: &Waiter, order: u64) -> bool {
        let passes = self.passes_somebody(waiter, order);
        let ends = !passes && self.waits_for_nobody_waiting(held, waiter, order);
        if ends || bug("deadlock-missed") {
            return false;
        }
        let mut web = Web::default();
        self.is_second_upgrade(waiter)
            || self.weave(&mut web, New { held, waiter, order, passes }).is_some() && web.closes_a_circle()
    }

    /// Whether another holder waits for an upgrade already: each of the two waits for the other to let go.
    fn is_second_upgrade(&self, waiter: &Waiter) -> bool {
        let first = self.lines.first(waiter.place()).and_then(|first| self.lines.get(first));
        waiter.upgrade && first.is_some_and(|first| first.upgrade && first.token != waiter.token)
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

    /// Adds all that can be reached from the new wait, and from the other waits of its token where it passes somebody whom
    /// those can lead to; none if that is more than is looked at.
    fn weave<'a>(&'a self, web: &mut Web<'a>, new: New<'a>) -> Option<()> {
        let (token, place) = (&*new.waiter.token, new.waiter.place());
        web.party(token.into());
        if !new.passes {
            web.open.clear();
        }
        let staying = self.staying(web, new.held.and_then(|held| self.locks.get(held)), token)?;
        let spot = web.begin(place, staying);
        self.look_along(web, spot, place, new.order, token)?;
        web.stand(spot, new.waiter, new.order, Some(NEW));
        while let Some(party) = web.open.pop() {
            let open = web.parties.get(party)?.token.clone();
            for wait in self.lines.waits_of(&open) {
                web.step(STEPS_OF_WAIT)?;
                let is_replaced = |theirs: &&Waiter| party == NEW && theirs.place() == place;
                let Some(theirs) = self.lines.get(wait).filter(|theirs| !is_replaced(theirs)) else { continue };
                if let Some(spot) = self.look_at(web, theirs, token)? {
                    web.claim(spot, theirs.order(), party);
                }
            }
        }
        Some(())
    }

    /// Adds the lock of a wait, and its line up to there: which one it is; none if the wait is over at once, since one token
    /// can wait for very many such locks.
    fn look_at<'a>(&'a self, web: &mut Web<'a>, waiter: &'a Waiter, new_token: &[u8]) -> Option<Option<usize>> {
        let (place, order) = (waiter.place(), waiter.order());
        let spot = match web.by_place.get(&place) {
            Some(&known) => known,
            None => {
                let lock = self.standing_at(place).and_then(|lock| self.locks.get(lock));
                let staying = self.staying(web, lock, new_token)?;
                let first = self.lines.first(place).and_then(|first| self.lines.get(first));
                if staying.is_empty() && first.is_some_and(|first| first.order() == order) {
                    return Some(None);
                }
                web.begin(place, staying)
            }
        };
        self.look_along(web, spot, place, order, new_token)?;
        Some(Some(spot))
    }

    /// Adds a line up to this order.
    fn look_along<'a>(
        &'a self,
        web: &mut Web<'a>,
        spot: usize,
        place: Place<'a>,
        to: u64,
        new_token: &[u8],
    ) -> Option<()> {
        let seen_to = web.spots.get(spot)?.seen_to;
        if seen_to >= to {
            return Some(());
        }
        for waiter in self.lines.waiters_between(place, seen_to, to) {
            web.step(1)?;
            let is_new = *waiter.token == *new_token;
            if is_new && spot == NEW_SPOT {
                // The new wait stands instead of it.
                continue;
            }
            let is_known = is_new || waiter.waits_elsewhere();
            let party = is_known.then(|| web.party((&*waiter.token).into()));
            web.stand(spot, waiter, waiter.order(), party);
        }
        web.spots.get_mut(spot)?.seen_to = to;
        Some(())
    }

    /// Those holders of a lock that wait for anything, and the new wait's token. Whoever waits for nothing lets go.
    fn staying<'a>(&'a self, web: &mut Web<'a>, lock: Option<&'a Lock>, new: &[u8]) -> Option<Vec<(usize, Mode)>> {
        let mut staying = Vec::new();
        for seen in lock.into_iter().flat_map(Lock::holders) {
            web.step(1)?;
            if *seen.token == *new || !self.lines.waits_nowhere(&seen.token) {
                staying.push((web.party(seen.token.into()), seen.mode));
            }
        }
        Some(staying)
    }

    /// The lock that stands at a place where somebody waits, or was evicted from there.
    fn standing_at(&self, place: Place<'_>) -> Option<Handle> {
        let standing = |lock: &Handle| {
            let seen = self.locks.get(*lock).filter(|seen| seen.place() == place);
            seen.is_some_and(|seen| seen.linked() || self.evicted.contains(lock))
        };
        self.lines.lock_at(place).filter(standing)
    }
}

impl<'a> Web<'a> {
    /// Counts what is looked at; none once that is enough.
    fn step(&mut self, steps: usize) -> Option<()> {
        self.steps += steps;
        (self.steps <= STEPS_MAX).then_some(())
    }

    /// The party with this token.
    fn party(&mut self, token: Cow<'a, [u8]>) -> usize {
        if let Some(&known) = self.by_token.get(&token) {
            return known;
        }
        let party = self.parties.len();
        self.by_token.insert(token.clone(), party);
        self.parties.push(Party { token, ..Party::default() });
        self.open.push(party);
        party
    }

    /// Adds a lock with these holders.
    fn begin(&mut self, place: Place<'a>, holders: Vec<(usize, Mode)>) -> usize {
        let spot = self.spots.len();
        let mut staying = Staying::default();
        for (party, mode) in holders {
            staying.count(mode, true);
            self.parties.get_mut(party).into_iter().for_each(|party| party.has.push((spot, mode)));
        }
        self.spots.push(Spot { line: Vec::new(), seen_to: 0, came_in: 0, staying });
        self.by_place.insert(place, spot);
        spot
    }

    /// Adds the next one in a line.
    fn stand(&mut self, spot: usize, waiter: &Waiter, order: u64, party: Option<usize>) {
        if let Some(known) = self.spots.get_mut(spot) {
            let (mode, upgrade) = (waiter.mode, waiter.upgrade);
            known.line.push(Standing { order, party: None, mode, upgrade, has: None });
        }
        if let Some(party) = party {
            self.claim(spot, order, party);
        }
    }

    /// Notes who it is that stands in a line with this order.
    fn claim(&mut self, spot: usize, order: u64, party: usize) {
        let (Some(spots), Some(known)) = (self.spots.get_mut(spot), self.parties.get_mut(party)) else { return };
        let Ok(at) = spots.line.binary_search_by_key(&order, |standing| standing.order) else { return };
        let Some(standing) = spots.line.get_mut(at).filter(|standing| standing.party.is_none()) else { return };
        standing.party = Some(party);
        // Locks were looked at one after the other, so they are in order.
        let has = known.has.binary_search_by_key(&spot, |&(held, _)| held).ok();
        standing.has = has.and_then(|has| known.has.get(has)).map(|&(_, mode)| mode);
        known.stands.push((spot, at));
        known.waits += 1;
    }

    /// Whether the new wait closes a circle: it cannot end before its own token moves on, which waits for just that. Or
    /// another wait of its token leads to somebody whom it will stand ahead of.
    fn closes_a_circle(mut self) -> bool {
        let Some(new) = self.parties.get(NEW) else { return false };
        let Some(&(_, new_at)) = new.stands.iter().find(|&&(spot, _)| spot == NEW_SPOT) else { return false };
        if new.has.is_empty()
            && new.stands.len() == 1
            && self.spots.get(NEW_SPOT).is_some_and(|spot| spot.line.len() == new_at + 1)
        {
            // It keeps nobody waiting.
            return false;
        }
        self.hand_on();
        let (own, others): (Vec<_>, Vec<_>) = self.waits_of(NEW).copied().partition(|&(spot, _)| spot == NEW_SPOT);
        let kept_out = self.kept_out_by_new();
        self.lead(own, |spot, at| kept_out.get(spot).is_some_and(|from| from.is_some_and(|from| at >= from)))
            || self.lead(others, |spot, at| spot == NEW_SPOT && at > new_at)
    }

    /// Everybody comes in who can, and lets everything go who waits for nothing any more, but for the new wait's token.
    fn hand_on(&mut self) {
        for party in 0..self.parties.len() {
            self.let_go(party);
        }
        let mut open: Vec<usize> = (0..self.spots.len()).collect();
        while let Some(spot) = open.pop() {
            while let Some(party) = self.let_in(spot) {
                open.extend(self.let_go(party));
            }
        }
    }

    /// Lets all go that a party has, if all its waits are over. Which locks they are.
    fn let_go(&mut self, party: usize) -> Vec<usize> {
        let over = self.parties.get_mut(party).filter(|over| party != NEW && over.waits == 0);
        let has = over.map(|over| std::mem::take(&mut over.has)).unwrap_or_default();
        for &(spot, mode) in &has {
            self.spots.get_mut(spot).into_iter().for_each(|spot| spot.staying.count(mode, false));
        }
        has.into_iter().map(|(spot, _)| spot).collect()
    }

    /// Lets those in who can come in, up to the first one of whom more is known: who it is.
    fn let_in(&mut self, index: usize) -> Option<usize> {
        let spot = self.spots.get_mut(index)?;
        loop {
            let next = spot.line.get(spot.came_in)?;
            if !spot.staying.admit(next) {
                return None;
            }
            spot.came_in += 1;
            let Some(party) = next.party else { continue };
            let known = self.parties.get_mut(party)?;
            known.waits -= 1;
            if next.has.is_none() || next.upgrade {
                spot.staying.count(next.mode, true);
                known.has.push((index, next.mode));
            }
            return Some(party);
        }
    }

    /// Where a party stands in line and did not come in.
    fn waits_of(&self, party: usize) -> impl Iterator<Item = &(usize, usize)> {
        let stands = self.parties.get(party).into_iter().flat_map(|party| &party.stands);
        stands.filter(|&&(spot, at)| self.spots.get(spot).is_some_and(|spot| at >= spot.came_in))
    }

    /// Of each line, from where on the new wait's token keeps it out.
    fn kept_out_by_new(&self) -> Vec<Option<usize>> {
        let mut kept_out: Vec<Option<usize>> = vec![None; self.spots.len()];
        let behind = self.waits_of(NEW).map(|&(spot, at)| (spot, at + 1));
        let has = self.parties.get(NEW).into_iter().flat_map(|new| &new.has).map(|&(spot, _)| (spot, 0));
        for (spot, from) in behind.chain(has) {
            kept_out
                .get_mut(spot)
                .into_iter()
                .for_each(|least| *least = Some(least.map_or(from, |least| least.min(from))));
        }
        kept_out
    }

    /// Whether one of these waits leads to one like this: to somebody who keeps it out, who waits for such.
    fn lead(&self, from: Vec<(usize, usize)>, is_like: impl Fn(usize, usize) -> bool) -> bool {
        let mut has: Vec<Vec<usize>> = vec![Vec::new(); self.spots.len()];
        for (index, party) in self.parties.iter().enumerate() {
            for &(spot, _) in &party.has {
                has.get_mut(spot).into_iter().for_each(|has| has.push(index));
            }
        }
        let mut seen: Vec<bool> = vec![false; self.parties.len()];
        // Of each line those up to here were looked at.
        let mut seen_to: Vec<usize> = self.spots.iter().map(|spot| spot.came_in).collect();
        let mut open = from;
        while let Some((index, at)) = open.pop() {
            let (Some(spot), Some(has), Some(seen_to)) =
                (self.spots.get(index), has.get_mut(index), seen_to.get_mut(index))
            else {
                continue;
            };
            let ahead = spot.line.get(*seen_to..at).unwrap_or_default().iter().filter_map(|ahead| ahead.party);
            *seen_to = at.max(*seen_to);
            for party in std::mem::take(has).into_iter().chain(ahead).filter(|&party| party != NEW) {
                if seen.get_mut(party).is_none_or(|seen| std::mem::replace(seen, true)) {
                    continue;
                }
                for &(spot, at) in self.waits_of(party) {
                    if is_like(spot, at) {
                        return true;
                    }
                    open.push((spot, at));
                }
            }
        }
        false
    }
}

impl Staying {
    /// One more who stays, or one less.
    fn count(&mut self, mode: Mode, more: bool) {
        let change = |count: &mut usize| *count = if more { *count + 1 } else { count.saturating_sub(1) };
        match mode {
            Mode::Exclusive => change(&mut self.exclusive),
            Mode::Shared(limit) => {
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

    /// Whether this one can come in. What it has of the lock is not in its own way, and is all it gets but for an upgrade.
    fn admit(&mut self, next: &Standing) -> bool {
        let Some(has) = next.has else { return self.occupancy().admits(next.mode) };
        if !next.upgrade {
            return true;
        }
        self.count(has, false);
        let admits = self.occupancy().admits(next.mode);
        self.count(has, true);
        admits
    }

    fn occupancy(&self) -> Occupancy {
        match (self.exclusive, self.shared) {
            (0, 0) => Occupancy::Free,
            (0, count) => {
                let smallest_limit = self.limits.first_key_value().map(|(&limit, _)| limit);
                Occupancy::Shared { count, smallest_limit }
            }
            _ => Occupancy::Exclusive,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::holding::{Acquire, Acquired};
    use super::super::scene::{at, by, lease, poll, shared, END_US, START_US};
    use super::super::{Effect, Legacy, Limits, Site};
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

        /// How much is looked at for a wait that stands in line.
        fn steps_of(&self, key: &str, token: &[u8]) -> usize {
            let lines = &self.table.lines;
            let waiter = lines.find(place(key), token).and_then(|waiter| lines.get(waiter)).unwrap();
            let new = New { held: self.locks.get(key).copied(), waiter, order: waiter.order(), passes: false };
            let mut web = Web::default();
            self.table.weave(&mut web, new);
            web.steps
        }

        fn acquire(&mut self, key: &str, mut request: Acquire<'_>) -> Acquired {
            request.limits = Limits { blocked: 100, polled: 2 * STEPS_MAX };
            // Locks of another library are named so.
            let legacy = key.starts_with("legacy").then_some(Legacy { value: b"another", ttl_ms: LONG_MS });
            let site = Site { place: place(key), lock: self.locks.get(key).copied(), legacy };
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

    #[track_caller]
    fn assert_given_up(steps: usize) {
        assert!((STEPS_MAX + 1..=STEPS_MAX + STEPS_OF_WAIT).contains(&steps), "{steps}");
    }

    #[test]
    fn a_circle_is_found_among_very_many_holders() {
        let mut scene = Scene::new(300);
        assert_eq!(scene.acquire("of p", poll(by("z"), END_US)), Acquired::Deadlock);
    }

    #[test]
    fn the_search_ends_within_the_waits_of_one_token() {
        let mut scene = Scene::new(2 * STEPS_MAX / HOLDERS);
        assert_eq!(scene.acquire("of p", poll(by("z"), END_US)), Acquired::Held);
        assert_given_up(scene.steps_of("of p", b"z"));
    }

    #[test]
    fn the_search_ends_within_waits_that_come_in_at_once() {
        let mut scene = Scene::new(0);
        for lock in 0..=STEPS_MAX {
            assert_eq!(scene.acquire(&format!("legacy {lock}"), poll(by("p"), END_US)), Acquired::Held);
        }
        assert_eq!(scene.acquire("of p", poll(by("z"), END_US)), Acquired::Held);
        assert_given_up(scene.steps_of("of p", b"z"));
    }

    #[test]
    fn the_search_ends_within_the_holders_of_one_lock() {
        let mut scene = Scene::new(0);
        for holder in 0..=STEPS_MAX {
            scene.acquire("wide", lease(shared(by(&format!("h{holder}"))), LONG_MS));
        }
        assert_eq!(scene.acquire("wide", poll(by("p"), END_US)), Acquired::Held);
        assert_eq!(scene.acquire("of p", poll(by("z"), END_US)), Acquired::Held);
        assert_given_up(scene.steps_of("of p", b"z"));
    }

    /// Each of very many stands in one line and in one of its own: the line is looked at once.
    #[test]
    fn a_line_is_looked_at_once_however_many_of_it_wait_elsewhere() {
        const WAITERS: usize = 3_000;
        let mut scene = Scene::new(0);
        scene.acquire("wide", lease(by("h"), LONG_MS));
        for waiter in 0..WAITERS {
            let own = format!("own {waiter}");
            scene.acquire(&own, lease(by("h"), LONG_MS));
            for key in ["wide", &own] {
                assert_eq!(scene.acquire(key, poll(shared(by(&format!("w{waiter}"))), END_US)), Acquired::Held);
            }
        }
        assert_eq!(scene.acquire("wide", poll(shared(by("z")), END_US)), Acquired::Held);
        let steps = scene.steps_of("wide", b"z");
        assert!((WAITERS..4 * STEPS_OF_WAIT * WAITERS).contains(&steps), "{steps}");
    }

    #[test]
    fn who_waits_nowhere_else_costs_little_beside_one_who_does() {
        const WAITERS: usize = 3_000;
        let mut scene = Scene::new(0);
        for key in ["wide", "own"] {
            scene.acquire(key, lease(by("h"), LONG_MS));
            assert_eq!(scene.acquire(key, poll(by("e"), END_US)), Acquired::Held);
        }
        for waiter in 0..WAITERS {
            assert_eq!(scene.acquire("wide", poll(by(&format!("w{waiter}")), END_US)), Acquired::Held);
        }
        assert_eq!(scene.acquire("wide", poll(by("z"), END_US)), Acquired::Held);
        let steps = scene.steps_of("wide", b"z");
        assert!((WAITERS..WAITERS + 100).contains(&steps), "{steps}");
    }
}
