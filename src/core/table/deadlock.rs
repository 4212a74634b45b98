//! Deadlocks. A waiter waits for whoever is ahead of it and for the holders: for all of them, or, where the limit of a
//! shared lock is full, for any one. A wait that would close a cycle over tokens would never end by itself, so it is
//! refused.

use super::Table;
use crate::core::hold::Mode;
use crate::core::line::Waiter;
use crate::core::lock::Lock;
use crate::core::name::Place;
use crate::core::slab::Handle;
use std::collections::{HashMap, HashSet};

/// How many waits are looked at before a deadlock is ruled out: bounds the time one command can take.
const WAITS_MAX: usize = 10_000;

/// What a wait waits for: tokens, each of which must move on, or of which one is enough.
struct Need<'a> {
    all: Vec<&'a [u8]>,
    any: Vec<&'a [u8]>,
}

impl Table {
    /// Whether the waiter, joining the line of the lock that `held` is, would wait for itself.
    ///
    /// Collects the waits that can be reached, then marks those that lead back until nothing changes.
    pub(super) fn would_never_end(&self, held: Option<Handle>, waiter: &Waiter) -> bool {
        let first = self.need(held, waiter, u64::MAX);
        let mut needs: HashMap<Handle, Need<'_>> = HashMap::new();
        let mut open: Vec<&[u8]> = first.all.iter().chain(&first.any).copied().collect();
        let mut seen: HashSet<&[u8]> = HashSet::new();
        while let Some(token) = open.pop() {
            if !seen.insert(token) {
                continue;
            }
            for &wait in self.lines.waits_of(token) {
                let Some(theirs) = self.lines.get(wait) else { continue };
                let need = self.need(self.lines.lock_at(theirs.place()), theirs, theirs.order());
                open.extend(need.all.iter().chain(&need.any));
                needs.insert(wait, need);
            }
            if needs.len() > WAITS_MAX {
                return false;
            }
        }
        if needs.is_empty() {
            return false;
        }
        let mut stuck: HashSet<&[u8]> = HashSet::from([&*waiter.token]);
        loop {
            let before = stuck.len();
            for &token in &seen {
                let waits = self.lines.waits_of(token);
                if waits.iter().any(|wait| needs.get(wait).is_some_and(|need| need.is_stuck(&stuck))) {
                    stuck.insert(token);
                }
            }
            if first.is_stuck(&stuck) {
                return true;
            }
            if stuck.len() == before {
                return false;
            }
        }
    }

    /// What a waiter waits for. Of those ahead only tokens that wait elsewhere too are named: any other waits for
    /// nothing that is not looked at anyway.
    fn need<'a>(&'a self, lock: Option<Handle>, waiter: &Waiter, before: u64) -> Need<'a> {
        let lock = lock.and_then(|lock| self.locks.get(lock));
        let holders = lock.into_iter().flat_map(Lock::holders).map(|seen| seen.token);
        let holders: Vec<&[u8]> = holders.filter(|&token| *token != *waiter.token).collect();
        // Whoever wants the lock alone and is ahead waits for all holders, and so does whoever is behind.
        let ahead = self.lines.waiters(waiter.place()).take_while(|(_, ahead)| ahead.order() < before);
        let all_share =
            waiter.mode != Mode::Exclusive && ahead.into_iter().all(|(_, ahead)| ahead.mode != Mode::Exclusive);
        let one_is_enough = all_share && lock.is_some_and(|lock| !lock.is_exclusive());
        let mut need = match one_is_enough {
            true => Need { all: Vec::new(), any: holders },
            false => Need { all: holders, any: Vec::new() },
        };
        if !waiter.upgrade {
            let place: Place<'_> = waiter.place();
            let ahead = self.lines.entangled_before(place, before);
            let ahead = ahead.into_iter().filter_map(|ahead| self.lines.get(ahead));
            need.all.extend(ahead.map(|ahead| &*ahead.token).filter(|&token| *token != *waiter.token));
            need.all.extend(self.upgrader_ahead(waiter));
        }
        need
    }

    /// A token that waits for an upgrade holds the lock as well as waits for it.
    fn upgrader_ahead(&self, waiter: &Waiter) -> Option<&[u8]> {
        let first = self.lines.get(self.lines.first(waiter.place())?)?;
        (first.upgrade && *first.token != *waiter.token).then_some(&*first.token)
    }
}

impl Need<'_> {
    fn is_stuck(&self, stuck: &HashSet<&[u8]>) -> bool {
        self.all.iter().any(|token| stuck.contains(token))
            || !self.any.is_empty() && self.any.iter().all(|token| stuck.contains(token))
    }
}
