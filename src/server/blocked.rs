//! Connections that wait for their reply. A seat is a number for one of them; it never names two. The server's own
//! timeout is never used: on Redis 7.0 and 7.2 an answer and a timeout in the same turn of the event loop hang the
//! client or crash the server.

use super::args::Args;
use super::cell::MainThread;
use super::context::Context;
use super::numbers::NumberMap;
use super::register::Command;
use super::{api, edge, numbers, Hooks};
use redis_module::raw::{self, RedisModuleBlockedClient, RedisModuleCtx, RedisModuleString};
use std::ffi::{c_int, c_void};

/// A command that can block its connection.
pub trait Answers: Command {
    /// Replies to a connection that was blocked by this command.
    fn answer(context: &Context, args: Args<'_>, seat: u64);
    /// Replies to one whose wait CLIENT UNBLOCK ended.
    fn answer_unblocked(context: &Context);
}

struct Seats {
    last: u64,
    clients: NumberMap<usize>,
    numbers: NumberMap<u64>,
}

static SEATS: MainThread<Seats> =
    MainThread::new(Seats { last: 0, clients: numbers::empty(), numbers: numbers::empty() });

/// A number for a connection that is about to be blocked.
pub fn reserve() -> u64 {
    SEATS.with(|seats| {
        seats.last += 1;
        seats.last
    })
}

/// Blocks the connection that sent the running command; the caller has made sure that commands may block. Whether it
/// did: Valkey since 8.1 blocks no connection that is subscribed, though it may send any command in RESP3.
pub fn block<H: Hooks, C: Answers>(context: &Context, seat: u64) -> bool {
    // Only there CLIENT UNBLOCK is safe: without a callback the server refuses it. Both servers brought this function
    // in the version that has the fix.
    // SAFETY: a missing function reads as None.
    let unblock_is_safe = unsafe { (&raw const raw::RedisModule_ClusterKeySlot).read().is_some() };
    let unblocked: raw::RedisModuleCmdFunc = if unblock_is_safe { Some(unblocked::<H, C>) } else { None };
    // SAFETY: the context is that of a command whose connection may be blocked; 0 is no timeout.
    let client = unsafe {
        let client = api!(RedisModule_BlockClient)(context.raw(), Some(answer::<C>), unblocked, Some(answered::<H>), 0);
        if client.is_null() {
            return false;
        }
        api!(RedisModule_SetDisconnectCallback)(client, Some(abandoned::<H>));
        client
    };
    context.leave_reply_to_later();
    SEATS.with(|seats| {
        seats.clients.insert(seat, client as usize);
        seats.numbers.insert(client as u64, seat);
    });
    true
}

/// Has the connection answered at the end of this turn of the event loop.
pub fn unblock(seat: u64) {
    let client = SEATS.with(|seats| {
        let client = seats.clients.remove(&seat)?;
        seats.numbers.remove(&(client as u64));
        Some(client)
    });
    if let Some(client) = client {
        release(client as *mut RedisModuleBlockedClient, seat);
    }
}

/// Gives the blocked client back to the server. Without a seat no callback runs any more.
fn release(client: *mut RedisModuleBlockedClient, seat: u64) {
    // SAFETY: a client in `SEATS` was not given back yet, and is taken out before it is.
    unsafe { api!(RedisModule_UnblockClient)(client, std::ptr::without_provenance_mut(seat as usize)) };
}

/// Takes the seat of a client that the server unblocked on its own.
fn take(client: *mut RedisModuleBlockedClient) -> Option<u64> {
    SEATS.with(|seats| {
        let seat = seats.numbers.remove(&(client as u64))?;
        seats.clients.remove(&seat);
        Some(seat)
    })
}

unsafe extern "C" fn answer<C: Answers>(
    ctx: *mut RedisModuleCtx,
    argv: *mut *mut RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server keeps context and arguments valid in this callback.
    let (context, args) = unsafe { (Context::new(ctx), Args::new(argv, argc)) };
    edge((), || {
        // SAFETY: the context is that of a blocked client's reply.
        let seat = unsafe { api!(RedisModule_GetBlockedClientPrivateData)(ctx) };
        C::answer(&context, args, seat as usize as u64);
    });
    context.reply_if_none();
    raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn unblocked<H: Hooks, C: Answers>(
    ctx: *mut RedisModuleCtx,
    _argv: *mut *mut RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the context is valid in this callback.
    let context = unsafe { Context::new(ctx) };
    edge((), || {
        // SAFETY: the context is that of a blocked client.
        let client = unsafe { api!(RedisModule_GetBlockedClientHandle)(ctx) };
        if let Some(seat) = take(client) {
            H::unblocked(&context, seat);
            C::answer_unblocked(&context);
            release(client, 0);
        }
    });
    context.reply_if_none();
    raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn abandoned<H: Hooks>(_ctx: *mut RedisModuleCtx, client: *mut RedisModuleBlockedClient) {
    edge((), || {
        // One that was unblocked already is heard of in `answered`.
        if let Some(seat) = take(client) {
            H::abandoned(seat);
            release(client, 0);
        }
    });
}

unsafe extern "C" fn answered<H: Hooks>(ctx: *mut RedisModuleCtx, seat: *mut c_void) {
    edge((), || {
        if !seat.is_null() {
            // SAFETY: the context is valid in this callback, though its client may be gone.
            H::answered(&unsafe { Context::new(ctx) }, seat as usize as u64);
        }
    });
}
