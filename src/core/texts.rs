//! What stands in a lock's own allocation: a byte that says how token and label are kept and has room for two marks, a byte
//! of length for each of them that is plain, then token, label and key.

use super::name::{LABEL_BYTES_MAX, TOKEN_BYTES_MAX};
use super::packed::{Form, Packed, Text};

/// A key, and the token and label of its holder; both are empty where there is none.
#[derive(Clone)]
pub struct Texts(Box<[u8]>);

/// Where the first byte has the form of the label, and the marks; it begins with the form of the token.
const LABEL_FORM: u32 = Form::BITS;
const MARKS: u32 = LABEL_FORM + Form::BITS;

/// A length is one byte.
const _: () = assert!(TOKEN_BYTES_MAX <= u8::MAX as usize);
const _: () = assert!(LABEL_BYTES_MAX <= u8::MAX as usize);

/// What is noted of a lock.
#[derive(Clone, Copy)]
pub enum Mark {
    /// It is not in the keyspace, as far as is known.
    Unlinked,
    /// Its key may have a time to live.
    MayExpire,
}

/// Where the parts are.
struct Parts {
    token: usize,
    label: usize,
    key: usize,
}

impl Texts {
    /// Of a lock whose holders, if there are any, are kept elsewhere.
    pub fn of_key(key: &[u8]) -> Self {
        Self::new(key, &Packed::of(b""), &Packed::of(b""))
    }

    /// Of a lock with one holder. Nothing is marked.
    pub fn new(key: &[u8], token: &Packed<'_>, label: &Packed<'_>) -> Self {
        let (token_kept, label_kept) = (token.kept(), label.kept());
        let first = token.form().to_bits() | label.form().to_bits() << LABEL_FORM;
        let (token_len, label_len) = (token_kept.len() as u8, label_kept.len() as u8);
        let head = match (token.form(), label.form()) {
            (Form::Plain, Form::Plain) => &[first, token_len, label_len][..],
            (Form::Plain, _) => &[first, token_len],
            (_, Form::Plain) => &[first, label_len],
            _ => &[first],
        };
        let mut bytes = Vec::with_capacity(head.len() + token_kept.len() + label_kept.len() + key.len());
        bytes.extend_from_slice(head);
        bytes.extend_from_slice(token_kept);
        bytes.extend_from_slice(label_kept);
        bytes.extend_from_slice(key);
        Self(bytes.into_boxed_slice())
    }

    /// Another holder. Marks stay.
    pub fn set_holder(&mut self, token: &Packed<'_>, label: &Packed<'_>) {
        let mut texts = Self::new(self.key(), token, label);
        for mark in [Mark::Unlinked, Mark::MayExpire] {
            texts.set(mark, self.has(mark));
        }
        *self = texts;
    }

    /// Another key. All else stays.
    pub fn set_key(&mut self, key: &[u8]) {
        let before = self.0.get(..self.parts().key).unwrap_or_default();
        self.0 = [before, key].concat().into();
    }

    /// The key.
    pub fn key(&self) -> &[u8] {
        self.0.get(self.parts().key..).unwrap_or_default()
    }

    /// The holder's token.
    pub fn token(&self) -> Text<'_> {
        self.token_form().text(self.token_kept())
    }

    /// Whether this is the holder's token.
    pub fn is_of(&self, token: &Packed<'_>) -> bool {
        token.is(self.token_form(), self.token_kept())
    }

    /// The holder's label.
    pub fn label(&self) -> Text<'_> {
        let parts = self.parts();
        self.label_form().text(self.0.get(parts.label..parts.key).unwrap_or_default())
    }

    /// Whether this is noted.
    pub fn has(&self, mark: Mark) -> bool {
        self.first() >> MARKS >> mark as u8 & 1 == 1
    }

    /// Notes this, or that it is not so.
    pub fn set(&mut self, mark: Mark, marked: bool) {
        let bit = 1 << MARKS << mark as u8;
        if let Some(first) = self.0.first_mut() {
            *first = if marked { *first | bit } else { *first & !bit };
        }
    }

    /// Bytes of the allocation.
    pub const fn heap_bytes(&self) -> usize {
        self.0.len()
    }

    fn first(&self) -> u8 {
        self.0.first().copied().unwrap_or_default()
    }

    fn token_form(&self) -> Form {
        Form::from_bits(self.first())
    }

    fn label_form(&self) -> Form {
        Form::from_bits(self.first() >> LABEL_FORM)
    }

    fn token_kept(&self) -> &[u8] {
        let parts = self.parts();
        self.0.get(parts.token..parts.label).unwrap_or_default()
    }

    fn parts(&self) -> Parts {
        let mut start = 1;
        let mut len = |form: Form| {
            form.kept_bytes().unwrap_or_else(|| {
                start += 1;
                self.0.get(start - 1).copied().unwrap_or_default() as usize
            })
        };
        let (token_len, label_len) = (len(self.token_form()), len(self.label_form()));
        Parts { token: start, label: start + token_len, key: start + token_len + label_len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: [Mark; 2] = [Mark::Unlinked, Mark::MayExpire];
    const ALIKE: [&[u8]; 4] = [b"", b"ann", b"550e8400-e29b-41d4-a716-446655440000", b"10.0.0.7:6379"];

    fn check(texts: &Texts, key: &[u8], token: &[u8], label: &[u8], marked: [bool; 2]) {
        assert_eq!((texts.key(), &*texts.token(), &*texts.label()), (key, token, label));
        for other in ALIKE {
            assert_eq!(texts.is_of(&Packed::of(other)), other == token);
        }
        assert_eq!(MARKS.map(|mark| texts.has(mark)), marked);
    }

    #[test]
    fn each_part_changes_alone() {
        for (token, label) in ALIKE.iter().flat_map(|token| ALIKE.iter().map(move |label| (token, label))) {
            for marked in [[false, false], [true, false], [false, true], [true, true]] {
                let mut texts = Texts::new(b"key", &Packed::of(token), &Packed::of(label));
                check(&texts, b"key", token, label, [false, false]);
                MARKS.into_iter().zip(marked).for_each(|(mark, marked)| texts.set(mark, marked));
                check(&texts, b"key", token, label, marked);
                texts.set_key(b"other key");
                check(&texts, b"other key", token, label, marked);
                texts.set_holder(&Packed::of(label), &Packed::of(token));
                check(&texts, b"other key", label, token, marked);
                MARKS.into_iter().for_each(|mark| texts.set(mark, false));
                check(&texts, b"other key", label, token, [false, false]);
            }
        }
    }
}
