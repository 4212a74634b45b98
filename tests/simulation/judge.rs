//! What must be true after every step, and what clients may rely on. The judge sees all servers and all clients, and
//! true time; nobody else does.

use super::node::{Node, Place, Record, Saved};
use redis_lock::core::codec::{self, Change};
use redis_lock::core::hold::Mode;
use redis_lock::core::table::Site;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Under 1 ms left counts as lapsed.
const MS_US: u64 = 1_000;
/// How many issued fences are remembered to find one that comes again.
const FENCES_KEPT: usize = 4_096;

/// Until when a client may count on a lock.
#[derive(Clone)]
pub struct Promise {
    pub key: u8,
    pub token: Vec<u8>,
    pub mode: Mode,
    pub until_us: u64,
    /// The change without which it would not hold.
    pub record: u64,
    /// The request whose answer makes it.
    pub ticket: u64,
    /// Whether the client knows.
    pub known: bool,
    /// Whether the change is lost. Nobody else may have the lock even so, where there is a grace.
    pub lost: bool,
}

impl fmt::Debug for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.token.escape_ascii();
        write!(f, "{token} {:?} at {} until {}, change {}", self.mode, self.key, self.until_us, self.record)
    }
}

#[derive(Default)]
pub struct Judge {
    promises: Vec<Promise>,
    /// Who got each fence.
    owners: BTreeMap<u64, (u8, Vec<u8>)>,
    highest: u64,
    /// The change that made each hold what it is.
    latest: BTreeMap<(u8, Vec<u8>), u64>,
    /// What the stream of changes makes of each lock.
    followed: BTreeMap<u8, Vec<Saved>>,
    pub granted: u64,
    pub voided: u64,
}

impl Judge {
    /// A change that a server made. `serving`: it is the primary of the history that counts. `in_grace`: it gives no locks
    /// out.
    pub fn record(&mut self, record: &Record, serving: bool, in_grace: bool) {
        let change = record.change.as_deref().map(|bytes| codec::decode(bytes).expect("a change"));
        if let Some(Change::Set { holder, .. }) = &change {
            let (fence, owner) = (holder.fence.get(), (record.key, holder.token.bytes().to_vec()));
            match self.owners.get(&fence) {
                Some(known) => assert_eq!(*known, owner, "fence {fence} was given twice"),
                None => {
                    assert!(!serving || fence > self.highest, "fence {fence} after {}", self.highest);
                    self.highest = self.highest.max(fence);
                    self.owners.insert(fence, owner.clone());
                    self.granted += 1;
                }
            }
            if serving {
                self.latest.insert(owner, record.id);
            }
            while self.owners.len() > FENCES_KEPT {
                self.owners.pop_first();
            }
        }
        if serving {
            if in_grace {
                self.strengthens_nothing(record.key, change.as_ref());
            }
            self.follow(record.key, change);
        }
    }

    /// In a grace nobody gets a lock, or more of it than it had.
    fn strengthens_nothing(&self, key: u8, change: Option<&Change<'_>>) {
        let Some(Change::Set { holder, .. }) = change else { return };
        let known = self.followed.get(&key).into_iter().flatten().find(|known| known.0 == holder.token.bytes());
        let known = known.unwrap_or_else(|| panic!("a lock is given out in a grace: {holder:?}"));
        let stronger = holder.mode == Mode::Exclusive && known.3 != Mode::Exclusive;
        let more =
            holder.unnamed && !known.4 || holder.names.iter().any(|name| !known.5.contains(&name.bytes().to_vec()));
        assert!(!stronger && !more, "a hold gets stronger in a grace: {known:?}, then {holder:?}");
    }

    fn follow(&mut self, key: u8, change: Option<Change<'_>>) {
        let holders = self.followed.entry(key).or_default();
        match change {
            None => holders.clear(),
            Some(Change::Removed(token)) => holders.retain(|holder| holder.0 != token.bytes()),
            Some(Change::Set { holder, alone }) => {
                holders.retain(|other| !alone && other.0 != holder.token.bytes());
                let names = holder.names.iter().map(|name| name.bytes().to_vec()).collect();
                let (token, fence) = (holder.token.bytes().to_vec(), holder.fence.get());
                holders.push((token, fence, holder.lease.ms(), holder.mode, holder.unnamed, names));
                holders.sort_by(|left, right| (left.1, &left.0).cmp(&(right.1, &right.0)));
            }
        }
    }

    /// Another server's word counts from here on.
    pub fn switched(&mut self, node: &Node) {
        self.followed = node.keys.keys().map(|&key| (key, node.saved(key))).collect();
        self.latest.clear();
        for &key in node.keys.keys() {
            for seen in node.holders(key) {
                self.latest.insert((key, seen.token.to_vec()), node.last_id);
            }
        }
    }

    /// These changes are lost: what rested on them was never promised, but for what a grace makes up for.
    pub fn lost(&mut self, after: u64, is_made_up_for: bool) {
        let lost = |promise: &Promise| promise.record > after;
        self.voided += self.promises.iter().filter(|promise| lost(promise)).count() as u64;
        for promise in &mut self.promises {
            promise.lost |= lost(promise);
        }
        self.promises.retain(|promise| is_made_up_for || !promise.lost);
    }

    /// The change that a hold rests on.
    pub fn rests_on(&self, key: u8, token: &[u8]) -> u64 {
        self.latest.get(&(key, token.to_vec())).copied().expect("a hold comes from a change")
    }

    pub fn promise(&mut self, promise: Promise) {
        self.promises.push(promise);
    }

    /// The client got the answer to this request: from now on it counts on what that promised.
    pub fn learned(&mut self, ticket: u64, now_us: u64) {
        self.promises.retain(|promise| promise.until_us > now_us);
        let Some(promise) = self.promises.iter_mut().find(|promise| promise.ticket == ticket) else { return };
        promise.known = true;
        let key = promise.key;
        let known: Vec<&Promise> = self.promises.iter().filter(|promise| promise.known && promise.key == key).collect();
        let tokens: BTreeSet<&[u8]> = known.iter().map(|promise| &*promise.token).collect();
        let alone = known.iter().any(|promise| promise.mode == Mode::Exclusive);
        let limit =
            known.iter().filter_map(|promise| if let Mode::Shared(limit) = promise.mode { limit } else { None });
        assert!(!alone || tokens.len() == 1, "{now_us}: two owners at once: {known:#?}");
        assert!(limit.min().is_none_or(|limit| tokens.len() <= limit as usize), "{now_us}: too many: {known:#?}");
    }

    /// The client does not count on it any more.
    pub fn gave_up(&mut self, key: u8, token: &[u8]) {
        self.promises.retain(|promise| promise.key != key || promise.token != token);
    }

    /// The client counts on sharing it only.
    pub fn shares(&mut self, key: u8, token: &[u8]) {
        for promise in &mut self.promises {
            if promise.key == key && promise.token == token {
                promise.mode = Mode::Shared(None);
            }
        }
    }

    /// Somebody deleted the lock.
    pub fn deleted(&mut self, key: u8) {
        self.promises.retain(|promise| promise.key != key);
    }

    /// Whether the client was promised the lock for longer than now, and knows.
    pub fn counts_on(&self, key: u8, token: &[u8], now_us: u64) -> bool {
        let meant = |promise: &&Promise| promise.key == key && promise.token == token && promise.known && !promise.lost;
        self.promises.iter().filter(meant).any(|promise| promise.until_us > now_us + MS_US)
    }

    /// What is true of a lock on a serving primary after any step.
    pub fn inspect(&self, node: &Node, key: u8, true_us: u64, line_before: &[Place], served: &[Vec<u8>]) {
        let now = node.now(true_us).instant;
        let holders: Vec<_> = node.holders(key).collect();
        let alone = holders.iter().any(|seen| seen.mode == Mode::Exclusive);
        assert!(!alone || holders.len() == 1, "{true_us}: an exclusive holder is not alone at {key}");
        let limit = holders.iter().filter_map(|seen| if let Mode::Shared(limit) = seen.mode { limit } else { None });
        assert!(limit.min().is_none_or(|limit| holders.len() <= limit as usize), "{true_us}: too many hold {key}");
        assert!(holders.iter().all(|seen| seen.hold.count() > 0), "{true_us}: a hold of nothing at {key}");
        let name = [key];
        let site = Site { place: super::node::place(&name), lock: node.keys.get(&key).copied(), legacy: None };
        // What ends by itself, or was noted, is the pump's to do now.
        let is_due = node.table.is_stirred() || node.table.next_deadline().is_some_and(|at| at <= now);
        let served_or_due = is_due || !node.table.would_hand_over(site, now);
        assert!(served_or_due, "{true_us}: the first in line is not served at {key}");
        assert!(site.lock.is_none() || !holders.is_empty(), "{true_us}: a lock that nobody holds stands at {key}");
        let followed = self.followed.get(&key).cloned().unwrap_or_default();
        assert_eq!(node.saved(key), followed, "{true_us}: replicas are told something else of {key}");
        in_order(line_before, &node.line(key), served);
    }
}

/// Nobody overtook anybody: who stayed is in the same order, and who was served was not behind anyone who stayed.
fn in_order(before: &[Place], after: &[Place], served: &[Vec<u8>]) {
    let stayed: Vec<usize> = after.iter().filter_map(|place| before.iter().position(|other| other == place)).collect();
    let rank = |token: &Vec<u8>| before.iter().position(|other| other.0 == *token);
    assert!(stayed.is_sorted(), "the line changed: {before:?}, then {after:?}");
    let first = stayed.first().copied().unwrap_or(usize::MAX);
    // Who did not wait is behind all who did.
    let last = served.iter().map(|token| rank(token).unwrap_or(before.len())).max();
    assert!(last.is_none_or(|last| last < first), "{served:?} were served before others: {before:?}, then {after:?}");
}
