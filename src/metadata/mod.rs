//! What a command is, as data: the one source for its registration, COMMAND DOCS, its key rights and its ACL
//! categories. Each record stands beside its command's parser; here are the record's type and the list.

pub use crate::command::RECORDS as COMMANDS;

/// One command.
#[derive(Debug)]
pub struct Record {
    /// Name as users type it.
    pub name: &'static str,
    /// One line for COMMAND DOCS.
    pub summary: &'static str,
    /// Cost, in the words of COMMAND DOCS.
    pub complexity: &'static str,
    /// Version of this module that brought the command.
    pub since: &'static str,
    /// Number of arguments with the name; negative: at least that many.
    pub arity: i32,
    /// Command flags of the module API, separated by spaces.
    pub flags: &'static str,
    /// ACL categories, separated by spaces; `lock` is added where the server lets a module have its own.
    pub categories: &'static str,
    /// What the command does to its key.
    pub key: KeyUse,
    /// The arguments, the key first.
    pub args: &'static [Arg],
}

/// What a command does to its key, for ACL key rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyUse {
    /// Reads who holds the lock.
    Read,
    /// Reads and sets a holder.
    Set,
    /// Reads and removes a holder.
    Remove,
}

/// One argument, as COMMAND DOCS and the hints of redis-cli show it.
#[derive(Debug)]
pub struct Arg {
    /// Name of the argument.
    pub name: &'static str,
    /// The word in front of it.
    pub token: Option<&'static str>,
    /// What it is.
    pub kind: ArgKind,
    /// Whether it may be left out.
    pub optional: bool,
}

/// What an argument is.
#[derive(Debug)]
pub enum ArgKind {
    /// The key.
    Key,
    /// Bytes.
    Text,
    /// Bytes, as often as there are.
    Texts,
    /// A number.
    Integer,
    /// The word alone.
    Flag,
    /// One of these.
    OneOf(&'static [Arg]),
}

impl Arg {
    /// The key, which comes first in every command.
    pub const KEY: Self = Self { name: "key", token: None, kind: ArgKind::Key, optional: false };
    /// A token given by position.
    pub const TOKEN: Self = Self { name: "token", token: None, kind: ArgKind::Text, optional: false };
    /// The lease, in either unit.
    pub const LEASE: Self = Self {
        name: "lease",
        token: None,
        kind: ArgKind::OneOf(&[
            Self { name: "milliseconds", token: Some("PX"), kind: ArgKind::Integer, optional: false },
            Self { name: "seconds", token: Some("EX"), kind: ArgKind::Integer, optional: false },
        ]),
        optional: true,
    };

    /// What to do while another token holds the lock.
    pub const WAIT: Self = Self {
        name: "wait",
        token: None,
        kind: ArgKind::OneOf(&[
            Self { name: "milliseconds", token: Some("BLOCK"), kind: ArgKind::Integer, optional: false },
            Self { name: "milliseconds", token: Some("POLL"), kind: ArgKind::Integer, optional: false },
        ]),
        optional: true,
    };

    /// How the lock is to be held.
    pub const MODE: Self = Self {
        name: "mode",
        token: None,
        kind: ArgKind::OneOf(&[
            Self { name: "shared", token: Some("SHARED"), kind: ArgKind::Flag, optional: false },
            Self { name: "n", token: Some("LIMIT"), kind: ArgKind::Integer, optional: false },
        ]),
        optional: true,
    };

    /// How a hold's mode is to change.
    pub const TURN: Self = Self {
        name: "turn",
        token: None,
        kind: ArgKind::OneOf(&[
            Self { name: "upgrade", token: Some("UPGRADE"), kind: ArgKind::Flag, optional: false },
            Self { name: "downgrade", token: Some("DOWNGRADE"), kind: ArgKind::Flag, optional: false },
        ]),
        optional: true,
    };

    /// An option without a value.
    pub const fn flag(word: &'static str, name: &'static str) -> Self {
        Self { name, token: Some(word), kind: ArgKind::Flag, optional: true }
    }

    /// An option with a number.
    pub const fn number(word: &'static str, name: &'static str) -> Self {
        Self { name, token: Some(word), kind: ArgKind::Integer, optional: true }
    }

    /// An option with a value in bytes.
    pub const fn option(word: &'static str, name: &'static str) -> Self {
        Self { name, token: Some(word), kind: ArgKind::Text, optional: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_complete() {
        for record in COMMANDS {
            assert!(record.name.starts_with("LOCK."), "{}", record.name);
            assert!(!record.summary.is_empty() && !record.complexity.is_empty(), "{}", record.name);
            assert!(record.summary.ends_with('.'), "{}", record.name);
            assert!(matches!(record.args.first(), Some(Arg { kind: ArgKind::Key, .. })), "{}", record.name);
            let required = record.args.iter().filter(|arg| !arg.optional).count() as i32 + 1;
            assert_eq!(record.arity.abs(), required, "{}", record.name);
            let has_options = record.args.iter().any(|arg| arg.optional);
            assert_eq!(record.arity < 0, has_options, "{}", record.name);
        }
    }
}
