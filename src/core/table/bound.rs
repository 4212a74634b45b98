//! Holds that end with their connection. Which connection that is lives here and nowhere else: it is never saved and
//! never replicated, so after a restart or a failover only the lease bounds such a hold.

use super::{Ended, Site, Table};
use crate::core::name::Token;
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

    /// Whether any hold ends with its connection.
    pub fn has_bound(&self) -> bool {
        !self.bound.by_client.is_empty()
    }

    /// The connection closed: the holds that end with it.
    pub fn closed(&mut self, client: u64) -> Vec<BoundHold> {
        self.bound.by_client.remove(&client).unwrap_or_default()
    }

    /// Ends a hold whose connection closed, if it still is bound to that connection.
    pub fn end_bound(&mut self, site: Site<'_>, token: Token<'_>, client: u64, now: Now) {
        let hold = site.lock.and_then(|lock| self.locks.get(lock)?.hold(token.bytes()));
        if hold.is_some_and(|hold| hold.is_ephemeral() && hold.client == client) {
            self.end_hold(site, token.bytes(), Ended::Released);
            self.serve(site.lock, site.place, now);
        }
    }
}
