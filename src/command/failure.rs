//! Every error a command can reply, in one place: a code word, what is wrong and how to put it right. No text shows a
//! value the client sent, save a number where a number belongs: it may be the secret.

use crate::core::codec::Corrupt;
use crate::engine::Denied;
use crate::server::call::NotRun;
use std::ffi::CString;

/// Why a command failed. Nothing changed.
#[derive(Debug)]
pub enum Failure {
    /// Wrong number of arguments.
    Arity,
    /// The key holds something that is not a lock.
    WrongType,
    /// This node is a replica.
    ReadOnly,
    /// An argument that is no option of the command.
    Syntax {
        /// Its position.
        at: usize,
        /// What may stand there.
        hint: &'static str,
    },
    /// SET's NX, out of habit.
    NxImplied,
    /// SET's XX, out of habit.
    Xx,
    /// An option given a second time, or two that exclude each other.
    Twice {
        /// Position of the second.
        at: usize,
        /// The options' names.
        names: &'static str,
    },
    /// An option without its value.
    NoValue {
        /// Position of the option.
        at: usize,
        /// The option's name.
        option: &'static str,
    },
    /// A lease that is not a whole number.
    LeaseNotInteger {
        /// Position of the number.
        at: usize,
    },
    /// A lease of zero or less.
    LeaseNotPositive {
        /// What was asked for.
        ms: i64,
    },
    /// A lease above `lock.max-ttl`.
    LeaseAboveMax {
        /// What was asked for.
        ms: i64,
        /// What is allowed.
        max_ms: i64,
    },
    /// A token that is empty or too long.
    Token {
        /// Its position.
        at: usize,
    },
    /// A label that is too long.
    Label {
        /// Its position.
        at: usize,
    },
    /// BLOCK or POLL without TOKEN.
    WaitWithoutToken,
    /// A number that is none, or out of range.
    OutOfRange {
        /// Its position.
        at: usize,
        /// The option's name.
        option: &'static str,
        /// Smallest number.
        min: u64,
        /// Largest number.
        max: u64,
    },
    /// The name of a hold that is empty or too long.
    HoldName {
        /// Its position.
        at: usize,
    },
    /// UPGRADE or DOWNGRADE without TOKEN.
    TurnWithoutToken,
    /// UPGRADE with SHARED or LIMIT.
    UpgradeToShared,
    /// DOWNGRADE without SHARED or LIMIT.
    DowngradeToExclusive,
    /// BLOCK on a connection that the server does not block.
    CannotBlock,
    /// EPHEMERAL with POLL.
    EphemeralPoll,
    /// EPHEMERAL from a script or another module.
    EphemeralWithoutConnection,
    /// The token shares the lock and asked for it alone without UPGRADE.
    HeldShared,
    /// The token does not hold the lock whose mode it wants to change.
    NothingToTurn,
    /// The token has as many holds of the lock as it may.
    TooManyHolds,
    /// A floor above H and more than a day ahead of the clock.
    FloorAhead,
    /// The wait would never end.
    Deadlock,
    /// As many wait as `lock.max-waiters` allows.
    TooManyWaiters,
    /// The same token waits on a newer connection.
    Superseded,
    /// The key's slot is another node's now.
    SlotGone,
    /// This node became a replica during the wait.
    Demoted,
    /// The lock was granted, and gone again before the reply was written.
    LostBeforeReply,
    /// The wait ended while the server refuses writes; its own words.
    Refused(Box<str>),
    /// No locks are given out after a start or a promotion.
    Grace {
        /// For how long still.
        left_ms: u64,
    },
    /// No fence is left below 2^53.
    FencesUsedUp,
    /// The token does not hold the lock, so the guarded command did not run.
    NotHeld,
    /// A command that is not run under a guard, whoever holds the lock.
    Unguardable(Unguardable),
    /// The keys of a guard and its command are in different cluster slots.
    CrossSlot,
    /// The guarded command did not run.
    NotRun(NotRun),
    /// The internal command, sent by a client.
    Internal,
    /// The internal command, with bytes that are not a lock.
    Corrupt(Corrupt),
}

/// Why a command is not run under a guard.
#[derive(Clone, Copy, Debug)]
pub enum Unguardable {
    /// The server has no such command.
    Unknown {
        /// Position of its name.
        at: usize,
    },
    /// It has too few arguments, or too many.
    Arity,
    /// It has no keys.
    NoKeys,
    /// A guard in a guard.
    Nested,
    /// Another command of this module.
    Lock,
    /// A command of another module.
    Module,
    /// The server forbids it in scripts.
    NotInScripts,
    /// The server does not say whose command it is.
    Untold,
}

impl Unguardable {
    fn text(self) -> String {
        let text = match self {
            Self::Unknown { at } => {
                return format!("ERR unknown command at argument {at}: LOCK.GUARD takes key, token, then the command");
            }
            Self::Arity => "ERR wrong number of arguments for the guarded command",
            Self::NoKeys => "ERR the guarded command names no keys: only commands on keys can be guarded",
            Self::Nested => "ERR LOCK.GUARD does not nest: guard each command by itself",
            Self::Lock => "ERR LOCK.GUARD runs no LOCK commands: send them by themselves",
            Self::Module => "ERR LOCK.GUARD runs no commands of other modules, only the server's own",
            Self::NotInScripts => "ERR LOCK.GUARD cannot run this command: the server forbids it in scripts",
            Self::Untold => "ERR LOCK.GUARD needs the server's COMMAND, which is renamed or disabled here",
        };
        text.to_owned()
    }
}

impl From<Unguardable> for Failure {
    fn from(unguardable: Unguardable) -> Self {
        Self::Unguardable(unguardable)
    }
}

impl From<NotRun> for Failure {
    fn from(not_run: NotRun) -> Self {
        Self::NotRun(not_run)
    }
}

impl From<Denied> for Failure {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::WrongType => Self::WrongType,
            Denied::ReadOnly => Self::ReadOnly,
        }
    }
}

impl Failure {
    /// The text of the error reply.
    pub fn to_reply(&self) -> CString {
        CString::new(self.text()).unwrap_or_default()
    }

    fn text(&self) -> String {
        match self {
            Self::Arity => "ERR wrong number of arguments".to_owned(),
            Self::WrongType => "WRONGTYPE key holds data, not a lock: use another name".to_owned(),
            Self::ReadOnly => "READONLY this server is a replica: send lock commands to its primary".to_owned(),
            Self::Syntax { at, hint } => format!("ERR syntax error at argument {at}: {hint}"),
            Self::NxImplied => "ERR NX is implied, leave it out".to_owned(),
            Self::Xx => "ERR XX is what LOCK.EXTEND does, use that".to_owned(),
            Self::Twice { at, names } => format!("ERR syntax error at argument {at}: give {names} only once"),
            Self::NoValue { at, option } => format!("ERR syntax error at argument {at}: {option} needs a value"),
            Self::LeaseNotInteger { at } => format!("ERR lease at argument {at} is not an integer or out of range"),
            Self::LeaseNotPositive { ms } => format!("ERR lease of {ms} ms is not above 0"),
            Self::LeaseAboveMax { ms, max_ms } => format!("ERR lease of {ms} ms is above lock.max-ttl {max_ms}"),
            Self::Token { at } => format!("ERR token at argument {at} must have 1 to 128 bytes"),
            Self::Label { at } => format!("ERR label at argument {at} must have at most 128 bytes"),
            Self::WaitWithoutToken => {
                "ERR BLOCK and POLL need TOKEN token, a random one: sent again, it keeps its place".to_owned()
            }
            Self::OutOfRange { at, option, min, max } => {
                format!("ERR {option} at argument {at} takes a number from {min} to {max}")
            }
            Self::HoldName { at } => format!("ERR hold at argument {at} must have 1 to 64 bytes"),
            Self::TurnWithoutToken => "ERR UPGRADE and DOWNGRADE need TOKEN token: that of the hold".to_owned(),
            Self::UpgradeToShared => "ERR UPGRADE makes a hold exclusive: leave SHARED and LIMIT out".to_owned(),
            Self::DowngradeToExclusive => "ERR DOWNGRADE makes a hold shared: add SHARED or LIMIT n".to_owned(),
            Self::CannotBlock => {
                "ERR this server lets no subscribed connection wait: BLOCK on another one, or POLL".to_owned()
            }
            Self::EphemeralPoll => {
                "ERR EPHEMERAL goes with BLOCK, not with POLL: a poll keeps no connection".to_owned()
            }
            Self::EphemeralWithoutConnection => {
                "ERR EPHEMERAL needs a connection: scripts and modules have none".to_owned()
            }
            Self::HeldShared => "ERR this token shares the lock: add UPGRADE to have it alone".to_owned(),
            Self::NothingToTurn => "NOTHELD this token does not hold the lock: acquire it first".to_owned(),
            Self::TooManyHolds => "ERR a token may have at most 1000 named holds of one lock".to_owned(),
            Self::FloorAhead => "ERR the floor is more than a day ahead of the clock".to_owned(),
            Self::Deadlock => "DEADLOCK this wait would never end: release a lock of this token first".to_owned(),
            Self::TooManyWaiters => "MAXWAITERS as many wait as lock.max-waiters allows: try again later".to_owned(),
            Self::Superseded => "ERR superseded: this token asked again on a newer connection".to_owned(),
            Self::SlotGone => "TRYAGAIN the key's slot moves to another node: send the command again".to_owned(),
            Self::Demoted => "UNBLOCKED this server is a replica now: send the command to its primary".to_owned(),
            Self::LostBeforeReply => "TRYAGAIN the lock was granted and ended before this reply".to_owned(),
            Self::Refused(reason) => reason.to_string(),
            Self::Grace { left_ms } => format!("GRACE no new locks for {left_ms} ms more"),
            Self::FencesUsedUp => "ERR all fences below 2^53 are used up".to_owned(),
            Self::NotHeld => "NOTHELD this token does not hold the lock: the command was not run".to_owned(),
            Self::Unguardable(unguardable) => unguardable.text(),
            Self::CrossSlot => "CROSSSLOT Keys in request don't hash to the same slot".to_owned(),
            Self::NotRun(NotRun::NoPermission) => {
                "NOPERM this user may not run the guarded command, or not on these keys".to_owned()
            }
            Self::NotRun(NotRun::NotOurs) => Self::SlotGone.text(),
            Self::NotRun(NotRun::WrongType) => {
                "WRONGTYPE Operation against a key holding the wrong kind of value".to_owned()
            }
            Self::NotRun(NotRun::NoReply) => "ERR the server refused to run the guarded command".to_owned(),
            Self::Internal => {
                "ERR this command is internal: only a primary or the append-only file sends it".to_owned()
            }
            Self::Corrupt(corrupt) => format!("ERR bad lock: it {}", corrupt.reason()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_begins_with_a_code_word() {
        let all = [
            Failure::Arity,
            Failure::WrongType,
            Failure::ReadOnly,
            Failure::Syntax { at: 2, hint: "tokens are given as TOKEN token" },
            Failure::NxImplied,
            Failure::Xx,
            Failure::Twice { at: 2, names: "TOKEN" },
            Failure::NoValue { at: 2, option: "PX" },
            Failure::LeaseNotInteger { at: 3 },
            Failure::LeaseNotPositive { ms: 0 },
            Failure::LeaseAboveMax { ms: 2, max_ms: 1 },
            Failure::Token { at: 3 },
            Failure::Label { at: 3 },
            Failure::WaitWithoutToken,
            Failure::OutOfRange { at: 3, option: "POLL", min: 1, max: 2 },
            Failure::HoldName { at: 3 },
            Failure::TurnWithoutToken,
            Failure::UpgradeToShared,
            Failure::DowngradeToExclusive,
            Failure::CannotBlock,
            Failure::EphemeralPoll,
            Failure::EphemeralWithoutConnection,
            Failure::HeldShared,
            Failure::NothingToTurn,
            Failure::TooManyHolds,
            Failure::FloorAhead,
            Failure::Deadlock,
            Failure::TooManyWaiters,
            Failure::Superseded,
            Failure::SlotGone,
            Failure::Demoted,
            Failure::LostBeforeReply,
            Failure::Refused("NOREPLICAS not enough".into()),
            Failure::Grace { left_ms: 1 },
            Failure::FencesUsedUp,
            Failure::NotHeld,
            Failure::Unguardable(Unguardable::Unknown { at: 3 }),
            Failure::Unguardable(Unguardable::Arity),
            Failure::Unguardable(Unguardable::NoKeys),
            Failure::Unguardable(Unguardable::Nested),
            Failure::Unguardable(Unguardable::Lock),
            Failure::Unguardable(Unguardable::Module),
            Failure::Unguardable(Unguardable::NotInScripts),
            Failure::Unguardable(Unguardable::Untold),
            Failure::CrossSlot,
            Failure::NotRun(NotRun::NoPermission),
            Failure::NotRun(NotRun::NotOurs),
            Failure::NotRun(NotRun::WrongType),
            Failure::NotRun(NotRun::NoReply),
            Failure::Internal,
            Failure::Corrupt(Corrupt::Newer),
        ];
        for failure in all {
            let text = failure.text();
            let (code, rest) = text.split_once(' ').unwrap();
            assert!(code.len() >= 3 && code.bytes().all(|byte| byte.is_ascii_uppercase()), "{text}");
            assert!(!rest.is_empty() && !text.contains(['\r', '\n', '\0']), "{text}");
        }
    }
}
