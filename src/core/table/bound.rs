//! Holds that end with their connection. Which connection that is lives here and nowhere else: it is never saved and
//! never replicated, so after a restart or a failover only the lease bounds such a hold.

use super::{Ended, Site, Table};
use crate::core::hold::Hold;
use crate::core::packed::Packed;
use crate::core::slab::Handle;
use crate::core::time::Now;
use crate::seeded::bug;
use std::collections::{BTreeMap, BTreeSet};

/// A hold by lock and token.
pub type BoundHold = (Handle, Box<[u8]>);

/// Holds by the connection they end with. A connection may have a million: none of them is looked for one by one.
#[derive(Default)]
pub(super) struct Bound {
    by_client: BTreeMap<u64, BTreeSet<BoundHold>>,
}

impl Bound {
    fn add(&mut self, client: u64, lock: Handle, token: Packed<'_>) {
        self.by_client.entry(client).or_default().insert((lock, token.given().into()));
    }

    fn remove(&mut self, client: u64, lock: Handle, token: Packed<'_>) {
        let Some(holds) = self.by_client.get_mut(&client) else { return };
        holds.remove(&(lock, token.given().into()));
        if holds.is_empty() {
            self.by_client.remove(&client);
        }
    }
}

/// The connection a hold ends with, and the one that the hold from before an upgrade ends with.
fn connections(hold: &Hold) -> [Option<u64>; 2] {
    let of = |hold: &Hold| hold.is_ephemeral().then_some(hold.client);
    [of(hold), hold.before_upgrade().and_then(|before| of(&before.hold))]
}

impl Table {
    /// Binds a hold to the connection that acquired it last, or unbinds it.
    pub(super) fn bind(&mut self, lock: Handle, token: Packed<'_>, client: u64, ephemeral: bool) {
        self.unbind(lock, token);
        let mut bound = false;
        self.update(lock, |lock| {
            lock.update(token, |hold| {
                hold.client = client;
                hold.set_ephemeral(ephemeral);
                bound = ephemeral;
            });
        });
        if bound {
            self.bound.add(client, lock, token);
        }
    }

    /// Forgets which connection a hold ends with, but not what the hold from before an upgrade ends with.
    pub(super) fn unbind(&mut self, lock: Handle, token: Packed<'_>) {
        let [own, before] = self.connections_of(lock, token);
        if let Some(client) = own.filter(|_| own != before) {
            self.bound.remove(client, lock, token);
        }
    }

    /// Forgets what the hold from before an upgrade ends with: nothing falls back to it any more.
    pub(super) fn unbind_before(&mut self, lock: Handle, token: Packed<'_>) {
        let [own, before] = self.connections_of(lock, token);
        if let Some(client) = before.filter(|_| own != before) {
            self.bound.remove(client, lock, token);
        }
    }

    /// Forgets which connections a hold ends with: it is over.
    pub(super) fn unbind_ended(&mut self, lock: Handle, token: Packed<'_>) {
        for client in self.connections_of(lock, token).into_iter().flatten() {
            self.bound.remove(client, lock, token);
        }
    }

    fn connections_of(&self, lock: Handle, token: Packed<'_>) -> [Option<u64>; 2] {
        if !self.has_bound() {
            return [None; 2];
        }
        let hold = self.locks.get(lock).and_then(|lock| lock.hold(token));
        hold.map_or([None; 2], |hold| connections(&hold))
    }

    /// Forgets which connections the holds of a lock end with.
    pub(super) fn unbind_all(&mut self, handle: Handle) {
        if !self.has_bound() {
            return;
        }
        let Some(lock) = self.locks.get(handle) else { return };
        for seen in lock.holders() {
            for client in connections(&seen.hold).into_iter().flatten() {
                self.bound.remove(client, handle, Packed::of(&seen.token));
            }
        }
    }

    /// A copy of a lock takes its place: its holds end with the same connections.
    pub(super) fn bind_copy(&mut self, copy: Handle) {
        let Some(lock) = self.locks.get(copy) else { return };
        for seen in lock.holders() {
            for client in connections(&seen.hold).into_iter().flatten() {
                self.bound.add(client, copy, Packed::of(&seen.token));
            }
        }
    }

    /// Forgets all connections that holds end with: only their leases do from now on. The holds say so themselves.
    pub(super) fn unbind_everywhere(&mut self) {
        self.bound = Bound::default();
    }

    /// Whether any hold ends with its connection.
    pub fn has_bound(&self) -> bool {
        !self.bound.by_client.is_empty()
    }

    /// The connection closed: the holds that end with it.
    pub fn closed(&mut self, client: u64) -> Vec<BoundHold> {
        self.bound.by_client.remove(&client).into_iter().flatten().collect()
    }

    /// Whether a hold, or the one from before an upgrade, still ends with this connection, which closed.
    pub fn is_bound(&self, lock: Handle, token: &[u8], client: u64) -> bool {
        let hold = self.locks.get(lock).and_then(|lock| lock.hold(Packed::of(token)));
        hold.is_some_and(|hold| bug("ephemeral-ends-though-rebound") || connections(&hold).contains(&Some(client)))
    }

    /// Ends a hold whose connection closed, if it still is bound to that connection. An upgrade nobody heard of only
    /// falls back, unless what it falls back to ends with that connection.
    pub fn end_bound(&mut self, site: Site<'_>, token: &[u8], client: u64, now: Now) {
        let token = Packed::of(token);
        let hold = site.lock.and_then(|lock| Some((lock, self.locks.get(lock)?.hold(token)?)));
        let Some((lock, [own, before])) = hold.map(|(lock, hold)| (lock, connections(&hold))) else { return };
        if before == Some(client) {
            self.update(lock, |lock| lock.update(token, Hold::forget_before));
        }
        if own != Some(client) && !bug("ephemeral-ends-though-rebound") {
            return;
        }
        let hold = self.locks.get(lock).and_then(|lock| lock.hold(token));
        if hold.is_some_and(|hold| hold.before_upgrade().is_some()) {
            self.fall_back(lock, token);
        } else {
            self.end_hold(site, token, Ended::Released);
        }
        self.settle(site, now);
    }
}
