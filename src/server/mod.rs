//! A thin safe layer over the module API: the only `unsafe` code of the project. It knows no lock; what the server
//! wants to know or tell goes through the [`Hooks`] that the module implements.
//!
//! * [`start`]: OnLoad. [`register`]: commands. [`settings`]: configs. [`info`]: INFO sections
//! * [`context`], [`args`], [`key`]: what a command works with; `reply` is a part of the first
//! * [`blocked`]: connections that wait for their reply
//! * [`call`], [`key_request`]: a command of the server inside one of the module, and its keys
//! * [`value`]: the data type. [`events`]: server events and keyspace notifications. [`timer`]: the pump
//! * `copy_guard`: COPY to another database, where a server would lose it
//! * `canary`: misuse of memory that sanitizers have to find; in no build but theirs
//! * `audience`: whether anybody follows the changes. `valkey`: what only Valkey has
//! * [`clock`], [`log`], [`cell`], [`numbers`], [`alloc`]: one small thing each
//!
//! Rules every file here keeps: an entry point from C catches unwinds ([`edge`]); a write happens only in a command or
//! in the pump; text for the log is never a format string; bytes are bytes.

#![allow(unsafe_code)]

pub mod alloc;
pub mod args;
mod audience;
pub mod blocked;
pub mod call;
#[cfg(feature = "seeded-bugs")]
mod canary;
pub mod cell;
pub mod clock;
pub mod context;
mod copy_guard;
pub mod events;
pub mod info;
pub mod key;
pub mod key_request;
pub mod log;
pub mod numbers;
pub mod register;
mod reply;
pub mod settings;
pub mod start;
pub mod timer;
mod valkey;
pub mod value;

use crate::core::name::Place;
use crate::core::slab::Handle;
use crate::core::table::Origin;
use context::Context;
use events::{Loading, Notice, NoticedKey};
use info::InfoWriter;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// What the server asks of the module outside its commands. Each runs on the server's main thread, except where said.
pub trait Hooks: 'static {
    /// A value arrives from RDB or RESTORE; an error says in words why it is refused.
    fn load(context: &Context, place: Place<'_>, bytes: &[u8], origin: Origin) -> Result<Handle, &'static str>;
    /// The parts of a value for RDB and the AOF rewrite; may run in a forked child.
    fn save(handle: Handle) -> Vec<Vec<u8>>;
    /// The parts of a value that are the same on every node at any time.
    fn digest(handle: Handle) -> Vec<Vec<u8>>;
    /// A connection closed.
    fn client_closed(context: &Context, client: u64);
    /// A value was freed; may run on another thread.
    fn freed(handle: Handle);
    /// A value left the keyspace.
    fn unlinked(handle: Handle);
    /// Bytes a value occupies beside its key.
    fn memory_bytes(handle: Handle) -> usize;
    /// The number saved beside the values arrives.
    fn load_aux(number: u64) -> Result<(), &'static str>;
    /// The number to save beside the values; may run in a forked child.
    fn save_aux() -> Option<u64>;
    /// The pump's timer fired.
    fn pump(context: &Context);
    /// The server's own cron ran, some ten times a second.
    fn cron(context: &Context);
    /// A blocked connection closed, or was unblocked with an error: its wait is over without an answer.
    fn abandoned(seat: u64);
    /// CLIENT UNBLOCK ended a wait; the command replies.
    fn unblocked(context: &Context, seat: u64);
    /// What was to be said to a blocked connection was said, or the connection was gone before it could be.
    fn answered(context: &Context, seat: u64);
    /// This node became a primary, or a replica.
    fn role_changed(context: &Context, primary: bool);
    /// Loading of a data set began or ended.
    fn loading(context: &Context, what: Loading);
    /// The data set is about to be saved; may run in a forked child.
    fn saving(context: &Context);
    /// A database (`None`: all of them) was flushed.
    fn flushed(context: &Context, db: Option<i32>);
    /// Two databases changed places.
    fn swapped(context: &Context, first: i32, second: i32);
    /// Something happened to a key.
    fn noticed(context: &Context, notice: Notice, key: &NoticedKey<'_>);
    /// INFO asks for this module's sections.
    fn info(writer: &mut InfoWriter);
    /// The maxmemory policy may have changed.
    fn policy_changed(context: &Context);
    /// CONFIG SET gave one of this module's configs another value.
    fn settings_changed(context: &Context);
}

/// A function of the module API, inside an `unsafe` block: the table of functions is filled once, by
/// RedisModule_Init, before anything else of this module runs. All that are used are checked at load, so a missing one
/// cannot be met later.
macro_rules! api {
    ($name:ident) => {
        match redis_module::raw::$name {
            Some(function) => function,
            None => panic!(concat!(stringify!($name), " is missing")),
        }
    };
}
pub(crate) use api;

/// Runs an entry point's body. An unwind ends here, or it would end the server.
pub(crate) fn edge<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        log::warning("an internal error was caught, please report it with the lines above");
        fallback
    })
}
