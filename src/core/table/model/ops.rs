//! What can happen, as plain data: a run is a list of these, so one that fails can be cut down to what matters.

use super::super::Turn;
use crate::core::hold::Mode;

/// How many places there are: two keys in each of two databases.
pub const PLACES: usize = 4;
/// How many tokens there are.
pub const TOKENS: usize = 5;
/// Connections are numbered from 1 to this.
pub const CLIENTS: u64 = 4;

/// What to do while another token holds the lock. The times are in us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    None,
    Block(Option<u64>),
    Poll(u64),
}

/// An ACQUIRE, with all that it can say.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    pub token: usize,
    pub mode: Mode,
    pub turn: Turn,
    pub lease_ms: u64,
    pub name: Option<u8>,
    pub cap_ms: Option<u64>,
    pub ephemeral: bool,
    pub client: u64,
    pub patience: Patience,
    /// How many may wait, blocked or polling.
    pub room: usize,
}

/// One step. Numbers without a name are places; each step is possible at any time, and some then do nothing.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    Acquire(usize, Want),
    Release(usize, usize, Option<u8>),
    /// With a lease in ms, and a floor this far above or below the highest fence.
    Extend(usize, usize, Option<u64>, Option<i64>),
    Check(usize, usize),
    Guard(usize, usize),
    /// The monotonic clock goes on by so many us.
    Pass(u64),
    /// The wall clock is set forward or back by so many ticks.
    Wall(i64),
    /// What no command does is done, as far as the server allows hand-overs.
    Pump {
        allowed: bool,
    },
    /// A reply that is on its way reaches its connection, or does not.
    Deliver(usize),
    Lose(usize),
    /// A connection closes, with whatever is on its way to it.
    Close(u64),
    /// CLIENT UNBLOCK for one of the blocked connections.
    Unblock(usize),
    Delete(usize),
    Rename(usize, usize),
    /// DUMP, and RESTORE over what stands at the second place.
    Restore(usize, usize),
    Evict(usize),
    /// A client's EXPIRE ends the key.
    Expire(usize),
    /// What was flushed or deleted is freed in the background.
    Bury,
    Flush(i32),
    Swap,
    /// SET by a client of another library, with a time to live in us.
    Legacy(usize, usize, u64),
    /// No locks are given out for so many ms, as after a start.
    Grace(u64),
    Restart,
    /// The replica is promoted, and the primary follows it.
    Failover,
    /// All fences are used up.
    UseUpFences,
}

/// What a run is about: how many places and tokens, and how often what.
#[derive(Clone, Copy, Debug)]
pub struct Theme {
    pub places: usize,
    pub tokens: usize,
    /// In a thousand: what happens to keys and to the server.
    pub keyspace: u64,
    /// In a thousand: requests that want to wait.
    pub waiting: u64,
    /// In a thousand: fences are used up.
    pub exhaustion: u64,
}

/// Themes, from one lock's modes to everything at once.
pub const THEMES: [Theme; 5] = [
    Theme { places: 1, tokens: 4, keyspace: 0, waiting: 500, exhaustion: 0 },
    Theme { places: 3, tokens: 5, keyspace: 0, waiting: 800, exhaustion: 0 },
    Theme { places: 1, tokens: 3, keyspace: 60, waiting: 500, exhaustion: 0 },
    Theme { places: 4, tokens: 4, keyspace: 150, waiting: 600, exhaustion: 0 },
    Theme { places: 2, tokens: 4, keyspace: 20, waiting: 600, exhaustion: 3 },
];

/// Random numbers that are the same for the same seed on every machine (splitmix64).
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn chance(&mut self, of_a_thousand: u64) -> bool {
        self.below(1_000) < of_a_thousand
    }

    fn index(&mut self, end: usize) -> usize {
        self.below(end as u64) as usize
    }

    fn maybe<T>(&mut self, of_a_thousand: u64, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.chance(of_a_thousand).then(|| value(self))
    }

    /// Short and long leases, so that they end in any order.
    fn lease_ms(&mut self) -> u64 {
        if self.chance(700) {
            1 + self.below(20)
        } else {
            20 + self.below(60)
        }
    }
}

/// The next step of a run.
pub fn roll(dice: &mut Dice, theme: &Theme) -> Op {
    if dice.chance(theme.exhaustion) {
        return Op::UseUpFences;
    }
    if dice.chance(theme.keyspace) {
        return disturb(dice, theme);
    }
    let (at, token) = (dice.index(theme.places), dice.index(theme.tokens));
    match dice.below(100) {
        0..=41 => Op::Acquire(at, want(dice, theme, token)),
        42..=51 => Op::Release(at, token, dice.maybe(350, |dice| dice.below(2) as u8)),
        52..=56 => {
            let lease_ms = dice.maybe(600, Dice::lease_ms);
            Op::Extend(at, token, lease_ms, dice.maybe(300, |dice| dice.below(12) as i64 - 6))
        }
        57..=58 => Op::Check(at, token),
        59..=61 => Op::Guard(at, token),
        62..=73 => Op::Pass(pause(dice)),
        74..=83 => Op::Pump { allowed: dice.chance(850) },
        84..=92 => Op::Deliver(dice.index(3)),
        93..=95 => Op::Lose(dice.index(3)),
        96..=97 => Op::Close(1 + dice.below(CLIENTS)),
        98 => Op::Unblock(dice.index(4)),
        _ => Op::Wall(dice.below(4_000) as i64 - 2_000),
    }
}

/// Mostly whole ms, often one us more or less, so that ends are met exactly.
fn pause(dice: &mut Dice) -> u64 {
    let ms = dice.below(12) * 1_000;
    match dice.below(5) {
        0 => ms + 1,
        1 => (ms + 1_000) - 1,
        2 => 1 + dice.below(15_000),
        _ => ms + 1_000,
    }
}

fn want(dice: &mut Dice, theme: &Theme, token: usize) -> Want {
    let (mode, turn) = match dice.below(20) {
        0..=6 => (Mode::Exclusive, Turn::No),
        7..=11 => (Mode::Shared(None), Turn::No),
        12..=14 => (Mode::Shared(Some(1 + dice.below(3) as u32)), Turn::No),
        15..=17 => (Mode::Exclusive, Turn::Upgrade),
        18 => (Mode::Shared(None), Turn::Downgrade),
        _ => (Mode::Shared(Some(1 + dice.below(3) as u32)), Turn::Downgrade),
    };
    let patience = match dice.chance(theme.waiting) {
        false => Patience::None,
        true if dice.chance(400) => Patience::Poll(1_000 * (1 + dice.below(15))),
        true => Patience::Block(dice.maybe(600, |dice| 1_000 * (1 + dice.below(40)))),
    };
    let ephemeral = !matches!(patience, Patience::Poll(_)) && dice.chance(200);
    Want {
        token,
        mode,
        turn,
        lease_ms: dice.lease_ms(),
        name: dice.maybe(250, |dice| dice.below(2) as u8),
        cap_ms: dice.maybe(200, |dice| 1 + dice.below(60)),
        ephemeral,
        client: 1 + dice.below(CLIENTS),
        patience,
        room: if dice.chance(30) { 1 } else { 100 },
    }
}

fn disturb(dice: &mut Dice, theme: &Theme) -> Op {
    let (at, to) = (dice.index(theme.places), dice.index(theme.places));
    match dice.below(32) {
        0..=3 => Op::Delete(at),
        4..=7 => Op::Rename(at, to),
        8..=9 => Op::Restore(at, to),
        10..=12 => Op::Evict(at),
        13 => Op::Expire(at),
        14..=16 => Op::Bury,
        17 => Op::Flush(dice.below(2) as i32),
        18..=19 => Op::Swap,
        20..=24 => Op::Legacy(at, dice.index(theme.tokens), 1 + dice.below(20_000)),
        25 => Op::Grace(1 + dice.below(25)),
        26..=28 => Op::Restart,
        _ => Op::Failover,
    }
}
