//! What a command, the pump or an event may do to the server: reply, replicate, signal, ask.

use super::args::Args;
use super::key::Key;
use super::{api, args, audience, valkey};
use redis_module::raw::{self, RedisModuleCtx, RedisModuleString};
use std::cell::Cell;
use std::ffi::{c_char, c_int, CStr};
use std::net::{Ipv6Addr, SocketAddr};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// One call from the server into the module.
pub struct Context {
    raw: *mut RedisModuleCtx,
    /// Whether a reply was begun: an error after a panic must not become a second one.
    pub(super) replied: Cell<bool>,
    /// The server's flags of a command, once asked for: they stay as they are while it runs.
    command_flags: Option<Cell<Option<u32>>>,
}

static DETACHED: AtomicPtr<RedisModuleCtx> = AtomicPtr::new(null_mut());

/// Why the server would refuse a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The key's slot is another node's, or on its way there.
    NotOurs,
    /// Anything else, in the server's own words.
    Other(Box<str>),
}

impl Refusal {
    fn from_text(text: &str) -> Self {
        // The words of every server since Redis 7.0; there is no code for it.
        if text.contains("non local key") {
            return Self::NotOurs;
        }
        // Names the write that was tried, and has no code: a client gets these words for its own commands.
        if text.contains("while the cluster is down") {
            return Self::Other("CLUSTERDOWN The cluster is down".into());
        }
        Self::Other(text.trim_start_matches('-').trim_end().into())
    }
}

/// A server string that is freed with this value.
pub struct OwnedString {
    context: *mut RedisModuleCtx,
    raw: *mut RedisModuleString,
}

impl Drop for OwnedString {
    fn drop(&mut self) {
        // SAFETY: made by this context, freed once.
        unsafe { api!(RedisModule_FreeString)(self.context, self.raw) };
    }
}

impl OwnedString {
    /// The string's bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the string lives as long as `self`, unchanged.
        unsafe { args::bytes_of(self.raw) }
    }

    pub(super) const fn raw(&self) -> *mut RedisModuleString {
        self.raw
    }
}

impl Context {
    /// # Safety
    /// `raw` must stay valid as long as this value lives.
    pub(super) const unsafe fn new(raw: *mut RedisModuleCtx) -> Self {
        Self { raw, replied: Cell::new(false), command_flags: None }
    }

    /// The context of a command that is running.
    ///
    /// # Safety
    /// As for [`Context::new`].
    pub(super) const unsafe fn of_command(raw: *mut RedisModuleCtx) -> Self {
        Self { raw, replied: Cell::new(false), command_flags: Some(Cell::new(None)) }
    }

    /// A context where the server gives none: made once, at load, and good for timers only.
    pub fn detached() -> Self {
        Self { raw: DETACHED.load(Ordering::Relaxed), replied: Cell::new(false), command_flags: None }
    }

    /// Makes the context for [`Context::detached`].
    pub(super) fn detach(&self) {
        // SAFETY: the context is that of OnLoad. The new one lives as long as the module, which cannot be unloaded.
        let detached = unsafe { api!(RedisModule_GetDetachedThreadSafeContext)(self.raw) };
        DETACHED.store(detached, Ordering::Relaxed);
    }

    pub(super) const fn raw(&self) -> *mut RedisModuleCtx {
        self.raw
    }

    fn flags(&self) -> u32 {
        if let Some(known) = self.command_flags.as_ref().and_then(Cell::get) {
            return known;
        }
        // SAFETY: the context is valid.
        let flags = unsafe { api!(RedisModule_GetContextFlags)(self.raw) }.unsigned_abs();
        if let Some(known) = &self.command_flags {
            known.set(Some(flags));
        }
        flags
    }

    /// Whether what this command changes is told to nobody: there are no replicas, and there is no append-only file.
    pub fn is_unheard(&self) -> bool {
        self.command_flags.is_some() && audience::is_empty()
    }

    /// Counts a change for the server's save points, where [`Context::is_unheard`] says that it need not be replicated.
    pub fn count_change(&self) {
        self.replicate_verbatim();
    }

    /// Whether this node is a primary that has loaded its data.
    pub fn is_serving_primary(&self) -> bool {
        let loading = raw::REDISMODULE_CTX_FLAGS_LOADING | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING;
        let flags = self.flags();
        flags & raw::REDISMODULE_CTX_FLAGS_MASTER != 0 && flags & loading == 0
    }

    /// Whether this command comes from the server's own primary, append-only file or slot import, not from a client.
    pub fn is_from_server(&self) -> bool {
        let own = raw::REDISMODULE_CTX_FLAGS_REPLICATED | raw::REDISMODULE_CTX_FLAGS_LOADING;
        self.flags() & own != 0 || valkey::must_obey_client(self.raw)
    }

    /// Whether this node is part of a cluster.
    pub fn is_cluster(&self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_CLUSTER != 0
    }

    /// Whether a write now would break a pause, a failover or a shutdown that is under way.
    pub fn must_not_write(&self) -> bool {
        // SAFETY: takes nothing.
        unsafe { api!(RedisModule_AvoidReplicaTraffic)() != 0 }
    }

    /// The selected database, by way of any key in it: see [`Key::place`].
    pub fn db(&self) -> i32 {
        let name = self.string(b"");
        let mode = raw::REDISMODULE_READ | raw::REDISMODULE_WRITE | raw::REDISMODULE_OPEN_KEY_NOTOUCH;
        // SAFETY: the name lives as long as the key.
        unsafe { Key::open(self, name.raw(), mode) }.place().db
    }

    /// Selects a database; false if there is none of that number.
    pub fn select(&self, db: i32) -> bool {
        // SAFETY: the context is valid.
        unsafe { api!(RedisModule_SelectDb)(self.raw, db) == raw::REDISMODULE_OK as c_int }
    }

    /// Opens the key at this position of the arguments for writing.
    pub fn open_arg(&self, args: Args<'_>, position: usize) -> Option<Key<'_>> {
        let name = args.raw(position)?;
        // SAFETY: the name is an argument of the command that is running.
        Some(unsafe { Key::open(self, name, raw::REDISMODULE_READ | raw::REDISMODULE_WRITE) })
    }

    /// Opens the key at this position of the arguments for reading only.
    pub fn read_arg(&self, args: Args<'_>, position: usize) -> Option<Key<'_>> {
        let name = args.raw(position)?;
        // SAFETY: as above.
        Some(unsafe { Key::open(self, name, raw::REDISMODULE_READ | raw::REDISMODULE_OPEN_KEY_NOTOUCH) })
    }

    /// A server string with these bytes.
    pub fn string(&self, bytes: &[u8]) -> OwnedString {
        // SAFETY: pointer and length describe `bytes`, which the server copies.
        let raw = unsafe { api!(RedisModule_CreateString)(self.raw, bytes.as_ptr().cast(), bytes.len()) };
        OwnedString { context: self.raw, raw }
    }

    /// Selects the place's database and opens its key, for writing or only for reading.
    pub fn open<'a>(&'a self, name: &'a OwnedString, db: i32, write: bool) -> Option<Key<'a>> {
        let mode = if write { raw::REDISMODULE_READ | raw::REDISMODULE_WRITE } else { raw::REDISMODULE_READ };
        // SAFETY: the name lives as long as the key.
        self.select(db).then(|| unsafe { Key::open(self, name.raw(), mode | raw::REDISMODULE_OPEN_KEY_NOTOUCH) })
    }

    /// Tells replicas and the append-only file one command with a key and bytes.
    pub fn replicate(&self, command: &CStr, key: &Key<'_>, bytes: Option<&[u8]>) {
        // SAFETY: the format names exactly the arguments that follow: a server string, then a buffer and its length.
        let status = unsafe {
            let replicate = api!(RedisModule_Replicate);
            match bytes {
                Some(bytes) => replicate(
                    self.raw,
                    command.as_ptr(),
                    c"sb".as_ptr(),
                    key.name(),
                    bytes.as_ptr().cast::<c_char>(),
                    bytes.len(),
                ),
                None => replicate(self.raw, command.as_ptr(), c"s".as_ptr(), key.name()),
            }
        };
        if status != raw::REDISMODULE_OK as c_int {
            super::log::warning("a change could not be replicated");
        }
    }

    /// Tells replicas and the append-only file when a key expires, in Unix ms.
    pub fn replicate_expiry(&self, key: &Key<'_>, unix_ms: i64) {
        // SAFETY: the format names the server string and the number that follow.
        let status = unsafe {
            api!(RedisModule_Replicate)(self.raw, c"PEXPIREAT".as_ptr(), c"sl".as_ptr(), key.name(), unix_ms)
        };
        if status != raw::REDISMODULE_OK as c_int {
            super::log::warning("a change could not be replicated");
        }
    }

    /// The bytes of a string key.
    pub fn string_value(&self, key: &Key<'_>) -> Option<Vec<u8>> {
        // SAFETY: the format names the one server string that follows; the reply is freed once, after it is copied. Read
        // with the server's own command: the direct way would change how the server keeps the value.
        unsafe {
            let reply = api!(RedisModule_Call)(self.raw, c"GET".as_ptr(), c"s".as_ptr(), key.name());
            if reply.is_null() {
                return None;
            }
            let is_string = api!(RedisModule_CallReplyType)(reply) == raw::REDISMODULE_REPLY_STRING as c_int;
            let value = is_string.then(|| {
                let mut len = 0;
                let text = api!(RedisModule_CallReplyStringPtr)(reply, &mut len);
                std::slice::from_raw_parts(text.cast::<u8>(), len).to_vec()
            });
            api!(RedisModule_FreeCallReply)(reply);
            value
        }
    }

    /// Passes the running command on as it is.
    pub fn replicate_verbatim(&self) {
        // SAFETY: the context is that of a command.
        unsafe { api!(RedisModule_ReplicateVerbatim)(self.raw) };
    }

    /// Tells WATCH and client tracking that a key changed.
    pub fn signal_modified(&self, key: &Key<'_>) {
        // SAFETY: context and name are valid.
        unsafe { api!(RedisModule_SignalModifiedKey)(self.raw, key.name()) };
    }

    /// Publishes a keyspace event of class `d`.
    pub fn notify(&self, event: &CStr, key: &Key<'_>) {
        // SAFETY: context, event and name are valid.
        unsafe {
            api!(RedisModule_NotifyKeyspaceEvent)(self.raw, raw::REDISMODULE_NOTIFY_MODULE, event.as_ptr(), key.name())
        };
    }

    /// Whether the command may block its connection: not in MULTI, a script or another module's call.
    pub fn may_block(&self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING == 0
    }

    /// Why the server would refuse a client a write to this key now, in its own words; None if it would not. Asked with
    /// a write that does nothing, since only the server knows all its reasons (MISCONF, NOREPLICAS, slots, READONLY): no
    /// time to live is ever moved out to 1970.
    pub fn refusal(&self, key: &Key<'_>) -> Option<Refusal> {
        // SAFETY: the format names the server string and the two C strings that follow; the reply is freed once, after
        // its text is copied.
        unsafe {
            let reply = api!(RedisModule_Call)(
                self.raw,
                c"PEXPIREAT".as_ptr(),
                c"SEscc".as_ptr(),
                key.name(),
                c"1".as_ptr(),
                c"GT".as_ptr(),
            );
            if reply.is_null() {
                return Some(Refusal::Other("TRYAGAIN the server refuses writes".into()));
            }
            let error = api!(RedisModule_CallReplyType)(reply) == raw::REDISMODULE_REPLY_ERROR as c_int;
            let refusal = error.then(|| {
                let mut len = 0;
                let text = api!(RedisModule_CallReplyStringPtr)(reply, &mut len);
                let text = std::slice::from_raw_parts(text.cast::<u8>(), len);
                Refusal::from_text(&String::from_utf8_lossy(text))
            });
            api!(RedisModule_FreeCallReply)(reply);
            refusal
        }
    }

    /// Id of the connection that sent the command; 0 outside commands, in scripts and in calls by other modules.
    pub fn client_id(&self) -> u64 {
        if !self.serves_a_connection() {
            return 0;
        }
        // SAFETY: the context is valid.
        unsafe { api!(RedisModule_GetClientId)(self.raw) }
    }

    /// Scripts and other modules run commands as a client of the server's own, which has no connection: Valkey 9.1
    /// crashes when it is asked for that client's address. None of them may block; neither may a connection in MULTI.
    fn serves_a_connection(&self) -> bool {
        let flags = self.flags();
        let may_block = flags & raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING == 0;
        flags & raw::REDISMODULE_CTX_FLAGS_LUA == 0 && (may_block || flags & raw::REDISMODULE_CTX_FLAGS_MULTI != 0)
    }

    /// The connection's CLIENT SETNAME name, if it has one.
    pub fn client_name(&self, client: u64) -> Option<OwnedString> {
        // SAFETY: the context is valid; a null reply means no such client, or no name. Redis has it since 7.0.3.
        let raw = unsafe { raw::RedisModule_GetClientNameById.map(|name| name(self.raw, client)) }?;
        (!raw.is_null()).then(|| OwnedString { context: self.raw, raw })
    }

    /// The connection's address as people write it.
    pub fn client_address(&self, client: u64) -> Option<String> {
        let mut info = raw::RedisModuleClientInfo {
            version: u64::from(raw::REDISMODULE_CLIENTINFO_VERSION),
            flags: 0,
            id: 0,
            addr: [0; 46],
            port: 0,
            db: 0,
        };
        // SAFETY: `info` is of the version it says it is.
        let status = unsafe { api!(RedisModule_GetClientInfoById)((&raw mut info).cast(), client) };
        if status != raw::REDISMODULE_OK as c_int {
            return None;
        }
        // SAFETY: the server fills the field with a C string and ends it.
        let host = unsafe { CStr::from_ptr(info.addr.as_ptr()) }.to_string_lossy();
        match host.parse::<Ipv6Addr>() {
            Ok(v6) => Some(SocketAddr::from((v6, info.port)).to_string()),
            Err(_) => Some(format!("{host}:{}", info.port)),
        }
    }

    /// A field of an INFO section, as text.
    pub fn server_info(&self, section: &CStr, field: &CStr) -> Option<String> {
        // SAFETY: the data is freed below, after the last use of what points into it.
        unsafe {
            let data = api!(RedisModule_GetServerInfo)(self.raw, section.as_ptr());
            let value = api!(RedisModule_ServerInfoGetFieldC)(data, field.as_ptr());
            let text = (!value.is_null()).then(|| CStr::from_ptr(value).to_string_lossy().into_owned());
            api!(RedisModule_FreeServerInfo)(self.raw, data);
            text
        }
    }
}
