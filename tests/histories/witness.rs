//! The append-only file as a witness of the server's own order: its changes are read as a client would write them down,
//! and followed by a table of core. What clients were told must be in it, in the order in which they can have heard it.

use redis_lock::core::codec::{self, Change};
use redis_lock::core::hold::Mode;
use redis_lock::core::name::Place;
use redis_lock::core::slab::Handle;
use redis_lock::core::table::{Effect, Site, Table};
use redis_lock::core::time::{Instant, Now, Ticks};
use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::fs;
use std::path::Path;

use super::history::History;

/// Where each fence is first in the file.
pub struct Witness {
    ranks: HashMap<i64, usize>,
}

impl Witness {
    /// Reads the file, and fails if its own order cannot be: a lock with two exclusive holders, or a fence that falls.
    pub fn read(dir: &Path) -> Self {
        let mut table = Table::default();
        let mut locks: HashMap<Vec<u8>, Handle> = HashMap::new();
        let (mut ranks, mut highest) = (HashMap::new(), 0);
        for (rank, command) in commands(dir).into_iter().enumerate() {
            let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
            match words.as_slice() {
                [b"LOCK._SET", key, bytes] => {
                    let now = Now { instant: Instant::from_micros(0), ticks: Ticks::from_unix_micros(0) };
                    let site = Site { place: Place { db: 0, key }, lock: locks.get(*key).copied(), legacy: None };
                    table.follow(site, bytes, now).expect("a change that the server wrote");
                    for effect in table.take_effects() {
                        if let Effect::Created(handle) = effect {
                            locks.insert(key.to_vec(), handle);
                        }
                    }
                    if let Change::Set { holder, .. } = codec::decode(bytes).expect("a change") {
                        let fence = holder.fence.get() as i64;
                        // An extension writes it once more.
                        if let Entry::Vacant(first) = ranks.entry(fence) {
                            first.insert(rank);
                            assert!(fence > highest, "fence {fence} is written after {highest}");
                            highest = fence;
                        }
                        let lock = table.get(locks[*key]).expect("a lock that was set");
                        assert!(holder.mode != Mode::Exclusive || lock.len() == 1, "two hold a lock in the file");
                    }
                }
                [b"DEL" | b"UNLINK", key] => {
                    locks.remove(*key).into_iter().for_each(|handle| table.freed(handle));
                }
                _ => {}
            }
        }
        Self { ranks }
    }

    /// Fails unless every grant is in the file, and before each that was asked for after it was told.
    pub fn confirm(&self, history: &History) {
        let rank = |fence| *self.ranks.get(&fence).unwrap_or_else(|| panic!("fence {fence} was never written"));
        // A request that is sent again gets the grant of the first.
        let mut asked: HashMap<(&str, &str), std::time::Instant> = HashMap::new();
        for (key, token, at) in &history.asked {
            let first = asked.entry((key, token)).or_insert(*at);
            *first = (*first).min(*at);
        }
        let mut holds: Vec<_> = history.holds.iter().collect();
        holds.sort_by_key(|hold| hold.fence);
        for pair in holds.windows(2) {
            assert!(rank(pair[0].fence) <= rank(pair[1].fence), "not the order of the file: {pair:#?}");
            let asked_later = pair[1].returned < asked[&(&*pair[0].key, &*pair[0].token)];
            assert!(
                !asked_later || pair[0].token == pair[1].token,
                "told before the one that is written before it was asked for: {pair:#?}"
            );
        }
    }
}

/// The commands of all parts of the file; what a crash cut off at its end is left out.
fn commands(dir: &Path) -> Vec<Vec<Vec<u8>>> {
    let parts = fs::read_dir(dir.join("appendonlydir")).expect("an append-only directory");
    let mut parts: Vec<_> = parts.map(|part| part.expect("a file").path()).collect();
    parts.retain(|path| path.extension().is_some_and(|end| end == "aof"));
    parts.sort();
    let mut commands = Vec::new();
    for part in parts {
        let bytes = fs::read(part).expect("a part of the file");
        let mut rest = bytes.as_slice();
        while let Some((command, left)) = command(rest) {
            commands.push(command);
            rest = left;
        }
    }
    commands
}

fn command(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, &[u8])> {
    let (count, mut rest) = number(bytes, b'*')?;
    let mut words = Vec::new();
    for _ in 0..count {
        let (length, after) = number(rest, b'$')?;
        words.push(after.get(..length)?.to_vec());
        rest = after.get(length + 2..)?;
    }
    Some((words, rest))
}

/// The number of a line that begins with this mark. Lines of comments are left out.
fn number(bytes: &[u8], mark: u8) -> Option<(usize, &[u8])> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let (line, rest) = (&bytes[..end], &bytes[end + 2..]);
    if line.first() == Some(&b'#') {
        return number(rest, mark);
    }
    assert_eq!(line.first(), Some(&mark), "not a command: {}", line.escape_ascii());
    Some((std::str::from_utf8(&line[1..]).ok()?.parse().ok()?, rest))
}
