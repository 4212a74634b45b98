//! The module's section of INFO.

use super::register::text;
use super::{api, edge, Hooks};
use redis_module::raw::{self, RedisModuleCtx, RedisModuleInfoCtx};
use std::ffi::c_int;
use std::ptr::null;

/// Writes the lines of the section.
pub struct InfoWriter(*mut RedisModuleInfoCtx);

impl InfoWriter {
    /// Writes `lock_<name>:<value>`.
    pub fn field(&mut self, name: &str, value: u64) {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        // SAFETY: the writer lives only inside the callback, where its context is valid.
        unsafe { api!(RedisModule_InfoAddFieldLongLong)(self.0, text(name).as_ptr(), value) };
    }
}

/// # Safety
/// `ctx` must be the context of OnLoad.
pub(super) unsafe fn register<H: Hooks>(ctx: *mut RedisModuleCtx) -> bool {
    // SAFETY: the context is valid.
    unsafe { api!(RedisModule_RegisterInfoFunc)(ctx, Some(write::<H>)) == raw::REDISMODULE_OK as c_int }
}

unsafe extern "C" fn write<H: Hooks>(info: *mut RedisModuleInfoCtx, for_crash_report: c_int) {
    // In a crash the state may be in the middle of a change: nothing of it is worth a second crash.
    if for_crash_report != 0 {
        return;
    }
    edge((), || {
        // SAFETY: the context is valid; without a name the section is called as the module.
        if unsafe { api!(RedisModule_InfoAddSection)(info, null()) } == raw::REDISMODULE_OK as c_int {
            H::info(&mut InfoWriter(info));
        }
    });
}
