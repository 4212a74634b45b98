//! `LOCK.RELEASE key token [HOLD id]`
//!
//! 1: this call ended the token's hold, or gave the named hold back. 0: there was nothing to release. -1: another token
//! holds it, so the lease ended before the release and the last writes may have overlapped. A lost lock is never an
//! error. A token that waits in line leaves it.

use super::failure::Failure;
use super::options::{self, once, Options};
use super::{answer, required};
use crate::core::name::HoldName;
use crate::core::table::ReleaseOutcome;
use crate::engine;
use crate::metadata::{Arg, KeyUse, Record};
use crate::server::args::Args;
use crate::server::context::Context;
use crate::server::register::Command;

/// What the command is.
pub const RECORD: Record = Record {
    name: "LOCK.RELEASE",
    summary: "Gives a lock back, which hands it to the next in line, or leaves the line.",
    complexity: "O(log N) with N the number of locks and waiters.",
    since: "0.1.0",
    arity: -3,
    flags: "write fast",
    categories: "write fast",
    key: KeyUse::Remove,
    args: &[Arg::KEY, Arg::TOKEN, Arg::option("HOLD", "id")],
};

const HINT: &str = "after the key and the token, without the word TOKEN, comes HOLD id";

/// The command.
pub struct LockRelease;

impl Command for LockRelease {
    const RECORD: &'static Record = &RECORD;

    fn run(context: &Context, args: Args<'_>) {
        answer(context, || {
            let token = options::token(required(args, 2)?, 2)?;
            let hold = parse_hold(args)?;
            let outcome = engine::write(context, args, |table, site, now| table.release(site, token, hold, now))?;
            context.reply_int(match outcome {
                ReleaseOutcome::Released => 1,
                ReleaseOutcome::Free => 0,
                ReleaseOutcome::Taken => -1,
            });
            Ok(())
        });
    }
}

/// Only reads the arguments.
#[cfg(any(test, fuzzing))]
pub(super) fn read(args: Args<'_>) -> Result<(), Failure> {
    parse_hold(args).map(drop)
}

fn parse_hold(args: Args<'_>) -> Result<Option<HoldName<'_>>, Failure> {
    let mut hold = None;
    let mut options = Options::new(args, 3);
    while let Some(word) = options.next_word() {
        if !word.is("HOLD") {
            return Err(word.unknown(HINT));
        }
        let (value, at) = options.value(word, "HOLD")?;
        once(&mut hold, options::hold_name(value, at)?, word, "HOLD")?;
    }
    Ok(hold)
}
