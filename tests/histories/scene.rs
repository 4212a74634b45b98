//! What the clients of one history know: where servers are, how they are reached, and when a grant is safe. And the run
//! itself: clients that work while something goes wrong again and again.

use std::collections::HashMap;
use std::env;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::dice::Dice;
use super::harness::{self, cmd, let_pass, Clock, Server, HOUR_US};
use super::history::{History, Hold};
use super::worker::Worker;

const CLIENTS: usize = 8;
/// Where some hold locks for long.
const CLIENTS_MANY: usize = 24;
/// How long a run is where a fault is over soon.
pub const SECONDS: u64 = 4;

/// When a grant is safe from what may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Safety {
    /// As soon as it is told.
    Told,
    /// Once so many replicas have it.
    Replicated(usize),
    /// It may be forgotten unless so many replicas have it, and is given to nobody else while it lasts even so.
    Grace(usize),
}

/// How clients find the primary.
#[derive(Debug)]
pub enum Primary {
    /// They are told its port.
    Told(AtomicU16),
    /// They ask one of the Sentinels behind these ports.
    Watched(Vec<u16>),
}

/// What all clients know.
#[derive(Debug)]
pub struct Scene {
    pub primary: Primary,
    pub safety: Safety,
    /// The ports by which clients of either side reach the server that is known by this one.
    pub routes: HashMap<u16, [u16; 2]>,
    /// The lease of those who hold a lock for long, if there are any.
    pub long_ms: u64,
}

impl Scene {
    /// Clients of this server.
    pub fn of(port: u16, safety: Safety) -> Self {
        Self::with(Primary::Told(AtomicU16::new(port)), safety)
    }

    /// Clients that ask these Sentinels where the primary is.
    pub fn watched(sentinels: &[Server], safety: Safety) -> Self {
        Self::with(Primary::Watched(sentinels.iter().map(Server::port).collect()), safety)
    }

    fn with(primary: Primary, safety: Safety) -> Self {
        Self { primary, safety, routes: HashMap::new(), long_ms: 0 }
    }

    /// Another server is the primary.
    pub fn lead(&self, port: u16) {
        match &self.primary {
            Primary::Told(told) => told.store(port, Ordering::SeqCst),
            Primary::Watched(_) => panic!("Sentinels decide that"),
        }
    }

    /// The port by which a client of this side reaches a server.
    pub fn route(&self, port: u16, side: usize) -> u16 {
        self.routes.get(&port).map_or(port, |sides| sides[side])
    }
}

/// The port of the primary, by the word of the Sentinel behind this one.
pub fn watched_primary(sentinel: u16, patience: Duration) -> Option<u16> {
    let mut client = harness::Client::try_connect(sentinel).ok()?;
    client.try_send(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "watched"]).ok()?;
    let reply = client.try_recv(patience)?;
    (!reply.is_error() && !reply.is_null()).then(|| reply.array()[1].text().parse().expect("a port"))
}

fn from_env(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// A client of a history.
pub trait Client: Send {
    /// One unit of work.
    fn work(&mut self);

    /// What it saw.
    fn history(self) -> History;
}

/// Lets so many clients work, each made with its number and the seed, for so long, while something goes wrong again and again.
pub fn run<C: Client>(
    clients: usize,
    client: impl Fn(usize, u64) -> C,
    seconds: u64,
    mut fault: impl FnMut(&mut Dice),
) -> History {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
    let seed = from_env("REDIS_LOCK_HISTORY_SEED", clock);
    eprintln!("seed {seed}");
    let end = Instant::now() + Duration::from_secs(from_env("REDIS_LOCK_HISTORY_SECONDS", seconds));
    let over = AtomicBool::new(false);
    thread::scope(|threads| {
        // Also where a fault fails: nobody waits for clients that work on.
        let ends = Ends(&over);
        let start = |number| {
            let (mut client, over) = (client(number, seed), &over);
            threads.spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    client.work();
                }
                client.history()
            })
        };
        let clients: Vec<_> = (0..clients).map(start).collect();
        let mut dice = Dice(seed);
        while Instant::now() < end {
            let_pass(Duration::from_millis(dice.within(50..400)));
            fault(&mut dice);
        }
        drop(ends);
        History::merge(clients.into_iter().map(|client| client.join().expect("a client")).collect())
    })
}

/// Ends the work of all clients when it goes.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Lets clients of these servers work.
pub fn record(scene: &Scene, seconds: u64, fault: impl FnMut(&mut Dice)) -> History {
    let clients = if scene.long_ms > 0 { CLIENTS_MANY } else { CLIENTS };
    run(clients, |number, seed| Worker::new(scene, number, seed), seconds, fault)
}

/// Nothing that was promised is broken.
pub fn assert_kept(history: &History) {
    let found = history.check();
    let (promised, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|found| found.promised);
    let count = |is: fn(&Hold) -> bool| history.holds.iter().filter(|hold| is(hold)).count();
    let (safe, known) = (count(|hold| hold.safe), count(|hold| hold.known));
    let told = format!("{} holds, {safe} of them safe, {known} known to all", history.holds.len());
    eprintln!("{told}; {} violations of what is not promised", others.len());
    assert!(promised.is_empty(), "{promised:#?}");
    assert!(safe > 10, "too little happened: {told}");
}

/// The server stands still for a moment.
pub fn stall(server: &Server, dice: &mut Dice) {
    server.sigstop();
    let_pass(Duration::from_millis(dice.within(20..400)));
    server.sigcont();
}

/// The clock of a server, an hour or less forward or back.
pub fn step(clock: &Clock, dice: &mut Dice) {
    clock.step(dice.within(0..HOUR_US as u64) as i64 - HOUR_US / 2);
}

/// Writes a new append-only file, or a snapshot.
pub fn rewrite(server: &Server, dice: &mut Dice) {
    let what = if dice.percent(50) { "BGREWRITEAOF" } else { "BGSAVE" };
    drop(cmd!(server.client(), what));
}
