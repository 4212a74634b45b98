//! Tokens and labels as a lock keeps them. Most tokens are UUIDs or 32 hexadecimal digits, most labels are addresses of
//! connections: of those a lock keeps the bytes that the text stands for, less than half of it. A text that would not
//! come back byte for byte is kept as it is.

use super::name::{Label, Token};
use std::borrow::Cow;
use std::ops::Deref;
use std::rc::Rc;

/// A text, as it was given and as it is kept.
#[derive(Clone, Copy)]
pub struct Packed<'a> {
    given: &'a [u8],
    short: Short,
}

/// How a text is kept, and what is kept of one that is not plain.
#[derive(Clone, Copy)]
pub struct Short {
    form: Form,
    /// An address does not fill them.
    bytes: [u8; UUID_BYTES],
}

/// How a text is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As it is.
    Plain,
    /// As the bytes of a UUID in lower case with its hyphens.
    Uuid,
    /// As the bytes of as many digits in lower case.
    Digits,
    /// As the bytes of an IPv4 address and a port, with a colon between them.
    Address,
}

impl Form {
    /// How many bits it takes.
    pub const BITS: u32 = 2;

    /// The form as a number.
    pub const fn to_bits(self) -> u8 {
        self as u8
    }

    /// The form whose number the lowest bits are.
    pub const fn from_bits(bits: u8) -> Self {
        match bits % (1 << Self::BITS) {
            1 => Self::Uuid,
            2 => Self::Digits,
            3 => Self::Address,
            _ => Self::Plain,
        }
    }

    /// How many bytes are kept, if the form says that.
    pub const fn kept_bytes(self) -> Option<usize> {
        match self {
            Self::Plain => None,
            Self::Uuid | Self::Digits => Some(UUID_BYTES),
            Self::Address => Some(ADDRESS_BYTES),
        }
    }

    /// The text of which these bytes are kept.
    pub fn text(self, kept: &[u8]) -> Text<'_> {
        let made = match self {
            Self::Plain => None,
            Self::Uuid => kept.try_into().ok().map(Made::uuid),
            Self::Digits => kept.try_into().ok().map(Made::digits),
            Self::Address => kept.try_into().ok().map(Made::address),
        };
        made.map_or(Text::Kept(kept), Text::Made)
    }
}

const UUID_BYTES: usize = 16;
/// Digits of a UUID.
const DIGITS: usize = 32;
/// Characters of a UUID.
const UUID_CHARS: usize = 36;
/// The address and the port, each with its highest byte first.
const ADDRESS_BYTES: usize = 6;
/// Characters of `1.2.3.4:5` and `123.123.123.123:12345`.
const ADDRESS_CHARS_MIN: usize = 9;
const ADDRESS_CHARS_MAX: usize = 21;

impl<'a> Packed<'a> {
    /// The text.
    pub fn of(given: &'a [u8]) -> Self {
        Self { given, short: Short::of(given) }
    }

    /// The text, of which it is known already how it is kept.
    pub const fn known(given: &'a [u8], short: Short) -> Self {
        Self { given, short }
    }

    /// The text as it was given.
    pub const fn given(self) -> &'a [u8] {
        self.given
    }

    /// How it is kept.
    pub const fn form(&self) -> Form {
        self.short.form
    }

    /// What is kept.
    pub fn kept(&self) -> &[u8] {
        match self.short.form {
            Form::Plain => self.given,
            Form::Uuid | Form::Digits => &self.short.bytes,
            Form::Address => self.short.bytes.get(..ADDRESS_BYTES).unwrap_or_default(),
        }
    }

    /// Whether this text is the one of which these bytes are kept in this form.
    pub fn is(&self, form: Form, kept: &[u8]) -> bool {
        self.short.form == form
            && match (form, kept.first_chunk()) {
                // Most tokens are that long: no call is made to compare them.
                (Form::Uuid | Form::Digits, Some(kept)) => self.short.bytes == *kept,
                _ => self.kept() == kept,
            }
    }
}

impl Short {
    /// How this text is kept.
    pub fn of(text: &[u8]) -> Self {
        let short = match text.len() {
            UUID_CHARS => text.try_into().ok().and_then(uuid).map(|bytes| (Form::Uuid, bytes)),
            DIGITS => text.try_into().ok().and_then(digits).map(|bytes| (Form::Digits, bytes)),
            ADDRESS_CHARS_MIN..=ADDRESS_CHARS_MAX => address(text).map(|bytes| (Form::Address, bytes)),
            _ => None,
        };
        let (form, bytes) = short.unwrap_or((Form::Plain, [0; UUID_BYTES]));
        Self { form, bytes }
    }
}

impl<'a> From<Token<'a>> for Packed<'a> {
    fn from(token: Token<'a>) -> Self {
        Self::of(token.bytes())
    }
}

impl<'a> From<Label<'a>> for Packed<'a> {
    fn from(label: Label<'a>) -> Self {
        label.short().map_or_else(|| Self::of(label.bytes()), |short| Self::known(label.bytes(), short))
    }
}

/// A text that outlives the command that gave it. Whoever else needs it shares it.
#[derive(Clone)]
pub struct Shared {
    given: Rc<[u8]>,
    short: Short,
}

impl Shared {
    /// The text, as a lock takes it.
    pub fn packed(&self) -> Packed<'_> {
        Packed::known(&self.given, self.short)
    }

    /// The text as it was given.
    pub const fn given(&self) -> &Rc<[u8]> {
        &self.given
    }
}

impl From<Packed<'_>> for Shared {
    fn from(text: Packed<'_>) -> Self {
        Self { given: text.given.into(), short: text.short }
    }
}

impl Deref for Shared {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.given
    }
}

impl PartialEq for Shared {
    fn eq(&self, other: &Self) -> bool {
        self.given == other.given
    }
}

/// A token or label, as it was given.
#[derive(Clone, Copy)]
pub enum Text<'a> {
    /// It is kept as it is.
    Kept(&'a [u8]),
    /// Made from what is kept.
    Made(Made),
}

impl Deref for Text<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Kept(text) => text,
            Self::Made(made) => made.chars.get(..made.len as usize).unwrap_or_default(),
        }
    }
}

impl<'a> From<Text<'a>> for Cow<'a, [u8]> {
    fn from(text: Text<'a>) -> Self {
        match text {
            Text::Kept(text) => Self::Borrowed(text),
            Text::Made(_) => Self::Owned(text.to_vec()),
        }
    }
}

/// A text made anew.
#[derive(Clone, Copy)]
pub struct Made {
    chars: [u8; UUID_CHARS],
    len: u8,
}

impl Made {
    fn digits(bytes: [u8; UUID_BYTES]) -> Self {
        let mut chars = [0; UUID_CHARS];
        chars[..DIGITS].copy_from_slice(&digits_of(bytes));
        Self { chars, len: DIGITS as u8 }
    }

    fn uuid(bytes: [u8; UUID_BYTES]) -> Self {
        let digits = digits_of(bytes);
        let mut chars = [b'-'; UUID_CHARS];
        chars[..8].copy_from_slice(&digits[..8]);
        chars[9..13].copy_from_slice(&digits[8..12]);
        chars[14..18].copy_from_slice(&digits[12..16]);
        chars[19..23].copy_from_slice(&digits[16..20]);
        chars[24..].copy_from_slice(&digits[20..]);
        Self { chars, len: UUID_CHARS as u8 }
    }

    fn address([a, b, c, d, high, low]: [u8; ADDRESS_BYTES]) -> Self {
        let mut made = Self { chars: [0; UUID_CHARS], len: 0 };
        for (number, after) in [(a, b'.'), (b, b'.'), (c, b'.'), (d, b':')] {
            made.push_number(u16::from(number));
            made.push(after);
        }
        made.push_number(u16::from_be_bytes([high, low]));
        made
    }

    fn push_number(&mut self, number: u16) {
        for unit in [10_000, 1_000, 100, 10] {
            if number >= unit {
                self.push(b'0' | (number / unit % 10) as u8);
            }
        }
        self.push(b'0' | (number % 10) as u8);
    }

    fn push(&mut self, char: u8) {
        if let Some(place) = self.chars.get_mut(self.len as usize) {
            *place = char;
            self.len += 1;
        }
    }
}

fn uuid(text: &[u8; UUID_CHARS]) -> Option<[u8; UUID_BYTES]> {
    if (text[8], text[13], text[18], text[23]) != (b'-', b'-', b'-', b'-') {
        return None;
    }
    let mut chars = [0; DIGITS];
    chars[..8].copy_from_slice(&text[..8]);
    chars[8..12].copy_from_slice(&text[9..13]);
    chars[12..16].copy_from_slice(&text[14..18]);
    chars[16..20].copy_from_slice(&text[19..23]);
    chars[20..].copy_from_slice(&text[24..]);
    digits(&chars)
}

/// Without a branch for each digit, as its reverse: this is done for each command.
#[inline(always)]
fn digits(chars: &[u8; DIGITS]) -> Option<[u8; UUID_BYTES]> {
    let mut all = true;
    let nibbles = chars.map(|char| {
        let (number, letter) = (char.wrapping_sub(b'0'), char.wrapping_sub(b'a'));
        all &= (number < 10) | (letter < 6);
        if number < 10 {
            number
        } else {
            letter.wrapping_add(10)
        }
    });
    let mut bytes = [0; UUID_BYTES];
    for (byte, [high, low]) in bytes.iter_mut().zip(nibbles.as_chunks().0) {
        *byte = high << 4 | low & 0xf;
    }
    all.then_some(bytes)
}

fn digits_of(bytes: [u8; UUID_BYTES]) -> [u8; DIGITS] {
    let mut nibbles = [0; DIGITS];
    for (pair, byte) in nibbles.as_chunks_mut().0.iter_mut().zip(bytes) {
        *pair = [byte >> 4, byte & 0xf];
    }
    nibbles.map(|nibble| nibble.wrapping_add(if nibble < 10 { b'0' } else { b'a' - 10 }))
}

fn address(text: &[u8]) -> Option<[u8; UUID_BYTES]> {
    let mut address = [0; UUID_BYTES];
    let (mut at, mut number, mut len) = (0, 0u32, 0);
    for &char in text {
        let digit = char.wrapping_sub(b'0');
        if digit < 10 {
            // No number begins with a 0 that goes on, and none is longer than that of a port.
            if len > 0 && number == 0 || len == 5 {
                return None;
            }
            number = number * 10 + u32::from(digit);
            len += 1;
        } else {
            let after = if at == 3 { b':' } else { b'.' };
            if char != after || len == 0 || at > 3 {
                return None;
            }
            *address.get_mut(at)? = u8::try_from(number).ok()?;
            (at, number, len) = (at + 1, 0, 0);
        }
    }
    let port = u16::try_from(number).ok().filter(|_| at == 4 && len > 0)?;
    [address[4], address[5]] = port.to_be_bytes();
    Some(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// How many bytes are kept; all come back.
    fn kept(text: &[u8]) -> usize {
        let packed = Packed::of(text);
        let (form, kept) = (packed.form(), packed.kept());
        assert!(Form::from_bits(form.to_bits()) == form && form.to_bits() >> Form::BITS == 0);
        assert_eq!(&*form.text(kept), text);
        assert_eq!(form.kept_bytes().unwrap_or(text.len()), kept.len());
        assert!(packed.is(form, kept));
        kept.len()
    }

    #[test]
    fn what_is_usual_is_kept_in_less() {
        assert_eq!(kept(b"550e8400-e29b-41d4-a716-446655440000"), UUID_BYTES);
        assert_eq!(kept(b"550e8400e29b41d4a716446655440000"), UUID_BYTES);
        assert_eq!(kept(b"127.0.0.1:54321"), ADDRESS_BYTES);
        assert_eq!(kept(b"0.0.0.0:0"), ADDRESS_BYTES);
        assert_eq!(kept(b"255.255.255.255:65535"), ADDRESS_BYTES);
    }

    #[test]
    fn what_would_not_come_back_is_kept_as_it_is() {
        for text in [
            "",
            "0",
            "550E8400-e29b-41d4-a716-446655440000",
            "550e8400-e29b-41d4-a716-44665544000g",
            "550e8400+e29b-41d4-a716-446655440000",
            "550e8400-e29b-41d4-a7164-46655440000",
            "550e8400e29b41d4a71644665544000G",
            "550e8400e29b41d4a71644665544000/",
            "127.0.0.01:543",
            "127.0.0.256:543",
            "127.0.0.1:65536",
            "127.0.0.1:065",
            "127.0.0.1:",
            "127.0.0.1:5 ",
            "127.0.0.1.5",
            "127.0.0:5432",
            "127.0.0.1:5:4",
            "127.0.0..1:54",
            "+127.0.0.1:54",
            "[2001:db8::1]:5432",
        ] {
            assert_eq!(kept(text.as_bytes()), text.len(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_comes_back(text in proptest::collection::vec(any::<u8>(), 0..=130)) {
            prop_assert!(kept(&text) <= text.len());
        }

        #[test]
        fn what_looks_usual_comes_back(
            text in "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}\
                |[0-9]{1,3}\\.[0-9]{1,3}\\.[0-9]{1,3}\\.[0-9]{1,3}:[0-9]{1,5}",
            at in any::<proptest::sample::Index>(),
            other in any::<u8>(),
        ) {
            let mut text = text.into_bytes();
            kept(&text);
            let at = at.index(text.len());
            text[at] = other;
            kept(&text);
        }

        /// Texts are compared as they are kept.
        #[test]
        fn two_texts_are_kept_alike_only_if_they_are_the_same(
            one in "[0-9a-f]{32}", digits in any::<bool>(), at in 0..32usize, other in any::<u8>(),
        ) {
            let text = if digits { one.clone() } else {
                [&one[..8], &one[8..12], &one[12..16], &one[16..20], &one[20..]].join("-")
            };
            let kept = Packed::of(text.as_bytes());
            prop_assert_eq!(digits, Packed::of(one.as_bytes()).is(kept.form(), kept.kept()));
            let mut changed = text.clone().into_bytes();
            changed[at] = other;
            prop_assert_eq!(Packed::of(&changed).is(kept.form(), kept.kept()), text.as_bytes() == changed);
        }
    }
}
