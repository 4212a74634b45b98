//! `LOCK.ACQUIRE key [TOKEN token] [PX ms | EX s] [BLOCK ms | POLL ms] [LABEL text]`
//!
//! Granted: an array of token, fence, ms left, ms waited, and 1 if this call took the lock or 0 if the token had it
//! already. Null: another token holds the lock or is ahead in line. Sending the same token again repeats its grant and
//! never shortens its lease, and keeps its place in line, so a client that lost the reply sends the command again.

use super::answer;
use super::failure::Failure;
use super::options::{self, once, Options, Waiting};
use crate::core::name::{Label, Token};
use crate::core::table::{Acquire, Acquired, Answer, Wait};
use crate::core::time::Lease;
use crate::engine::{self, label, seats};
use crate::metadata::{Arg, KeyUse, Record};
use crate::server::args::Args;
use crate::server::blocked::Answers;
use crate::server::clock;
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
    flags: "write deny-oom blocking",
    categories: "write blocking",
    key: KeyUse::Set,
    args: &[Arg::KEY, Arg::option("TOKEN", "token"), Arg::LEASE, Arg::WAIT, Arg::option("LABEL", "text")],
};

const HINT_FIRST: &str = "tokens are given as TOKEN token";
const HINT: &str = "options are TOKEN token, PX ms, EX s, BLOCK ms, POLL ms and LABEL text";

struct Request<'a> {
    token: Option<Token<'a>>,
    lease: Lease,
    waiting: Option<Waiting>,
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

impl Answers for LockAcquire {
    fn answer(context: &Context, args: Args<'_>, seat: u64) {
        answer(context, || {
            let token = parse(args)?.token.ok_or(Failure::WaitWithoutToken)?;
            let answer = seats::take_answer(context, args, token.bytes(), seat);
            match answer.ok_or(Failure::LostBeforeReply)? {
                Answer::Granted { fence, ttl_ms, waited_ms, .. } => {
                    grant(context, token, [fence.get(), ttl_ms, waited_ms, 1]);
                }
                Answer::Empty => context.reply_null_array(),
                Answer::Superseded => return Err(Failure::Superseded),
                Answer::NotALock => return Err(Failure::WrongType),
                Answer::SlotGone => return Err(Failure::SlotGone),
                Answer::Demoted => return Err(Failure::Demoted),
                Answer::Refused(reason) => return Err(Failure::Refused(reason)),
                Answer::NoFence => return Err(Failure::FencesUsedUp),
            }
            Ok(())
        });
    }
}

fn parse<'a>(args: Args<'a>) -> Result<Request<'a>, Failure> {
    let (mut token, mut lease, mut waiting, mut label) = (None, None, None, None);
    let mut options = Options::new(args, 2);
    while let Some(word) = options.next_word() {
        if word.is("TOKEN") {
            let (value, at) = options.value(word, "TOKEN")?;
            once(&mut token, options::token(value, at)?, word, "TOKEN")?;
        } else if word.is("LABEL") {
            let (value, at) = options.value(word, "LABEL")?;
            once(&mut label, options::label(value, at)?, word, "LABEL")?;
        } else if !options.lease(word, &mut lease)? && !options.waiting(word, &mut waiting)? {
            return Err(word.unknown(if word.at == 2 { HINT_FIRST } else { HINT }));
        }
    }
    if waiting.is_some() && token.is_none() {
        return Err(Failure::WaitWithoutToken);
    }
    let lease = lease.map_or_else(options::default_lease, Ok)?;
    Ok(Request { token, lease, waiting, label })
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
    let wait = match request.waiting {
        // Where the connection may not be blocked, BLOCK answers at once, as it does for the server's own commands.
        None => Wait::No,
        Some(Waiting::Block { .. }) if !context.may_block() => Wait::No,
        Some(Waiting::Block { ms }) => Wait::Block(seats::reserve(), ms.map(|ms| clock::instant().after_ms(ms))),
        Some(Waiting::Poll { ms }) => Wait::Poll(clock::instant().after_ms(ms)),
    };
    let wanted = Acquire { token, lease: request.lease, label, client, wait, limits: engine::settings::limits() };
    let acquired = engine::write(context, args, |table, site, now| table.acquire(site, &wanted, now))?;
    match acquired {
        Acquired::Granted { fence, ttl_ms, new } => {
            grant(context, token, [fence.get(), ttl_ms, 0, u64::from(new)]);
        }
        Acquired::Held => context.reply_null_array(),
        Acquired::Waits(waiter) => {
            if let Wait::Block(seat, _) = wait {
                seats::sit::<LockAcquire>(context, seat, waiter);
            }
        }
        Acquired::Deadlock => return Err(Failure::Deadlock),
        Acquired::TooMany => return Err(Failure::TooManyWaiters),
        Acquired::NoFence => return Err(Failure::FencesUsedUp),
    }
    Ok(())
}

/// The five elements of a grant.
fn grant(context: &Context, token: Token<'_>, numbers: [u64; 4]) {
    context.reply_array(numbers.len() + 1);
    context.reply_bytes(token.bytes());
    for number in numbers {
        context.reply_int(i64::try_from(number).unwrap_or(i64::MAX));
    }
}
