//! What tests of waiting say over and over: take a lock, stand in line for it, see who stands there. A connection is
//! in line when the server says so, never because time passed.

use std::time::Duration;

use super::arg::cmd;
use super::client::Client;
use super::grant::{grant, Grant};
use super::info::info_int;
use super::patience::eventually;
use super::reply::Reply;
use super::server::Server;

/// Lease of a hold that must outlive its test.
pub const LONG_MS: u64 = 60_000;
const IN_LINE_WAIT: Duration = Duration::from_secs(10);

/// Takes a free lock for long.
#[track_caller]
pub fn take(client: &mut Client, key: &str, token: &str) -> Grant {
    take_for(client, key, token, LONG_MS)
}

/// Takes a free lock for a lease of `ms`.
#[track_caller]
pub fn take_for(client: &mut Client, key: &str, token: &str, ms: u64) -> Grant {
    grant(&cmd!(client, "LOCK.ACQUIRE", key, "TOKEN", token, "PX", ms))
}

/// A new connection whose ACQUIRE for a long lease waits for ever.
#[track_caller]
pub fn stand_in_line(server: &Server, key: &str, token: &str) -> Client {
    stand_with(server, key, token, &["BLOCK", "0"])
}

/// A new connection whose ACQUIRE, with these options, joins the line of a lock.
#[track_caller]
pub fn stand_with(server: &Server, key: &str, token: &str, options: &[&str]) -> Client {
    let (mut waiter, mut watcher) = (server.client(), server.client());
    let before = waiters(&mut watcher, key);
    send_acquire(&mut waiter, key, token, options);
    eventually(IN_LINE_WAIT, || match waiters(&mut watcher, key) {
        now if now > before => Ok(()),
        now => Err(format!("{now} in line, {:?} instead", waiter.try_recv(Duration::ZERO))),
    });
    waiter
}

/// First in line, with a lease of `ms` that starts when the lock is released to it: a test that needs a lease to end at a
/// certain moment need not hurry before.
#[track_caller]
pub fn stand_dying(server: &Server, key: &str, ms: u64) -> Client {
    stand_with(server, key, "dying", &["PX", &ms.to_string(), "BLOCK", "0"])
}

/// Sends an ACQUIRE with a long lease, unless the options name another, and does not wait.
#[track_caller]
pub fn send_acquire(client: &mut Client, key: &str, token: &str, options: &[&str]) {
    let long = LONG_MS.to_string();
    let mut words = vec!["LOCK.ACQUIRE", key, "TOKEN", token];
    if !options.contains(&"PX") {
        words.extend(["PX", &long]);
    }
    words.extend(options);
    client.send(&words);
}

/// Asks for a lock with these options, for long unless they name a lease.
#[track_caller]
pub fn ask(client: &mut Client, key: &str, token: &str, options: &[&str]) -> Reply {
    send_acquire(client, key, token, options);
    client.recv()
}

/// As [`ask`], where the token has to get the lock.
#[track_caller]
pub fn gain(client: &mut Client, key: &str, token: &str, options: &[&str]) -> Grant {
    grant(&ask(client, key, token, options))
}

/// Fails unless a waiting connection is told, now or soon, that its token has the lock.
#[track_caller]
pub fn served(waiter: &mut Client, token: &str) -> Grant {
    let granted = grant(&waiter.recv());
    assert_eq!((granted.token.as_slice(), granted.new), (token.as_bytes(), 1), "{granted:?}");
    granted
}

/// How many hold a lock.
#[track_caller]
pub fn held(client: &mut Client, key: &str) -> i64 {
    match cmd!(client, "LOCK.INFO", key) {
        free if free.is_null() => 0,
        seen => seen.get("held").int(),
    }
}

/// Waits until so many hold a lock.
#[track_caller]
pub fn until_held(client: &mut Client, key: &str, expected: i64) {
    eventually(IN_LINE_WAIT, || match held(client, key) {
        seen if seen == expected => Ok(()),
        seen => Err(format!("{seen} hold {key}, not {expected}")),
    });
}

/// How a lock is held: `exclusive`, `shared` or `legacy`.
#[track_caller]
pub fn mode(client: &mut Client, key: &str) -> String {
    cmd!(client, "LOCK.INFO", key).get("mode").text()
}

/// How many wait for a lock; nobody waits for one that is free.
#[track_caller]
pub fn waiters(client: &mut Client, key: &str) -> i64 {
    match cmd!(client, "LOCK.INFO", key) {
        seen if seen.is_null() => 0,
        seen => seen.get("waiters").int(),
    }
}

/// Who is in line for a lock by label, the next one first.
#[track_caller]
pub fn queue(client: &mut Client, key: &str) -> Vec<String> {
    let seen = cmd!(client, "LOCK.INFO", key);
    seen.get("queue").array().iter().map(|queued| queued.get("label").text()).collect()
}

/// Releases a lock that this token holds.
#[track_caller]
pub fn release(client: &mut Client, key: &str, token: &str) {
    assert_eq!(cmd!(client, "LOCK.RELEASE", key, token).int(), 1, "{token} held {key}");
}

/// Whether the token holds the lock now.
#[track_caller]
pub fn holds(client: &mut Client, key: &str, token: &str) -> bool {
    cmd!(client, "LOCK.CHECK", key, token).int() > 0
}

/// One number of `INFO lock`, named without its prefix.
#[track_caller]
pub fn count(client: &mut Client, name: &str) -> i64 {
    info_int(client, "lock", &format!("lock_{name}"))
}

/// Waits until a number of `INFO lock` is `expected`.
#[track_caller]
pub fn until_count(client: &mut Client, name: &str, expected: i64) {
    eventually(IN_LINE_WAIT, || match count(client, name) {
        seen if seen == expected => Ok(()),
        seen => Err(format!("{name} is {seen}, not {expected}")),
    });
}

/// Fails if a waiting connection has been told anything: asks on another connection first, so whatever the server
/// did before is here by then.
#[track_caller]
pub fn still_waits(server: &Server, waiter: &mut Client) {
    assert!(server.client().cmd(&["PING"]).is("PONG"));
    let told: Option<Reply> = waiter.try_recv(Duration::ZERO);
    assert_eq!(told, None, "it waits");
    assert!(!waiter.is_closed(), "it waits");
}
