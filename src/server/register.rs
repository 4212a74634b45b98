//! Registers commands: each from its record, each behind one trampoline that catches unwinds and sees to it that
//! exactly one reply is sent.

use super::args::Args;
use super::context::Context;
use super::key_request::KeyRequest;
use super::{api, edge, valkey};
use crate::metadata::{Arg, ArgKind, KeyUse, Record};
use redis_module::raw::{self, RedisModuleCommandArg, RedisModuleCtx, RedisModuleString};
use std::ffi::{c_int, CString};
use std::ptr::{null, null_mut};

/// A command of the module.
pub trait Command: 'static {
    /// What it is.
    const RECORD: &'static Record;
    /// Names its keys, for a command with more than one: where the server can ask for them, see [`asks_for_keys`]. Else
    /// only the first is known to it.
    const KEYS: Option<fn(&KeyRequest, Args<'_>)> = None;
    /// Runs it and replies.
    fn run(context: &Context, args: Args<'_>);
}

/// The module's own ACL category.
const CATEGORY: &str = "lock";

const OK: c_int = raw::REDISMODULE_OK as c_int;

/// Registers command `C`; an error names what the server refused.
///
/// # Safety
/// `ctx` must be the context of OnLoad.
pub(super) unsafe fn command<C: Command>(ctx: *mut RedisModuleCtx, abilities: Abilities) -> Result<(), String> {
    let record = C::RECORD;
    let refused = |what: &str| format!("the server refused {what} of {}", record.name);
    let name = text(record.name);
    let mut flags = record.flags.to_owned();
    let asks = C::KEYS.is_some() && abilities.asks_for_keys;
    if asks {
        flags.push_str(" getkeys-api");
    }
    let flags = text(&flags);
    // SAFETY: all pointers live through the calls; the server copies what it keeps. The key is argument 1 of each.
    unsafe {
        if api!(RedisModule_CreateCommand)(ctx, name.as_ptr(), Some(trampoline::<C>), flags.as_ptr(), 1, 1, 1) != OK {
            return Err(refused("the registration"));
        }
        let command = api!(RedisModule_GetCommand)(ctx, name.as_ptr());
        if command.is_null() || !describe(command, record, asks) {
            return Err(refused("the description"));
        }
        // Redis 7.0 has no ACL categories for modules: there a rule names the commands.
        if let Some(set_categories) = raw::RedisModule_SetCommandACLCategories {
            let mut names = record.categories.to_owned();
            if abilities.own_category {
                names = format!("{names} {CATEGORY}");
            }
            if set_categories(command, text(&names).as_ptr()) != OK {
                return Err(refused("the ACL categories"));
            }
        }
    }
    Ok(())
}

/// What a server can do with a module's commands.
#[derive(Clone, Copy)]
pub(super) struct Abilities {
    own_category: bool,
    asks_for_keys: bool,
}

impl Abilities {
    /// Finds out, and adds the category `lock` where the server lets a module have one.
    ///
    /// # Safety
    /// `ctx` must be the context of OnLoad.
    pub(super) unsafe fn of(ctx: *mut RedisModuleCtx) -> Self {
        // SAFETY: the context is valid through this call; so is the name.
        unsafe {
            Self {
                own_category: raw::RedisModule_AddACLCategory
                    .is_some_and(|add| add(ctx, text(CATEGORY).as_ptr()) == OK),
                asks_for_keys: asks_for_keys(&Context::new(ctx)),
            }
        }
    }
}

/// Whether the server may be let ask a module for the keys of a command. Valkey since 8.0 in a cluster, and Redis since
/// 8.2, ask on their I/O threads and there change state of the main thread: servers crashed, whatever the module did.
fn asks_for_keys(context: &Context) -> bool {
    if valkey::is_valkey(context) {
        // SAFETY: the table of functions is filled; one that is missing reads as None. This one came with 8.0.
        let since_8_0 = unsafe { raw::RedisModule_ClusterKeySlot };
        // I/O threads can be added while the server runs.
        return since_8_0.is_none() || !context.is_cluster();
    }
    context.config(c"io-threads").as_deref() == Some("1")
}

unsafe extern "C" fn trampoline<C: Command>(
    ctx: *mut RedisModuleCtx,
    argv: *mut *mut RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server keeps context and arguments valid while the command runs.
    let (context, args) = unsafe { (Context::of_command(ctx), Args::new(argv, argc)) };
    if let Some(keys) = C::KEYS {
        // SAFETY: as above.
        if let Some(request) = unsafe { KeyRequest::of(ctx) } {
            edge((), || keys(&request, args));
            return OK;
        }
    }
    edge((), || C::run(&context, args));
    context.reply_if_none();
    OK
}

/// A C string; none of the texts of this module has a NUL in it.
pub(super) fn text(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

/// # Safety
/// `command` must be a command of this module that has no description yet.
unsafe fn describe(command: *mut raw::RedisModuleCommand, record: &Record, asks_for_keys: bool) -> bool {
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<RedisModuleCommandArg>(),
    };
    let mut strings = Strings::default();
    let mut specs = key_specs(record.key, asks_for_keys);
    let mut arguments = arguments(record.args, &mut strings);
    let info = raw::RedisModuleCommandInfo {
        version: &raw const version,
        summary: strings.keep(record.summary),
        complexity: strings.keep(record.complexity),
        since: strings.keep(record.since),
        history: null_mut(),
        tips: null(),
        arity: record.arity,
        key_specs: specs.as_mut_ptr(),
        args: arguments.as_mut_ptr(),
    };
    // SAFETY: everything `info` points to lives to the end of this function; the server copies it.
    unsafe { api!(RedisModule_SetCommandInfo)(command, &raw const info) == OK }
}

/// The first key, then, if the server is to ask for others, a note that there are some, then the end of the list.
fn key_specs(key: KeyUse, asks_for_keys: bool) -> [raw::RedisModuleCommandKeySpec; 3] {
    // SAFETY: an all-zero key specification is the server's end of the list.
    let [others, end] = unsafe { std::mem::zeroed() };
    let mut specs = [key_spec(key), others, end];
    if asks_for_keys {
        let [_, others, _] = &mut specs;
        let flags = raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_UPDATE;
        others.flags = u64::from(flags | raw::REDISMODULE_CMD_KEY_INCOMPLETE);
        others.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_UNKNOWN;
        others.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_UNKNOWN;
    }
    specs
}

fn key_spec(key: KeyUse) -> raw::RedisModuleCommandKeySpec {
    let flags = match key {
        KeyUse::Read => raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS,
        KeyUse::Set => raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_UPDATE,
        KeyUse::Remove => {
            raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_DELETE
        }
    };
    // SAFETY: all-zero is a valid value of this plain C struct; the fields that matter are set below.
    let mut spec: raw::RedisModuleCommandKeySpec = unsafe { std::mem::zeroed() };
    spec.flags = u64::from(flags);
    spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    spec.bs.index = raw::RedisModuleCommandKeySpec__bindgen_ty_1__bindgen_ty_1 { pos: 1 };
    spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
    spec.fk.range = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 { lastkey: 0, keystep: 1, limit: 0 };
    spec
}

/// Keeps C strings and argument lists alive while the server reads them.
#[derive(Default)]
struct Strings {
    texts: Vec<CString>,
    lists: Vec<Vec<RedisModuleCommandArg>>,
}

impl Strings {
    fn keep(&mut self, string: &str) -> *const std::ffi::c_char {
        let kept = text(string);
        // The heap block does not move when the CString does.
        let start = kept.as_ptr();
        self.texts.push(kept);
        start
    }
}

fn arguments(args: &[Arg], strings: &mut Strings) -> Vec<RedisModuleCommandArg> {
    let mut list: Vec<_> = args.iter().map(|arg| argument(arg, strings)).collect();
    // SAFETY: an all-zero argument is the server's end of the list.
    list.push(unsafe { std::mem::zeroed() });
    list
}

fn argument(arg: &Arg, strings: &mut Strings) -> RedisModuleCommandArg {
    let mut subargs = null_mut();
    let kind = match arg.kind {
        ArgKind::Key => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY,
        ArgKind::Text | ArgKind::Texts => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
        ArgKind::Integer => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
        ArgKind::Flag => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
        ArgKind::OneOf(choices) => {
            let mut list = arguments(choices, strings);
            subargs = list.as_mut_ptr();
            strings.lists.push(list);
            raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF
        }
    };
    let mut flags = if arg.optional { raw::REDISMODULE_CMD_ARG_OPTIONAL } else { raw::REDISMODULE_CMD_ARG_NONE };
    if matches!(arg.kind, ArgKind::Texts) {
        flags |= raw::REDISMODULE_CMD_ARG_MULTIPLE;
    }
    RedisModuleCommandArg {
        name: strings.keep(arg.name),
        type_: kind,
        key_spec_index: if matches!(arg.kind, ArgKind::Key) { 0 } else { -1 },
        token: arg.token.map_or(null(), |token| strings.keep(token)),
        summary: null(),
        since: null(),
        flags: flags as c_int,
        deprecated_since: null(),
        subargs,
        display_text: null(),
    }
}
