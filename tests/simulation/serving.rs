//! What a server does: commands and the pump, as the engine has them.

use super::client::{Reply, Request, Way, What};
use super::node::Sitter;
use super::world::World;
use redis_lock::core::fence::{Fence, STRANGER_BOUND_TICKS};
use redis_lock::core::line::Seat;
use redis_lock::core::name::{HoldName, Label, Token};
use redis_lock::core::table::{Acquire, Acquired, Answer, Ask, ExtendOutcome, Limits, ReleaseOutcome, Wait};
use redis_lock::core::time::Lease;

const MS: u64 = 1_000;
const LIMITS: Limits = Limits { blocked: 100, polled: 100 };

/// What a command leads to.
enum Outcome {
    /// The lock is the token's for this many ms.
    Held(u64),
    Tell(Reply),
    /// The connection is blocked.
    Waits,
}

impl World {
    /// Carries a command out.
    pub fn serve(&mut self, index: usize, request: &Request) {
        let (key, now) = (request.key, self.now);
        let serving = self.nodes[index].lineage == self.lineage;
        let before = self.nodes[index].line(key);
        let held = self.nodes[index].holders(key).any(|seen| *seen.token == *request.token);
        let relies = serving && self.judge.counts_on(key, &request.token, now);
        let outcome = match &request.what {
            What::Acquire { .. } => self.acquire(index, request),
            What::Release(name) => self.release(index, request, name.as_deref()),
            What::Extend(..) | What::Check | What::Guard => {
                let outcome = self.question(index, request);
                assert!(
                    !relies || !matches!(outcome, Outcome::Tell(Reply::No)),
                    "{now}: a promise is broken: {request:?}"
                );
                outcome
            }
        };
        // Who takes a lock is served by that, as is who waited for it.
        let takes = matches!((&request.what, &outcome), (What::Acquire { .. }, Outcome::Held(_))) && !held;
        self.conclude(index, key, &before, takes.then_some(&request.token));
        match outcome {
            Outcome::Held(ms) => {
                self.promise(index, key, &request.token, request.id, request.sent_us + ms * MS);
                self.reply(request.client, request.id, Reply::Yes);
            }
            Outcome::Tell(reply) => self.reply(request.client, request.id, reply),
            Outcome::Waits => {}
        }
    }

    fn acquire(&mut self, index: usize, request: &Request) -> Outcome {
        let What::Acquire { mode, turn, lease_ms, ref name, cap_ms, ephemeral, way } = request.what else {
            panic!("not an ACQUIRE: {request:?}");
        };
        let node = &mut self.nodes[index];
        let received = node.now(self.now).instant;
        let seat = Seat(request.id);
        let wait = match way {
            Way::Try => Wait::No,
            Way::Block(ms) => Wait::Block(seat, ms.map(|ms| received.after_ms(ms))),
            Way::Poll(ms) => Wait::Poll(received.after_ms(ms)),
        };
        let name = name.as_deref().and_then(HoldName::new);
        let lease = Lease::from_ms(lease_ms).expect("a lease");
        let ask = Ask { mode, turn, lease, name, cap_ms, ephemeral };
        let token = Token::new(&request.token).expect("a token");
        let wanted = Acquire { token, ask, label: Label::cut(b""), client: request.id, wait, limits: LIMITS };
        let acquired =
            node.ask(request.key, self.now, &mut self.next_id, |table, site, now| table.acquire(site, &wanted, now));
        match acquired {
            Acquired::Granted { ttl_ms, .. } => Outcome::Held(ttl_ms),
            Acquired::Waits(waiter) => {
                let sitter = Sitter { waiter, key: request.key, token: request.token.clone() };
                node.seats.insert(request.id, sitter);
                Outcome::Waits
            }
            Acquired::Held => Outcome::Tell(Reply::No),
            Acquired::Grace(left_ms) => {
                assert!(left_ms > 0, "a grace that is over: {request:?}");
                Outcome::Tell(Reply::Error)
            }
            Acquired::HeldShared | Acquired::NotHeld | Acquired::Deadlock | Acquired::TooManyHolds => {
                Outcome::Tell(Reply::Error)
            }
            other => panic!("{other:?} to {request:?}"),
        }
    }

    fn question(&mut self, index: usize, request: &Request) -> Outcome {
        let token = Token::new(&request.token).expect("a token");
        let node = &mut self.nodes[index];
        let left_ms = match request.what {
            What::Extend(lease_ms, above) => {
                let lease = lease_ms.and_then(Lease::from_ms);
                let highest = node.table.fences().highest();
                let floor = above.and_then(|above| Fence::new(highest + above));
                let (extended, wall) = node.ask(request.key, self.now, &mut self.next_id, |table, site, now| {
                    (table.extend(site, token, lease, floor, now), now.ticks)
                });
                let fence =
                    node.holders(request.key).find(|seen| *seen.token == *request.token).map(|seen| seen.hold.fence);
                match extended {
                    ExtendOutcome::Extended(ms) => {
                        assert!(floor.is_none() || fence == floor, "{fence:?} with a floor of {floor:?}");
                        ms
                    }
                    ExtendOutcome::NotHeld => {
                        let after = node.table.fences().highest();
                        // Whoever was first in line may have got the lock.
                        let is_granted = node.holders(request.key).any(|seen| seen.hold.fence.get() == after);
                        assert!(after == highest || is_granted, "a stranger raised the fences: {request:?}");
                        0
                    }
                    ExtendOutcome::FloorAhead => {
                        let bound = wall.get() + STRANGER_BOUND_TICKS;
                        assert!(floor.is_some_and(|floor| floor.get() > bound), "{floor:?} is refused");
                        return Outcome::Tell(Reply::Error);
                    }
                }
            }
            What::Guard => {
                let holds = node
                    .ask(request.key, self.now, &mut self.next_id, |table, site, now| table.guard(site, token, now));
                u64::from(holds)
            }
            _ => node.ask(request.key, self.now, &mut self.next_id, |table, site, now| {
                table.check(site, token, now.instant)
            }),
        };
        match (left_ms, &request.what) {
            (0, _) => Outcome::Tell(Reply::No),
            // An untold grant is told by any of these, but only the length of a lease is a promise.
            (_, What::Guard) => Outcome::Tell(Reply::Yes),
            (ms, _) => Outcome::Held(ms),
        }
    }

    fn release(&mut self, index: usize, request: &Request, name: Option<&[u8]>) -> Outcome {
        let token = Token::new(&request.token).expect("a token");
        let node = &mut self.nodes[index];
        let holds = |node: &super::node::Node| {
            let mut holders = node.saved(request.key).into_iter();
            holders.find(|holder| holder.0 == request.token).map(|holder| (holder.4, holder.5))
        };
        let before = holds(node);
        let hold_name = name.and_then(HoldName::new);
        let released = node.ask(request.key, self.now, &mut self.next_id, |table, site, now| {
            table.release(site, token, hold_name, now)
        });
        let after = holds(node);
        match (name, before) {
            (Some(name), Some((unnamed, names))) if after.is_some() => {
                let left: Vec<_> = names.iter().filter(|other| *other != name).cloned().collect();
                assert_eq!(released == ReleaseOutcome::Released, left.len() < names.len(), "{request:?}");
                assert_eq!(after, Some((unnamed, left)), "a hold more or less was given back: {request:?}");
            }
            (None, _) => assert_eq!(after, None, "a release leaves a hold: {request:?}"),
            _ => {}
        }
        Outcome::Tell(if released == ReleaseOutcome::Released { Reply::Yes } else { Reply::No })
    }

    /// The pump: what no command is there to do.
    pub fn pump(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        node.pump_at = None;
        if !node.table.is_serving() {
            return;
        }
        let now = node.now(self.now).instant;
        if node.frozen_until > self.now {
            let until = node.frozen_until;
            node.pump_at = Some(until);
            return self.at(until, super::world::Event::Pump { node: index });
        }
        self.nodes[index].table.end_grace(now);
        for (connection, (lock, token)) in std::mem::take(&mut self.nodes[index].closed) {
            let Some(key) = self.nodes[index].table.get(lock).map(|lock| lock.place().key[0]) else { continue };
            self.look(index, key, |table, site, now| table.end_bound(site, &token, connection, now));
        }
        while let Some(key) = self.next_due(index) {
            self.look(index, key, |table, site, now| {
                table.settle(site, now);
            });
        }
        let stirred: Vec<_> = std::iter::from_fn(|| self.nodes[index].table.next_stirred()).collect();
        for (_, key) in stirred {
            self.look(index, key[0], |table, site, now| {
                table.settle(site, now);
            });
        }
        while let Some((waiter, key)) = self.next_over(index) {
            self.look(index, key, |table, site, now| {
                table.settle(site, now);
                let answer = match table.grace_left_ms(now.instant) {
                    0 => Answer::Empty,
                    left_ms => Answer::Grace(left_ms),
                };
                table.end_wait(waiter, answer);
            });
        }
        self.arm(index);
    }

    fn next_due(&mut self, index: usize) -> Option<u8> {
        let node = &mut self.nodes[index];
        let now = node.now(self.now).instant;
        let due = node.table.next_due(now)?;
        let key = node.table.get(due).map(|lock| lock.place().key[0]);
        assert_eq!(key.and_then(|key| node.keys.get(&key)), Some(&due), "a lock that ends stands where it says");
        key
    }

    fn next_over(&self, index: usize) -> Option<(redis_lock::core::slab::Handle, u8)> {
        let node = &self.nodes[index];
        let waiter = node.table.lines().next_over(node.now(self.now).instant)?;
        Some((waiter, node.table.lines().get(waiter)?.place().key[0]))
    }

    fn look(
        &mut self,
        index: usize,
        key: u8,
        question: impl FnOnce(
            &mut redis_lock::core::table::Table,
            redis_lock::core::table::Site<'_>,
            redis_lock::core::time::Now,
        ),
    ) {
        let before = self.nodes[index].line(key);
        self.nodes[index].ask(key, self.now, &mut self.next_id, question);
        self.conclude(index, key, &before, None);
    }

    /// DEL by an administrator. Whoever waits there gets the lock from the pump.
    pub fn delete(&mut self, key: u8) {
        let index = self.primary;
        let before = self.nodes[index].line(key);
        self.judge.deleted(key);
        self.nodes[index].delete(key, &mut self.next_id);
        self.conclude(index, key, &before, None);
    }
}
