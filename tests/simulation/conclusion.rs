//! What follows from whatever a server did: changes are replicated, waiters are told, promises are noted, and the judge
//! looks at the lock.

use super::client::{Client, Reply};
use super::judge::Promise;
use super::node::{Place, Sitter};
use super::world::{World, MS};
use redis_lock::core::fence::Fence;
use redis_lock::core::hold::{Delivery, Mode};
use redis_lock::core::slab::Handle;
use redis_lock::core::table::Answer;

/// Changes the primary keeps for replicas that come back.
const BACKLOG: usize = 500;
/// Changes after which an append-only file is rewritten.
const FILE_RECORDS: usize = 2_000;

impl World {
    /// Records what a server did to a lock, tells whoever is to be told, and looks at the lock. `takes`: who has it since
    /// without having waited.
    pub fn conclude(&mut self, index: usize, key: u8, before: &[Place], takes: Option<&Vec<u8>>) {
        let serving = self.nodes[index].lineage == self.lineage;
        let mut served: Vec<Vec<u8>> = takes.into_iter().cloned().collect();
        self.publish(index, serving);
        for (seat, answer) in std::mem::take(&mut self.nodes[index].answers) {
            let Some(sitter) = self.nodes[index].seats.remove(&seat.0) else {
                panic!("nobody sits where {answer:?} is told");
            };
            if let Answer::Granted { .. } = answer {
                served.push(sitter.token.clone());
            }
            self.tell(index, seat.0, &sitter, &answer);
        }
        let node = &self.nodes[index];
        let polled = |token: &&Vec<u8>| node.holders(key).any(|seen| *seen.token == ***token);
        let left = node.line(key);
        let gone = before.iter().filter(|place| !left.contains(place)).map(|place| &place.0);
        served.extend(gone.filter(polled).cloned());
        if self.is_told {
            eprintln!("    {}", node.told(key));
        }
        if serving {
            self.judge.inspect(node, key, self.now, before, &served);
        }
        if self.nodes[index].file_len() > FILE_RECORDS {
            self.nodes[index].rewrite(self.now);
        }
        self.arm(index);
    }

    fn publish(&mut self, index: usize, serving: bool) {
        for record in std::mem::take(&mut self.nodes[index].made) {
            self.judge.record(&record, serving, self.now < self.nodes[index].grace_until);
            if serving {
                self.history.push_back(record);
            }
        }
        while self.history.len() > BACKLOG {
            self.history.pop_front();
        }
    }

    fn tell(&mut self, index: usize, seat: u64, sitter: &Sitter, answer: &Answer) {
        let client = self.client_of(seat);
        let Answer::Granted { lock, fence, ttl_ms, waited_ms } = *answer else {
            let reply = if *answer == Answer::Empty { Reply::No } else { Reply::Error };
            return client.into_iter().for_each(|client| self.reply(client, seat, reply));
        };
        let (key, token, now) = (sitter.key, sitter.token.clone(), self.now);
        // A connection that is killed in the turn in which it is granted the lock is never told.
        if self.dice.percent(3) {
            return self.take_back(index, key, lock, fence);
        }
        let node = &mut self.nodes[index];
        let at = node.now(now).instant;
        let delivered = node.table.deliver(lock, &token, fence, at);
        if !delivered {
            // An upgrade can come in the last ms of its lease.
            assert_eq!(ttl_ms, 0, "{now}: a grant does not hold in the turn in which it is made");
            self.take_back(index, key, lock, fence);
            return client.into_iter().for_each(|client| self.reply(client, seat, Reply::Error));
        }
        if let Some(client) = client {
            let sent_us = self.clients[client].asked.as_ref().map_or(0, |asked| asked.sent_us);
            self.promise(index, key, &token, seat, sent_us + (waited_ms + ttl_ms) * MS);
            self.reply(client, seat, Reply::Yes);
        }
    }

    /// Nobody was told of this grant.
    fn take_back(&mut self, index: usize, key: u8, lock: Handle, fence: Fence) {
        let before = self.nodes[index].line(key);
        self.nodes[index].ask(key, self.now, &mut self.next_id, |table, site, now| {
            table.void(lock, fence, now.instant);
            table.settle(site, now);
        });
        self.conclude(index, key, &before, None);
    }

    /// The client that still waits on this connection.
    pub fn client_of(&self, connection: u64) -> Option<usize> {
        let waits = |client: &Client| client.asked.as_ref().is_some_and(|asked| asked.id == connection);
        self.clients.iter().position(waits)
    }

    /// The token holds the lock, and is about to be told so. What one that was left behind tells is lost, and is true only
    /// where the one that counts waits until it is over.
    pub fn promise(&mut self, index: usize, key: u8, token: &[u8], ticket: u64, until_us: u64) {
        let lost = self.nodes[index].lineage != self.lineage;
        if lost && self.rules.grace_ms == 0 {
            return;
        }
        let mut holders = self.nodes[index].holders(key);
        let seen = holders.find(|seen| *seen.token == *token).expect("who is told holds the lock");
        // An upgrade that is to be fetched is not known yet.
        let mode = match seen.hold.before_upgrade() {
            Some(before) if seen.hold.delivery == Delivery::Unfetched => Mode::Shared(before.limit),
            _ => seen.mode,
        };
        let record = if lost { 0 } else { self.judge.rests_on(key, token) };
        let token = token.to_vec();
        self.judge.promise(Promise { key, token, mode, until_us, record, ticket, known: false, lost });
    }
}
