//! What is compared: each contender's commands, as its users send them. A command is a line of words, where `key`,
//! `token` and `channel` stand for those of one lock.

use crate::harness::{cmd, Client, Reply};
use crate::pipe;

/// One way to lock.
pub struct Contender {
    pub name: &'static str,
    /// Sent one after the other for one lock.
    commands: Vec<String>,
}

/// The module's own.
pub const MODULE: &str = "an exclusive pair";
pub const FAILED_MODULE: &str = "LOCK.ACQUIRE";
pub const FAILED_STRING: &str = "SET NX PX";

/// What a pair is compared with, and the most it may cost by that.
pub const PAIR_TARGETS: [(&str, f64); 4] = [
    ("SET NX PX + EVALSHA", 0.62),
    ("EVALSHA + EVALSHA", 0.42),
    ("re-entrant scripts", 0.30),
    ("SET NX PX + DELIFEQ", 1.25),
];

/// Other kinds of hold. None may cost much more than an exclusive one.
pub const MODES: [(&str, &str, &str); 3] = [
    ("HOLD", "LOCK.ACQUIRE key TOKEN token PX 30000 HOLD h", "LOCK.RELEASE key token HOLD h"),
    ("SHARED", "LOCK.ACQUIRE key TOKEN token PX 30000 SHARED", "LOCK.RELEASE key token"),
    ("LIMIT", "LOCK.ACQUIRE key TOKEN token PX 30000 LIMIT 5", "LOCK.RELEASE key token"),
];

const UNLOCK: &str = "if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
const LOCK: &str = "if redis.call('set',KEYS[1],ARGV[1],'NX','PX',ARGV[2]) then return 1 else return 0 end";

/// A lock that counts its holds: what large client libraries send.
const REENTRANT_LOCK: &str =
    "if (redis.call('exists', KEYS[1]) == 0) or (redis.call('hexists', KEYS[1], ARGV[2]) == 1) \
    then redis.call('hincrby', KEYS[1], ARGV[2], 1); redis.call('pexpire', KEYS[1], ARGV[1]); return nil; end; \
    return redis.call('pttl', KEYS[1]);";
const REENTRANT_UNLOCK: &str = "if (redis.call('hexists', KEYS[1], ARGV[3]) == 0) then return nil; end; \
    local counter = redis.call('hincrby', KEYS[1], ARGV[3], -1); \
    if (counter > 0) then redis.call('pexpire', KEYS[1], ARGV[2]); return 0; \
    else redis.call('del', KEYS[1]); redis.call('publish', KEYS[2], ARGV[1]); return 1; end; return nil;";

impl Contender {
    pub fn new(name: &'static str, commands: &[&str]) -> Self {
        Self { name, commands: commands.iter().map(|&line| line.to_owned()).collect() }
    }

    /// Number of commands for one lock.
    pub fn count(&self) -> usize {
        self.commands.len()
    }

    /// Appends what is sent for one lock.
    pub fn write(&self, number: usize, out: &mut Vec<u8>) {
        for line in &self.commands {
            pipe::encode(&words(line, number), out);
        }
    }

    /// What is sent for one lock, command by command.
    pub fn commands(&self, number: usize) -> Vec<Vec<u8>> {
        let wire = |line: &String| {
            let mut out = Vec::new();
            pipe::encode(&words(line, number), &mut out);
            out
        };
        self.commands.iter().map(wire).collect()
    }

    /// Does it once and looks at the replies: what fails fast is not fast.
    pub fn tried(self, client: &mut Client, expected: fn(&[Reply]) -> bool) -> Self {
        let replies = client.pipeline(self.commands.iter().map(|line| words(line, 0)));
        assert!(expected(&replies), "{}: {replies:?}", self.name);
        self
    }
}

/// Every way to take a lock and give it back that this server has.
pub fn pairs(client: &mut Client) -> Vec<Contender> {
    let mut script = |text: &str| cmd!(client, "SCRIPT", "LOAD", text).text();
    let (unlock, lock) = (script(UNLOCK), script(LOCK));
    let (reentrant_lock, reentrant_unlock) = (script(REENTRANT_LOCK), script(REENTRANT_UNLOCK));
    let set = "SET key token NX PX 30000";
    let release = format!("EVALSHA {unlock} 1 key token");
    let mut all = vec![
        Contender::new(MODULE, &["LOCK.ACQUIRE key TOKEN token PX 30000", "LOCK.RELEASE key token"]),
        Contender::new("SET NX PX + EVALSHA", &[set, &release]),
        Contender::new("EVALSHA + EVALSHA", &[&format!("EVALSHA {lock} 1 key token 30000"), &release]),
        Contender::new(
            "re-entrant scripts",
            &[
                &format!("EVALSHA {reentrant_lock} 1 key 30000 token"),
                &format!("EVALSHA {reentrant_unlock} 2 key channel 0 30000 token"),
            ],
        ),
    ];
    if !matches!(&cmd!(client, "COMMAND", "INFO", "DELIFEQ").array()[0], reply if reply.is_null()) {
        all.push(Contender::new("SET NX PX + DELIFEQ", &[set, "DELIFEQ key token"]));
    }
    let mut all: Vec<_> =
        all.into_iter().map(|one| one.tried(client, |replies| replies.last() == Some(&Reply::Int(1)))).collect();
    all.push(Contender::new("PING + PING", &["PING", "PING"]));
    all
}

/// An exclusive pair and those of the other kinds.
pub fn modes(client: &mut Client) -> Vec<Contender> {
    let exclusive = (MODULE, "LOCK.ACQUIRE key TOKEN token PX 30000", "LOCK.RELEASE key token");
    let all = [exclusive].into_iter().chain(MODES).map(|(name, take, back)| Contender::new(name, &[take, back]));
    all.map(|one| one.tried(client, |replies| replies.last() == Some(&Reply::Int(1)))).collect()
}

/// Tries for a lock that another token holds.
pub fn failed_tries(client: &mut Client) -> Vec<Contender> {
    const TAKEN: &str = "taken-lock";
    const TAKEN_STRING: &str = "taken-string";
    cmd!(client, "LOCK.ACQUIRE", TAKEN, "TOKEN", "another", "PX", 80_000_000);
    cmd!(client, "SET", TAKEN_STRING, "another", "PX", 80_000_000).ok();
    let failed = |replies: &[Reply]| replies.iter().all(Reply::is_null);
    vec![
        Contender::new(FAILED_MODULE, &[&format!("LOCK.ACQUIRE {TAKEN} TOKEN token PX 30000")]).tried(client, failed),
        Contender::new(FAILED_STRING, &[&format!("SET {TAKEN_STRING} token NX PX 30000")]).tried(client, failed),
    ]
}

/// What other users of a server do all day.
pub fn plain_commands() -> Vec<Contender> {
    vec![Contender::new("SET, GET, EXPIRE, DEL", &["SET key token", "GET key", "EXPIRE key 100", "DEL key"])]
}

/// The words of a line for one lock.
fn words(line: &str, number: usize) -> Vec<String> {
    let word = |word: &str| match word {
        "key" => key(number),
        "token" => token(number),
        "channel" => format!("channel:{{{}}}", key(number)),
        _ => word.to_owned(),
    };
    line.split(' ').map(word).collect()
}

/// The name of a lock.
pub fn key(number: usize) -> String {
    format!("job:{number:08}")
}

/// A token of 36 bytes, as long as a UUID.
pub fn token(number: usize) -> String {
    format!("{number:08x}-2f6c-4d0b-9a57-6b1de0c34f92")
}
