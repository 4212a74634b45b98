//! The names of a token's holds of one lock, in order. Most tokens have one, so all stand in one piece of memory: each a
//! byte of length, then the name.

use super::name::{HoldName, HOLD_NAME_BYTES_MAX};
use std::ops::Deref;
use std::slice::from_ref;

/// Names, each of them once.
#[derive(Clone, Debug, Default)]
pub struct Names {
    bytes: Vec<u8>,
    count: usize,
}

/// A length is one byte.
const _: () = assert!(HOLD_NAME_BYTES_MAX <= u8::MAX as usize);

impl Names {
    /// These, which are in order.
    pub fn in_order(names: &[HoldName<'_>]) -> Self {
        let mut bytes = Vec::with_capacity(names.iter().map(|name| 1 + name.bytes().len()).sum());
        for name in names {
            bytes.push(name.bytes().len() as u8);
            bytes.extend_from_slice(name.bytes());
        }
        Self { bytes, count: names.len() }
    }

    /// How many there are.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Bytes they occupy.
    pub fn heap_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = HoldName<'_>> {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            let (&len, after) = rest.split_first()?;
            let (name, after) = after.split_at_checked(len.into())?;
            rest = after;
            HoldName::new(name)
        })
    }

    /// Whether this one is among them.
    pub fn contains(&self, name: HoldName<'_>) -> bool {
        self.find(name).is_ok()
    }

    /// Adds a name; whether it was not there yet.
    pub fn insert(&mut self, name: HoldName<'_>) -> bool {
        let Err(at) = self.find(name) else { return false };
        let len = name.bytes().len();
        self.bytes.reserve_exact(1 + len);
        self.bytes.splice(at..at, std::iter::once(len as u8).chain(name.bytes().iter().copied()));
        self.count += 1;
        true
    }

    /// Takes a name away; whether it was there.
    pub fn remove(&mut self, name: HoldName<'_>) -> bool {
        let Ok(at) = self.find(name) else { return false };
        self.bytes.drain(at..=at + name.bytes().len());
        self.count -= 1;
        true
    }

    /// Where this one begins, or would begin.
    fn find(&self, name: HoldName<'_>) -> Result<usize, usize> {
        let mut at = 0;
        for other in self.iter() {
            if other >= name {
                return if other == name { Ok(at) } else { Err(at) };
            }
            at += 1 + other.bytes().len();
        }
        Err(at)
    }
}

/// Names that are kept elsewhere, in order: those of a hold that is asked for, saved or replicated. One takes no memory.
#[derive(Clone, Debug)]
pub enum NameList<'a> {
    /// This one.
    One(HoldName<'a>),
    /// These, or none.
    Many(Vec<HoldName<'a>>),
}

impl<'a> Deref for NameList<'a> {
    type Target = [HoldName<'a>];

    fn deref(&self) -> &Self::Target {
        match self {
            Self::One(name) => from_ref(name),
            Self::Many(names) => names,
        }
    }
}

impl<'a> FromIterator<HoldName<'a>> for NameList<'a> {
    fn from_iter<I: IntoIterator<Item = HoldName<'a>>>(names: I) -> Self {
        let mut names = names.into_iter();
        match (names.next(), names.next()) {
            (Some(name), None) => Self::One(name),
            (first, second) => Self::Many(first.into_iter().chain(second).chain(names).collect()),
        }
    }
}

impl PartialEq for NameList<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for NameList<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn they_are_a_set_in_order(
            steps in proptest::collection::vec((any::<bool>(), proptest::collection::vec(0..3_u8, 1..=4)), 0..200),
        ) {
            let (mut names, mut model) = (Names::default(), BTreeSet::new());
            for (adds, bytes) in &steps {
                let name = HoldName::new(bytes).unwrap();
                if *adds {
                    prop_assert_eq!(names.insert(name), model.insert(&bytes[..]));
                } else {
                    prop_assert_eq!(names.remove(name), model.remove(&bytes[..]));
                }
                prop_assert_eq!(names.contains(name), *adds);
                prop_assert_eq!(names.count(), model.len());
            }
            let all: Vec<_> = names.iter().collect();
            prop_assert!(all.iter().map(|name| name.bytes()).eq(model));
            prop_assert!(Names::in_order(&all).iter().eq(all.iter().copied()));
        }
    }

    #[test]
    fn a_name_may_be_as_long_as_any() {
        let mut names = Names::default();
        let longest = [7; HOLD_NAME_BYTES_MAX];
        assert!(names.insert(HoldName::new(&longest).unwrap()));
        assert!(names.iter().map(HoldName::bytes).eq([&longest[..]]));
    }
}
