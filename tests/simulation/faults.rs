//! What goes wrong: stalls, steps of the wall clock, lost power, links that break, primaries that die or are left
//! behind, and somebody who deletes locks.

use super::client::{Reply, KEYS};
use super::node::{Role, Sitter};
use super::world::{Event, World, NODES, SECOND};

const MS: u64 = 1_000;
/// How soon one takes over after another.
const SOON_US: std::ops::Range<u64> = 20 * MS..6 * SECOND;
/// How long one may serve on after another took over. Within the ten seconds that a new primary's fences are ahead.
pub const LEFT_BEHIND_US: u64 = 3 * SECOND;

impl World {
    /// Something goes wrong, and later something else.
    pub fn fault(&mut self) {
        let pause = self.dice.within(20 * MS..1_500 * MS);
        self.after(pause, Event::Fault);
        if self.quiet || self.nodes[self.primary].role != Role::Primary {
            return;
        }
        let index = self.dice.within(0..NODES as u64) as usize;
        match self.dice.within(0..10) {
            0..=1 => self.nodes[index].frozen_until = self.now + self.dice.within(MS..800 * MS),
            2 => {
                let wall_us = self.dice.within(0..2 * self.rules.wall_us + 1);
                self.nodes[index].wall_us = wall_us as i64 - self.rules.wall_us as i64;
            }
            3 => {
                let key = self.dice.within(0..KEYS) as u8;
                self.delete(key);
            }
            4 => self.nodes[index].rewrite(self.now),
            // It has to begin anew.
            5 => self.nodes[index].diverged |= self.nodes[index].role == Role::Replica,
            _ if !self.rules.failovers || self.now < self.steady_until => {}
            6..=7 => self.crash(),
            8 => self.hand_over(),
            _ => self.take_over(index),
        }
    }

    /// For a while none takes over. Two that do within the time that their clocks are apart and the ten seconds that a
    /// takeover adds can give fences that fall, if all grants between them are lost.
    fn keep_steady(&mut self) {
        self.steady_until = self.now + 10 * SECOND + 2 * self.rules.wall_us + self.dice.within(SOON_US);
    }

    /// The primary dies, with or without its machine, and starts again.
    fn crash(&mut self) {
        let (index, power) = (self.primary, self.dice.percent(50));
        let sitters = self.nodes[index].crash(power);
        self.hang_up(sitters);
        self.keep_steady();
        let pause = self.dice.within(10 * MS..SECOND);
        self.after(pause, Event::Restart { node: index });
    }

    pub fn restart(&mut self, index: usize) {
        self.nodes[index].restart(self.now);
        if index == self.primary {
            self.lead(index);
        } else {
            self.nodes[index].diverged = true;
        }
    }

    /// A replica takes over from a primary that dies, or that does not hear of it for a while.
    fn take_over(&mut self, index: usize) {
        let node = &self.nodes[index];
        if node.role != Role::Replica || node.diverged || node.last_id == 0 {
            return;
        }
        let old = self.primary;
        if self.dice.percent(50) {
            let sitters = self.nodes[old].crash(true);
            self.hang_up(sitters);
            self.after(2 * SECOND, Event::Restart { node: old });
        } else {
            let pause = self.dice.within(MS..LEFT_BEHIND_US);
            self.after(pause, Event::Depose { node: old });
        }
        self.keep_steady();
        self.lead(index);
    }

    /// FAILOVER: the primary stops, and a replica that has all of it takes over.
    fn hand_over(&mut self) {
        let old = self.primary;
        let ready = |&index: &usize| {
            let node = &self.nodes[index];
            index != old && node.role == Role::Replica && !node.diverged && node.last_id == self.head()
        };
        let Some(index) = (0..NODES).find(ready) else { return };
        self.keep_steady();
        self.depose(old);
        self.nodes[old].diverged = false;
        self.lead(index);
    }

    pub fn depose(&mut self, index: usize) {
        if self.nodes[index].role == Role::Primary {
            let sitters = self.nodes[index].stop_serving();
            self.nodes[index].diverged = true;
            self.hang_up(sitters);
        }
    }

    /// From now on this server's past is the one that counts.
    fn lead(&mut self, index: usize) {
        let kept = self.nodes[index].last_id;
        self.judge.lost(kept, self.rules.grace_ms > 0);
        self.history.retain(|record| record.id <= kept);
        for (other, node) in self.nodes.iter_mut().enumerate() {
            node.diverged |= other != index && node.last_id > kept;
        }
        self.lineage += 1;
        self.primary = index;
        let node = &mut self.nodes[index];
        node.lineage = self.lineage;
        node.begin_serving(self.now);
        self.judge.switched(&self.nodes[index]);
        self.arm(index);
    }

    /// The connections that were blocked there end.
    fn hang_up(&mut self, sitters: Vec<(u64, Sitter)>) {
        for (connection, _) in sitters {
            if let Some(client) = self.client_of(connection) {
                self.reply(client, connection, Reply::Error);
            }
        }
    }

    /// A replica follows, a few changes at a time.
    pub fn pull(&mut self, index: usize) {
        let pause = if self.dice.percent(2) { self.dice.within(0..SECOND) } else { self.dice.within(100..5 * MS) };
        self.after(pause, Event::Pull { node: index });
        let primary = self.primary;
        let up = self.nodes[primary].role == Role::Primary && self.nodes[primary].frozen_until <= self.now;
        if index == primary || self.nodes[index].role != Role::Replica || !up {
            return;
        }
        let first = self.history.front().map_or(u64::MAX, |record| record.id);
        let (last, head) = (self.nodes[index].last_id, self.head());
        if self.nodes[index].diverged || (last < head && last + 1 < first && !self.is_next(last)) {
            let [node, from] = self.nodes.get_disjoint_mut([index, primary]).expect("two servers");
            return node.resync(from, self.now);
        }
        let many = if self.quiet { usize::MAX } else { self.dice.within(0..8) as usize };
        let start = self.history.partition_point(|record| record.id <= last);
        for record in self.history.range(start..).take(many) {
            self.nodes[index].follow(record, self.now);
        }
        if self.nodes[index].last_id == head {
            for key in 0..KEYS as u8 {
                assert_eq!(self.nodes[index].saved(key), self.nodes[primary].saved(key), "a replica has another {key}");
            }
        }
    }

    /// Whether the backlog begins right after this change.
    fn is_next(&self, last: u64) -> bool {
        self.history.front().is_some_and(|first| first.id == last)
    }
}
