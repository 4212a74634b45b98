//! Server events and keyspace notifications, translated for the [`Hooks`].

use super::args::bytes_of;
use super::cell::MainThread;
use super::context::Context;
use super::key::Key;
use super::{api, audience, copy_guard, edge, Hooks};
use crate::core::name::Place;
use redis_module::raw::{self, RedisModuleCtx, RedisModuleEvent, RedisModuleString};
use std::ffi::{c_char, c_int, c_void, CStr};

/// A step of loading a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loading {
    /// It began.
    Started,
    /// It ended, well or not.
    Ended,
}

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The key came here from elsewhere: RENAME, MOVE, RESTORE, COPY.
    Arrived,
    /// A time to live was set, or taken away.
    ExpireChanged,
    /// Somebody deleted the key, or it went elsewhere.
    Deleted,
    /// The server evicted the key.
    Evicted,
    /// The key's time to live was over.
    Expired,
}

/// The key to which something happened. Nothing is found out before it is asked for: the server tells of every key that is
/// deleted or gets a time to live, and few of them are locks.
pub struct NoticedKey<'a> {
    context: &'a Context,
    name: *mut RedisModuleString,
}

impl NoticedKey<'_> {
    /// Where it is.
    pub fn place(&self) -> Place<'_> {
        // SAFETY: the name is valid while the notification lasts, and so is this value.
        Place { db: self.context.db(), key: unsafe { bytes_of(self.name) } }
    }

    /// What is there now.
    pub fn open(&self) -> Key<'_> {
        // SAFETY: as above.
        unsafe { Key::open(self.context, self.name, raw::REDISMODULE_READ | raw::REDISMODULE_OPEN_KEY_NOTOUCH) }
    }
}

/// Where the key that MOVE is moving comes from.
static MOVED_FROM: MainThread<i32> = MainThread::new(0);

const EVENT_VERSION: u64 = 1;
const OK: c_int = raw::REDISMODULE_OK as c_int;

/// Subscribes to the server events; an error names the one that the server does not have.
///
/// # Safety
/// `ctx` must be the context of OnLoad.
pub(super) unsafe fn subscribe<H: Hooks>(ctx: *mut RedisModuleCtx) -> Result<(), String> {
    let events: [(&str, u64, raw::RedisModuleEventCallback); 7] = [
        ("role", raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, Some(role::<H>)),
        ("loading", raw::REDISMODULE_EVENT_LOADING, Some(loading::<H>)),
        ("persistence", raw::REDISMODULE_EVENT_PERSISTENCE, Some(persistence::<H>)),
        ("flush", raw::REDISMODULE_EVENT_FLUSHDB, Some(flush::<H>)),
        ("swapdb", raw::REDISMODULE_EVENT_SWAPDB, Some(swap::<H>)),
        ("cron", raw::REDISMODULE_EVENT_CRON_LOOP, Some(cron::<H>)),
        ("config", raw::REDISMODULE_EVENT_CONFIG, Some(config::<H>)),
    ];
    for (name, id, callback) in events {
        let event = RedisModuleEvent { id, dataver: EVENT_VERSION };
        // SAFETY: context and callback are valid.
        if unsafe { api!(RedisModule_SubscribeToServerEvent)(ctx, event, callback) } != OK {
            return Err(format!("the server has no {name} event"));
        }
    }
    // SAFETY: promised by the caller.
    unsafe { audience::watch(ctx) };
    Ok(())
}

/// Subscribes to what happens to keys. Allowed at any time; the server lets no module stop again.
pub fn watch_keys<H: Hooks>(context: &Context) {
    let classes = raw::REDISMODULE_NOTIFY_GENERIC | raw::REDISMODULE_NOTIFY_EVICTED | raw::REDISMODULE_NOTIFY_EXPIRED;
    // SAFETY: context and callback are valid.
    if unsafe { api!(RedisModule_SubscribeToKeyspaceEvents)(context.raw(), classes, Some(noticed::<H>)) } != OK {
        super::log::warning("keyspace notifications are refused: renamed locks end late, evicted ones are lost");
        return;
    }
    copy_guard::set_up(context);
}

/// Subscribes to closing connections. Allowed at any time.
pub fn watch_clients<H: Hooks>(context: &Context) {
    let event = RedisModuleEvent { id: raw::REDISMODULE_EVENT_CLIENT_CHANGE, dataver: EVENT_VERSION };
    // SAFETY: context and callback are valid.
    if unsafe { api!(RedisModule_SubscribeToServerEvent)(context.raw(), event, Some(client::<H>)) } != OK {
        super::log::warning("closing connections cannot be watched: EPHEMERAL locks end with their lease only");
    }
}

unsafe extern "C" fn client<H: Hooks>(ctx: *mut RedisModuleCtx, _: RedisModuleEvent, sub: u64, data: *mut c_void) {
    edge((), || {
        if sub != raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED || data.is_null() {
            return;
        }
        // SAFETY: the server passes this struct with this event; the context is valid in this callback.
        let (context, client) = unsafe { (Context::new(ctx), (*data.cast::<raw::RedisModuleClientInfo>()).id) };
        H::client_closed(&context, client);
    });
}

unsafe extern "C" fn noticed<H: Hooks>(
    ctx: *mut RedisModuleCtx,
    class: c_int,
    event: *const c_char,
    key: *mut RedisModuleString,
) -> c_int {
    edge((), || {
        // SAFETY: the event is a C string of the server, valid in this callback.
        let event = unsafe { CStr::from_ptr(event) }.to_bytes();
        // SAFETY: the context is valid in this callback.
        let context = unsafe { Context::new(ctx) };
        let notice = match (class, event) {
            (raw::REDISMODULE_NOTIFY_EVICTED, _) => Notice::Evicted,
            (raw::REDISMODULE_NOTIFY_EXPIRED, _) => Notice::Expired,
            (_, b"rename_to" | b"move_to" | b"restore" | b"copy_to") => Notice::Arrived,
            (_, b"expire" | b"persist") => Notice::ExpireChanged,
            (_, b"del" | b"rename_from" | b"move_from") => Notice::Deleted,
            _ => return,
        };
        if event == b"move_from" {
            MOVED_FROM.with(|from| *from = context.db());
        }
        H::noticed(&context, notice, &NoticedKey { context: &context, name: key });
        if event == b"move_to" {
            // Valkey 8.1 and 9.0 tell modules on the client's own connection and leave it in the database it told of
            // (valkey#4024): the client's next command, or the next one of the replication stream, would go there.
            context.select(MOVED_FROM.with(|from| *from));
        }
    });
    OK
}

unsafe extern "C" fn role<H: Hooks>(ctx: *mut RedisModuleCtx, _: RedisModuleEvent, sub: u64, _: *mut c_void) {
    edge((), || {
        audience::forget();
        // SAFETY: the context is valid in this callback.
        let context = unsafe { Context::new(ctx) };
        H::role_changed(&context, sub == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER);
    });
}

unsafe extern "C" fn loading<H: Hooks>(ctx: *mut RedisModuleCtx, _: RedisModuleEvent, sub: u64, _: *mut c_void) {
    edge((), || {
        audience::forget();
        let ended = matches!(sub, raw::REDISMODULE_SUBEVENT_LOADING_ENDED | raw::REDISMODULE_SUBEVENT_LOADING_FAILED);
        // SAFETY: the context is valid in this callback.
        let context = unsafe { Context::new(ctx) };
        H::loading(&context, if ended { Loading::Ended } else { Loading::Started });
    });
}

unsafe extern "C" fn persistence<H: Hooks>(ctx: *mut RedisModuleCtx, _: RedisModuleEvent, sub: u64, _: *mut c_void) {
    edge((), || {
        let over = [raw::REDISMODULE_SUBEVENT_PERSISTENCE_ENDED, raw::REDISMODULE_SUBEVENT_PERSISTENCE_FAILED];
        if !over.contains(&sub) {
            // SAFETY: the context is valid in this callback.
            H::saving(&unsafe { Context::new(ctx) });
        }
    });
}

unsafe extern "C" fn flush<H: Hooks>(ctx: *mut RedisModuleCtx, _: RedisModuleEvent, sub: u64, data: *mut c_void) {
    edge((), || {
        if sub != raw::REDISMODULE_SUBEVENT_FLUSHDB_END || data.is_null() {
            return;
        }
        // SAFETY: the server passes this struct with this event.
        let db = unsafe { (*data.cast::<raw::RedisModuleFlushInfo>()).dbnum };
        // SAFETY: the context is valid in this callback.
        H::flushed(&unsafe { Context::new(ctx) }, (db >= 0).then_some(db));
    });
}

unsafe extern "C" fn swap<H: Hooks>(ctx: *mut RedisModuleCtx, _: RedisModuleEvent, _: u64, data: *mut c_void) {
    edge((), || {
        if data.is_null() {
            return;
        }
        // SAFETY: the server passes this struct with this event.
        let info = unsafe { &*data.cast::<raw::RedisModuleSwapDbInfo>() };
        // SAFETY: the context is valid in this callback.
        H::swapped(&unsafe { Context::new(ctx) }, info.dbnum_first, info.dbnum_second);
    });
}

unsafe extern "C" fn cron<H: Hooks>(ctx: *mut RedisModuleCtx, _: RedisModuleEvent, _: u64, _: *mut c_void) {
    edge((), || {
        // SAFETY: the context is valid in this callback.
        let context = unsafe { Context::new(ctx) };
        audience::look(&context);
        H::cron(&context);
    });
}

unsafe extern "C" fn config<H: Hooks>(ctx: *mut RedisModuleCtx, _: RedisModuleEvent, _: u64, data: *mut c_void) {
    edge((), || {
        if data.is_null() {
            return;
        }
        // SAFETY: the server passes this struct with this event, and as many C strings as it says.
        let changed = unsafe {
            let info = &*data.cast::<raw::RedisModuleConfigChange>();
            let names = std::slice::from_raw_parts(info.config_names, info.num_changes as usize);
            names.iter().any(|&name| CStr::from_ptr(name) == c"maxmemory-policy")
        };
        if changed {
            // SAFETY: the context is valid in this callback.
            H::policy_changed(&unsafe { Context::new(ctx) });
        }
    });
}
