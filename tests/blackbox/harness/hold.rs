//! What tests say about a held lock most often: take it, ask how long it is still held, and see it end by itself at
//! the right time without a LOCK command that would end it on the way.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use super::arg::cmd;
use super::client::Client;
use super::grant::{grant, Grant};
use super::patience::eventually;
use super::reply::Reply;

/// How late a lease may be seen to end. The module is late by a few ms; the rest is a busy machine.
const LATE: Duration = Duration::from_millis(700);

/// Takes a lock that is free.
#[track_caller]
pub fn take(client: &mut Client, key: &str, token: &str, lease_ms: u64) -> Grant {
    let taken = grant(&acquire(client, key, token, lease_ms));
    assert_eq!(taken.new, 1, "{taken:?}");
    taken
}

/// Asks for a lock that the token holds already.
#[track_caller]
pub fn repeat(client: &mut Client, key: &str, token: &str, lease_ms: u64) -> Grant {
    let repeated = grant(&acquire(client, key, token, lease_ms));
    assert_eq!(repeated.new, 0, "{repeated:?}");
    repeated
}

/// Asks for a lock.
#[track_caller]
pub fn acquire(client: &mut Client, key: &str, token: &str, lease_ms: u64) -> Reply {
    cmd!(client, "LOCK.ACQUIRE", key, "TOKEN", token, "PX", lease_ms)
}

/// Milliseconds left if the token holds the lock, else 0.
#[track_caller]
pub fn ms_left(client: &mut Client, key: &str, token: &str) -> i64 {
    cmd!(client, "LOCK.CHECK", key, token).int()
}

/// The fence of a held lock.
#[track_caller]
pub fn fence(client: &mut Client, key: &str) -> i64 {
    cmd!(client, "LOCK.INFO", key).get("fence").int()
}

/// The instants between which something happened.
#[derive(Clone, Debug)]
pub struct Span(pub RangeInclusive<Instant>);

/// Runs what starts a lease and notes when.
#[track_caller]
pub fn span<T>(action: impl FnOnce() -> T) -> (T, Span) {
    let before = Instant::now();
    let value = action();
    (value, Span(before..=Instant::now()))
}

impl Span {
    /// Waits until the key is gone by itself, and fails unless that is `lease_ms` after this: never earlier, hardly
    /// later. `client` has the key's database selected.
    #[track_caller]
    pub fn ends(&self, client: &mut Client, key: &str, lease_ms: u64) {
        self.ends_within(client, key, lease_ms, LATE);
    }

    /// Like `ends`, where `late` is how much later it may be.
    #[track_caller]
    pub fn ends_within(&self, client: &mut Client, key: &str, lease_ms: u64, late: Duration) {
        let lease = Duration::from_millis(lease_ms);
        let patience = (*self.0.end() + lease + late).saturating_duration_since(Instant::now());
        eventually(patience, || match cmd!(client, "EXISTS", key) {
            Reply::Int(0) => Ok(()),
            other => Err(other),
        });
        let held = self.0.start().elapsed();
        assert!(held >= lease, "{key} ended after {held:?}, before its lease of {lease_ms} ms");
    }
}
