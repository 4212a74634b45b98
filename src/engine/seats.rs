//! Blocked connections and what they are to be told. A grant is final only when its reply is written: until then it can
//! be taken back, by an order that the pump carries out.

use super::{hooks, patrol, pump, with, State};
use crate::core::fence::Fence;
use crate::core::line::Seat;
use crate::core::name::{Place, Token};
use crate::core::slab::Handle;
use crate::core::table::Answer;
use crate::server::args::Args;
use crate::server::blocked;
use crate::server::clock;
use crate::server::context::Context;
use crate::server::key::Content;
use crate::server::numbers::NumberMap;

/// Seats that are taken.
#[derive(Default)]
pub(super) struct Seats {
    taken: NumberMap<Sitter>,
}

/// Who has a seat.
struct Sitter {
    /// Where in its command the token is.
    token_at: usize,
    state: Seated,
}

/// The state of a seat that is taken.
enum Seated {
    /// This one waits there.
    Waits(Handle),
    /// This is to be said there, as it was after so many upheavals.
    IsTold(Answer, u64),
}

/// A grant whose reply could not be delivered.
pub(super) struct TakeBack {
    pub(super) lock: Handle,
    pub(super) fence: Fence,
}

/// A number for a connection that will be blocked if it has to wait.
pub fn reserve() -> Seat {
    Seat(blocked::reserve())
}

/// Blocks the connection that sent the running command: the token in its arguments there waits in line. Whether it
/// could: else the wait is over.
pub fn sit<C: blocked::Answers>(context: &Context, seat: Seat, waiter: Handle, token_at: usize) -> bool {
    with(|state| state.seats.taken.insert(seat.0, Sitter { token_at, state: Seated::Waits(waiter) }));
    if !blocked::block::<hooks::Engine, C>(context, seat.0) {
        abandoned(seat.0);
        pump::arm_if_stirred(context);
        return false;
    }
    if context.is_cluster() {
        patrol::patrol_from(context, clock::instant());
    }
    true
}

/// Has the connection told this at the end of the turn, as it was after so many upheavals.
pub(super) fn answer(seat: Seat, answer: Answer, upheavals: u64) {
    with(|state| {
        if let Some(sitter) = state.seats.taken.get_mut(&seat.0) {
            sitter.state = Seated::IsTold(answer, upheavals);
        }
    });
    blocked::unblock(seat.0);
}

/// The token at this seat, and what it is to be told, as its reply is written. A grant counts from here on; one that does
/// not hold any more is `None`.
pub fn take_answer<'a>(context: &Context, args: Args<'a>, seat: u64) -> Option<(Token<'a>, Answer)> {
    let (token_at, answer, untouched) = with(|state| {
        let sitter = state.seats.taken.get(&seat)?;
        match &sitter.state {
            Seated::IsTold(answer, upheavals) => {
                Some((sitter.token_at, answer.clone(), *upheavals == state.table.upheavals()))
            }
            Seated::Waits(_) => None,
        }
    })?;
    let token = Token::new(args.get(token_at)?)?;
    if let Answer::Granted { lock, fence, .. } = answer {
        let now = clock::instant();
        let stands = untouched || stands(context, args, lock);
        if !stands || !with(|state| state.table.deliver(lock, token.bytes(), fence, now)) {
            return None;
        }
    }
    with(|state| state.seats.taken.remove(&seat));
    Some((token, answer))
}

/// Whether the lock still is where it was waited for. The table can be behind the keyspace: FLUSHALL tells nobody which
/// values it dropped.
fn stands(context: &Context, args: Args<'_>, lock: Handle) -> bool {
    context.read_arg(args, 1).is_some_and(|key| {
        let here = |state: &mut State| state.table.get(lock).is_some_and(|lock| lock.place() == key.place());
        key.content() == Content::Lock(lock) && with(here)
    })
}

/// The reply was written, or could not be: a grant nobody was told of is to be taken back.
pub(super) fn answered(context: &Context, seat: u64) {
    let undelivered = with(|state| match state.seats.taken.remove(&seat).map(|sitter| sitter.state) {
        Some(Seated::IsTold(Answer::Granted { lock, fence, .. }, _)) => {
            state.take_backs.push(TakeBack { lock, fence });
            true
        }
        _ => false,
    });
    if undelivered {
        pump::arm_at_once(context);
    }
}

/// The connection left: its token waits no longer.
pub(super) fn abandoned(seat: u64) {
    with(|state| {
        if let Some(Seated::Waits(waiter)) = state.seats.taken.remove(&seat).map(|sitter| sitter.state) {
            state.table.leave(waiter);
        }
    });
}

/// Where a lock was last seen.
pub(super) fn place_of(lock: Handle) -> Option<(i32, Box<[u8]>)> {
    with(|state| state.table.get(lock).map(|lock| owned(lock.place())))
}

pub(super) fn owned(place: Place<'_>) -> (i32, Box<[u8]>) {
    (place.db, place.key.into())
}
