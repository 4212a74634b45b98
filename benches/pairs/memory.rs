//! Bytes of a held lock, of what is left once all are released, and of somebody who waits, by the server's own count.

use crate::contender::{key, token};
use crate::finding::Finding;
use crate::harness::{info_int, let_pass, poll, Kind, Server};
use crate::pipe::{encode, line, Pipe};
use std::time::{Duration, Instant};

/// Commands sent before their replies are awaited.
const IN_FLIGHT: usize = 1_000;
/// How long the server may take to give memory back: it shrinks its tables and buffers bit by bit.
const SETTLE: Duration = Duration::from_secs(5);
/// When it has taken back what it takes back from connections that are idle.
const IDLE: Duration = Duration::from_secs(4);

/// Where locks are kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Store {
    Module,
    String,
}

/// Bytes of a lock beside those of a string.
pub fn of_locks(kind: Kind, locks: usize) -> Vec<Finding> {
    let measured = [Store::Module, Store::String].map(|store| {
        let server = Server::start(kind);
        // The first one pays for what every later one finds there.
        hold(&server, store, 1);
        release(&server, store, 1);
        let before = used(&server);
        let per_lock = || (used(&server) - before) as f64 / locks as f64;
        hold(&server, store, locks);
        let held = per_lock();
        release(&server, store, locks);
        (held, per_lock())
    });
    let [(held, left), (string, string_left)] = measured;
    let target = if kind == Kind::Redis70 { LOCK_TARGET_REDIS } else { LOCK_TARGET_VALKEY };
    vec![
        Finding::of(format!("{locks} locks held / strings set with NX PX"), "bytes each", held, string, Some(target)),
        Finding::of("after they were released / deleted", "bytes each", left, string_left, None),
    ]
}

/// A lock's bytes by a string's: Valkey 9 keeps strings in less.
const LOCK_TARGET_REDIS: f64 = 1.3;
const LOCK_TARGET_VALKEY: f64 = 1.7;

/// Bytes of a waiter beside those of one that is blocked by BLPOP, each with its connection; a polled place has none.
pub fn of_waiters(kind: Kind, waiters: usize) -> Vec<Finding> {
    let [blocked, popping] = ["LOCK.ACQUIRE key TOKEN %t PX 30000 BLOCK 0", "BLPOP list 0"].map(|command| {
        let server = Server::start(kind);
        Pipe::connect(server.port()).ask(&line("LOCK.ACQUIRE key TOKEN holder PX 80000000"));
        let before = used(&server);
        let mut pipes: Vec<Pipe> = (0..waiters).map(|_| Pipe::connect(server.port())).collect();
        for (number, pipe) in pipes.iter_mut().enumerate() {
            pipe.send(&line(&command.replace("%t", &token(number))));
        }
        let all_blocked = || match info_int(&mut server.client(), "clients", "blocked_clients") as usize {
            blocked if blocked == waiters => Ok(()),
            blocked => Err(blocked),
        };
        poll(SETTLE, all_blocked).expect("blocked connections");
        // The server takes the buffers of idle connections back in steps of a few seconds.
        let mut least = (used(&server), Instant::now());
        while least.1.elapsed() < IDLE {
            let now = used(&server);
            if now < least.0 {
                least = (now, Instant::now());
            }
            let_pass(Duration::from_millis(100));
        }
        (least.0 - before) as f64 / waiters as f64
    });
    let server = Server::start(kind);
    Pipe::connect(server.port()).ask(&line("LOCK.ACQUIRE key TOKEN holder PX 80000000"));
    let before = used(&server);
    // Places are lost when they are not polled again, so there are only as many as are soon counted.
    let mut pipe = Pipe::connect(server.port());
    (0..waiters).for_each(|number| {
        pipe.ask(&line(&format!("LOCK.ACQUIRE key TOKEN {} PX 30000 POLL 10000", token(number))));
    });
    drop(pipe);
    let polled = (used(&server) - before) as f64 / waiters as f64;
    vec![
        Finding::of(format!("{waiters} waiting with BLOCK / with BLPOP"), "bytes each", blocked, popping, None),
        Finding::of(format!("{waiters} waiting with POLL / with BLPOP"), "bytes each", polled, popping, None),
    ]
}

/// Takes this many locks and holds them.
pub fn hold(server: &Server, store: Store, locks: usize) {
    send(server, locks, |number| match store {
        Store::Module => {
            ["LOCK.ACQUIRE", &held_key(number), "TOKEN", &token(number), "PX", "80000000"].map(String::from).to_vec()
        }
        Store::String => ["SET", &held_key(number), &token(number), "NX", "PX", "80000000"].map(String::from).to_vec(),
    });
}

fn release(server: &Server, store: Store, locks: usize) {
    send(server, locks, |number| match store {
        Store::Module => ["LOCK.RELEASE", &held_key(number), &token(number)].map(String::from).to_vec(),
        Store::String => ["DEL", &held_key(number)].map(String::from).to_vec(),
    });
}

/// None of the names that are locked and released in rounds.
fn held_key(number: usize) -> String {
    format!("held:{}", key(number))
}

fn send(server: &Server, locks: usize, command: impl Fn(usize) -> Vec<String>) {
    let mut pipe = Pipe::connect(server.port());
    for first in (0..locks).step_by(IN_FLIGHT) {
        let numbers = first..locks.min(first + IN_FLIGHT);
        let mut wire = Vec::new();
        numbers.clone().for_each(|number| encode(&command(number), &mut wire));
        pipe.send(&wire);
        pipe.receive(numbers.len());
    }
}

/// Bytes in use once they stay the same, or when the patience ends.
fn used(server: &Server) -> i64 {
    let mut client = server.client();
    let mut last = 0;
    let mut same = 0;
    let steady = poll(SETTLE, || {
        let now = info_int(&mut client, "memory", "used_memory");
        same = if now == last { same + 1 } else { 0 };
        last = now;
        if same < 50 {
            Err(now)
        } else {
            Ok(now)
        }
    });
    steady.unwrap_or_else(|last| last)
}
