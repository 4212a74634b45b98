//! The bytes of a lock: one format for RDB, AOF and the replication stream, and one validation for whatever comes
//! back in. A value is written in the oldest version able to hold it; a newer version is refused, never guessed at.
//!
//! Version 1: `01` version, `01` an exclusive holder, fence and lease in ms (8 bytes each, little-endian), token and
//! label (a length byte, then the bytes). These bytes reach disks and replicas: they never change.

use super::fence::Fence;
use super::lock::Holder;
use super::name::{Label, Token};
use super::time::Lease;

const VERSION: u8 = 1;
const EXCLUSIVE: u8 = 1;

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
    /// Not a lease.
    Lease,
    /// Not a token.
    Token,
    /// Not a label.
    Label,
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
        }
    }
}

/// Appends the holder's bytes to `out`.
pub fn encode(holder: &Holder<'_>, out: &mut Vec<u8>) {
    let (token, label) = (holder.token.bytes(), holder.label.bytes());
    out.extend_from_slice(&[VERSION, EXCLUSIVE]);
    out.extend_from_slice(&holder.fence.get().to_le_bytes());
    out.extend_from_slice(&holder.lease.ms().to_le_bytes());
    // Both are at most 128 bytes by their types.
    out.push(token.len() as u8);
    out.extend_from_slice(token);
    out.push(label.len() as u8);
    out.extend_from_slice(label);
}

/// The holder these bytes stand for.
///
/// # Errors
/// Whatever is not exactly the bytes of one holder.
pub fn decode(bytes: &[u8]) -> Result<Holder<'_>, Corrupt> {
    let mut rest = Rest(bytes);
    match rest.byte()? {
        VERSION => {}
        newer if newer > VERSION => return Err(Corrupt::Newer),
        _ => return Err(Corrupt::Kind),
    }
    if rest.byte()? != EXCLUSIVE {
        return Err(Corrupt::Kind);
    }
    let fence = Fence::new(rest.number()?).ok_or(Corrupt::Fence)?;
    let lease = Lease::from_ms(rest.number()?).ok_or(Corrupt::Lease)?;
    let token = Token::new(rest.short()?).ok_or(Corrupt::Token)?;
    let label = Label::new(rest.short()?).ok_or(Corrupt::Label)?;
    if !rest.0.is_empty() {
        return Err(Corrupt::Trailing);
    }
    Ok(Holder { token, fence, lease, label })
}

struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn byte(&mut self) -> Result<u8, Corrupt> {
        let (&first, rest) = self.0.split_first().ok_or(Corrupt::Truncated)?;
        self.0 = rest;
        Ok(first)
    }

    fn number(&mut self) -> Result<u64, Corrupt> {
        let (bytes, rest) = self.0.split_first_chunk::<8>().ok_or(Corrupt::Truncated)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*bytes))
    }

    fn short(&mut self) -> Result<&'a [u8], Corrupt> {
        let len = self.byte()? as usize;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Corrupt::Truncated)?;
        self.0 = rest;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::fence::FENCE_END;
    use crate::core::time::LEASE_MS_MAX;
    use proptest::prelude::*;

    const PINNED: &[u8] = b"\x01\x01\x39\x30\0\0\0\0\0\0\xe8\x03\0\0\0\0\0\0\x03tok\x05label";

    fn pinned() -> Holder<'static> {
        Holder {
            token: Token::new(b"tok").unwrap(),
            fence: Fence::new(12_345).unwrap(),
            lease: Lease::from_ms(1_000).unwrap(),
            label: Label::new(b"label").unwrap(),
        }
    }

    fn with(at: usize, bytes: &[u8]) -> Vec<u8> {
        let mut changed = PINNED.to_vec();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        changed
    }

    #[test]
    fn the_bytes_of_version_1_are_pinned() {
        let mut bytes = Vec::new();
        encode(&pinned(), &mut bytes);
        assert_eq!(bytes, PINNED);
        assert_eq!(decode(PINNED), Ok(pinned()));
    }

    #[test]
    fn every_prefix_is_truncated() {
        for len in 0..PINNED.len() {
            assert_eq!(decode(&PINNED[..len]), Err(Corrupt::Truncated), "{len} bytes");
        }
    }

    #[test]
    fn each_fault_has_its_reason() {
        assert_eq!(decode(&with(0, &[2])), Err(Corrupt::Newer));
        assert_eq!(decode(&with(0, &[0])), Err(Corrupt::Kind));
        assert_eq!(decode(&with(1, &[2])), Err(Corrupt::Kind));
        assert_eq!(decode(&with(2, &[0; 8])), Err(Corrupt::Fence));
        assert_eq!(decode(&with(2, &FENCE_END.to_le_bytes())), Err(Corrupt::Fence));
        assert_eq!(decode(&with(10, &[0; 8])), Err(Corrupt::Lease));
        assert_eq!(decode(&with(10, &(LEASE_MS_MAX + 1).to_le_bytes())), Err(Corrupt::Lease));
        assert_eq!(decode(&[PINNED, b"\0"].concat()), Err(Corrupt::Trailing));
        assert_eq!(decode(&[&PINNED[..18], b"\0\0"].concat()), Err(Corrupt::Token));
        let long_token = [&PINNED[..18], &[129], &[b'x'; 129], &[0]].concat();
        assert_eq!(decode(&long_token), Err(Corrupt::Token));
        let long_label = [&PINNED[..22], &[129], &[b'x'; 129]].concat();
        assert_eq!(decode(&long_label), Err(Corrupt::Label));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            token in proptest::collection::vec(any::<u8>(), 1..=128),
            label in proptest::collection::vec(any::<u8>(), 0..=128),
            fence in 1..FENCE_END,
            lease_ms in 1..=LEASE_MS_MAX,
        ) {
            let holder = Holder {
                token: Token::new(&token).unwrap(),
                fence: Fence::new(fence).unwrap(),
                lease: Lease::from_ms(lease_ms).unwrap(),
                label: Label::new(&label).unwrap(),
            };
            let mut bytes = Vec::new();
            encode(&holder, &mut bytes);
            prop_assert_eq!(decode(&bytes), Ok(holder));
        }

        #[test]
        fn anything_read_is_written_the_same(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(holder) = decode(&bytes) {
                let mut again = Vec::new();
                encode(&holder, &mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
