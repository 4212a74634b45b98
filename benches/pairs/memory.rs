//! Bytes of a held lock, and what is left once all are released, by the server's own count.

use crate::contender::{key, token};
use crate::harness::{info_int, poll, Kind, Server};
use crate::wire::{encode, Pipe};
use std::time::Duration;

/// Commands sent before their replies are awaited.
const IN_FLIGHT: usize = 1_000;
/// How long the server may take to give memory back: it shrinks its tables and buffers bit by bit.
const SETTLE: Duration = Duration::from_secs(5);

/// Where locks are kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Store {
    Module,
    String,
}

/// Prints the bytes of a lock in both stores.
pub fn print(kind: Kind, locks: usize) {
    println!("\n{}: bytes of a lock, {locks} held", kind.name());
    println!("{:<30} {:>8} {:>8}", "  used_memory", "held", "released");
    let rows = [("LOCK.ACQUIRE", Store::Module), ("SET NX PX", Store::String)].map(|(name, store)| {
        let server = Server::start(kind);
        // The first one pays for what every later one finds there.
        hold(&server, store, 1);
        release(&server, store, 1);
        let before = used(&server);
        hold(&server, store, locks);
        let held = (used(&server) - before) as f64 / locks as f64;
        release(&server, store, locks);
        let released = (used(&server) - before) as f64 / locks as f64;
        println!("  {name:<28} {held:>8.1} {released:>8.1}");
        held
    });
    println!("  {:<28} {:>8.2}", "module/string", rows[0] / rows[1]);
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
