//! Very many leases that end in the same second: how long the server's event loop stands still meanwhile, how fast a lock
//! is handed over, and when all of them are gone.

use std::time::{Duration, Instant};

use crate::contender::{key, token};
use crate::finding::{at, sorted, Finding};
use crate::harness::{info_int, Kind, Server};
use crate::pipe::{encode, line, Pipe};

const IN_FLIGHT: usize = 1_000;
/// Time to take a thousand of the locks, and to spare: they all are held before the first lease ends.
const TAKING_US_EACH: u64 = 60;
const STALL_MAX_MS: f64 = 5.0;
const HAND_OVER_P99_MAX_MS: f64 = 1.0;
const GONE_MAX_S: f64 = 5.0;
const PATIENCE: Duration = Duration::from_secs(60);

/// Their numbers are limits, so ours stands beside what is allowed.
pub fn run(kind: Kind, locks: usize) -> Vec<Finding> {
    let server = Server::start(kind);
    let end = Instant::now() + Duration::from_micros(TAKING_US_EACH * locks as u64) + Duration::from_secs(1);
    take(&server, locks, end);
    let mut watcher = server.client();
    let mut pair = [Pipe::connect(server.port()), Pipe::connect(server.port())];
    let tokens = [token(0), token(1)];
    pair[0].ask(&acquire(&tokens[0]));
    let (mut calm, mut busy) = (Vec::new(), Vec::new());
    let mut turn = 0;
    let mut gone = None;
    let mut asked = Instant::now();
    while gone.is_none() {
        assert!(end.elapsed() < PATIENCE, "the locks do not go away");
        let millis = hand_over(&mut pair, &tokens, turn);
        turn += 1;
        if Instant::now() > end {
            busy.push(millis);
        } else {
            calm.push(millis);
        }
        if asked.elapsed() > Duration::from_millis(20) {
            asked = Instant::now();
            gone = (info_int(&mut watcher, "lock", "lock_held") <= 1).then(|| end.elapsed().as_secs_f64());
        }
    }
    let (calm, busy) = (sorted(calm), sorted(busy));
    let what = |what: &str| format!("{locks} leases end in one second: {what}");
    // What the machine does is in both.
    let beside_calm = |part, name: &str| Finding::of(what(name), "ms", at(&busy, part), at(&calm, part), None);
    vec![
        Finding::of(what("longest stall / allowed"), "ms", at(&busy, 1.0), STALL_MAX_MS, Some(1.0)),
        beside_calm(1.0, "longest stall / before"),
        Finding::of(what("hand-over p99 / allowed"), "ms", at(&busy, 0.99), HAND_OVER_P99_MAX_MS, Some(1.0)),
        beside_calm(0.99, "hand-over p99 / before"),
        Finding::of(what("all are gone / allowed"), "s", gone.unwrap_or(f64::INFINITY), GONE_MAX_S, Some(1.0)),
    ]
}

fn take(server: &Server, locks: usize, end: Instant) {
    let mut pipe = Pipe::connect(server.port());
    for first in (0..locks).step_by(IN_FLIGHT) {
        // Spread over one second.
        let left_ms = end.saturating_duration_since(Instant::now()).as_millis() as usize;
        assert!(left_ms > 0, "the machine is too slow to hold so many locks at once");
        let numbers = first..locks.min(first + IN_FLIGHT);
        let mut wire = Vec::new();
        for number in numbers.clone() {
            let ms = left_ms + number % IN_FLIGHT;
            let words = ["LOCK.ACQUIRE", &key(number), "TOKEN", &token(number), "PX", &ms.to_string()];
            encode(&words.map(String::from), &mut wire);
        }
        pipe.send(&wire);
        pipe.receive(numbers.len());
    }
}

/// Milliseconds from a release to the grant of the one who waits.
fn hand_over(pair: &mut [Pipe; 2], tokens: &[String; 2], turn: usize) -> f64 {
    let (holder, waiter) = (turn % 2, (turn + 1) % 2);
    pair[waiter].send(&acquire(&tokens[waiter]));
    let release = line(&format!("LOCK.RELEASE handed {}", tokens[holder]));
    let start = Instant::now();
    pair[holder].send(&release);
    pair[waiter].receive(1);
    let millis = start.elapsed().as_nanos() as f64 / 1e6;
    pair[holder].receive(1);
    millis
}

fn acquire(token: &str) -> Vec<u8> {
    line(&format!("LOCK.ACQUIRE handed TOKEN {token} PX 80000000 BLOCK 0"))
}
