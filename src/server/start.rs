//! OnLoad: checks that the server has all that is needed, then registers everything. A refused load says why in one
//! line of the log.

use super::args::Args;
use super::context::Context;
use super::register::{self, Abilities, Command};
use super::settings::{self, Setting};
use super::{api, events, info, log, timer, valkey, value, Hooks};
use redis_module::raw::{self, RedisModuleCtx, RedisModuleString};
use std::ffi::{c_int, CStr};
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Name of the module: the prefix of its configs and INFO lines.
const MODULE_NAME: &CStr = c"lock";
/// First server version with all that is needed, as 0xMMmmpp.
const SERVER_VERSION_MIN: c_int = 0x0007_0000;

/// What a module consists of.
pub struct Module {
    /// Its version as 10000 * major + 100 * minor + patch, for MODULE LIST.
    pub version: i32,
    /// Its configs.
    pub settings: &'static [&'static Setting],
    /// Registers its commands, one [`Registrar::add`] each.
    pub commands: fn(&mut Registrar) -> Result<(), String>,
    /// Runs once all is registered.
    pub ready: fn(&Context),
}

/// Registers commands during OnLoad.
pub struct Registrar {
    ctx: *mut RedisModuleCtx,
    abilities: Abilities,
}

impl Registrar {
    /// Registers one command.
    ///
    /// # Errors
    /// In words: what the server refused.
    pub fn add<C: Command>(&mut self) -> Result<(), String> {
        // SAFETY: a registrar exists only during OnLoad, with its context.
        unsafe { register::command::<C>(self.ctx, self.abilities) }
    }
}

/// Loads the module; the result is what OnLoad returns.
///
/// # Safety
/// The arguments must be those of OnLoad.
pub unsafe fn load<H: Hooks>(
    ctx: *mut RedisModuleCtx,
    argv: *mut *mut RedisModuleString,
    argc: c_int,
    module: &Module,
) -> c_int {
    // SAFETY: the context is that of OnLoad; the call fills the table of functions, whatever it returns.
    let status = unsafe {
        raw::Export_RedisModule_Init(ctx, MODULE_NAME.as_ptr(), module.version, raw::REDISMODULE_APIVER_1 as c_int)
    };
    let loaded = catch_unwind(AssertUnwindSafe(|| {
        if status != raw::REDISMODULE_OK as c_int {
            return Err("another module of the name lock is loaded".to_owned());
        }
        #[cfg(feature = "seeded-bugs")]
        super::canary::sing();
        // SAFETY: the arguments are those of OnLoad.
        unsafe { register_all::<H>(ctx, argv, argc, module) }
    }))
    .unwrap_or_else(|_| Err("an internal error was caught".to_owned()));
    match loaded {
        Ok(()) => raw::REDISMODULE_OK as c_int,
        Err(reason) => {
            log::warning(&format!("lock: not loaded: {reason}"));
            raw::REDISMODULE_ERR as c_int
        }
    }
}

/// # Safety
/// The arguments must be those of OnLoad.
unsafe fn register_all<H: Hooks>(
    ctx: *mut RedisModuleCtx,
    argv: *mut *mut RedisModuleString,
    argc: c_int,
    module: &Module,
) -> Result<(), String> {
    check_version()?;
    if let Some(name) = missing_function() {
        return Err(format!("the server lacks {name}"));
    }
    // SAFETY: the context is that of OnLoad; the arguments live through it.
    unsafe {
        valkey::look_up(ctx);
        let context = Context::new(ctx);
        // Signals are sent where a holder changed, not for every key opened to write. Read errors come back instead of
        // ending the process.
        let options = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED;
        api!(RedisModule_SetModuleOptions)(ctx, (options | valkey::options(&context)) as c_int);
        let args = Args::new(argv, argc);
        let args: Vec<&[u8]> = (0..args.len()).filter_map(|position| args.get(position)).collect();
        settings::take_arguments(module.settings, &args)?;
        if !value::create::<H>(ctx) {
            return Err("the server refused the data type".to_owned());
        }
        let abilities = Abilities::of(ctx);
        (module.commands)(&mut Registrar { ctx, abilities })?;
        if !info::register::<H>(ctx) {
            return Err("the server refused the INFO section".to_owned());
        }
        settings::register::<H>(ctx, module.settings)?;
        timer::start::<H>()?;
        // Last of all that can be refused: after a refused load Redis 7.0 would go on calling what is subscribed.
        events::subscribe::<H>(ctx).inspect_err(|_| timer::stop())?;
        context.detach();
        (module.ready)(&context);
    }
    Ok(())
}

fn check_version() -> Result<(), String> {
    // SAFETY: a function that is missing reads as None.
    let version = unsafe { raw::RedisModule_GetServerVersion.map_or(0, |version| version()) };
    if version < SERVER_VERSION_MIN {
        return Err("Redis 7.0 or Valkey 7.2 is the oldest server it works on".to_owned());
    }
    Ok(())
}

/// Names the functions of the module API that are used, and finds the first one that this server does not have.
macro_rules! needed_functions {
    ($($name:ident),* $(,)?) => {
        fn missing_function() -> Option<&'static str> {
            // SAFETY: the table was filled by RedisModule_Init; a missing function reads as None.
            let all = [$((stringify!($name), unsafe { (&raw const raw::$name).read().is_none() })),*];
            all.into_iter().find_map(|(name, missing)| missing.then_some(name))
        }
    };
}

needed_functions!(
    RedisModule_AvoidReplicaTraffic,
    RedisModule_BlockClient,
    RedisModule_Call,
    RedisModule_CallReplyArrayElement,
    RedisModule_CallReplyLength,
    RedisModule_CallReplyStringPtr,
    RedisModule_CallReplyType,
    RedisModule_CloseKey,
    RedisModule_CreateCommand,
    RedisModule_CreateDataType,
    RedisModule_CreateString,
    RedisModule_CreateTimer,
    RedisModule_DeleteKey,
    RedisModule_DigestAddStringBuffer,
    RedisModule_DigestEndSequence,
    RedisModule_EmitAOF,
    RedisModule_EventLoopAdd,
    RedisModule_EventLoopDel,
    RedisModule_Free,
    RedisModule_GetBlockedClientPrivateData,
    RedisModule_GetBlockedClientHandle,
    RedisModule_FreeCallReply,
    RedisModule_FreeServerInfo,
    RedisModule_FreeString,
    RedisModule_GetClientId,
    RedisModule_GetClientInfoById,
    RedisModule_GetCommand,
    RedisModule_GetCommandKeysWithFlags,
    RedisModule_GetContextFlags,
    RedisModule_GetContextFromIO,
    RedisModule_GetDbIdFromIO,
    RedisModule_GetDbIdFromModuleKey,
    RedisModule_GetDetachedThreadSafeContext,
    RedisModule_GetExpire,
    RedisModule_GetKeyNameFromIO,
    RedisModule_GetSelectedDb,
    RedisModule_GetServerInfo,
    RedisModule_InfoAddFieldLongLong,
    RedisModule_InfoAddSection,
    RedisModule_IsIOError,
    RedisModule_IsKeysPositionRequest,
    RedisModule_KeyAtPosWithFlags,
    RedisModule_KeyType,
    RedisModule_LoadConfigs,
    RedisModule_LoadStringBuffer,
    RedisModule_LoadUnsigned,
    RedisModule_Log,
    RedisModule_ModuleTypeGetType,
    RedisModule_ModuleTypeGetValue,
    RedisModule_ModuleTypeSetValue,
    RedisModule_NotifyKeyspaceEvent,
    RedisModule_OpenKey,
    RedisModule_RegisterInfoFunc,
    RedisModule_RegisterNumericConfig,
    RedisModule_Replicate,
    RedisModule_ReplicateVerbatim,
    RedisModule_ReplyWithArray,
    RedisModule_ReplyWithCallReply,
    RedisModule_ReplyWithError,
    RedisModule_ReplyWithLongLong,
    RedisModule_ReplyWithMap,
    RedisModule_ReplyWithNullArray,
    RedisModule_ReplyWithSimpleString,
    RedisModule_ReplyWithStringBuffer,
    RedisModule_SaveStringBuffer,
    RedisModule_SaveUnsigned,
    RedisModule_SelectDb,
    RedisModule_ServerInfoGetFieldC,
    RedisModule_SetCommandInfo,
    RedisModule_SetDisconnectCallback,
    RedisModule_SetExpire,
    RedisModule_SetModuleOptions,
    RedisModule_SignalModifiedKey,
    RedisModule_StopTimer,
    RedisModule_StringPtrLen,
    RedisModule_SubscribeToKeyspaceEvents,
    RedisModule_SubscribeToServerEvent,
    RedisModule_UnblockClient,
);
