//! What only Valkey has, and the bindings do not know: looked up by name, absent on Redis.

use super::context::Context;
use redis_module::raw::RedisModuleCtx;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Valkey 9 moves slots atomically only if every module says that it can cope.
const OPTION_HANDLE_ATOMIC_SLOT_MIGRATION: u32 = 1 << 5;

type MustObeyClient = unsafe extern "C" fn(ctx: *mut RedisModuleCtx) -> c_int;

static MUST_OBEY_CLIENT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Looks the functions up.
///
/// # Safety
/// `ctx` must be the context of OnLoad.
pub(super) unsafe fn look_up(ctx: *mut RedisModuleCtx) {
    type GetApi = unsafe extern "C" fn(name: *const std::ffi::c_char, function: *mut *mut c_void) -> c_int;
    let mut function = null_mut();
    // SAFETY: a context begins with the server's function that finds others by name; it leaves what it does not know.
    unsafe {
        let get_api = *ctx.cast::<Option<GetApi>>();
        if let Some(get_api) = get_api {
            get_api(c"RedisModule_MustObeyClient".as_ptr(), &raw mut function);
        }
    }
    MUST_OBEY_CLIENT.store(function, Ordering::Relaxed);
}

/// Whether the running command's client is the server's own: a primary, the append-only file or a slot import.
pub(super) fn must_obey_client(ctx: *mut RedisModuleCtx) -> bool {
    let function = MUST_OBEY_CLIENT.load(Ordering::Relaxed);
    if function.is_null() {
        return false;
    }
    // SAFETY: the server gave the function under this name, which has this type; the context is valid.
    unsafe { std::mem::transmute::<*mut c_void, MustObeyClient>(function)(ctx) != 0 }
}

/// The options only Valkey knows: the same bits may come to mean something else elsewhere.
pub(super) fn options(context: &Context) -> u32 {
    if is_valkey(context) {
        OPTION_HANDLE_ATOMIC_SLOT_MIGRATION
    } else {
        0
    }
}

/// Whether the server is Valkey. The version alone does not say: it looks like one of Redis.
pub(super) fn is_valkey(context: &Context) -> bool {
    context.server_info(c"server", c"server_name").as_deref() == Some("valkey")
}
