//! The data type `redislock`. A value in the keyspace is a handle and owns nothing: the server may free it on another
//! thread, copy the pointer in RENAME, or drop it half loaded, and no memory of the module is ever at stake.

use super::args::bytes_of;
use super::context::Context;
use super::{api, edge, log, Hooks};
use crate::core::name::Place;
use crate::core::slab::Handle;
use crate::core::table::Origin;
use redis_module::raw::{self, RedisModuleCtx, RedisModuleDigest, RedisModuleIO, RedisModuleString, RedisModuleType};
use std::ffi::{c_char, c_int, c_void, CStr};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Name of the data type: what SCAN TYPE takes. The server wants exactly nine characters.
const TYPE_NAME: &CStr = c"redislock";
/// Version of the layout in RDB: one string in the codec's format. The codec has a version of its own.
const RDB_VERSION: c_int = 1;
/// The command that carries a lock in an AOF rewrite.
pub const SET_COMMAND: &CStr = c"LOCK._SET";

static DATA_TYPE: AtomicPtr<RedisModuleType> = AtomicPtr::new(null_mut());

/// The value that the module itself is deleting: it knows already what the server would tell it of that one.
static DELETING: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

pub(super) fn data_type() -> *mut RedisModuleType {
    DATA_TYPE.load(Ordering::Relaxed)
}

pub(super) fn from_handle(handle: Handle) -> *mut c_void {
    // Never dereferenced: the number itself is the value.
    std::ptr::without_provenance_mut(handle.to_bits() as usize)
}

pub(super) fn to_handle(value: *mut c_void) -> Handle {
    Handle::from_bits(value as usize as u64)
}

/// Runs `delete`, which deletes this value. Its lock is forgotten already, so nobody is told that it goes.
pub(super) fn forgotten(value: *mut c_void, delete: impl FnOnce()) {
    DELETING.store(value, Ordering::Relaxed);
    delete();
    DELETING.store(null_mut(), Ordering::Relaxed);
}

/// Other threads free other values: no two that live have the same handle.
fn is_forgotten(value: *const c_void) -> bool {
    std::ptr::eq(DELETING.load(Ordering::Relaxed), value)
}

/// Registers the type; false if the server refuses it.
///
/// # Safety
/// `ctx` must be the context of OnLoad.
pub(super) unsafe fn create<H: Hooks>(ctx: *mut RedisModuleCtx) -> bool {
    let mut methods = raw::RedisModuleTypeMethods {
        version: u64::from(raw::REDISMODULE_TYPE_METHOD_VERSION),
        rdb_load: Some(rdb_load::<H>),
        rdb_save: Some(rdb_save::<H>),
        aof_rewrite: Some(aof_rewrite::<H>),
        mem_usage: Some(mem_usage::<H>),
        digest: Some(digest::<H>),
        free: Some(free::<H>),
        aux_load: Some(aux_load::<H>),
        // Without aux_save2 (Redis 7.0) an RDB with aux data could not be loaded by a server without the module.
        aux_save: None,
        aux_save_triggers: raw::REDISMODULE_AUX_BEFORE_RDB as c_int,
        free_effort: None,
        unlink: Some(unlink::<H>),
        // COPY is refused: one token cannot hold two locks under one fence.
        copy: None,
        defrag: None,
        mem_usage2: None,
        free_effort2: None,
        unlink2: None,
        copy2: None,
        aux_save2: Some(aux_save::<H>),
    };
    // SAFETY: context, name and methods are valid; the server copies the methods, as far as it knows them.
    let created = unsafe { api!(RedisModule_CreateDataType)(ctx, TYPE_NAME.as_ptr(), RDB_VERSION, &raw mut methods) };
    DATA_TYPE.store(created, Ordering::Relaxed);
    !created.is_null()
}

/// A RESTORE by an ordinary client can only reach a serving primary; all else that loads is the server's own.
fn origin() -> Origin {
    let own = raw::REDISMODULE_CTX_FLAGS_LOADING
        | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING
        | raw::REDISMODULE_CTX_FLAGS_SLAVE;
    // SAFETY: without a context the flags are those of the server alone.
    let flags = unsafe { api!(RedisModule_GetContextFlags)(null_mut()) }.unsigned_abs();
    if flags & own == 0 {
        Origin::Stranger
    } else {
        Origin::Server
    }
}

unsafe extern "C" fn rdb_load<H: Hooks>(io: *mut RedisModuleIO, version: c_int) -> *mut c_void {
    edge(null_mut(), || {
        if version != RDB_VERSION {
            log::warning("a lock was refused: its RDB layout is of another version of this module");
            return null_mut();
        }
        // SAFETY: `io` is valid in this callback; the buffer is freed below, after its last use.
        unsafe {
            let mut len = 0;
            let buffer = api!(RedisModule_LoadStringBuffer)(io, &mut len);
            if buffer.is_null() {
                return null_mut();
            }
            let name = api!(RedisModule_GetKeyNameFromIO)(io);
            let key = if name.is_null() { &[][..] } else { bytes_of(name) };
            let place = Place { db: api!(RedisModule_GetDbIdFromIO)(io), key };
            let bytes = std::slice::from_raw_parts(buffer.cast::<u8>(), len);
            let loaded = match api!(RedisModule_IsIOError)(io) {
                0 => H::load(&Context::new(api!(RedisModule_GetContextFromIO)(io)), place, bytes, origin()),
                _ => Err("the payload ends too early"),
            };
            api!(RedisModule_Free)(buffer.cast());
            loaded.map_or_else(
                |reason| {
                    log::warning(&format!("a lock was refused: {reason}"));
                    null_mut()
                },
                from_handle,
            )
        }
    })
}

unsafe extern "C" fn rdb_save<H: Hooks>(io: *mut RedisModuleIO, value: *mut c_void) {
    edge((), || {
        let bytes = H::save(to_handle(value)).concat();
        // SAFETY: `io` is valid in this callback; the server copies the bytes.
        unsafe { api!(RedisModule_SaveStringBuffer)(io, bytes.as_ptr().cast(), bytes.len()) };
    });
}

unsafe extern "C" fn aof_rewrite<H: Hooks>(io: *mut RedisModuleIO, key: *mut RedisModuleString, value: *mut c_void) {
    edge((), || {
        for bytes in H::save(to_handle(value)) {
            // SAFETY: the format names a server string, then a buffer and its length.
            unsafe {
                api!(RedisModule_EmitAOF)(
                    io,
                    SET_COMMAND.as_ptr(),
                    c"sb".as_ptr(),
                    key,
                    bytes.as_ptr().cast::<c_char>(),
                    bytes.len(),
                );
            }
        }
    });
}

unsafe extern "C" fn mem_usage<H: Hooks>(value: *const c_void) -> usize {
    edge(0, || H::memory_bytes(to_handle(value.cast_mut())))
}

unsafe extern "C" fn digest<H: Hooks>(digest: *mut RedisModuleDigest, value: *mut c_void) {
    edge((), || {
        let bytes = H::digest(to_handle(value)).concat();
        // SAFETY: `digest` is valid in this callback.
        unsafe {
            api!(RedisModule_DigestAddStringBuffer)(digest, bytes.as_ptr().cast(), bytes.len());
            api!(RedisModule_DigestEndSequence)(digest);
        }
    });
}

unsafe extern "C" fn free<H: Hooks>(value: *mut c_void) {
    if !is_forgotten(value) {
        edge((), || H::freed(to_handle(value)));
    }
}

unsafe extern "C" fn unlink<H: Hooks>(_key: *mut RedisModuleString, value: *const c_void) {
    if !is_forgotten(value) {
        edge((), || H::unlinked(to_handle(value.cast_mut())));
    }
}

unsafe extern "C" fn aux_load<H: Hooks>(io: *mut RedisModuleIO, version: c_int, _when: c_int) -> c_int {
    edge(raw::REDISMODULE_ERR as c_int, || {
        // SAFETY: `io` is valid in this callback.
        let (number, failed) = unsafe { (api!(RedisModule_LoadUnsigned)(io), api!(RedisModule_IsIOError)(io) != 0) };
        let loaded = match (version, failed) {
            (RDB_VERSION, false) => H::load_aux(number),
            (RDB_VERSION, true) => Err("it ends too early"),
            _ => Err("it is of another version of this module"),
        };
        match loaded {
            Ok(()) => raw::REDISMODULE_OK as c_int,
            Err(reason) => {
                log::warning(&format!("the saved fence was refused: {reason}"));
                raw::REDISMODULE_ERR as c_int
            }
        }
    })
}

unsafe extern "C" fn aux_save<H: Hooks>(io: *mut RedisModuleIO, _when: c_int) {
    edge((), || {
        if let Some(number) = H::save_aux() {
            // SAFETY: `io` is valid in this callback.
            unsafe { api!(RedisModule_SaveUnsigned)(io, number) };
        }
    });
}
