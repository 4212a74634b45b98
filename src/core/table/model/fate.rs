//! Steps that reach beyond one command: values saved and restored, a node that stops, starts, or takes over.

use super::node::{Denied, Node, Spot, Value};
use super::plain::Hold;
use super::world::World;
use crate::core::codec;
use crate::core::fence::{Fence, SERVING_GUARD_TICKS, STRANGER_BOUND_TICKS};
use crate::core::lock::Holder;
use crate::core::name::{Label, Token};
use crate::core::table::{Origin, Refused};
use crate::core::time::Lease;

const FORGED_LEASE_MS: u64 = 20;

impl World {
    pub fn dump(&mut self, spot: Spot) {
        if let (Some(bytes), Some(hold)) = (self.primary.records().remove(&spot), self.plain.holds.get(&spot)) {
            self.dumps.push((bytes, hold.clone()));
        }
    }

    /// A client restores something that was dumped at any time.
    pub fn restore(&mut self, spot: Spot, dump: usize, replace: bool) {
        if let Some((bytes, hold)) = self.dumps.get(dump % self.dumps.len().max(1)).cloned() {
            self.restore_bytes(spot, &bytes, hold, replace);
        }
    }

    /// A client restores a lock it made up, its fence ahead of the bound for strangers by so many ticks.
    pub fn forge(&mut self, spot: Spot, token: &'static str, beyond_ticks: i64, replace: bool) {
        let bound = self.primary.now(self.clocks).ticks.get() + STRANGER_BOUND_TICKS;
        let hold = Hold::new(token, "", bound.saturating_add_signed(beyond_ticks), FORGED_LEASE_MS, self.clocks.now_us);
        let holder = Holder {
            token: Token::new(token.as_bytes()).unwrap(),
            fence: Fence::new(hold.fence).unwrap(),
            lease: Lease::from_ms(hold.lease_ms).unwrap(),
            label: Label::new(b"").unwrap(),
        };
        let mut bytes = Vec::new();
        codec::encode(&holder, &mut bytes);
        self.restore_bytes(spot, &bytes, hold, replace);
    }

    fn restore_bytes(&mut self, spot: Spot, bytes: &[u8], hold: Hold, replace: bool) {
        let bound = self.primary.now(self.clocks).ticks.get() + STRANGER_BOUND_TICKS;
        let ahead = hold.fence > self.primary.table.fences().highest().max(bound);
        let busy = !replace && self.primary.keys.contains_key(&spot);
        match self.primary.restore(spot, bytes, Origin::Stranger, replace, self.clocks) {
            Ok(()) => {
                assert!(!ahead && !busy, "restored: ahead {ahead}, busy {busy}");
                let anew = Hold::new(hold.token, hold.label, hold.fence, hold.lease_ms, self.clocks.now_us);
                self.plain.store(spot, anew);
            }
            Err(Denied::Busy) => assert!(busy),
            Err(Denied::Refused(Refused::FenceAhead)) => assert!(ahead && !busy),
            Err(other) => panic!("restore: {other:?}"),
        }
    }

    pub fn stop_serving(&mut self) {
        self.primary.table.stop_serving();
        self.plain.serving = false;
    }

    pub fn begin_serving(&mut self) {
        self.primary.table.begin_serving(self.primary.now(self.clocks));
        self.plain.begin_serving(self.clocks.now_us, self.primary.table.fences().highest());
    }

    /// The primary saves, ends, and starts again, maybe on a machine whose monotonic clock began anew. What was evicted
    /// and is not back is not saved. `aux` unless the server cannot save it.
    pub fn restart(&mut self, aux: bool, down_us: u64, wall_step_us: i64, lead_us: u64) {
        let saved_at = self.primary.now(self.clocks).ticks;
        let held = self.primary.table.held() > 0;
        let number = self.primary.table.fences().to_save(held, saved_at).filter(|_| aux);
        let records = self.primary.records();
        self.sleep(down_us);
        self.step_wall(wall_step_us);
        let data = self.primary.keys.iter().filter(|(_, value)| **value == Value::Data);
        let data: Vec<_> = data.map(|(&spot, &value)| (spot, value)).collect();
        self.primary = Node::load(&records, number, self.clocks, lead_us);
        self.primary.keys.extend(data);
        self.plain.evicted.clear();
        let loaded = self.primary.table.fences().highest();
        self.begin_serving();

        let ticks = self.primary.now(self.clocks).ticks;
        // The number was left out because this clock, with the guard while a lock is held, is past every fence.
        let tolerated = if held { SERVING_GUARD_TICKS } else { 0 };
        let clock_holds = ticks.get() + tolerated >= saved_at.get();
        let must_hold = (aux && clock_holds) || self.plain.highest <= loaded.max(ticks.get()) + SERVING_GUARD_TICKS;
        self.fences_go_on(must_hold);
    }

    /// The replica is promoted; the old primary comes back as its replica, by a full sync.
    pub fn fail_over(&mut self, lead_us: u64) {
        let knows_all = self.replica.table.fences().highest() >= self.plain.highest;
        std::mem::swap(&mut self.primary, &mut self.replica);
        self.plain.evicted.clear();
        self.begin_serving();
        self.fences_go_on(knows_all);
        let aux =
            self.primary.table.fences().to_save(self.primary.table.held() > 0, self.primary.now(self.clocks).ticks);
        self.replica = Node::load(&self.primary.records(), aux, self.clocks, lead_us);
        let data = self.primary.keys.iter().filter(|(_, value)| **value == Value::Data);
        self.replica.keys.extend(data.map(|(&spot, &value)| (spot, value)));
    }

    /// A node that just began to serve issues fences above all earlier ones, or is outside the documented limit.
    fn fences_go_on(&mut self, must_hold: bool) {
        let highest = self.primary.table.fences().highest();
        assert!(!must_hold || highest >= self.plain.highest, "H {highest} after {}", self.plain.highest);
        self.plain.highest = self.plain.highest.min(highest);
    }
}
