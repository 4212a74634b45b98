//! What random bytes are thrown at: by the targets in fuzz/ for as long as somebody likes, and by the tests below for a
//! moment. Each takes any bytes, and panics if something is true that never should be.

// Only tests and fuzz targets come here, and they find faults by panicking.
#![allow(clippy::expect_used, clippy::missing_panics_doc, clippy::unwrap_used)]

use crate::command;
use crate::core::codec::{self, Change};
use crate::core::hold::Holder;
use crate::core::lock::Seen;
use crate::core::name::Place;
use crate::core::table::model;
use crate::core::table::{Effect, Origin, Site, Table};
use crate::core::time::{Instant, Now, Ticks};
use crate::server::args::Words;

const PLACE: Place<'_> = Place { db: 0, key: b"key" };

/// Bytes as they come from RDB, AOF, RESTORE and the replication stream: refused, or exactly what they say, and told
/// on unchanged.
pub fn payload(bytes: &[u8]) {
    let now = Now { instant: Instant::from_micros(1), ticks: Ticks::from_unix_micros(0) };
    let mut table = Table::default();
    if let Ok(change) = codec::decode(bytes) {
        let again = encoded(&change);
        assert!(again.len() <= bytes.len(), "the oldest version that can hold it");
        assert_eq!(codec::decode(&again), Ok(change.clone()));
        table.follow(Site { place: PLACE, lock: None, legacy: None }, bytes, now).expect("a change");
        let created = table.take_effects().iter().any(|effect| matches!(effect, Effect::Created(_)));
        assert_eq!(created, matches!(change, Change::Set { .. }));
    }
    let holders = codec::decode_lock(bytes);
    let loaded = table.load(PLACE, bytes, Origin::Server, now);
    assert_eq!(loaded.is_ok(), holders.is_ok());
    if let (Ok(handle), Ok(mut holders)) = (loaded, holders) {
        let lock = table.get(handle).expect("what was just loaded");
        let seen: Vec<Seen<'_>> = lock.holders().collect();
        let mut kept: Vec<Holder<'_>> = seen.iter().filter_map(|seen| seen.holder(now.instant)).collect();
        for list in [&mut kept, &mut holders] {
            list.sort_by_key(|holder| (holder.fence, holder.token.bytes().to_vec()));
        }
        assert_eq!(kept, holders);
        assert!(holders.iter().all(|holder| holder.fence.get() <= table.fences().highest()));
    }
}

/// The arguments of a command, a line each: read, or refused in one line that begins with a code word.
pub fn command(bytes: &[u8]) {
    let words = Words::new(bytes.split(|&byte| byte == b'\n').map(Box::from).collect());
    if let Err(reply) = words.read(command::read) {
        let reply = reply.to_str().expect("an error is text");
        let code = reply.split(' ').next().unwrap_or_default();
        assert!(!code.is_empty() && code.bytes().all(|byte| byte.is_ascii_uppercase()), "{reply}");
        assert!(reply.len() > code.len() + 1 && !reply.contains(['\r', '\n']), "{reply}");
    }
}

/// Steps on a few locks, played by the table and by a plain model of it, which have to agree.
pub fn steps(bytes: &[u8]) {
    model::play_bytes(bytes);
}

fn encoded(change: &Change<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec::encode(change, &mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// Something like a change: each part is well formed as a rule.
    fn any_change() -> impl Strategy<Value = Vec<u8>> {
        let kind = prop_oneof![4 => Just([1, 1]), 4 => Just([2, 1]), 8 => Just([2, 2]), 1 => Just([2, 3])];
        let fence = prop_oneof![1..9_u64, Just(0), Just((1 << 53) - 1), Just(1 << 53)];
        let text = vec(any::<u8>(), 0..4);
        (kind, 0..17_u8, fence, 0..9_u64, text.clone(), text).prop_map(|(kind, flags, fence, lease, token, label)| {
            let mut bytes = kind.to_vec();
            if kind != [1, 1] && kind != [2, 3] {
                bytes.push(flags);
            }
            if kind != [2, 3] {
                bytes.extend_from_slice(&fence.to_le_bytes());
                bytes.extend_from_slice(&lease.to_le_bytes());
            }
            let texts: &[Vec<u8>] = if kind == [2, 3] { &[token] } else { &[token, label] };
            for text in texts {
                bytes.push(text.len() as u8);
                bytes.extend_from_slice(text);
            }
            if kind == [2, 1] || kind == [2, 2] {
                bytes.extend_from_slice(&[0, 0]);
            }
            bytes
        })
    }

    const WORDS: [&str; 24] = [
        "TOKEN",
        "PX",
        "EX",
        "BLOCK",
        "POLL",
        "SHARED",
        "LIMIT",
        "HOLD",
        "UPGRADE",
        "DOWNGRADE",
        "EPHEMERAL",
        "MAXHOLD",
        "LABEL",
        "FENCE",
        "NX",
        "XX",
        "t",
        "0",
        "1",
        "-1",
        "86400000",
        "9223372036854775807",
        "EXTEND",
        "RELEASE",
    ];

    fn any_word() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![9 => proptest::sample::select(&WORDS[..]).prop_map(Vec::from), 1 => vec(any::<u8>(), 0..200)]
    }

    proptest! {
        #[test]
        fn any_payload_is_refused_or_kept_as_it_is(changes in vec(any_change(), 0..4)) {
            payload(&changes.concat());
        }

        #[test]
        fn any_arguments_are_read_or_refused_in_words(words in vec(any_word(), 0..14)) {
            command(&words.join(&b'\n'));
        }

        #[test]
        fn any_steps_are_as_the_model_says(bytes in vec(any::<u8>(), 0..600)) {
            steps(&bytes);
        }
    }
}
