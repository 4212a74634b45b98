//! `LOCK.CHECK key token`
//!
//! The ms left if the token holds the lock, else 0. Changes nothing and works on replicas, where leases stand still and
//! the whole lease is reported.

use super::{answer, options, required};
use crate::engine;
use crate::metadata::{Arg, KeyUse, Record};
use crate::server::args::Args;
use crate::server::context::Context;
use crate::server::register::Command;

/// What the command is.
pub const RECORD: Record = Record {
    name: "LOCK.CHECK",
    summary: "Tells how many ms a token's lease has left, 0 if it does not hold the lock.",
    complexity: "O(1).",
    since: "0.1.0",
    arity: 3,
    flags: "readonly fast",
    categories: "read fast",
    key: KeyUse::Read,
    args: &[Arg::KEY, Arg::TOKEN],
};

/// The command.
pub struct LockCheck;

impl Command for LockCheck {
    const RECORD: &'static Record = &RECORD;

    fn run(context: &Context, args: Args<'_>) {
        answer(context, || {
            let token = options::token(required(args, 2)?, 2)?;
            let left_ms = engine::read(context, args, |table, site, now| table.check(site, token, now))?;
            context.reply_int(left_ms as i64);
            Ok(())
        });
    }
}
