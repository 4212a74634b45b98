//! One client: it waits in every way there is, works under the lock or dies with it, and notes when it was sure of it.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::dice::Dice;
use super::{Hold, Scene, KEYS, LEASE_MS, STARVED};
use crate::harness::{args, grant, Client, Reply};

pub struct Worker<'a> {
    scene: &'a Scene<'a>,
    number: usize,
    dice: Dice,
    client: Client,
    units: u64,
    holds: Vec<Hold>,
}

impl<'a> Worker<'a> {
    pub fn new(scene: &'a Scene<'a>, number: usize, seed: u64) -> Self {
        let client = scene.server.client();
        let dice = Dice(seed.wrapping_add(number as u64 + 1));
        let mut worker = Self { scene, number, dice, client, units: 0, holds: Vec::new() };
        worker.connect();
        worker
    }

    pub fn run(mut self) -> Vec<Hold> {
        while !self.scene.is_over() {
            self.work();
        }
        self.holds
    }

    fn connect(&mut self) {
        self.client = self.scene.server.client();
        // It may be killed before it knows its own name.
        if let Some(id) = self.ask(args!["CLIENT", "ID"]) {
            self.scene.ids[self.number].store(id.int(), Ordering::Relaxed);
        }
    }

    /// The reply, or nothing if the connection was killed. A reply that does not come is the one thing that may not be.
    fn ask(&mut self, words: Vec<Vec<u8>>) -> Option<Reply> {
        let sent = self.client.try_send(&words).is_ok();
        let reply = if sent { self.client.try_recv(STARVED) } else { None };
        if reply.is_none() {
            assert!(!sent || self.client.is_closed(), "starved: {}", words.join(&b' ').escape_ascii());
            self.connect();
        }
        reply
    }

    /// As `ask`, for a number. Where locks are deleted, data may stand in their place for a while.
    fn ask_number(&mut self, words: Vec<Vec<u8>>) -> Option<i64> {
        self.ask(words).and_then(|reply| self.number_in(&reply))
    }

    fn number_in(&self, reply: &Reply) -> Option<i64> {
        let data = self.scene.deleting && matches!(reply, Reply::Error(text) if text.starts_with("WRONGTYPE"));
        (!data).then(|| reply.int())
    }

    /// Does nothing for a while; a reply that nobody waits for would show.
    fn idle(&mut self, range: std::ops::Range<u64>) {
        let idle = Duration::from_millis(self.dice.within(range));
        assert_eq!(self.client.try_recv(idle), None);
    }

    fn acquire(&mut self, key: u64, token: &str, lease_ms: u64, wait: (&str, u64)) -> Vec<Vec<u8>> {
        let mut words = args!["LOCK.ACQUIRE", format!("k{key}"), "TOKEN", token, "PX", lease_ms];
        if wait.0 != "try" {
            words.extend(args![wait.0, wait.1]);
        }
        words
    }

    /// One unit of work.
    fn work(&mut self) {
        self.units += 1;
        let key = self.dice.within(0..KEYS);
        let token = format!("w{}-{}", self.number, self.units);
        let lease_ms = self.dice.within(LEASE_MS);
        let hold = match self.dice.within(0..10) {
            0..=4 => self.wait(key, &token, lease_ms, ("BLOCK", 15_000)),
            5 => self.poll(key, &token, lease_ms),
            6 => self.wait(key, &token, lease_ms, ("try", 0)),
            7 => self.resend(key, &token, lease_ms),
            8 => self.abandon(key, &token, lease_ms),
            _ => {
                let brief_ms = self.dice.within(1..80);
                self.wait(key, &token, lease_ms, ("BLOCK", brief_ms))
            }
        };
        if let Some(hold) = hold {
            self.hold(hold, lease_ms);
        }
    }

    fn wait(&mut self, key: u64, token: &str, lease_ms: u64, wait: (&str, u64)) -> Option<Hold> {
        let words = self.acquire(key, token, lease_ms, wait);
        let sent = Instant::now();
        let reply = self.ask(words)?;
        self.granted(key, token, sent, &reply)
    }

    fn granted(&self, key: u64, token: &str, sent: Instant, reply: &Reply) -> Option<Hold> {
        if let Reply::Error(text) = reply {
            let allowed = ["UNBLOCKED", "TRYAGAIN", "ERR superseded"];
            let data = self.scene.deleting && text.starts_with("WRONGTYPE");
            assert!(data || allowed.iter().any(|word| text.starts_with(word)), "{text}");
        }
        if reply.is_null() || reply.is_error() {
            return None;
        }
        let granted = grant(reply);
        assert_eq!(granted.token, token.as_bytes());
        assert!(granted.waited < 15_000, "starved: {granted:?}");
        let until = sent + Duration::from_millis((granted.waited + granted.ttl).unsigned_abs());
        Some(Hold {
            key,
            token: token.to_owned(),
            fence: granted.fence,
            from: Instant::now(),
            until,
            story: format!("{reply:?} after {:?}", sent.elapsed()),
        })
    }

    fn poll(&mut self, key: u64, token: &str, lease_ms: u64) -> Option<Hold> {
        let poll_ms = self.dice.within(10..150);
        for _ in 0..20 {
            let hold = self.wait(key, token, lease_ms, ("POLL", poll_ms));
            if hold.is_some() {
                return hold;
            }
            self.idle(0..poll_ms);
        }
        // Some say that they give up, others are just not heard of again.
        if self.dice.percent(50) {
            self.ask(args!["LOCK.RELEASE", format!("k{key}"), token]);
        }
        None
    }

    /// The same request on two connections, as a client does that thinks the first one dead.
    fn resend(&mut self, key: u64, token: &str, lease_ms: u64) -> Option<Hold> {
        let words = self.acquire(key, token, lease_ms, ("BLOCK", 15_000));
        let mut other = self.scene.server.client();
        let first_sent = Instant::now();
        if self.client.try_send(&words).is_err() {
            self.connect();
            return None;
        }
        let pause = Duration::from_millis(self.dice.within(0..40));
        let early = other.try_recv(pause);
        assert_eq!(early, None);
        let sent = Instant::now();
        let reply = cmd_within(&mut other, &words);
        let hold = self.granted(key, token, sent, &reply);
        // The first one has been answered too, or is closed.
        match self.client.try_recv(STARVED) {
            Some(first) => {
                let first = self.granted(key, token, first_sent, &first);
                let two = |first: &Hold, second: &Hold| first.fence != second.fence;
                if first.as_ref().zip(hold.as_ref()).is_none_or(|(first, second)| two(first, second)) {
                    self.holds.extend(first);
                }
            }
            None => {
                assert!(self.client.is_closed(), "starved: {token}, resent");
                self.connect();
            }
        }
        hold
    }

    /// Goes away while it waits.
    fn abandon(&mut self, key: u64, token: &str, lease_ms: u64) -> Option<Hold> {
        let words = self.acquire(key, token, lease_ms, ("BLOCK", 15_000));
        if self.client.try_send(&words).is_ok() {
            let pause = Duration::from_millis(self.dice.within(0..60));
            self.client.try_recv(pause);
        }
        self.connect();
        None
    }

    /// Works under the lock, and gives it back or not.
    fn hold(&mut self, mut hold: Hold, lease_ms: u64) {
        let key = format!("k{}", hold.key);
        if self.dice.percent(50) {
            self.idle(0..lease_ms);
        }
        if self.dice.percent(25) {
            let (longer_ms, sent) = (self.dice.within(LEASE_MS), Instant::now());
            if let Some(left) = self.ask_number(args!["LOCK.EXTEND", key, hold.token, "PX", longer_ms]) {
                // In its last millisecond a lease is not extended any more, though it is nobody else's yet.
                let sure = Instant::now() + Duration::from_millis(1) < hold.until && !self.scene.deleting;
                assert!(!sure || left > 0, "lost before its time: {hold:?}");
                if left > 0 {
                    hold.until = hold.until.max(sent + Duration::from_millis(left.unsigned_abs()));
                }
                hold.story.push_str(&format!(", extended by {longer_ms} to {left} in {:?}", sent.elapsed()));
            }
            self.idle(0..lease_ms / 2 + 1);
        }
        if self.dice.percent(15) {
            self.holds.push(hold);
            return;
        }
        let until = hold.until;
        hold.until = until.min(Instant::now());
        let released = self.release(&key, &hold.token);
        hold.story.push_str(&format!(", released: {released:?}"));
        let sure = Instant::now() < until && !self.scene.deleting;
        assert!(!sure || released.is_none_or(|reply| reply == 1), "lost before its time: {released:?} {hold:?}");
        self.holds.push(hold);
    }

    /// A release, now and then in one unit with the end of somebody else's wait.
    fn release(&mut self, key: &str, token: &str) -> Option<i64> {
        let release = args!["LOCK.RELEASE", key, token];
        if !self.dice.percent(40) {
            return self.ask_number(release);
        }
        let id = self.scene.some_id(&mut self.dice);
        if id == self.scene.ids[self.number].load(Ordering::Relaxed) {
            return self.ask_number(release);
        }
        let strike = match self.dice.within(0..3) {
            0 => args!["CLIENT", "KILL", "ID", id],
            1 => args!["CLIENT", "UNBLOCK", id, "ERROR"],
            _ => args!["CLIENT", "UNBLOCK", id],
        };
        self.ask(args!["MULTI"])?.ok();
        for words in [release, strike] {
            assert!(self.ask(words)?.is("QUEUED"));
        }
        let done = self.ask(args!["EXEC"])?;
        self.number_in(&done.array()[0])
    }
}

/// A reply on a connection that nobody kills.
fn cmd_within(client: &mut Client, words: &[Vec<u8>]) -> Reply {
    client.send(words);
    client.try_recv(STARVED).unwrap_or_else(|| panic!("starved on a second connection"))
}
