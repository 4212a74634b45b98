//! One simulated client: it works under locks in every way there is, asks again when it hears nothing, and dies at any
//! moment. It knows what its replies told it, and nothing else.

use super::dice::Dice;
use redis_lock::core::hold::Mode;
use redis_lock::core::table::Turn;
use std::fmt;

/// Few locks, so that many want each.
pub const KEYS: u64 = 3;
/// No lease is as long.
pub const LEASE_END_MS: u64 = 300;
/// No floor is as far above the highest fence, in ticks of 10 us.
const FLOOR_END: u64 = 100;
/// Times a request is sent before its client gives up.
const TRIES: u32 = 5;

/// What a client asks of a lock.
#[derive(Clone, Debug)]
pub enum What {
    Acquire {
        mode: Mode,
        turn: Turn,
        lease_ms: u64,
        name: Option<Vec<u8>>,
        cap_ms: Option<u64>,
        ephemeral: bool,
        way: Way,
    },
    /// With the length of the lease, and how far above the highest fence of the server the hold's own is to be.
    Extend(Option<u64>, Option<u64>),
    Check,
    Guard,
    Release(Option<Vec<u8>>),
}

#[derive(Clone, Copy, Debug)]
pub enum Way {
    Try,
    Block(Option<u64>),
    Poll(u64),
}

#[derive(Clone)]
pub struct Request {
    /// Also the number of its connection.
    pub id: u64,
    pub client: usize,
    pub key: u8,
    pub token: Vec<u8>,
    pub sent_us: u64,
    pub what: What,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.token.escape_ascii();
        write!(f, "{}: {token} at {}, sent {}, {:?}", self.id, self.key, self.sent_us, self.what)
    }
}

/// What a client is told, as far as it matters to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The lock is its own.
    Yes,
    No,
    Error,
}

#[derive(Debug)]
pub struct Client {
    pub number: usize,
    units: u64,
    pub token: Vec<u8>,
    /// The server it takes for the primary.
    pub target: usize,
    pub asked: Option<Request>,
    tries: u32,
    /// How it wants to hold locks in this unit of work.
    mode: Mode,
    turned: bool,
    /// The locks it believes to hold, with names of holds.
    pub held: Vec<(u8, Vec<Vec<u8>>)>,
    /// Locks it let go of: a request that is late must not end a hold that came after.
    released: Vec<u8>,
    /// Connections that holds may end with.
    pub open: Vec<u64>,
    names: u64,
    /// Names its timer: an older one is ignored.
    pub timer: u64,
}

impl Client {
    pub fn new(number: usize) -> Self {
        let mut client = Self {
            number,
            units: 0,
            token: Vec::new(),
            target: 0,
            asked: None,
            tries: 0,
            mode: Mode::Exclusive,
            turned: false,
            held: Vec::new(),
            released: Vec::new(),
            open: Vec::new(),
            names: 0,
            timer: 0,
        };
        client.begin(&mut Dice(number as u64));
        client
    }

    /// Begins a unit of work, whatever became of the last one.
    pub fn begin(&mut self, dice: &mut Dice) {
        self.units += 1;
        self.token = format!("c{}-{}", self.number, self.units).into_bytes();
        self.asked = None;
        self.tries = 0;
        self.turned = false;
        self.held.clear();
        self.released.clear();
        self.mode = match dice.within(0..10) {
            0..=4 => Mode::Exclusive,
            5..=7 => Mode::Shared(None),
            _ => Mode::Shared(u32::try_from(dice.within(1..4)).ok()),
        };
    }

    /// Whether it asks once more for what it heard nothing of.
    pub fn tries_again(&mut self, dice: &mut Dice) -> bool {
        self.tries += 1;
        self.tries < TRIES && dice.percent(90)
    }

    /// What it does next, and to which lock; nothing if the unit is done.
    pub fn next(&mut self, dice: &mut Dice) -> Option<(u8, What)> {
        self.tries = 0;
        let key = dice.within(0..KEYS) as u8;
        if self.held.is_empty() {
            return self.released.is_empty().then(|| (key, self.acquire(dice, Turn::No, false)));
        }
        let wanted = self.held.len() < 2 && !self.released.contains(&key);
        let at = dice.within(0..self.held.len() as u64) as usize;
        let (held, names) = self.held[at].clone();
        let what = match dice.within(0..20) {
            0..=2 => What::Extend(
                dice.percent(70).then(|| dice.within(2..LEASE_END_MS)),
                dice.percent(20).then(|| dice.within(1..FLOOR_END)),
            ),
            3..=4 => What::Check,
            5..=6 => What::Guard,
            7 => self.acquire(dice, Turn::No, false),
            8..=9 => self.acquire(dice, Turn::No, true),
            10..=11 if !self.turned => {
                self.turned = true;
                let turn = if self.mode == Mode::Exclusive { Turn::Downgrade } else { Turn::Upgrade };
                self.acquire(dice, turn, false)
            }
            12..=13 if !names.is_empty() => {
                self.held[at].1.pop();
                What::Release(names.last().cloned())
            }
            14 if wanted && held != key => return Some((key, self.acquire(dice, Turn::No, false))),
            // It dies, or forgets to release.
            15 => return None,
            _ => {
                self.held.remove(at);
                self.released.push(held);
                What::Release(None)
            }
        };
        Some((held, what))
    }

    fn acquire(&mut self, dice: &mut Dice, turn: Turn, named: bool) -> What {
        let mode = match turn {
            Turn::No => self.mode,
            Turn::Upgrade => Mode::Exclusive,
            Turn::Downgrade => Mode::Shared(dice.percent(30).then_some(2)),
        };
        let way = match dice.within(0..10) {
            0..=1 => Way::Try,
            2..=3 => Way::Block(None),
            4..=7 => Way::Block(Some(dice.within(1..400))),
            _ => Way::Poll(dice.within(5..100)),
        };
        let name = named.then(|| {
            self.names += 1;
            format!("h{}", self.names).into_bytes()
        });
        let ephemeral = dice.percent(15) && !matches!(way, Way::Poll(_));
        let cap_ms = dice.percent(15).then(|| dice.within(1..500));
        What::Acquire { mode, turn, lease_ms: dice.within(2..LEASE_END_MS), name, cap_ms, ephemeral, way }
    }

    /// Takes a reply in.
    pub fn hear(&mut self, request: &Request, reply: Reply) {
        match (&request.what, reply) {
            (What::Acquire { name, .. }, Reply::Yes) => {
                let at = self.held.iter().position(|held| held.0 == request.key).unwrap_or(self.held.len());
                if at == self.held.len() {
                    self.held.push((request.key, Vec::new()));
                }
                self.held[at].1.extend(name.clone());
            }
            (What::Extend(..) | What::Check | What::Guard, Reply::No) => {
                self.held.retain(|held| held.0 != request.key);
            }
            _ => {}
        }
    }
}
