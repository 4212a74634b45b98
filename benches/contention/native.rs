//! What the clients of this benchmark's own kind send: raw commands for this module's lock, or for the baton.

use crate::contender::Contender;
use crate::harness::{cmd, Client};
use crate::wire::command;

const NAME: &[u8] = b"contended";
const LEASE_MS: &[u8] = b"10000";

/// How to take a lock and give it back.
#[derive(Clone, Copy)]
pub enum Protocol {
    Lock,
    Baton,
}

impl Protocol {
    pub fn of(contender: Contender) -> Self {
        match contender {
            Contender::Lock => Self::Lock,
            Contender::Baton => Self::Baton,
            other => panic!("{} has a driver of its own", other.name()),
        }
    }

    /// Puts in place what the clients will take from each other.
    pub fn set_up(self, client: &mut Client) {
        if matches!(self, Self::Baton) {
            cmd!(client, "LPUSH", NAME, "baton").int();
        }
    }

    /// The command that takes the lock, however long that takes. Every turn is a unit of work with a token of its own.
    pub fn acquire(self, client: usize, turn: u64, out: &mut Vec<u8>) {
        match self {
            Self::Lock => {
                let token = token(client, turn);
                command(&[b"LOCK.ACQUIRE", NAME, b"TOKEN", token.as_bytes(), b"PX", LEASE_MS, b"BLOCK", b"0"], out);
            }
            Self::Baton => command(&[b"BLPOP", NAME, b"0"], out),
        }
    }

    pub fn release(self, client: usize, turn: u64, out: &mut Vec<u8>) {
        match self {
            Self::Lock => command(&[b"LOCK.RELEASE", NAME, token(client, turn).as_bytes()], out),
            Self::Baton => command(&[b"LPUSH", NAME, b"baton"], out),
        }
    }

    pub fn is_grant(self, reply: &[u8]) -> bool {
        match self {
            Self::Lock => reply.starts_with(b"*5\r\n"),
            Self::Baton => reply.starts_with(b"*2\r\n"),
        }
    }

    /// Whether a release did release: with another answer, the lock was not the client's own.
    pub fn is_release(self, reply: &[u8]) -> bool {
        reply == b":1\r\n"
    }
}

/// As long as a UUID without its hyphens.
fn token(client: usize, turn: u64) -> String {
    format!("{client:016x}{turn:016x}")
}
