//! `LOCK.ACQUIRE key [TOKEN token] [PX ms | EX s] [LABEL text]`
//!
//! Granted: an array of token, fence, ms left, ms waited, and 1 if this call took the lock or 0 if the token had it
//! already. Null: another token holds the lock. Sending the same token again repeats its grant and never shortens its
//! lease, so a client that lost the reply sends the command again.

use super::answer;
use super::failure::Failure;
use super::options::{self, once, Options};
use crate::core::name::{Label, Token};
use crate::core::table::{Acquire, Acquired};
use crate::core::time::Lease;
use crate::engine::{self, label};
use crate::metadata::{Arg, KeyUse, Record};
use crate::server::args::Args;
use crate::server::context::Context;
use crate::server::register::Command;
use uuid::Uuid;

/// What the command is.
pub const RECORD: Record = Record {
    name: "LOCK.ACQUIRE",
    summary: "Takes a lock for a token, or repeats the grant if the token holds it already.",
    complexity: "O(log N) with N the number of held locks.",
    since: "0.1.0",
    arity: -2,
    flags: "write deny-oom fast",
    categories: "write fast",
    key: KeyUse::Set,
    args: &[Arg::KEY, Arg::option("TOKEN", "token"), Arg::LEASE, Arg::option("LABEL", "text")],
};

const HINT_FIRST: &str = "tokens are given as TOKEN token";
const HINT: &str = "options are TOKEN token, PX ms, EX s and LABEL text";

struct Request<'a> {
    token: Option<Token<'a>>,
    lease: Lease,
    label: Option<Label<'a>>,
}

/// The command.
pub struct LockAcquire;

impl Command for LockAcquire {
    const RECORD: &'static Record = &RECORD;

    fn run(context: &Context, args: Args<'_>) {
        answer(context, || apply(context, args, parse(args)?));
    }
}

fn parse<'a>(args: Args<'a>) -> Result<Request<'a>, Failure> {
    let (mut token, mut lease, mut label) = (None, None, None);
    let mut options = Options::new(args, 2);
    while let Some(word) = options.next_word() {
        if word.is("TOKEN") {
            let (value, at) = options.value(word, "TOKEN")?;
            once(&mut token, options::token(value, at)?, word, "TOKEN")?;
        } else if word.is("LABEL") {
            let (value, at) = options.value(word, "LABEL")?;
            once(&mut label, options::label(value, at)?, word, "LABEL")?;
        } else if !options.lease(word, &mut lease)? {
            return Err(word.unknown(if word.at == 2 { HINT_FIRST } else { HINT }));
        }
    }
    let lease = lease.map_or_else(options::default_lease, Ok)?;
    Ok(Request { token, lease, label })
}

fn apply(context: &Context, args: Args<'_>, request: Request<'_>) -> Result<(), Failure> {
    let mut made = Uuid::encode_buffer();
    let token = match request.token {
        Some(token) => token,
        None => {
            let text: &str = Uuid::new_v4().hyphenated().encode_lower(&mut made);
            options::token(text.as_bytes(), 0)?
        }
    };
    let client = context.client_id();
    let own_label;
    let label = match request.label {
        Some(label) => label,
        None => {
            own_label = label::of_client(context, client);
            Label::cut(own_label.bytes())
        }
    };
    let wanted = Acquire { token, lease: request.lease, label, client };
    let acquired = engine::write(context, args, |table, found, place, now| table.acquire(found, place, &wanted, now))?;
    match acquired {
        Acquired::Granted { fence, ttl_ms, new } => {
            context.reply_array(5);
            context.reply_bytes(token.bytes());
            context.reply_int(fence.get() as i64);
            context.reply_int(ttl_ms as i64);
            context.reply_int(0);
            context.reply_int(i64::from(new));
        }
        Acquired::Held => context.reply_null_array(),
        Acquired::NoFence => return Err(Failure::FencesUsedUp),
    }
    Ok(())
}
