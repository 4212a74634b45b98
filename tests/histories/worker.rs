//! One client: it takes locks, works under them, asks again when it hears nothing, and notes what it saw.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::dice::Dice;
use super::harness::{args, grant, Client, Reply};
use super::history::{History, Hold, Release};
use super::scene::{self, watched_primary, Primary, Safety, Scene};

/// How long a client waits for a reply before it takes the connection for dead.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// Times a request is sent.
const TRIES: usize = 4;
const KEYS: u64 = 3;
/// Where some are held for long.
const KEYS_MANY: u64 = 12;
/// No lease is as long, but for those that have to be long.
const LEASE_END_MS: u64 = 400;

pub struct Worker<'a> {
    scene: &'a Scene,
    name: String,
    /// Of the network.
    side: usize,
    dice: Dice,
    client: Option<Client>,
    /// Where each lock was found, in a cluster.
    moved: HashMap<String, u16>,
    /// What it is connected to, by the port that it is known by.
    port: u16,
    units: u64,
    history: History,
}

impl scene::Client for Worker<'_> {
    fn work(&mut self) {
        self.units += 1;
        let keys = if self.scene.long_ms > 0 { KEYS_MANY } else { KEYS };
        let key = format!("{{k{}}}", self.dice.within(0..keys));
        let token = format!("{}-{}", self.name, self.units);
        // Some hold a lock for so long that it has to outlast a failover.
        let long = self.scene.long_ms > 0 && self.dice.percent(30);
        let lease_ms = if long { self.scene.long_ms } else { self.dice.within(40..LEASE_END_MS) };
        let Some(mut hold) = self.acquire(&key, &token, lease_ms) else { return };
        let at_most_ms = if long { lease_ms } else { 30 };
        self.idle(0..at_most_ms);
        if long || self.dice.percent(30) {
            self.extend(&mut hold, lease_ms);
            self.idle(0..at_most_ms);
        }
        // It may have been paused beyond its lease.
        if self.dice.percent(10) {
            self.idle(lease_ms..lease_ms + 100);
        }
        let sure_until = hold.known.then_some(hold.until);
        let sent = Instant::now();
        hold.until = hold.until.min(sent);
        self.history.holds.push(hold);
        for _ in 0..TRIES {
            let invoked = Instant::now();
            if let Some(Reply::Int(outcome)) = self.ask(&key, args!["LOCK.RELEASE", key, token]) {
                // One that was sent before may have done it.
                let sure_until = sure_until.filter(|_| invoked.duration_since(sent) < Duration::from_millis(1));
                self.history.releases.push(Release { key, token, returned: Instant::now(), outcome, sure_until });
                return;
            }
        }
    }

    fn history(self) -> History {
        self.history
    }
}

impl<'a> Worker<'a> {
    pub fn new(scene: &'a Scene, number: usize, seed: u64) -> Self {
        let dice = Dice(seed.wrapping_add(number as u64));
        Self {
            scene,
            name: format!("w{number}"),
            side: number % 2,
            dice,
            client: None,
            moved: HashMap::new(),
            port: 0,
            units: 0,
            history: History::default(),
        }
    }

    /// The reply; nothing if the connection died, or nothing came in time.
    fn ask(&mut self, key: &str, words: Vec<Vec<u8>>) -> Option<Reply> {
        let reply = self.connect(key).and_then(|client| {
            client.try_send(&words).ok()?;
            client.try_recv(PATIENCE)
        });
        if let Some(Reply::Error(text)) = &reply {
            if let Some(port) = text.strip_prefix("MOVED ").and_then(|text| text.rsplit(':').next()?.parse().ok()) {
                self.moved.insert(key.to_owned(), port);
                return None;
            }
        }
        // A server that is none any more, or none yet, is looked for anew.
        let is_other = matches!(&reply, Some(Reply::Error(text)) if !text.starts_with("ERR"));
        if reply.is_none() || is_other {
            self.client = None;
            self.moved.remove(key);
            self.idle(1..20);
        }
        reply.filter(|_| !is_other)
    }

    /// The connection to whoever has this lock; nothing if nobody is known to.
    fn connect(&mut self, key: &str) -> Option<&mut Client> {
        let port = match &self.scene.primary {
            _ if self.moved.contains_key(key) => self.moved[key],
            Primary::Told(port) => port.load(Ordering::SeqCst),
            // Sentinels are asked again once the connection is gone.
            Primary::Watched(_) if self.client.is_some() => self.port,
            Primary::Watched(sentinels) => {
                let one = self.dice.within(0..sentinels.len() as u64) as usize;
                watched_primary(sentinels[one], PATIENCE)?
            }
        };
        if self.client.is_none() || self.port != port {
            self.client = Client::try_connect(self.scene.route(port, self.side)).ok();
            self.port = port;
        }
        self.client.as_mut()
    }

    fn idle(&mut self, range: std::ops::Range<u64>) {
        super::harness::let_pass(Duration::from_millis(self.dice.within(range)));
    }

    /// Extends a hold. An extension that was not heard of is not counted, nor one that would have to be known to replicas
    /// and is not. These hear only of one that changes the length of the lease.
    fn extend(&mut self, hold: &mut Hold, lease_ms: u64) {
        let sent = Instant::now();
        let words = args!["LOCK.EXTEND", hold.key, hold.token, "PX", lease_ms + 1];
        let Some(Reply::Int(left @ 1..)) = self.ask(&hold.key, words) else { return };
        let is_known = match self.scene.safety {
            Safety::Told | Safety::Grace(_) => true,
            Safety::Replicated(replicas) => self.is_replicated(&hold.key, replicas),
        };
        if is_known {
            hold.until = hold.until.max(sent + Duration::from_millis(left.unsigned_abs()));
        }
    }

    fn acquire(&mut self, key: &str, token: &str, lease_ms: u64) -> Option<Hold> {
        for _ in 0..TRIES {
            let invoked = Instant::now();
            self.history.asked.push((key.to_owned(), token.to_owned(), invoked));
            let words = args!["LOCK.ACQUIRE", key, "TOKEN", token, "PX", lease_ms, "BLOCK", 1_000];
            let Some(reply) = self.ask(key, words) else { continue };
            if !matches!(reply, Reply::Array(_)) {
                return None;
            }
            let given = grant(&reply);
            let until = invoked + Duration::from_millis((given.waited + given.ttl).unsigned_abs());
            let known = match self.scene.safety {
                Safety::Told => true,
                Safety::Replicated(replicas) => self.is_replicated(key, replicas),
                Safety::Grace(replicas) => self.dice.percent(30) && self.is_replicated(key, replicas),
            };
            let safe = known || matches!(self.scene.safety, Safety::Grace(_));
            let (key, token, fence) = (key.to_owned(), token.to_owned(), given.fence);
            return Some(Hold { key, token, fence, invoked, returned: Instant::now(), until, safe, known });
        }
        None
    }

    fn is_replicated(&mut self, key: &str, replicas: usize) -> bool {
        matches!(self.ask(key, args!["WAIT", replicas, 300]), Some(Reply::Int(count)) if count >= replicas as i64)
    }
}
