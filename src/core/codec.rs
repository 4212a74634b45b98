//! The bytes of a lock: one format for RDB, AOF and the replication stream, and one validation for whatever comes
//! back in. A value is written in the oldest version able to hold it; a newer version is refused, never guessed at.
//!
//! A change says that one holder was set or removed. A lock is the sequence of its holders, each set.
//!
//! * Version 1, an exclusive holder with nothing extra: `01 01`, fence and lease in ms (8 bytes each, little-endian),
//!   token and label (a length byte, then the bytes).
//! * Version 2, any holder: `02`, kind (1 exclusive, 2 shared, 3 removed), then for a removed one the token; else a
//!   byte of flags (1: has a hold without a name, 2: cap, 4: limit, 8: is the only holder), fence, lease, the cap in ms
//!   left (8 bytes) and the limit (4 bytes) if flagged, token, label, the number of names (2 bytes) and the names in
//!   ascending order.
//!
//! These bytes reach disks and replicas: they never change.

use super::fence::Fence;
use super::hold::{Holder, Mode, HOLDS_MAX};
use super::name::{HoldName, Label, Token};
use super::names::NameList;
use super::time::{Lease, LEASE_MS_MAX};

const VERSION_1: u8 = 1;
const VERSION_2: u8 = 2;

const EXCLUSIVE: u8 = 1;
const SHARED: u8 = 2;
const REMOVED: u8 = 3;

const FLAG_UNNAMED: u8 = 1;
const FLAG_CAP: u8 = 2;
const FLAG_LIMIT: u8 = 4;
const FLAG_ALONE: u8 = 8;
const FLAGS_KNOWN: u8 = FLAG_UNNAMED | FLAG_CAP | FLAG_LIMIT | FLAG_ALONE;

/// One change of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// A holder was set.
    Set {
        /// The holder.
        holder: Holder<'a>,
        /// Whether there is no other: it takes the place of all that were.
        alone: bool,
    },
    /// A holder was removed, and others stay.
    Removed(Token<'a>),
}

/// Why bytes were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corrupt {
    /// Written by a newer version of this module.
    Newer,
    /// Ends too early.
    Truncated,
    /// Goes on after the end.
    Trailing,
    /// A kind of holder this version does not have.
    Kind,
    /// Not a fence.
    Fence,
    /// Not a lease, or not a cap.
    Lease,
    /// Not a token, or one that is there twice.
    Token,
    /// Not a label.
    Label,
    /// Not a limit.
    Limit,
    /// No hold, too many, or one that is there twice.
    Holds,
}

impl Corrupt {
    /// The reason in words, for the log and for error replies.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Newer => "written by a newer version of this module",
            Self::Truncated => "ends too early",
            Self::Trailing => "goes on after its end",
            Self::Kind => "has an unknown kind of holder",
            Self::Fence => "has a fence out of range",
            Self::Lease => "has a lease out of range",
            Self::Token => "has a token out of range",
            Self::Label => "has a label out of range",
            Self::Limit => "has a limit out of range",
            Self::Holds => "has holds out of range",
        }
    }
}

/// Appends the change's bytes to `out`.
pub fn encode(change: &Change<'_>, out: &mut Vec<u8>) {
    match change {
        Change::Set { holder, .. } if is_version_1(holder) => {
            out.extend_from_slice(&[VERSION_1, EXCLUSIVE]);
            out.extend_from_slice(&holder.fence.get().to_le_bytes());
            out.extend_from_slice(&holder.lease.ms().to_le_bytes());
            short(holder.token.bytes(), out);
            short(holder.label.bytes(), out);
        }
        Change::Set { holder, alone } => encode_version_2(holder, *alone, out),
        Change::Removed(token) => {
            out.extend_from_slice(&[VERSION_2, REMOVED]);
            short(token.bytes(), out);
        }
    }
}

fn is_version_1(holder: &Holder<'_>) -> bool {
    holder.mode == Mode::Exclusive && holder.unnamed && holder.names.is_empty() && holder.cap_ms.is_none()
}

fn encode_version_2(holder: &Holder<'_>, alone: bool, out: &mut Vec<u8>) {
    let (kind, limit) = match holder.mode {
        Mode::Exclusive => (EXCLUSIVE, None),
        Mode::Shared(limit) => (SHARED, limit),
    };
    let mut flags = 0;
    for (set, flag) in [
        (holder.unnamed, FLAG_UNNAMED),
        (holder.cap_ms.is_some(), FLAG_CAP),
        (limit.is_some(), FLAG_LIMIT),
        (alone, FLAG_ALONE),
    ] {
        flags |= if set { flag } else { 0 };
    }
    out.extend_from_slice(&[VERSION_2, kind, flags]);
    out.extend_from_slice(&holder.fence.get().to_le_bytes());
    out.extend_from_slice(&holder.lease.ms().to_le_bytes());
    if let Some(cap_ms) = holder.cap_ms {
        out.extend_from_slice(&cap_ms.to_le_bytes());
    }
    if let Some(limit) = limit {
        out.extend_from_slice(&limit.to_le_bytes());
    }
    short(holder.token.bytes(), out);
    short(holder.label.bytes(), out);
    out.extend_from_slice(&(holder.names.len() as u16).to_le_bytes());
    for name in &*holder.names {
        short(name.bytes(), out);
    }
}

/// Tokens, labels and names are at most 128 bytes by their types.
fn short(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(bytes.len() as u8);
    out.extend_from_slice(bytes);
}

/// The change these bytes stand for.
///
/// # Errors
/// Whatever is not exactly the bytes of one change.
pub fn decode(bytes: &[u8]) -> Result<Change<'_>, Corrupt> {
    let mut rest = Rest(bytes);
    let change = rest.change()?;
    if !rest.0.is_empty() {
        return Err(Corrupt::Trailing);
    }
    Ok(change)
}

/// The holders of the lock these bytes stand for: one that holds it exclusively, or any number that share it.
///
/// # Errors
/// Whatever is not exactly the bytes of one lock.
pub fn decode_lock(bytes: &[u8]) -> Result<Vec<Holder<'_>>, Corrupt> {
    let mut rest = Rest(bytes);
    let mut holders: Vec<Holder<'_>> = Vec::new();
    loop {
        let Change::Set { holder, .. } = rest.change()? else { return Err(Corrupt::Kind) };
        // Two can have one fence: a floor raises it to whatever a client asks for.
        let rank = (holder.fence, holder.token.bytes());
        if holders.last().is_some_and(|last| (last.fence, last.token.bytes()) > rank) {
            return Err(Corrupt::Fence);
        }
        holders.push(holder);
        if rest.0.is_empty() {
            break;
        }
    }
    if holders.len() > 1 && holders.iter().any(|holder| holder.mode == Mode::Exclusive) {
        return Err(Corrupt::Trailing);
    }
    let tokens: std::collections::HashSet<&[u8]> = holders.iter().map(|holder| holder.token.bytes()).collect();
    if tokens.len() != holders.len() {
        return Err(Corrupt::Token);
    }
    Ok(holders)
}

struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn change(&mut self) -> Result<Change<'a>, Corrupt> {
        let version = self.byte()?;
        if version > VERSION_2 {
            return Err(Corrupt::Newer);
        }
        let kind = self.byte()?;
        match (version, kind) {
            (VERSION_1, EXCLUSIVE) => self.version_1(),
            (VERSION_2, EXCLUSIVE | SHARED) => self.version_2(kind),
            (VERSION_2, REMOVED) => Ok(Change::Removed(self.token()?)),
            _ => Err(Corrupt::Kind),
        }
    }

    fn version_1(&mut self) -> Result<Change<'a>, Corrupt> {
        let holder = Holder {
            fence: self.fence()?,
            lease: self.lease()?,
            token: self.token()?,
            label: self.label()?,
            mode: Mode::Exclusive,
            unnamed: true,
            names: NameList::Many(Vec::new()),
            cap_ms: None,
        };
        Ok(Change::Set { holder, alone: true })
    }

    fn version_2(&mut self, kind: u8) -> Result<Change<'a>, Corrupt> {
        let flags = self.byte()?;
        if flags & !FLAGS_KNOWN != 0 || (kind == EXCLUSIVE && flags & FLAG_LIMIT != 0) {
            return Err(Corrupt::Kind);
        }
        let (fence, lease) = (self.fence()?, self.lease()?);
        let cap_ms = if flags & FLAG_CAP != 0 { Some(self.number()?) } else { None };
        if cap_ms.is_some_and(|ms| ms > LEASE_MS_MAX) {
            return Err(Corrupt::Lease);
        }
        let limit = if flags & FLAG_LIMIT != 0 { Some(u32::from_le_bytes(self.bytes()?)) } else { None };
        if limit == Some(0) {
            return Err(Corrupt::Limit);
        }
        let (token, label) = (self.token()?, self.label()?);
        let unnamed = flags & FLAG_UNNAMED != 0;
        let names = self.names()?;
        if names.is_empty() && !unnamed {
            return Err(Corrupt::Holds);
        }
        let mode = if kind == EXCLUSIVE { Mode::Exclusive } else { Mode::Shared(limit) };
        let holder = Holder { token, fence, lease, label, mode, unnamed, names, cap_ms };
        Ok(Change::Set { holder, alone: kind == EXCLUSIVE || flags & FLAG_ALONE != 0 })
    }

    /// Grows with what is really there, not with the number it begins with.
    fn names(&mut self) -> Result<NameList<'a>, Corrupt> {
        let count = u16::from_le_bytes(self.bytes()?) as usize;
        if count > HOLDS_MAX {
            return Err(Corrupt::Holds);
        }
        let mut names: Vec<HoldName<'a>> = Vec::new();
        for _ in 0..count {
            let name = HoldName::new(self.short()?).ok_or(Corrupt::Holds)?;
            if names.last().is_some_and(|&last| last >= name) {
                return Err(Corrupt::Holds);
            }
            names.push(name);
        }
        Ok(NameList::Many(names))
    }

    fn fence(&mut self) -> Result<Fence, Corrupt> {
        Fence::new(self.number()?).ok_or(Corrupt::Fence)
    }

    fn lease(&mut self) -> Result<Lease, Corrupt> {
        Lease::from_ms(self.number()?).ok_or(Corrupt::Lease)
    }

    fn token(&mut self) -> Result<Token<'a>, Corrupt> {
        Token::new(self.short()?).ok_or(Corrupt::Token)
    }

    fn label(&mut self) -> Result<Label<'a>, Corrupt> {
        Label::new(self.short()?).ok_or(Corrupt::Label)
    }

    fn byte(&mut self) -> Result<u8, Corrupt> {
        self.bytes::<1>().map(|[byte]| byte)
    }

    fn number(&mut self) -> Result<u64, Corrupt> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Corrupt> {
        let (bytes, rest) = self.0.split_first_chunk::<N>().ok_or(Corrupt::Truncated)?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn short(&mut self) -> Result<&'a [u8], Corrupt> {
        let len = self.byte()? as usize;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Corrupt::Truncated)?;
        self.0 = rest;
        Ok(bytes)
    }
}

#[cfg(test)]
#[path = "codec_tests.rs"]
mod tests;
