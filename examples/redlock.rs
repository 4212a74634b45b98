//! One lock over several independent servers, none of which replicates another: held by whoever has a majority of them.
//! Raw commands, the standard library, and a thing to protect that checks fences.
//!
//!     cargo run --example redlock -- 127.0.0.1:7001 127.0.0.1:7002 127.0.0.1:7003
//!
//! Some clients take the lock in turn and write to the resource under it. Every line is a turn, the last one a summary;
//! two owners at once, or a fence that did not rise, are an error. Options: clients=3 rounds=5 lease=10000 deadline=500.
//!
//! What makes it hold, in the order of the code below: every server is asked at once and has far less time than the
//! lease; what counts is the client's own clock, from before it asked; the highest of the fences goes back to a majority
//! where the token holds the lock, so the next majority knows it; a server that may forget sits out with `lock.grace`.

use std::env;
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// What two clocks may drift apart within a lease: a hundredth of it, and two ms for their rounding.
const DRIFT_DIVISOR: u32 = 100;
const DRIFT_MIN: Duration = Duration::from_millis(2);

/// Time since the machine started. It cannot be set, and goes on while the machine sleeps: a lease does, too.
#[allow(unsafe_code)]
pub fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// A token that nobody else has: for one piece of work, and every retry of it.
pub fn token() -> String {
    let mut bytes = [0; 16];
    File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes)).expect("a source of randomness");
    format!("{:032x}", u128::from_ne_bytes(bytes))
}

/// Why there is no lock, or none any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Others hold the lock on so many servers that there is no majority.
    Held,
    /// Too few servers answered in time, or they are in their grace.
    NoMajority,
    /// The lock was held, and is no more on a majority: stop the work.
    Lost,
    /// It will not be held longer than was said at the start: finish before it ends.
    MaxHold,
}

/// A reply, as far as lock commands have one.
#[derive(Debug)]
enum Reply {
    Int(u64),
    Text,
    Array(Vec<Reply>),
    Null,
    Error,
}

impl Reply {
    const fn int(&self) -> u64 {
        match self {
            Self::Int(number) => *number,
            _ => 0,
        }
    }

    /// Fence and ms left.
    fn grant(&self) -> Option<(u64, u64)> {
        match self {
            Self::Array(parts) => Some((parts.get(1)?.int(), parts.get(2)?.int())),
            _ => None,
        }
    }

    fn read(from: &mut impl BufRead) -> io::Result<Self> {
        let mut line = String::new();
        from.read_line(&mut line)?;
        let line = line.trim_end();
        let (kind, rest) = line.split_at_checked(1).ok_or(ErrorKind::UnexpectedEof)?;
        let count = || usize::try_from(rest.parse::<i64>().unwrap_or(-1)).ok();
        match (kind, count()) {
            (":", _) => Ok(Self::Int(rest.parse().unwrap_or(0))),
            ("+", _) => Ok(Self::Text),
            ("-", _) => Ok(Self::Error),
            ("$", Some(length)) => {
                let mut bytes = vec![0; length + 2];
                from.read_exact(&mut bytes)?;
                Ok(Self::Text)
            }
            ("*", Some(length)) => (0..length).map(|_| Self::read(from)).collect::<io::Result<_>>().map(Self::Array),
            ("$" | "*", None) => Ok(Self::Null),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }
}

/// A server and the connection to it. After any trouble the connection is given up: a late reply must not be taken for
/// that to a later command.
struct Server {
    address: SocketAddr,
    connection: Mutex<Option<TcpStream>>,
}

impl Server {
    fn ask(&self, words: &[&str], deadline: Duration) -> io::Result<Reply> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        // No time left is an error of whatever is to be timed.
        let left = || deadline.saturating_sub(now());
        let stream = connection.take().map_or_else(|| TcpStream::connect_timeout(&self.address, left()), Ok)?;
        let mut command = format!("*{}\r\n", words.len());
        for word in words {
            command += &format!("${}\r\n{word}\r\n", word.len());
        }
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(left()))?;
        (&stream).write_all(command.as_bytes())?;
        // A reply comes in one piece or hardly later; a server that sends it byte by byte is not worth more code.
        stream.set_read_timeout(Some(left()))?;
        let reply = Reply::read(&mut BufReader::new(&stream))?;
        *connection = Some(stream);
        Ok(reply)
    }
}

/// What a client knows of the lock that it holds.
#[derive(Clone, Debug)]
pub struct Held {
    key: String,
    /// The secret that proves it.
    pub token: String,
    /// The number to show to what the lock protects.
    pub fence: u64,
    /// Until then the lock is held, by [`now`].
    pub until: Duration,
    /// No renewal goes beyond.
    cap: Duration,
}

/// A lock service of several servers.
pub struct Quorum {
    servers: Vec<Server>,
    /// Length of a lease.
    pub lease: Duration,
    /// How long a server may take for one answer: far below the lease.
    pub patience: Duration,
    /// How long a lock may be held, renewals included.
    pub max_hold: Duration,
}

impl Quorum {
    /// The lock service of these servers.
    pub fn new(servers: &[SocketAddr], lease: Duration, patience: Duration, max_hold: Duration) -> Self {
        let servers = servers.iter().map(|&address| Server { address, connection: Mutex::new(None) }).collect();
        Self { servers, lease, patience, max_hold }
    }

    const fn majority(&self) -> usize {
        self.servers.len() / 2 + 1
    }

    /// Asks every server at once. One that fails, refuses or is late is as good as none.
    fn ask_all(&self, words: &[&str]) -> Vec<Reply> {
        let deadline = now() + self.patience;
        thread::scope(|scope| {
            let asked: Vec<_> =
                self.servers.iter().map(|server| scope.spawn(move || server.ask(words, deadline))).collect();
            asked.into_iter().map(|reply| reply.join().ok().and_then(Result::ok).unwrap_or(Reply::Error)).collect()
        })
    }

    /// The instant until which a majority holds, of what the servers had left when they were asked.
    fn until(&self, asked: Duration, left_ms: impl Iterator<Item = u64>) -> Option<Duration> {
        let mut left_ms: Vec<u64> = left_ms.filter(|&left| left > 0).collect();
        left_ms.sort_unstable_by(|one, other| other.cmp(one));
        let left = Duration::from_millis(*left_ms.get(self.majority() - 1)?);
        let until = asked + left.checked_sub(left / DRIFT_DIVISOR + DRIFT_MIN)?;
        (now() < until).then_some(until)
    }

    /// Takes the lock, trying for so long. The token is the same in every try, so a server that granted one whose reply
    /// was lost grants it again.
    ///
    /// # Errors
    /// Why the last try failed. Nothing is held then, but for what a server out of reach holds until its lease ends.
    pub fn lock(&self, key: &str, token: &str, wait: Duration) -> Result<Held, Failure> {
        let end = now() + wait;
        loop {
            let failure = match self.try_lock(key, token) {
                Ok(held) => return Ok(held),
                Err(failure) => failure,
            };
            self.release(key, token);
            // At random, or two that met once would meet for ever.
            let pause = self.patience.mul_f64(random());
            if now() + pause >= end {
                return Err(failure);
            }
            thread::sleep(pause);
        }
    }

    fn try_lock(&self, key: &str, token: &str) -> Result<Held, Failure> {
        let (lease, max_hold) = (millis(self.lease), millis(self.max_hold));
        let asked = now();
        let words = ["LOCK.ACQUIRE", key, "TOKEN", token, "PX", &lease, "MAXHOLD", &max_hold];
        let replies = self.ask_all(&words);
        let grants: Vec<Option<(u64, u64)>> = replies.iter().map(Reply::grant).collect();
        let taken = replies.iter().filter(|reply| matches!(reply, Reply::Null)).count();
        let failure = if self.servers.len() - taken < self.majority() { Failure::Held } else { Failure::NoMajority };
        self.until(asked, grants.iter().flatten().map(|&(_, left_ms)| left_ms)).ok_or(failure)?;
        let fence = grants.iter().flatten().map(|&(fence, _)| fence).max().unwrap_or(0);
        // Held only once a majority has the highest fence. Of those that granted, and while that grant runs: another
        // may have granted later than this waited for, under a fence that is higher still.
        let confirmed = now();
        let written = self.ask_all(&["LOCK.EXTEND", key, token, "PX", &lease, "FENCE", &fence.to_string()]);
        let counted = grants.iter().zip(&written).filter_map(|(grant, written)| {
            let granted_until = asked + Duration::from_millis((*grant)?.1);
            (now() < granted_until).then_some(written.int())
        });
        let until = self.until(confirmed, counted).ok_or(Failure::NoMajority)?;
        Ok(Held { key: key.to_owned(), token: token.to_owned(), fence, until, cap: asked + self.max_hold })
    }

    /// Makes the lease whole again; due when a third of it is over. A server that came back empty is asked for the lock
    /// again, which counts from the next time on.
    ///
    /// # Errors
    /// [`Failure::Lost`] if a majority does not hold any more: stop at once. [`Failure::MaxHold`] if the lock was held so
    /// long that no whole lease is left: it still is held until [`Held::until`].
    pub fn renew(&self, held: &mut Held) -> Result<(), Failure> {
        let asked = now();
        if asked + self.lease > held.cap {
            return Err(Failure::MaxHold);
        }
        let (lease, fence) = (millis(self.lease), held.fence.to_string());
        let extended = self.ask_all(&["LOCK.EXTEND", &held.key, &held.token, "PX", &lease, "FENCE", &fence]);
        held.until = self.until(asked, extended.iter().map(Reply::int)).ok_or(Failure::Lost)?;
        if extended.iter().any(|reply| matches!(reply, Reply::Int(0))) {
            let cap = millis(held.cap.saturating_sub(now()));
            self.ask_all(&["LOCK.ACQUIRE", &held.key, "TOKEN", &held.token, "PX", &lease, "MAXHOLD", &cap]);
        }
        Ok(())
    }

    /// Gives the lock back on every server, those included that did not answer before.
    pub fn release(&self, key: &str, token: &str) {
        self.ask_all(&["LOCK.RELEASE", key, token]);
    }
}

/// What the lock protects. It takes no write with a fence lower than the last one: whoever comes too late finds out.
#[derive(Default)]
pub struct Resource(Mutex<u64>);

impl Resource {
    /// Writes, if no later holder did. Whether it did.
    pub fn write(&self, fence: u64) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let accepted = fence >= *last;
        *last = fence.max(*last);
        accepted
    }
}

/// A time in which one client held the lock and worked.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// The holder's fence.
    pub fence: u64,
    /// When it knew that it holds the lock.
    pub from: Duration,
    /// When it was done, or had to be.
    pub to: Duration,
}

const WRITES: u32 = 5;
const WORK: Duration = Duration::from_millis(2);

/// Takes the lock, writes to the resource a few times, and gives it back.
///
/// # Errors
/// Why it did not come that far.
pub fn take_turn(quorum: &Quorum, key: &str, resource: &Resource, wait: Duration) -> Result<Turn, Failure> {
    let mut held = quorum.lock(key, &token(), wait)?;
    let from = now();
    for _ in 0..WRITES {
        if now() + quorum.lease * 2 / 3 > held.until && quorum.renew(&mut held) == Err(Failure::Lost) {
            return Err(Failure::Lost);
        }
        if now() >= held.until || !resource.write(held.fence) {
            return Err(Failure::Lost);
        }
        thread::sleep(WORK);
    }
    let to = now().min(held.until);
    quorum.release(key, &held.token);
    Ok(Turn { fence: held.fence, from, to })
}

/// Whether never two held the lock at once, and each had a higher fence than the one before.
///
/// # Errors
/// The two turns that contradict it.
pub fn check(turns: &mut [Turn]) -> Result<(), String> {
    turns.sort_unstable_by_key(|turn| turn.from);
    for (one, next) in turns.iter().zip(turns.iter().skip(1)) {
        if next.from < one.to {
            return Err(format!("two owners at once: {one:?} and {next:?}"));
        }
        if next.fence <= one.fence {
            return Err(format!("a fence that did not rise: {one:?} and {next:?}"));
        }
    }
    Ok(())
}

/// Lets clients take turns on the servers that the arguments name. The summary.
///
/// # Errors
/// What was wrong with the arguments, a turn, or the history of all.
pub fn run(args: &[String]) -> Result<String, String> {
    let (mut clients, mut rounds, mut lease_ms, mut deadline_ms) = (3, 5, 10_000, 500);
    let mut servers = Vec::new();
    for arg in args {
        match arg.split_once('=') {
            None => servers.extend(arg.to_socket_addrs().map_err(|error| format!("{arg}: {error}"))?.take(1)),
            Some((name, value)) => {
                let value = value.parse().map_err(|error| format!("{arg}: {error}"))?;
                match name {
                    "clients" => clients = value,
                    "rounds" => rounds = value,
                    "lease" => lease_ms = value,
                    "deadline" => deadline_ms = value,
                    _ => return Err(format!("{arg}: options are clients, rounds, lease and deadline")),
                }
            }
        }
    }
    if servers.is_empty() {
        return Err("give the servers: host:port host:port host:port".to_owned());
    }
    let (lease, patience) = (Duration::from_millis(lease_ms), Duration::from_millis(deadline_ms));
    let resource = Resource::default();
    let all: Vec<Result<Vec<Turn>, String>> = thread::scope(|scope| {
        let client = |number: u64| {
            let (servers, resource) = (&servers, &resource);
            scope.spawn(move || {
                let quorum = Quorum::new(servers, lease, patience, lease * 6);
                (0..rounds).map(|_| one_round(&quorum, resource, number)).collect()
            })
        };
        let started: Vec<_> = (0..clients).map(client).collect();
        started
            .into_iter()
            .map(|client| client.join().unwrap_or_else(|_| Err("a client panicked".to_owned())))
            .collect()
    });
    let mut turns: Vec<Turn> = all.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    check(&mut turns)?;
    Ok(format!("{} turns, one owner at a time, every fence higher than the last", turns.len()))
}

fn one_round(quorum: &Quorum, resource: &Resource, client: u64) -> Result<Turn, String> {
    let turn = take_turn(quorum, "redlock:example", resource, quorum.lease * 6);
    let turn = turn.map_err(|failure| format!("client {client}: {failure:?}"))?;
    println!("client {client} fence {} worked {} ms", turn.fence, millis(turn.to - turn.from));
    Ok(turn)
}

fn millis(time: Duration) -> String {
    time.as_millis().to_string()
}

/// From 0 to 1.
fn random() -> f64 {
    RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    match run(&args) {
        Ok(summary) => {
            println!("{summary}");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}
