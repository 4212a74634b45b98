//! Locks that live in the server: a module for Redis >= 7.0 and Valkey >= 7.2 with the commands `LOCK.ACQUIRE`,
//! `LOCK.RELEASE`, `LOCK.EXTEND`, `LOCK.CHECK`, `LOCK.GUARD` and `LOCK.INFO`.
//!
//! * [`core`]: the lock itself; no Redis, no clock, no `unsafe`
//! * `command`: one file a command: record, parse, ask core, apply, reply
//! * `engine`: what happens outside commands: the pump, loading and saving, role changes, INFO
//! * `metadata`: the list of commands as data
//! * `seeded`: bugs that tests switch on to see that they are found; none in any build but theirs
//! * `fuzzing`: what random bytes are thrown at; in no build but those of tests
//! * `server`: a safe layer over the module API, and the only `unsafe` code

mod command;
pub mod core;
mod engine;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod metadata;
mod seeded;
mod server;

use redis_module::raw::{RedisModuleCtx, RedisModuleString};
use std::ffi::c_int;

#[global_allocator]
static ALLOCATOR: server::alloc::ServerAlloc = server::alloc::ServerAlloc;

/// The version that MODULE LIST shows: 10000 * major + 100 * minor + patch, as in Cargo.toml.
const VERSION: i32 = 100;

/// Where the server starts a module.
///
/// # Safety
/// Called by the server, once, with its own arguments.
#[allow(non_snake_case, unsafe_code)]
#[no_mangle]
pub unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut RedisModuleCtx,
    argv: *mut *mut RedisModuleString,
    argc: c_int,
) -> c_int {
    let module = server::start::Module {
        version: VERSION,
        settings: engine::settings::ALL,
        commands: command::register,
        ready: engine::start,
    };
    // SAFETY: the arguments are the server's own.
    unsafe { server::start::load::<engine::Engine>(ctx, argv, argc, &module) }
}
