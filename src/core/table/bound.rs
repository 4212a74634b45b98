//! Holds that end with their connection. Which connection that is lives here and nowhere else: it is never saved and
//! never replicated, so after a restart or a failover only the lease bounds such a hold.

use super::{Ended, Site, Table};
use crate::core::slab::Handle;
use crate::core::time::Now;
use std::collections::BTreeMap;

/// A hold by lock and token.
pub type BoundHold = (Handle, Box<[u8]>);

/// Holds by the connection they end with.
#[derive(Default)]
pub(super) struct Bound {
    by_client: BTreeMap<u64, Vec<BoundHold>>,
}

impl Bound {
    fn add(&mut self, client: u64, lock: Handle, token: &[u8]) {
        self.by_client.entry(client).or_default().push((lock, token.into()));
    }

    fn remove(&mut self, client: u64, lock: Handle, token: &[u8]) {
        let Some(holds) = self.by_client.get_mut(&client) else { return };
        holds.retain(|(other, theirs)| *other != lock || **theirs != *token);
        if holds.is_empty() {
            self.by_client.remove(&client);
        }
    }
}

impl Table {
    /// Binds a hold to the connection that acquired it last, or unbinds it.
    pub(super) fn bind(&mut self, lock: Handle, token: &[u8], client: u64, ephemeral: bool) {
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

    /// Forgets which connection a hold ends with.
    pub(super) fn unbind(&mut self, lock: Handle, token: &[u8]) {
        let hold = self.locks.get(lock).and_then(|lock| lock.hold(token));
        if let Some(client) = hold.filter(|hold| hold.is_ephemeral()).map(|hold| hold.client) {
            self.bound.remove(client, lock, token);
        }
    }

    /// Forgets which connections the holds of a lock end with.
    pub(super) fn unbind_all(&mut self, handle: Handle) {
        if !self.has_bound() {
            return;
        }
        let Some(lock) = self.locks.get(handle) else { return };
        for seen in lock.holders().filter(|seen| seen.hold.is_ephemeral()) {
            self.bound.remove(seen.hold.client, handle, seen.token);
        }
    }

    /// A copy of a lock takes its place: its holds end with the same connections.
    pub(super) fn bind_copy(&mut self, copy: Handle) {
        let Some(lock) = self.locks.get(copy) else { return };
        for seen in lock.holders().filter(|seen| seen.hold.is_ephemeral()) {
            self.bound.add(seen.hold.client, copy, seen.token);
        }
    }

    /// Forgets all connections that holds end with: only their leases do from now on.
    pub(super) fn unbind_everywhere(&mut self) {
        for (lock, token) in std::mem::take(&mut self.bound).by_client.into_values().flatten() {
            self.update(lock, |lock| lock.update(&token, |hold| hold.set_ephemeral(false)));
        }
    }

    /// Whether any hold ends with its connection.
    pub fn has_bound(&self) -> bool {
        !self.bound.by_client.is_empty()
    }

    /// The connection closed: the holds that end with it.
    pub fn closed(&mut self, client: u64) -> Vec<BoundHold> {
        self.bound.by_client.remove(&client).unwrap_or_default()
    }

    /// Whether a hold still ends with this connection, which closed.
    pub fn is_bound(&self, lock: Handle, token: &[u8], client: u64) -> bool {
        let hold = self.locks.get(lock).and_then(|lock| lock.hold(token));
        hold.is_some_and(|hold| hold.is_ephemeral() && hold.client == client)
    }

    /// Ends a hold whose connection closed, if it still is bound to that connection.
    pub fn end_bound(&mut self, site: Site<'_>, token: &[u8], client: u64, now: Now) {
        if site.lock.is_some_and(|lock| self.is_bound(lock, token, client)) {
            self.end_hold(site, token, Ended::Released);
            self.settle(site, now);
        }
    }
}
