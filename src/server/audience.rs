//! Whether anybody follows the changes of this server. To have one replicated costs a fifth of a lock and its release,
//! also where the server then drops it, since there are neither replicas nor a backlog for them nor an append-only file.
//! It is known like this:
//!
//! * INFO says that there is no replica, no backlog and no append-only file. From then on a replica needs a full copy:
//!   without a backlog there is nothing to continue from. So does an append-only file that is switched on.
//! * A full copy is made by a fork, and the server tells of each, before any later command. So until the next fork, the
//!   next load and the next change of role there is nobody. What was done before a fork is in its copy.
//! * In a cluster slots go to other nodes in ways of their own: there somebody always follows.

use super::context::Context;
use super::{api, edge};
use redis_module::raw::{self, RedisModuleCtx, RedisModuleEvent};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether it is known that there are neither replicas nor a backlog nor an append-only file.
static NOBODY: AtomicBool = AtomicBool::new(false);

/// Whether a change was replicated since it was looked last: else nobody wants to know.
static CHANGED: AtomicBool = AtomicBool::new(false);

/// Whether forks are told of.
static WATCHING: AtomicBool = AtomicBool::new(false);

/// Has the server tell of forks. Where it does not, somebody always follows.
///
/// # Safety
/// `ctx` must be the context of OnLoad.
pub(super) unsafe fn watch(ctx: *mut RedisModuleCtx) {
    let event = RedisModuleEvent { id: raw::REDISMODULE_EVENT_FORK_CHILD, dataver: 1 };
    // SAFETY: context and callback are valid.
    let told = unsafe { api!(RedisModule_SubscribeToServerEvent)(ctx, event, Some(forked)) };
    WATCHING.store(told == raw::REDISMODULE_OK as c_int, Ordering::Relaxed);
}

/// Whether there are neither replicas nor a backlog for them nor an append-only file.
pub(super) fn is_empty() -> bool {
    let nobody = NOBODY.load(Ordering::Relaxed);
    if !nobody {
        CHANGED.store(true, Ordering::Relaxed);
    }
    nobody
}

/// Somebody may follow from now on.
pub(super) fn forget() {
    NOBODY.store(false, Ordering::Relaxed);
}

/// Looks again, if it matters.
pub(super) fn look(context: &Context) {
    if CHANGED.swap(false, Ordering::Relaxed) && WATCHING.load(Ordering::Relaxed) && !context.is_cluster() {
        let says = |field, value| context.server_info(c"replication", field).as_deref() == Some(value);
        let alone = says(c"role", "master") && says(c"connected_slaves", "0") && says(c"repl_backlog_active", "0");
        let no_file = || context.server_info(c"persistence", c"aof_enabled").as_deref() == Some("0");
        NOBODY.store(alone && no_file(), Ordering::Relaxed);
    }
}

unsafe extern "C" fn forked(_: *mut RedisModuleCtx, _: RedisModuleEvent, _: u64, _: *mut c_void) {
    edge((), forget);
}
