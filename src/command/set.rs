//! `LOCK._SET key holder`
//!
//! Internal: carries one change of a lock to replicas and into the append-only file, with the holder in the codec's
//! bytes. Accepted from a primary's stream and from the AOF loader only; from a client it could forge fences.

use super::failure::Failure;
use super::{answer, required};
use crate::engine;
use crate::metadata::{Arg, ArgKind, KeyUse, Record};
use crate::server::args::Args;
use crate::server::context::Context;
use crate::server::register::Command;

/// What the command is.
pub const RECORD: Record = Record {
    name: "LOCK._SET",
    summary: "Internal: one change of a lock, from a primary or the append-only file.",
    complexity: "O(log N) with N the number of held locks.",
    since: "0.1.0",
    arity: 3,
    flags: "write deny-script admin fast",
    categories: "write admin dangerous",
    key: KeyUse::Set,
    args: &[Arg::KEY, Arg { name: "holder", token: None, kind: ArgKind::Text, optional: false }],
};

/// The command.
pub struct LockSet;

impl Command for LockSet {
    const RECORD: &'static Record = &RECORD;

    fn run(context: &Context, args: Args<'_>) {
        answer(context, || {
            if !context.is_from_server() {
                return Err(Failure::Internal);
            }
            let bytes = required(args, 2)?;
            engine::follow(context, args, |table, found, place, now| table.follow(found, place, bytes, now))?
                .map_err(Failure::Corrupt)?;
            context.reply_ok();
            Ok(())
        });
    }
}
