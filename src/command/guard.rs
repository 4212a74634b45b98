//! `LOCK.GUARD key token command [arg ...]`
//!
//! Runs the command only if the token holds the lock at this instant, with the rights of who sends it, and replies what
//! the command replies. Otherwise NOTHELD, and nothing runs. A worker that wakes up after its lease ended can no longer
//! write. The command's keys count as keys of this one.

use super::failure::{Failure, Unguardable};
use super::{answer, options, required, RECORDS};
use crate::core::slot::slot_of;
use crate::engine;
use crate::metadata::{Arg, ArgKind, KeyUse, Record};
use crate::server::args::Args;
use crate::server::call::Owner;
use crate::server::context::Context;
use crate::server::key_request::{KeyAt, KeyRequest, Keyless};
use crate::server::register::Command;

/// What the command is.
pub const RECORD: Record = Record {
    name: "LOCK.GUARD",
    summary: "Runs a command only if a token holds the lock.",
    complexity: "O(1) beside the command that is run.",
    since: "0.1.0",
    arity: -4,
    flags: "write",
    categories: "write",
    key: KeyUse::Read,
    args: &[
        Arg::KEY,
        Arg::TOKEN,
        Arg { name: "command", token: None, kind: ArgKind::Text, optional: false },
        Arg { name: "arg", token: None, kind: ArgKind::Texts, optional: true },
    ],
};

const KEY_AT: usize = 1;
const TOKEN_AT: usize = 2;
const COMMAND_AT: usize = 3;

/// The command.
pub struct LockGuard;

impl Command for LockGuard {
    const RECORD: &'static Record = &RECORD;
    const KEYS: Option<fn(&KeyRequest, Args<'_>)> = Some(report_keys);

    fn run(context: &Context, args: Args<'_>) {
        answer(context, || apply(context, args));
    }
}

/// A command that could not be run has no keys.
fn report_keys(request: &KeyRequest, args: Args<'_>) {
    let command = args.from(COMMAND_AT);
    if check_name(command).is_err() {
        return;
    }
    if let Ok(keys) = request.keys_of(command) {
        request.answer(KeyAt::read(KEY_AT));
        for key in keys {
            request.answer(KeyAt { position: key.position + COMMAND_AT, ..key });
        }
    }
}

fn apply(context: &Context, args: Args<'_>) -> Result<(), Failure> {
    let token = options::token(required(args, TOKEN_AT)?, TOKEN_AT)?;
    let command = args.from(COMMAND_AT);
    check_name(command)?;
    let keys = context.keys_of(command).map_err(|keyless| match keyless {
        Keyless::Unknown => Unguardable::Unknown { at: COMMAND_AT },
        Keyless::Arity => Unguardable::Arity,
        Keyless::NoKeys => Unguardable::NoKeys,
    })?;
    check_owner(context, command)?;
    if context.is_cluster() {
        check_slots(required(args, KEY_AT)?, command, &keys)?;
    }
    if !engine::write(context, args, |table, site, now| table.guard(site, token, now))? {
        return Err(Failure::NotHeld);
    }
    Ok(context.run_inside(command)?)
}

/// Turns the module's own commands away, before the server is asked for their keys: it would ask back.
fn check_name(command: Args<'_>) -> Result<(), Unguardable> {
    let name = required(command, 0).unwrap_or_default();
    let is = |record: &&&Record| name.eq_ignore_ascii_case(record.name.as_bytes());
    match RECORDS.iter().find(is) {
        Some(own) if own.name == RECORD.name => Err(Unguardable::Nested),
        Some(_) => Err(Unguardable::Lock),
        None => Ok(()),
    }
}

fn check_owner(context: &Context, command: Args<'_>) -> Result<(), Unguardable> {
    match context.owner_of(command.get(0).unwrap_or_default()) {
        Owner::Server => Ok(()),
        Owner::ServerOutsideScripts => Err(Unguardable::NotInScripts),
        Owner::Module => Err(Unguardable::Module),
        Owner::Untold => Err(Unguardable::Untold),
    }
}

/// Where the server asks for no keys (see [`Command::KEYS`]) it has checked the slot of the first one only.
fn check_slots(lock: &[u8], command: Args<'_>, keys: &[KeyAt]) -> Result<(), Failure> {
    let slot = slot_of(lock);
    let same = |key: &KeyAt| command.get(key.position).is_some_and(|key| slot_of(key) == slot);
    if keys.iter().all(same) {
        return Ok(());
    }
    Err(Failure::CrossSlot)
}
