//! Where the keys of a command are, when they are those of another command among its arguments. The server asks for them
//! without running anything, and maybe on another thread than the main one: nothing here touches the module's state.

use super::api;
use super::args::Args;
use super::context::Context;
use redis_module::raw::{self, RedisModuleCtx};
use std::cell::Cell;
use std::ffi::c_int;
use std::io;
use std::ptr::null_mut;
use std::slice::from_raw_parts;

/// Why a command has no keys that could be reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keyless {
    /// The server has no such command.
    Unknown,
    /// It has too few arguments, or too many.
    Arity,
    /// It is a command without keys, or its arguments name none.
    NoKeys,
}

/// A key's position among the arguments, and what the command does to it; no flag at all where the server gives none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyAt {
    /// The position, the command's name at 0.
    pub position: usize,
    /// The server's bits for reading, writing and so on.
    pub flags: c_int,
}

impl KeyAt {
    /// A key that is only read.
    pub const fn read(position: usize) -> Self {
        Self { position, flags: (raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS) as c_int }
    }
}

/// The server asks where the keys of a command are.
pub struct KeyRequest(*mut RedisModuleCtx);

impl KeyRequest {
    /// The request that this context is for, if it is for one.
    ///
    /// # Safety
    /// The context must stay valid as long as the result lives.
    pub(super) unsafe fn of(ctx: *mut RedisModuleCtx) -> Option<Self> {
        // SAFETY: the context is valid.
        (unsafe { api!(RedisModule_IsKeysPositionRequest)(ctx) } != 0).then_some(Self(ctx))
    }

    /// The keys of the command that these arguments are.
    ///
    /// # Errors
    /// If there are none to report.
    pub fn keys_of(&self, command: Args<'_>) -> Result<Vec<KeyAt>, Keyless> {
        // SAFETY: the context is valid.
        unsafe { keys_of(self.0, command) }
    }

    /// Names one key.
    pub fn answer(&self, key: KeyAt) {
        let Ok(position) = c_int::try_from(key.position) else { return };
        // SAFETY: the context is that of a request.
        unsafe { api!(RedisModule_KeyAtPosWithFlags)(self.0, position, key.flags) };
    }
}

impl Context {
    /// The keys of the command that these arguments are.
    ///
    /// # Errors
    /// If it has none, or does not exist.
    pub fn keys_of(&self, command: Args<'_>) -> Result<Vec<KeyAt>, Keyless> {
        // SAFETY: the context is valid.
        unsafe { keys_of(self.raw(), command) }
    }
}

thread_local! {
    static LOOKING_FOR_KEYS: Cell<bool> = const { Cell::new(false) };
}

/// # Safety
/// The context must be valid.
unsafe fn keys_of(ctx: *mut RedisModuleCtx, command: Args<'_>) -> Result<Vec<KeyAt>, Keyless> {
    // The server compares names up to a NUL, as C does, and so would find a command that the caller did not mean.
    if command.get(0).is_none_or(|name| name.contains(&0)) {
        return Err(Keyless::Unknown);
    }
    // A module's command that is asked here may have the same question for another command, and so on.
    if LOOKING_FOR_KEYS.replace(true) {
        return Err(Keyless::NoKeys);
    }
    // SAFETY: promised by the caller.
    let found = unsafe { find_keys(ctx, command) };
    LOOKING_FOR_KEYS.set(false);
    found
}

/// # Safety
/// The context must be valid, and the command have a name.
unsafe fn find_keys(ctx: *mut RedisModuleCtx, command: Args<'_>) -> Result<Vec<KeyAt>, Keyless> {
    let (argv, argc) = command.as_argv();
    let (mut count, mut flags) = (0, null_mut());
    // SAFETY: context and arguments are valid.
    let positions =
        unsafe { api!(RedisModule_GetCommandKeysWithFlags)(ctx, argv, argc, &raw mut count, &raw mut flags) };
    if positions.is_null() {
        // The server has just set it, in all three cases.
        return Err(match io::Error::last_os_error().raw_os_error() {
            Some(libc::ENOENT) => Keyless::Unknown,
            Some(libc::EINVAL) => Keyless::Arity,
            _ => Keyless::NoKeys,
        });
    }
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the server gives two arrays of `count` numbers, which are the caller's to free.
    unsafe {
        let keys = from_raw_parts(positions, count).iter().zip(from_raw_parts(flags, count));
        let keys = keys
            .filter_map(|(&position, &flags)| Some(KeyAt { position: usize::try_from(position).ok()?, flags }))
            .collect();
        api!(RedisModule_Free)(positions.cast());
        api!(RedisModule_Free)(flags.cast());
        Ok(keys)
    }
}
