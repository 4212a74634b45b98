//! Deadlocks: a waiter waits for the holder and for whoever is ahead of it. A wait that would close a cycle over tokens
//! would never end by itself, so it is refused.

use super::Table;
use crate::core::lock::Lock;
use crate::core::name::{Place, Token};
use crate::core::slab::Handle;
use std::collections::HashMap;

impl Table {
    /// Whether the token, waiting last in line for the lock that `held` holds, would wait for itself.
    ///
    /// Follows holders, and waiters ahead whose tokens wait elsewhere too: any other waiter ahead waits for nothing that
    /// is not looked at anyway. Each line is looked at again only for more of it.
    pub(super) fn would_never_end(&self, held: Handle, place: Place<'_>, token: Token<'_>) -> bool {
        let mut seen: HashMap<Place<'_>, u64> = HashMap::new();
        let mut open = vec![(place, u64::MAX)];
        while let Some((place, before)) = open.pop() {
            if seen.get(&place).is_some_and(|&seen| seen >= before) {
                continue;
            }
            seen.insert(place, before);
            let lock = if seen.len() == 1 { Some(held) } else { self.lines.lock_at(place) };
            let holder = lock.and_then(|lock| self.locks.get(lock)).map(Lock::token);
            if holder == Some(token.bytes()) || self.waits_before(place, before, token) {
                return true;
            }
            let waits = holder.into_iter().flat_map(|holder| self.lines.waits_of(holder).iter().copied());
            let ahead = self.lines.entangled_before(place, before);
            let ahead = ahead.iter().filter_map(|&waiter| self.lines.get(waiter));
            let elsewhere = ahead.flat_map(|waiter| self.lines.waits_of(&waiter.token).iter().copied());
            for waiter in waits.chain(elsewhere) {
                open.extend(self.lines.get(waiter).map(|waiter| (waiter.place(), waiter.order())));
            }
        }
        false
    }

    fn waits_before(&self, place: Place<'_>, before: u64, token: Token<'_>) -> bool {
        let waiter = self.lines.find(place, token.bytes()).and_then(|waiter| self.lines.get(waiter));
        waiter.is_some_and(|waiter| waiter.order() < before)
    }
}
