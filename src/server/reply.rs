//! Replies. Each command sends exactly one; the parts of an array or map belong to it.

use super::api;
use super::context::Context;
use redis_module::raw;
use std::ffi::{c_int, c_long, CStr};

impl Context {
    fn has_replied(&self) -> bool {
        self.replied.get()
    }

    /// The reply comes later, from a callback of a blocked connection.
    pub(super) fn leave_reply_to_later(&self) {
        self.replied.set(true);
    }

    /// Replies with an error if nothing else was replied: something unwound.
    pub(super) fn reply_if_none(&self) {
        if !self.has_replied() {
            self.reply_error(c"ERR internal error, nothing is known to have changed: see the server's log");
        }
    }

    /// Replies with an error; the text begins with its code.
    pub fn reply_error(&self, text: &CStr) {
        self.replied.set(true);
        // SAFETY: context and text are valid.
        unsafe { api!(RedisModule_ReplyWithError)(self.raw(), text.as_ptr()) };
    }

    /// Replies with an integer.
    pub fn reply_int(&self, number: i64) {
        self.replied.set(true);
        // SAFETY: the context is valid.
        unsafe { api!(RedisModule_ReplyWithLongLong)(self.raw(), number) };
    }

    /// Replies with bytes.
    pub fn reply_bytes(&self, bytes: &[u8]) {
        self.replied.set(true);
        // SAFETY: pointer and length describe `bytes`, which the server copies.
        unsafe { api!(RedisModule_ReplyWithStringBuffer)(self.raw(), bytes.as_ptr().cast(), bytes.len()) };
    }

    /// Replies what the server replied to an inner command.
    ///
    /// # Safety
    /// The reply must be valid.
    pub(super) unsafe fn reply_with(&self, reply: *mut raw::RedisModuleCallReply) {
        self.replied.set(true);
        // SAFETY: context and reply are valid.
        if unsafe { api!(RedisModule_ReplyWithCallReply)(self.raw(), reply) } != raw::REDISMODULE_OK as c_int {
            self.reply_error(c"ERR the guarded command ran, but its reply does not fit this connection's protocol");
        }
    }

    /// Replies with `+OK`.
    pub fn reply_ok(&self) {
        self.replied.set(true);
        // SAFETY: the context is valid.
        unsafe { api!(RedisModule_ReplyWithSimpleString)(self.raw(), c"OK".as_ptr()) };
    }

    /// Replies null: `*-1` in RESP2, where an array might have stood, `_` in RESP3.
    pub fn reply_null_array(&self) {
        self.replied.set(true);
        // SAFETY: the context is valid.
        unsafe { api!(RedisModule_ReplyWithNullArray)(self.raw()) };
    }

    /// Begins an array of this many parts.
    pub fn reply_array(&self, len: usize) {
        self.replied.set(true);
        // SAFETY: the context is valid.
        unsafe { api!(RedisModule_ReplyWithArray)(self.raw(), len as c_long) };
    }

    /// Begins a map of this many pairs: a flat array in RESP2.
    pub fn reply_map(&self, pairs: usize) {
        self.replied.set(true);
        // SAFETY: the context is valid.
        unsafe { api!(RedisModule_ReplyWithMap)(self.raw(), pairs as c_long) };
    }
}
