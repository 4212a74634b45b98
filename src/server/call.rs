//! Runs a command of the server inside a command of the module, as the user who sent that one. The caller must have no
//! key open and nothing borrowed: the inner command may do anything to any key.

use super::api;
use super::args::Args;
use super::cell::MainThread;
use super::context::Context;
use redis_module::raw::{self, RedisModuleCallReply};
use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, CStr, CString};
use std::slice::from_raw_parts;

/// Who a command belongs to, as far as running it inside another one goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The server itself.
    Server,
    /// The server itself, which forbids it in scripts.
    ServerOutsideScripts,
    /// A module.
    Module,
    /// The server does not say: its COMMAND is renamed or disabled.
    Untold,
}

/// A reply of the server to an inner command.
struct Reply(*mut RedisModuleCallReply);

impl Drop for Reply {
    fn drop(&mut self) {
        // SAFETY: a reply the server gave, freed once; the parts of one belong to it and are no `Reply`.
        unsafe { api!(RedisModule_FreeCallReply)(self.0) };
    }
}

impl Reply {
    fn new(raw: *mut RedisModuleCallReply) -> Option<Self> {
        (!raw.is_null()).then(|| Self(raw))
    }

    /// Whether the command said nothing at all: this one still owes its client a reply.
    fn is_missing(&self) -> bool {
        let mut len = 0;
        // SAFETY: the reply is valid, and the text is not kept.
        unsafe { api!(RedisModule_CallReplyProto)(self.0, &raw mut len) };
        len == 0
    }

    /// Whether it is an error that begins so.
    fn is_error(&self, start: &[u8]) -> bool {
        // SAFETY: the reply is valid.
        let kind = unsafe { api!(RedisModule_CallReplyType)(self.0) };
        // SAFETY: as above, and the text is not kept.
        kind == raw::REDISMODULE_REPLY_ERROR as c_int && unsafe { text_of(self.0) }.starts_with(start)
    }
}

/// # Safety
/// The reply must be valid for `'a`.
unsafe fn text_of<'a>(reply: *mut RedisModuleCallReply) -> &'a [u8] {
    let mut len = 0;
    // SAFETY: promised by the caller; a reply that is no text is null.
    unsafe {
        let start: *const c_char = api!(RedisModule_CallReplyStringPtr)(reply, &raw mut len);
        if start.is_null() {
            return &[];
        }
        from_raw_parts(start.cast(), len)
    }
}

/// The parts of an array; none if it is anything else.
///
/// # Safety
/// The reply must be valid, or null.
unsafe fn parts_of(reply: *mut RedisModuleCallReply) -> impl Iterator<Item = *mut RedisModuleCallReply> {
    // SAFETY: promised by the caller; an index past the end is null.
    unsafe {
        let len = if reply.is_null() { 0 } else { api!(RedisModule_CallReplyLength)(reply) };
        (0..len).map_while(move |index| {
            let part = api!(RedisModule_CallReplyArrayElement)(reply, index);
            (!part.is_null()).then_some(part)
        })
    }
}

/// Names of commands known to be the server's own and allowed in scripts, in lower case. No module can take such a name
/// over and none of them ever goes, so what is known stays true; the server has a few hundred.
static OWN_NAMES: MainThread<BTreeSet<Vec<u8>>> = MainThread::new(BTreeSet::new());

/// Where COMMAND INFO has a command's flags.
const INFO_FLAGS_AT: usize = 2;

/// A letter each: replicate what it changes, run as the caller's user, errors as replies, as in a script, memory limit
/// respected, the caller's protocol, then the arguments in one vector.
const CALL_FORMAT: &CStr = c"!CESM0v";
/// The same, for a caller that has no user.
const CALL_FORMAT_WITHOUT_USER: &CStr = c"!ESM0v";

/// What Redis 7.0 says where others say NOPERM.
const NOPERM_OF_REDIS_7_0: &[u8] = b"ERR acl verification failed";
/// A key whose slot is another node's, or on its way there.
const NOT_OURS: &[u8] = b"ERR Attempted to access a non local key";
/// Another module's call without a user of its own, which may do anything.
const NO_USER: &[u8] = b"ERR cannot run as user";

/// Commands that on Valkey 8.1 and 9.1 begin a reply to be completed later and turn a key of another type away without
/// completing it. The caller of a module has no reply then, and the next inner command, whoever sends it, gets this one's.
const LOSE_THEIR_WRONGTYPE: [&[u8]; 2] = [b"getdel", b"getset"];

/// Why an inner command did not run, where the server's own words would mislead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRun {
    /// The user has no permission for the command, or for one of its keys.
    NoPermission,
    /// A key's slot is another node's, or on its way there.
    NotOurs,
    /// The key holds a value that the command is not for.
    WrongType,
    /// The server gave no reply.
    NoReply,
}

impl Context {
    /// Who the command of this name belongs to.
    pub fn owner_of(&self, name: &[u8]) -> Owner {
        let name = name.to_ascii_lowercase();
        if OWN_NAMES.with(|known| known.contains(&name)) {
            return Owner::Server;
        }
        // SAFETY: the format names a C string, then a buffer and its length.
        let reply = unsafe {
            let call = api!(RedisModule_Call);
            let (start, len) = (name.as_ptr().cast::<c_char>(), name.len());
            Reply::new(call(self.raw(), c"COMMAND".as_ptr(), c"cb".as_ptr(), c"INFO".as_ptr(), start, len))
        };
        let Some(reply) = reply else { return Owner::Untold };
        // SAFETY: all parts belong to the reply, which lives to the end of this function.
        let mut flags = unsafe {
            let flags = parts_of(reply.0).next().and_then(|info| parts_of(info).nth(INFO_FLAGS_AT));
            let Some(flags) = flags else { return Owner::Untold };
            parts_of(flags).map(|flag| text_of(flag))
        };
        let owner = flags.try_fold(Owner::Server, |owner, flag| match flag {
            b"module" => Err(Owner::Module),
            b"noscript" => Ok(Owner::ServerOutsideScripts),
            _ => Ok(owner),
        });
        if owner == Ok(Owner::Server) {
            OWN_NAMES.with(|known| known.insert(name));
        }
        owner.unwrap_or_else(|module| module)
    }

    /// Runs the command that these arguments are, as the user who sent the running command, and makes its reply this
    /// command's. What it changes is replicated. It may not block: it acts as in a script.
    ///
    /// # Errors
    /// If it did not run, and the reason is not in the reply.
    pub fn run_inside(&self, command: Args<'_>) -> Result<(), NotRun> {
        let name = command.get(0).and_then(|name| CString::new(name).ok()).unwrap_or_default();
        let loses_wrongtype = |known: &&[u8]| name.as_bytes().eq_ignore_ascii_case(known);
        if LOSE_THEIR_WRONGTYPE.iter().any(loses_wrongtype)
            && self.read_arg(command, 1).is_some_and(|key| !key.is_string_or_empty())
        {
            return Err(NotRun::WrongType);
        }
        let mut reply = self.call(&name, CALL_FORMAT, command).ok_or(NotRun::NoReply)?;
        if reply.is_error(NO_USER) {
            reply = self.call(&name, CALL_FORMAT_WITHOUT_USER, command).ok_or(NotRun::NoReply)?;
        }
        if reply.is_error(NOPERM_OF_REDIS_7_0) {
            return Err(NotRun::NoPermission);
        }
        if reply.is_error(NOT_OURS) {
            return Err(NotRun::NotOurs);
        }
        if reply.is_missing() {
            return Err(NotRun::NoReply);
        }
        // SAFETY: the reply lives to the end of this function.
        unsafe { self.reply_with(reply.0) };
        Ok(())
    }

    /// The value of one of the server's settings, if it tells.
    pub(super) fn config(&self, name: &CStr) -> Option<String> {
        // SAFETY: the format names two C strings; the parts belong to the reply, which lives to the end.
        unsafe {
            let call = api!(RedisModule_Call);
            let reply =
                Reply::new(call(self.raw(), c"CONFIG".as_ptr(), c"cc".as_ptr(), c"GET".as_ptr(), name.as_ptr()))?;
            let value = parts_of(reply.0).nth(1)?;
            Some(String::from_utf8_lossy(text_of(value)).into_owned())
        }
    }

    fn call(&self, name: &CStr, format: &CStr, command: Args<'_>) -> Option<Reply> {
        let (argv, argc) = command.from(1).as_argv();
        // SAFETY: the formats end in one vector: a pointer to server strings and their number. The server takes its own
        // reference to each.
        unsafe { Reply::new(api!(RedisModule_Call)(self.raw(), name.as_ptr(), format.as_ptr(), argv, argc as usize)) }
    }
}
