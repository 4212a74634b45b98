//! An open key, closed when it goes out of scope.

use super::api;
use super::args::bytes_of;
use super::context::Context;
use super::value;
use crate::core::name::Place;
use crate::core::slab::Handle;
use redis_module::raw::{self, RedisModuleKey, RedisModuleString};
use std::ffi::c_int;

/// What a key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing.
    Empty,
    /// A lock.
    Lock(Handle),
    /// A string with a time to live: how other libraries keep locks.
    Legacy,
    /// Anything else.
    Other,
}

/// An open key.
pub struct Key<'a> {
    raw: *mut RedisModuleKey,
    name: *mut RedisModuleString,
    context: &'a Context,
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: opened once, closed once.
            unsafe { api!(RedisModule_CloseKey)(self.raw) };
        }
    }
}

impl<'a> Key<'a> {
    /// # Safety
    /// `name` must be valid for `'a`.
    pub(super) unsafe fn open(context: &'a Context, name: *mut RedisModuleString, mode: u32) -> Self {
        // SAFETY: context and name are valid. A null key stands for a missing one opened to read.
        let raw = unsafe { api!(RedisModule_OpenKey)(context.raw(), name, mode as c_int).cast() };
        Self { raw, name, context }
    }

    pub(super) const fn name(&self) -> *mut RedisModuleString {
        self.name
    }

    /// Where the key is. The selected database is not asked: in a transaction Valkey 9 answers with the one that was
    /// selected last while it was queued, whatever is selected as it runs.
    pub fn place(&self) -> Place<'a> {
        // SAFETY: the name is valid for `'a`, as `open` demands; a key that is not null is open.
        unsafe {
            let db = if self.raw.is_null() {
                api!(RedisModule_GetSelectedDb)(self.context.raw())
            } else {
                api!(RedisModule_GetDbIdFromModuleKey)(self.raw)
            };
            Place { db, key: bytes_of(self.name) }
        }
    }

    /// What the key holds.
    pub fn content(&self) -> Content {
        if self.raw.is_null() {
            return Content::Empty;
        }
        // SAFETY: the key is open; a value of our type is a handle.
        unsafe {
            match api!(RedisModule_KeyType)(self.raw) {
                kind if kind == raw::REDISMODULE_KEYTYPE_EMPTY as c_int => Content::Empty,
                kind if kind == raw::REDISMODULE_KEYTYPE_MODULE as c_int
                    && api!(RedisModule_ModuleTypeGetType)(self.raw) == value::data_type() =>
                {
                    Content::Lock(value::to_handle(api!(RedisModule_ModuleTypeGetValue)(self.raw)))
                }
                kind if kind == raw::REDISMODULE_KEYTYPE_STRING as c_int && self.has_ttl() => Content::Legacy,
                _ => Content::Other,
            }
        }
    }

    /// Whether the key holds a string, or nothing.
    pub fn is_string_or_empty(&self) -> bool {
        // SAFETY: a key that is not null is open.
        let kind = if self.raw.is_null() { 0 } else { unsafe { api!(RedisModule_KeyType)(self.raw) } };
        kind == raw::REDISMODULE_KEYTYPE_EMPTY as c_int || kind == raw::REDISMODULE_KEYTYPE_STRING as c_int
    }

    /// Stores a lock here; false if the key is open for reading only.
    pub fn store(&self, handle: Handle) -> bool {
        // SAFETY: the key is open and the value is of the type it is said to be.
        let status =
            unsafe { api!(RedisModule_ModuleTypeSetValue)(self.raw, value::data_type(), value::from_handle(handle)) };
        status == raw::REDISMODULE_OK as c_int
    }

    /// Deletes the key, whose lock is forgotten already.
    pub fn delete(&self) {
        // SAFETY: the key is open. What is no value of a module reads as null.
        unsafe {
            let value = api!(RedisModule_ModuleTypeGetValue)(self.raw);
            value::forgotten(value, || {
                api!(RedisModule_DeleteKey)(self.raw);
            });
        }
    }

    /// Whether the key has a time to live.
    pub fn has_ttl(&self) -> bool {
        self.ttl_ms().is_some()
    }

    /// The key's time to live in ms.
    pub fn ttl_ms(&self) -> Option<u64> {
        if self.raw.is_null() {
            return None;
        }
        // SAFETY: the key is open. -1 stands for no time to live.
        u64::try_from(unsafe { api!(RedisModule_GetExpire)(self.raw) }).ok()
    }

    /// Gives the key a time to live in ms.
    pub fn set_ttl_ms(&self, ms: u64) {
        // SAFETY: the key is open for writing.
        unsafe { api!(RedisModule_SetExpire)(self.raw, i64::try_from(ms).unwrap_or(i64::MAX)) };
    }

    /// Takes the key's time to live away.
    pub fn remove_ttl(&self) {
        // SAFETY: the key is open for writing.
        unsafe { api!(RedisModule_SetExpire)(self.raw, i64::from(raw::REDISMODULE_NO_EXPIRE)) };
    }
}
