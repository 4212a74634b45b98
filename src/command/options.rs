//! Reading a command's options: each word once, in any order and any case, then its value.

use super::failure::Failure;
use crate::core::name::{HoldName, Label, Token};
use crate::core::time::{Lease, LEASE_MS_MAX};
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

    /// Whether this is a number, as a lease is.
    pub(super) fn is_number(self) -> bool {
        integer(self.bytes).is_some()
    }

    /// The failure for a word that is no option.
    pub(super) const fn unknown(self, hint: &'static str) -> Failure {
        Failure::Syntax { at: self.at, hint }
    }
}

/// What to do while another token holds the lock.
#[derive(Clone, Copy, Debug)]
pub(super) enum Waiting {
    /// Block the connection this long, or for ever.
    Block { ms: Option<u64> },
    /// Keep a place in line this long.
    Poll { ms: u64 },
}

/// Longest wait of a BLOCK in ms: ten years, to stay far from overflow; 0 is for ever.
const BLOCK_MS_MAX: u64 = LEASE_MS_MAX;
/// How long a POLL can keep a place, in ms: short enough that a place nobody wants any more is soon gone.
const POLL_MS_MAX: u64 = 10_000;

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

impl Options<'_> {
    /// Reads the number that follows an option.
    pub(super) fn number(&mut self, word: Word<'_>, option: &'static str, min: u64, max: u64) -> Result<u64, Failure> {
        let (value, at) = self.value(word, option)?;
        let number = integer(value).and_then(|number| u64::try_from(number).ok());
        number.filter(|number| (min..=max).contains(number)).ok_or(Failure::OutOfRange { at, option, min, max })
    }

    /// Reads `BLOCK ms` or `POLL ms` if the word is one of them. Whether it was.
    pub(super) fn waiting(&mut self, word: Word<'_>, waiting: &mut Option<Waiting>) -> Result<bool, Failure> {
        let (option, min, max) = match word {
            word if word.is("BLOCK") => ("BLOCK", 0, BLOCK_MS_MAX),
            word if word.is("POLL") => ("POLL", 1, POLL_MS_MAX),
            _ => return Ok(false),
        };
        let ms = self.number(word, option, min, max)?;
        let wait = match option {
            "BLOCK" => Waiting::Block { ms: (ms > 0).then_some(ms) },
            _ => Waiting::Poll { ms },
        };
        once(waiting, wait, word, "BLOCK or POLL")?;
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

/// The name of a hold at a position.
pub(super) fn hold_name(bytes: &[u8], at: usize) -> Result<HoldName<'_>, Failure> {
    HoldName::new(bytes).ok_or(Failure::HoldName { at })
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

/// A decimal number as the server's own commands take it: one way to write each number, so no plus sign and no leading
/// zero.
fn integer(bytes: &[u8]) -> Option<i64> {
    let (digits, negative) = bytes.strip_prefix(b"-").map_or((bytes, false), |digits| (digits, true));
    if !matches!(digits.first(), Some(b'1'..=b'9')) && bytes != b"0" {
        return None;
    }
    // Below zero there is one number more.
    let below_zero = digits.iter().try_fold(0_i64, |number, &digit| {
        let digit = digit.is_ascii_digit().then(|| i64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_sub(digit)
    })?;
    if negative {
        Some(below_zero)
    } else {
        below_zero.checked_neg()
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
        assert_eq!(integer(b"0"), Some(0));
        let signs = [&b""[..], b"-", b"+1", b"--1", b"-0", b"010", b"-010", b"00"];
        let others = [&b" 1"[..], b"1 ", b"1.0", b"1e3", b"0x1", b"9223372036854775808", b"1\0", b"1\xff"];
        for wrong in signs.into_iter().chain(others) {
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
