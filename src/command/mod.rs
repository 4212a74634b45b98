//! One file a command: its record, its parser, what it asks of core, its reply. [`options`] and [`failure`] are what
//! the parsers share.

pub mod acquire;
pub mod check;
pub mod extend;
pub mod failure;
pub mod guard;
pub mod info;
mod options;
pub mod release;
pub mod set;

use crate::metadata::Record;
use crate::server::args::Args;
use crate::server::context::Context;
use crate::server::register::Command;
use crate::server::start::Registrar;
use failure::Failure;

/// The one list of commands, in the order of the documentation.
macro_rules! commands {
    ($($command:ty),* $(,)?) => {
        /// The record of every command.
        pub const RECORDS: &[&Record] = &[$(<$command as Command>::RECORD),*];

        /// Registers every command.
        ///
        /// # Errors
        /// In words: what the server refused.
        pub fn register(registrar: &mut Registrar) -> Result<(), String> {
            $(registrar.add::<$command>()?;)*
            Ok(())
        }
    };
}

commands!(
    acquire::LockAcquire,
    release::LockRelease,
    extend::LockExtend,
    check::LockCheck,
    info::LockInfo,
    guard::LockGuard,
    set::LockSet,
);

/// Runs a command's body and replies with its failure, if it has one.
fn answer(context: &Context, body: impl FnOnce() -> Result<(), Failure>) {
    if let Err(failure) = body() {
        context.reply_error(&failure.to_reply());
    }
}

/// Reads the arguments of a command that has options, and does nothing: the error that a client would get. The first
/// argument says which one: its name from the last letter on.
#[cfg(any(test, fuzzing))]
pub(crate) fn read(args: Args<'_>) -> Result<(), std::ffi::CString> {
    let read = match args.get(0).and_then(<[u8]>::last) {
        Some(b'D') => extend::read,
        Some(b'R') => release::read,
        _ => acquire::read,
    };
    read(args).map_err(|failure| failure.to_reply())
}

/// The argument at a position that the command's arity, or the parser, has made sure of.
fn required<'a>(args: Args<'a>, position: usize) -> Result<&'a [u8], Failure> {
    args.get(position).ok_or(Failure::Arity)
}
