//! `LOCK.EXTEND key token [PX ms | EX s] [FENCE floor]`
//!
//! The ms left, or 0 if this token does not hold the lock. The lease becomes at least that long from now, without PX
//! and EX its own length again; it never gets shorter, and a lease that lapsed stays lapsed. `FENCE floor` raises the
//! fence to the floor if that is higher: a quorum client writes the highest of its servers' fences back.

use super::failure::Failure;
use super::options::{self, once, Options};
use super::{answer, required};
use crate::core::fence::{Fence, FENCE_END};
use crate::core::name::Token;
use crate::core::table::ExtendOutcome;
use crate::core::time::Lease;
use crate::engine;
use crate::metadata::{Arg, KeyUse, Record};
use crate::server::args::Args;
use crate::server::context::Context;
use crate::server::register::Command;

/// What the command is.
pub const RECORD: Record = Record {
    name: "LOCK.EXTEND",
    summary: "Makes the lease of a lock longer if the token holds it, and can raise its fence.",
    complexity: "O(log N) with N the number of locks and waiters.",
    since: "0.1.0",
    arity: -3,
    flags: "write fast",
    categories: "write fast",
    key: KeyUse::Set,
    args: &[Arg::KEY, Arg::TOKEN, Arg::LEASE, Arg::number("FENCE", "floor")],
};

/// Also read by those who left the token out, or wrote TOKEN before it as in LOCK.ACQUIRE.
const HINT: &str = "after the key and the token come PX ms, EX s or FENCE floor";

struct Request<'a> {
    token: Token<'a>,
    lease: Option<Lease>,
    floor: Option<Fence>,
}

/// The command.
pub struct LockExtend;

impl Command for LockExtend {
    const RECORD: &'static Record = &RECORD;

    fn run(context: &Context, args: Args<'_>) {
        answer(context, || apply(context, args, &parse(args)?));
    }
}

/// Only reads the arguments.
#[cfg(any(test, fuzzing))]
pub(super) fn read(args: Args<'_>) -> Result<(), Failure> {
    parse(args).map(drop)
}

fn parse(args: Args<'_>) -> Result<Request<'_>, Failure> {
    let token = options::token(required(args, 2)?, 2)?;
    let (mut lease, mut floor) = (None, None);
    let mut options = Options::new(args, 3);
    while let Some(word) = options.next_word() {
        if word.is("FENCE") {
            let number = options.number(word, "FENCE", 1, FENCE_END - 1)?;
            once(&mut floor, Fence::new(number), word, "FENCE")?;
        } else if !options.lease(word, &mut lease)? {
            return Err(word.unknown(HINT));
        }
    }
    Ok(Request { token, lease, floor: floor.flatten() })
}

fn apply(context: &Context, args: Args<'_>, request: &Request<'_>) -> Result<(), Failure> {
    let outcome = engine::write(context, args, |table, site, now| {
        table.extend(site, request.token, request.lease, request.floor, now)
    })?;
    context.reply_int(match outcome {
        ExtendOutcome::Extended(left_ms) => left_ms as i64,
        ExtendOutcome::NotHeld => 0,
        ExtendOutcome::FloorAhead => return Err(Failure::FloorAhead),
    });
    Ok(())
}
