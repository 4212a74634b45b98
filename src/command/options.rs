//! Reading a command's options: each word once, in any order and any case, then its value.

use super::failure::Failure;
use crate::core::name::{Label, Token};
use crate::core::time::Lease;
use crate::engine::settings::{DEFAULT_TTL, MAX_TTL};
use crate::server::args::Args;

const MS_PER_SECOND: i64 = 1_000;

/// A walk over the arguments behind the fixed ones.
pub(super) struct Options<'a> {
    args: Args<'a>,
    at: usize,
}

/// An option's word and where it stands.
#[derive(Clone, Copy)]
pub(super) struct Word<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl Word<'_> {
    /// Whether this is the option of that name.
    pub(super) fn is(self, name: &str) -> bool {
        self.bytes.eq_ignore_ascii_case(name.as_bytes())
    }

    /// The failure for a word that is no option.
    pub(super) fn unknown(self, hint: &'static str) -> Failure {
        if self.is("NX") {
            return Failure::NxImplied;
        }
        if self.is("XX") {
            return Failure::Xx;
        }
        Failure::Syntax { at: self.at, hint }
    }
}

impl<'a> Options<'a> {
    /// Starts at the argument of this position.
    pub(super) const fn new(args: Args<'a>, first: usize) -> Self {
        Self { args, at: first }
    }

    /// The next option's word.
    pub(super) fn next_word(&mut self) -> Option<Word<'a>> {
        let word = Word { bytes: self.args.get(self.at)?, at: self.at };
        self.at += 1;
        Some(word)
    }

    /// The value of the option just read, and its position.
    pub(super) fn value(&mut self, word: Word<'_>, option: &'static str) -> Result<(&'a [u8], usize), Failure> {
        let at = self.at;
        let value = self.args.get(at).ok_or(Failure::NoValue { at: word.at, option })?;
        self.at += 1;
        Ok((value, at))
    }

    /// Reads `PX ms` or `EX s` if the word is one of them. Whether it was.
    pub(super) fn lease(&mut self, word: Word<'_>, lease: &mut Option<Lease>) -> Result<bool, Failure> {
        let (option, unit_ms) = match word {
            word if word.is("PX") => ("PX", 1),
            word if word.is("EX") => ("EX", MS_PER_SECOND),
            _ => return Ok(false),
        };
        let (value, at) = self.value(word, option)?;
        let number = integer(value).ok_or(Failure::LeaseNotInteger { at })?;
        once(lease, checked_lease(number.saturating_mul(unit_ms))?, word, "PX or EX")?;
        Ok(true)
    }
}

/// Sets an option that may be given once.
pub(super) fn once<T>(slot: &mut Option<T>, value: T, word: Word<'_>, names: &'static str) -> Result<(), Failure> {
    if slot.is_some() {
        return Err(Failure::Twice { at: word.at, names });
    }
    *slot = Some(value);
    Ok(())
}

/// The token at a position.
pub(super) fn token(bytes: &[u8], at: usize) -> Result<Token<'_>, Failure> {
    Token::new(bytes).ok_or(Failure::Token { at })
}

/// The label at a position.
pub(super) fn label(bytes: &[u8], at: usize) -> Result<Label<'_>, Failure> {
    Label::new(bytes).ok_or(Failure::Label { at })
}

/// The lease of a request that names none.
pub(super) fn default_lease() -> Result<Lease, Failure> {
    checked_lease(DEFAULT_TTL.get().min(MAX_TTL.get()))
}

fn checked_lease(ms: i64) -> Result<Lease, Failure> {
    let max_ms = MAX_TTL.get();
    if ms > max_ms {
        return Err(Failure::LeaseAboveMax { ms, max_ms });
    }
    u64::try_from(ms).ok().and_then(Lease::from_ms).ok_or(Failure::LeaseNotPositive { ms })
}

/// A decimal number as the server's own commands take it: an optional minus, then digits.
fn integer(bytes: &[u8]) -> Option<i64> {
    let (negative, digits) = match bytes {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    // Counted below zero, where there is room for one number more.
    let number = digits.iter().try_fold(0_i64, |number, &byte| {
        let digit = byte.checked_sub(b'0').filter(|&digit| digit <= 9)?;
        number.checked_mul(10)?.checked_sub(i64::from(digit))
    })?;
    if negative {
        Some(number)
    } else {
        number.checked_neg()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_strict() {
        assert_eq!(integer(b"-12"), Some(-12));
        assert_eq!(integer(b"9223372036854775807"), Some(i64::MAX));
        assert_eq!(integer(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(integer(b"-9223372036854775809"), None);
        for wrong in [&b""[..], b"-", b"--1", b"+1", b" 1", b"1 ", b"1.0", b"0x1", b"9223372036854775808", b"\xff"] {
            assert_eq!(integer(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn lease_edges() {
        let max_ms = MAX_TTL.get();
        assert!(matches!(checked_lease(0), Err(Failure::LeaseNotPositive { ms: 0 })));
        assert!(matches!(checked_lease(-1), Err(Failure::LeaseNotPositive { ms: -1 })));
        assert!(checked_lease(1).is_ok() && checked_lease(max_ms).is_ok());
        assert!(matches!(checked_lease(max_ms + 1), Err(Failure::LeaseAboveMax { .. })));
    }
}
