//! Bytes that pass for the module's own: holders in its codec, payloads and append-only files that carry them.

use super::arg::cmd;
use super::client::Client;
use super::hold::take;
use super::payload::{with_valid_checksum, Payload};

const LEASE_MS: u64 = 600_000;

/// Type byte and module id stand in front of the lock's own bytes.
pub const HEAD_BYTES: usize = 10;
/// Says that a string follows, and that the value ends.
pub const STRING_FOLLOWS: u8 = 5;
const VALUE_ENDS: u8 = 0;

/// A holder in version 1 of the codec.
pub fn holder(fence: u64, lease_ms: u64, token: &[u8], label: &[u8]) -> Vec<u8> {
    let mut bytes = vec![1, 1];
    bytes.extend_from_slice(&fence.to_le_bytes());
    bytes.extend_from_slice(&lease_ms.to_le_bytes());
    for text in [token, label] {
        bytes.push(u8::try_from(text.len()).expect("short"));
        bytes.extend_from_slice(text);
    }
    bytes
}

/// What a real lock's DUMP is made of, so that others can be made alike.
pub struct Forge {
    pub head: Vec<u8>,
    pub rdb_version: u16,
}

impl Forge {
    pub fn new(client: &mut Client) -> Self {
        take(client, "real", "t", LEASE_MS);
        let payload = Payload::decode(cmd!(client, "DUMP", "real").bulk());
        assert_eq!(cmd!(client, "LOCK.RELEASE", "real", "t").int(), 1);
        assert_eq!(payload.body[HEAD_BYTES], STRING_FOLLOWS);
        Self { head: payload.body[..HEAD_BYTES].to_vec(), rdb_version: payload.rdb_version }
    }

    /// A payload with these bytes after the module's id.
    pub fn raw(&self, rest: &[u8]) -> Vec<u8> {
        with_valid_checksum(&[&self.head, rest].concat(), self.rdb_version)
    }

    /// A payload with these bytes as the lock, which must be short.
    pub fn lock(&self, bytes: &[u8]) -> Vec<u8> {
        let length = bytes.len();
        // Lengths from 64 on take two bytes: six bits and eight.
        let length = match u8::try_from(length) {
            Ok(short) if short < 64 => vec![short],
            _ => vec![0x40 | u8::try_from(length >> 8).expect("short"), (length & 0xff) as u8],
        };
        self.raw(&[&[STRING_FOLLOWS], length.as_slice(), bytes, &[VALUE_ENDS]].concat())
    }

    pub fn with_fence(&self, fence: u64) -> Vec<u8> {
        self.lock(&holder(fence, LEASE_MS, b"forged", b""))
    }
}

/// A file of commands, as an append-only file holds them.
pub fn aof(commands: &[Vec<Vec<u8>>]) -> Vec<u8> {
    let mut file = Vec::new();
    for command in commands {
        file.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
        for arg in command {
            file.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            file.extend_from_slice(arg);
            file.extend_from_slice(b"\r\n");
        }
    }
    file
}
