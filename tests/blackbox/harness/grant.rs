//! A lock from its grant to its end: the five positions of a granted `LOCK.ACQUIRE` by name, what is left of its lease,
//! and the key that goes with it.

use std::time::Duration;

use super::client::Client;
use super::patience::eventually;
use super::reply::Reply;

/// What a busy machine may take from a lease before it is looked at again.
const SLACK_MS: i64 = 5_000;
const END_WAIT: Duration = Duration::from_secs(10);

/// A granted lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub token: Vec<u8>,
    pub fence: i64,
    /// Milliseconds left when the wait ended.
    pub ttl: i64,
    /// Milliseconds from receipt of the command to the grant.
    pub waited: i64,
    /// 1 if this call took the lock, 0 if the token had it already.
    pub new: i64,
}

/// Reads a grant; anything but an array of exactly five fails the test.
#[track_caller]
pub fn grant(reply: &Reply) -> Grant {
    let Reply::Array(items) = reply else {
        panic!("expected a grant, got {reply:?}");
    };
    let [token, fence, ttl, waited, new] = items.as_slice() else {
        panic!("a grant has five elements, got {reply:?}");
    };
    Grant { token: token.bulk().to_vec(), fence: fence.int(), ttl: ttl.int(), waited: waited.int(), new: new.int() }
}

/// Fails unless this is what is left of a lease of that length that began a moment ago.
#[track_caller]
pub fn assert_left(left_ms: i64, lease_ms: i64) {
    assert!((lease_ms - SLACK_MS..=lease_ms).contains(&left_ms), "{left_ms} ms left of {lease_ms}");
}

/// Waits until nobody holds the lock any more. That its holder has 0 ms left comes up to 1 ms earlier.
#[track_caller]
pub fn wait_until_free(client: &mut Client, key: &str) {
    eventually(END_WAIT, || match client.cmd(&["EXISTS", key]).int() {
        0 => Ok(()),
        there => Err(there),
    });
}
