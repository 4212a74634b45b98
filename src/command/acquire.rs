//! `LOCK.ACQUIRE key [TOKEN token] [PX ms | EX s] [BLOCK ms | POLL ms] [SHARED | LIMIT n] [HOLD id]
//! [UPGRADE | DOWNGRADE] [EPHEMERAL] [MAXHOLD ms] [LABEL text]`
//!
//! Granted: an array of token, fence, ms left, ms waited, and 1 if this call took the lock or 0 if the token had it
//! already. Null: another token holds the lock or is ahead in line. Sending the same token again repeats its grant and
//! never shortens its lease, and keeps its place in line, so a client that lost the reply sends the command again.

use super::answer;
use super::failure::Failure;
use super::options::{self, once, Options, Waiting, Word};
use crate::core::hold::Mode;
use crate::core::name::{HoldName, Label, Token};
use crate::core::table::{Acquire, Acquired, Answer, Ask, Turn, Wait};
use crate::core::time::{Lease, LEASE_MS_MAX};
use crate::engine::{self, label, seats, Visit};
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
    summary: "Takes a lock for a token, waits in line for it, or repeats the grant that the token has.",
    complexity: "O(log N) with N the number of locks and waiters; O(M) more to wait, with M the holders and waiters of all locks that could close a circle of waits, 100,000 at most.",
    since: "0.1.0",
    arity: -2,
    flags: "write deny-oom blocking",
    categories: "write blocking",
    key: KeyUse::Set,
    args: &[
        Arg::KEY,
        Arg::option("TOKEN", "token"),
        Arg::LEASE,
        Arg::WAIT,
        Arg::MODE,
        Arg::option("HOLD", "id"),
        Arg::TURN,
        Arg::flag("EPHEMERAL", "ephemeral"),
        Arg::number("MAXHOLD", "milliseconds"),
        Arg::option("LABEL", "text"),
    ],
};

const HINT_FIRST: &str = "tokens are given as TOKEN token";
const HINT_NUMBER: &str = "numbers need their word, as in PX ms, EX s or BLOCK ms, and tokens are given as TOKEN token";
const HINT: &str =
    "options are TOKEN, PX, EX, BLOCK, POLL, SHARED, LIMIT, HOLD, UPGRADE, DOWNGRADE, EPHEMERAL, MAXHOLD and LABEL";

/// The options as they were given.
#[derive(Default)]
struct Given<'a> {
    token: Option<Token<'a>>,
    token_at: usize,
    lease: Option<Lease>,
    waiting: Option<Waiting>,
    mode: Option<Mode>,
    hold: Option<HoldName<'a>>,
    turn: Option<Turn>,
    ephemeral: Option<()>,
    cap_ms: Option<u64>,
    label: Option<Label<'a>>,
}

struct Request<'a> {
    token: Option<Token<'a>>,
    token_at: usize,
    ask: Ask<'a>,
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
            let (token, answer) = seats::take_answer(context, args, seat).ok_or(Failure::LostBeforeReply)?;
            match answer {
                Answer::Granted { fence, ttl_ms, waited_ms, .. } => {
                    grant(context, token, [fence.get(), ttl_ms, waited_ms, 1]);
                }
                Answer::Empty => context.reply_null_array(),
                Answer::Superseded => return Err(Failure::Superseded),
                Answer::NotHeld => return Err(Failure::NothingToTurn),
                Answer::HeldShared => return Err(Failure::HeldShared),
                Answer::NotALock => return Err(Failure::WrongType),
                Answer::SlotGone => return Err(Failure::SlotGone),
                Answer::Demoted => return Err(Failure::Demoted),
                Answer::Refused(reason) => return Err(Failure::Refused(reason)),
                Answer::Grace(left_ms) => return Err(Failure::Grace { left_ms }),
                Answer::NoFence => return Err(Failure::FencesUsedUp),
            }
            Ok(())
        });
    }

    fn answer_unblocked(context: &Context) {
        answer(context, || match engine::grace_left_ms() {
            0 => {
                context.reply_null_array();
                Ok(())
            }
            left_ms => Err(Failure::Grace { left_ms }),
        });
    }
}

/// Only reads the arguments.
#[cfg(any(test, fuzzing))]
pub(super) fn read(args: Args<'_>) -> Result<(), Failure> {
    parse(args).map(drop)
}

fn parse<'a>(args: Args<'a>) -> Result<Request<'a>, Failure> {
    let mut given = Given::default();
    let mut options = Options::new(args, 2);
    while let Some(word) = options.next_word() {
        if !read_name(&mut options, word, &mut given)? && !read_kind(&mut options, word, &mut given)? {
            return Err(unknown(word));
        }
    }
    given.checked()
}

/// Reads an option that says who, for how long and whether to wait. Whether it was one.
fn read_name<'a>(options: &mut Options<'a>, word: Word<'a>, given: &mut Given<'a>) -> Result<bool, Failure> {
    if word.is("TOKEN") {
        let (value, at) = options.value(word, "TOKEN")?;
        once(&mut given.token, options::token(value, at)?, word, "TOKEN")?;
        given.token_at = at;
    } else if word.is("LABEL") {
        let (value, at) = options.value(word, "LABEL")?;
        once(&mut given.label, options::label(value, at)?, word, "LABEL")?;
    } else if word.is("HOLD") {
        let (value, at) = options.value(word, "HOLD")?;
        once(&mut given.hold, options::hold_name(value, at)?, word, "HOLD")?;
    } else {
        return Ok(options.lease(word, &mut given.lease)? || options.waiting(word, &mut given.waiting)?);
    }
    Ok(true)
}

/// Reads an option that says what kind of hold it is to be. Whether it was one.
fn read_kind<'a>(options: &mut Options<'a>, word: Word<'a>, given: &mut Given<'a>) -> Result<bool, Failure> {
    const MODES: &str = "SHARED or LIMIT";
    const TURNS: &str = "UPGRADE or DOWNGRADE";
    if word.is("SHARED") {
        once(&mut given.mode, Mode::Shared(None), word, MODES)?;
    } else if word.is("LIMIT") {
        let limit = options.number(word, "LIMIT", 1, u64::from(u32::MAX))?;
        once(&mut given.mode, Mode::Shared(u32::try_from(limit).ok()), word, MODES)?;
    } else if word.is("UPGRADE") {
        once(&mut given.turn, Turn::Upgrade, word, TURNS)?;
    } else if word.is("DOWNGRADE") {
        once(&mut given.turn, Turn::Downgrade, word, TURNS)?;
    } else if word.is("EPHEMERAL") {
        once(&mut given.ephemeral, (), word, "EPHEMERAL")?;
    } else if word.is("MAXHOLD") {
        once(&mut given.cap_ms, options.number(word, "MAXHOLD", 1, LEASE_MS_MAX)?, word, "MAXHOLD")?;
    } else {
        return Ok(false);
    }
    Ok(true)
}

impl<'a> Given<'a> {
    /// Checks what options mean together.
    fn checked(self) -> Result<Request<'a>, Failure> {
        if self.waiting.is_some() && self.token.is_none() {
            return Err(Failure::WaitWithoutToken);
        }
        match (self.turn, self.mode) {
            (Some(_), _) if self.token.is_none() => return Err(Failure::TurnWithoutToken),
            (Some(Turn::Upgrade), Some(_)) => return Err(Failure::UpgradeToShared),
            (Some(Turn::Downgrade), None) => return Err(Failure::DowngradeToExclusive),
            _ => {}
        }
        if self.ephemeral.is_some() && matches!(self.waiting, Some(Waiting::Poll { .. })) {
            return Err(Failure::EphemeralPoll);
        }
        let ask = Ask {
            mode: self.mode.unwrap_or(Mode::Exclusive),
            turn: self.turn.unwrap_or(Turn::No),
            lease: self.lease.map_or_else(options::default_lease, Ok)?,
            name: self.hold,
            cap_ms: self.cap_ms,
            ephemeral: self.ephemeral.is_some(),
        };
        Ok(Request { token: self.token, token_at: self.token_at, ask, waiting: self.waiting, label: self.label })
    }
}

/// Those who come from SET bring its options along.
fn unknown(word: Word<'_>) -> Failure {
    if word.is("NX") {
        return Failure::NxImplied;
    }
    if word.is("XX") {
        return Failure::Xx;
    }
    word.unknown(match word.at {
        _ if word.is_number() => HINT_NUMBER,
        2 => HINT_FIRST,
        _ => HINT,
    })
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
    if request.ask.ephemeral {
        // Only a connection the server knows can close: a script or a module has none.
        context.client_address(context.client_id()).ok_or(Failure::EphemeralWithoutConnection)?;
        engine::watch_clients(context);
    }
    let visit = Visit::begin(context, args)?;
    let is_try = request.waiting.is_none() && request.ask.turn == Turn::No;
    if is_try && visit.ask(|table, site, now| table.turns_away(site, token, now.instant)) {
        context.reply_null_array();
        return Ok(());
    }
    // Not before: to find out who asks costs a sixth of a try that fails.
    let client = context.client_id();
    let own_label;
    let label = match request.label {
        Some(label) => label,
        None => {
            own_label = label::of_client(context, client);
            own_label.label()
        }
    };
    let wait = match request.waiting {
        // Where the connection may not be blocked, BLOCK answers at once, as it does for the server's own commands.
        None => Wait::No,
        Some(Waiting::Block { .. }) if !context.may_block() => Wait::No,
        Some(Waiting::Block { ms }) => Wait::Block(seats::reserve(), ms.map(|ms| clock::instant().after_ms(ms))),
        Some(Waiting::Poll { ms }) => Wait::Poll(clock::instant().after_ms(ms)),
    };
    let wanted = Acquire { token, ask: request.ask, label, client, wait, limits: engine::settings::limits() };
    let acquired = visit.ask(|table, site, now| table.acquire(site, &wanted, now));
    visit.end();
    match acquired {
        Acquired::Granted { fence, ttl_ms, new } => {
            grant(context, token, [fence.get(), ttl_ms, 0, u64::from(new)]);
        }
        Acquired::Held => context.reply_null_array(),
        Acquired::Waits(waiter) => {
            if let Wait::Block(seat, _) = wait {
                if !seats::sit::<LockAcquire>(context, seat, waiter, request.token_at) {
                    return Err(Failure::CannotBlock);
                }
            }
        }
        Acquired::HeldShared => return Err(Failure::HeldShared),
        Acquired::NotHeld => return Err(Failure::NothingToTurn),
        Acquired::TooManyHolds => return Err(Failure::TooManyHolds),
        Acquired::Deadlock => return Err(Failure::Deadlock),
        Acquired::TooMany => return Err(Failure::TooManyWaiters),
        Acquired::Grace(left_ms) => return Err(Failure::Grace { left_ms }),
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
