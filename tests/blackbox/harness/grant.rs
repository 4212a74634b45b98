//! The five positions of a granted `LOCK.ACQUIRE`, by name.

use super::reply::Reply;

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
