//! Five servers that know nothing of each other, and clients that hold a lock once a majority has it: the client of
//! `examples/redlock.rs`. Servers die and forget everything, stand still, or are cut off from some of the clients.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use super::dice::Dice;
use super::harness::{eventually, info_int, let_pass, on_every_server, Kind, Server};
use super::history::{History, Hold};
use super::network::{disturb, Links};
use super::redlock::{now, token, Failure, Held, Quorum};
use super::scene::{self, assert_kept, run, stall};

const SERVERS: usize = 5;
const CLIENTS: usize = 8;
const KEYS: u64 = 4;
const SECONDS: u64 = 6;
const LEASE: Duration = Duration::from_millis(1_500);
/// For one answer.
const PATIENCE: Duration = Duration::from_millis(150);
const WAIT: Duration = Duration::from_secs(1);
/// At least the longest lease: a server that forgot gives nothing out while what it forgot may be held.
const GRACE_MS: u64 = 1_500;
const SOON: Duration = Duration::from_secs(30);

/// The same instant by the clock of the history, or a little sooner.
fn instant(at: Duration) -> Instant {
    let (here, there) = (Instant::now(), now());
    here + at.saturating_sub(there) - there.saturating_sub(at)
}

/// A client that takes locks in turn, works, and renews now and then.
struct Client {
    quorum: Quorum,
    dice: Dice,
    history: History,
}

impl scene::Client for Client {
    fn work(&mut self) {
        let (key, token) = (format!("k{}", self.dice.within(0..KEYS)), token());
        let invoked = Instant::now();
        self.history.asked.push((key.clone(), token.clone(), invoked));
        let Ok(mut held) = self.quorum.lock(&key, &token, WAIT) else { return };
        let returned = Instant::now();
        // Some hold it for long, so that it is held whenever a server forgets.
        let at_most_ms = if self.dice.percent(30) { 1_000 } else { 100 };
        let_pass(Duration::from_millis(self.dice.within(0..at_most_ms)));
        while self.dice.percent(30) && self.renew(&mut held) {
            let_pass(Duration::from_millis(self.dice.within(0..500)));
        }
        // It may have been paused beyond its lease.
        if self.dice.percent(10) {
            let_pass(LEASE);
        }
        let until = instant(held.until).min(Instant::now());
        self.history.holds.push(Hold {
            key: key.clone(),
            token,
            fence: held.fence as i64,
            invoked,
            returned,
            until,
            safe: true,
            known: true,
        });
        self.quorum.release(&key, &held.token);
    }

    fn history(self) -> History {
        self.history
    }
}

impl Client {
    /// Whether it may go on.
    fn renew(&mut self, held: &mut Held) -> bool {
        match self.quorum.renew(held) {
            Ok(()) | Err(Failure::MaxHold) => true,
            Err(_) => false,
        }
    }
}

struct Five {
    servers: Vec<Server>,
    links: Vec<Links>,
}

impl Five {
    fn start(kind: Kind) -> Self {
        let start = |_| Server::builder(kind).arg("lock.grace", GRACE_MS).start();
        let servers: Vec<Server> = (0..SERVERS).map(start).collect();
        let links = servers.iter().map(Links::of).collect();
        let five = Self { servers, links };
        eventually(SOON, || {
            let left = |server: &Server| info_int(&mut server.client(), "lock", "lock_grace_left_ms");
            let left: Vec<i64> = five.servers.iter().map(left).collect();
            left.iter().all(|&ms| ms == 0).then_some(()).ok_or(left)
        });
        five
    }

    /// How clients of this side reach them.
    fn addresses(&self, side: usize) -> Vec<SocketAddr> {
        let address = |links: &Links| SocketAddr::from((Ipv4Addr::LOCALHOST, links.sides[side].port()));
        self.links.iter().map(address).collect()
    }

    /// Some of them, in any order.
    fn some(count: u64, dice: &mut Dice) -> Vec<usize> {
        let first = dice.within(0..SERVERS as u64) as usize;
        (0..count as usize).map(|n| (first + 2 * n) % SERVERS).collect()
    }

    fn fault(&mut self, dice: &mut Dice) {
        match dice.within(0..6) {
            // All that these knew is gone; now and then that is more than a minority.
            0..=1 => {
                let count = if dice.percent(30) { 3 } else { 1 };
                let dead = Self::some(count, dice);
                dead.iter().for_each(|&server| self.servers[server].kill9());
                dead.iter().for_each(|&server| self.servers[server].restart());
            }
            2 => stall(&self.servers[Self::some(1, dice)[0]], dice),
            3 => {
                let still = Self::some(2, dice);
                still.iter().for_each(|&server| self.servers[server].sigstop());
                let_pass(Duration::from_millis(dice.within(100..2_000)));
                still.iter().for_each(|&server| self.servers[server].sigcont());
            }
            // Half of the clients see a minority only, or hardly a majority.
            4 => {
                let (side, count) = (dice.within(0..2) as usize, dice.within(1..4));
                let cut = Self::some(count, dice);
                cut.iter().for_each(|&server| self.links[server].sides[side].cut());
                let_pass(Duration::from_millis(dice.within(100..2_000)));
                cut.iter().for_each(|&server| self.links[server].sides[side].mend());
            }
            _ => {
                let server = Self::some(1, dice)[0];
                disturb(&self.links[server].sides[dice.within(0..2) as usize], dice);
            }
        }
    }
}

on_every_server! {
    /// Two are never sure at once, and whoever asks later has the higher fence.
    fn five_servers_have_one_holder_at_a_time_whatever_happens_to_them(kind: Kind) {
        let mut five = Five::start(kind);
        let sides: [Vec<SocketAddr>; 2] = [0, 1].map(|side| five.addresses(side));
        let client = |number: usize, seed: u64| Client {
            quorum: Quorum::new(&sides[number % 2], LEASE, PATIENCE, 4 * LEASE),
            dice: Dice(seed.wrapping_add(1 + number as u64)),
            history: History::default(),
        };
        let history = run(CLIENTS, client, SECONDS, |dice| five.fault(dice));
        assert_kept(&history);
    }
}
