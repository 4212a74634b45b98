//! Tokens, labels and places. All of them are bytes: nothing here is ever decoded, compared ignoring case or printed.

use super::packed::Short;
use std::fmt;

/// Longest token in bytes. Long enough for any identifier people make, short enough to keep inline.
pub const TOKEN_BYTES_MAX: usize = 128;

/// Longest label in bytes.
pub const LABEL_BYTES_MAX: usize = 128;

/// The secret that proves a hold: 1 to [`TOKEN_BYTES_MAX`] bytes. Whoever sends it is the holder.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token<'a>(&'a [u8]);

impl<'a> Token<'a> {
    /// The token with these bytes; `None` if there are none, or too many.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        (!bytes.is_empty() && bytes.len() <= TOKEN_BYTES_MAX).then_some(Self(bytes))
    }

    /// The token's bytes.
    pub const fn bytes(self) -> &'a [u8] {
        self.0
    }
}

/// A token is a password: debug output (logs, panics) must not show it.
impl fmt::Debug for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({} bytes)", self.0.len())
    }
}

/// A holder's description for people: 0 to [`LABEL_BYTES_MAX`] bytes, shown and never compared.
#[derive(Clone, Copy)]
pub struct Label<'a> {
    bytes: &'a [u8],
    short: Option<Short>,
}

impl<'a> Label<'a> {
    /// The label with these bytes; `None` if there are too many.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        (bytes.len() <= LABEL_BYTES_MAX).then_some(Self { bytes, short: None })
    }

    /// As much of these bytes as a label can have: for names the user did not give as a label.
    pub fn cut(bytes: &'a [u8]) -> Self {
        Self { bytes: bytes.get(..LABEL_BYTES_MAX).unwrap_or(bytes), short: None }
    }

    /// A label that many locks get, and how each keeps it.
    pub fn known(bytes: &'a [u8], short: Short) -> Self {
        Self { short: Some(short), ..Self::cut(bytes) }
    }

    /// The label's bytes.
    pub const fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// How it is kept, if that is known.
    pub const fn short(self) -> Option<Short> {
        self.short
    }
}

impl fmt::Debug for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Label").field(&self.bytes).finish()
    }
}

impl PartialEq for Label<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Label<'_> {}

/// Longest name of a hold in bytes.
pub const HOLD_NAME_BYTES_MAX: usize = 64;

/// The name of a nested hold: 1 to [`HOLD_NAME_BYTES_MAX`] bytes. Naming makes nesting safe to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HoldName<'a>(&'a [u8]);

impl<'a> HoldName<'a> {
    /// The name with these bytes; `None` if there are none, or too many.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        (!bytes.is_empty() && bytes.len() <= HOLD_NAME_BYTES_MAX).then_some(Self(bytes))
    }

    /// The name's bytes.
    pub const fn bytes(self) -> &'a [u8] {
        self.0
    }
}

/// Where a lock stands: its database and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place<'a> {
    /// Number of the database.
    pub db: i32,
    /// Name of the key.
    pub key: &'a [u8],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_edges() {
        assert!(Token::new(b"").is_none());
        assert!(Token::new(&[0xff; 1]).is_some());
        assert!(Token::new(&[0; TOKEN_BYTES_MAX]).is_some());
        assert!(Token::new(&[0; TOKEN_BYTES_MAX + 1]).is_none());
    }

    #[test]
    fn label_edges() {
        assert!(Label::new(b"").is_some());
        assert!(Label::new(&[0; LABEL_BYTES_MAX]).is_some());
        assert!(Label::new(&[0; LABEL_BYTES_MAX + 1]).is_none());
        assert_eq!(Label::cut(&[1; LABEL_BYTES_MAX + 1]).bytes().len(), LABEL_BYTES_MAX);
    }

    #[test]
    fn hold_name_edges() {
        assert!(HoldName::new(b"").is_none());
        assert!(HoldName::new(&[0; HOLD_NAME_BYTES_MAX]).is_some());
        assert!(HoldName::new(&[0; HOLD_NAME_BYTES_MAX + 1]).is_none());
    }

    #[test]
    fn debug_output_hides_the_token() {
        assert_eq!(format!("{:?}", Token::new(b"secret").unwrap()), "Token(6 bytes)");
    }
}
