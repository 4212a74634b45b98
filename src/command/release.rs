//! `LOCK.RELEASE key token`
//!
//! 1: this call released the lock. 0: nobody holds it. -1: another token holds it, so the lease ended before the
//! release and the last writes may have overlapped. A lost lock is never an error.

use super::{answer, options, required};
use crate::core::table::ReleaseOutcome;
use crate::engine;
use crate::metadata::{Arg, KeyUse, Record};
use crate::server::args::Args;
use crate::server::context::Context;
use crate::server::register::Command;

/// What the command is.
pub const RECORD: Record = Record {
    name: "LOCK.RELEASE",
    summary: "Frees a lock if the token holds it.",
    complexity: "O(log N) with N the number of held locks.",
    since: "0.1.0",
    arity: 3,
    flags: "write fast",
    categories: "write fast",
    key: KeyUse::Remove,
    args: &[Arg::KEY, Arg::TOKEN],
};

/// The command.
pub struct LockRelease;

impl Command for LockRelease {
    const RECORD: &'static Record = &RECORD;

    fn run(context: &Context, args: Args<'_>) {
        answer(context, || {
            let token = options::token(required(args, 2)?, 2)?;
            let outcome =
                engine::write(context, args, |table, found, _, now| table.release(found, token, now.instant))?;
            context.reply_int(match outcome {
                ReleaseOutcome::Released => 1,
                ReleaseOutcome::Free => 0,
                ReleaseOutcome::Taken => -1,
            });
            Ok(())
        });
    }
}
