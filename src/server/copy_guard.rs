//! COPY to another database, on servers where it would be lost. Valkey 8.1 and 9.0 tell a module of a key on the client's own
//! connection, and leave it in the database it told of (valkey#4024). For MOVE the way back is known (see `events`). For
//! COPY it is not, and the client's next command, the replicas and the append-only file all would get the wrong database.
//! So there it is refused, from when notifications are subscribed. What a primary did is done on its replica as well, and
//! there the way back is known: all comes in on one connection, and it says each time for which database.

use super::args::bytes_of;
use super::cell::MainThread;
use super::context::{client_info, Context};
use super::{api, edge};
use redis_module::raw::{self, RedisModuleCommandFilterCtx};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::str::from_utf8;

/// Where the option stands: `COPY source destination DB number`.
const SHORTEST: c_int = 5;

/// There is no such command, and the server's error names it: so the client is told why.
const REFUSAL: &[u8] = b"COPY ... DB: this server loses it while a module listens (valkey#4024), use DUMP and RESTORE";

/// Refuses it from now on, where it has to be. Allowed at any time.
pub(super) fn set_up(context: &Context) {
    let version = context.server_info(c"server", c"valkey_version").unwrap_or_default();
    if version.starts_with("8.1.") || version.starts_with("9.0.") {
        // SAFETY: context and callback are valid; no flag is set.
        let filter = unsafe { api!(RedisModule_RegisterCommandFilter)(context.raw(), Some(filter), 0) };
        if filter.is_null() {
            super::log::warning("COPY to another database cannot be refused: this server loses it (valkey#4024)");
        }
    }
}

/// What a connection to a replica has sent: as a rule the one to the primary.
struct Sender {
    client: u64,
    /// The database that what it sends next is for.
    db: i32,
    /// Those of its COPYs that the server has not told of yet: in a transaction they are done later than they are read.
    copies: VecDeque<i32>,
}

/// Only a COPY that comes to nothing leaves an entry, and a primary sends none.
const COPIES_MAX: usize = 10_000;

static SENDER: MainThread<Option<Sender>> = MainThread::new(None);

/// Puts a connection back where it was before the server told of its COPY.
pub(super) fn go_back(context: &Context) {
    let client = context.raw_client_id();
    let db = SENDER.with(|sender| sender.as_mut().filter(|sender| sender.client == client)?.copies.pop_front());
    if let Some(db) = db {
        context.select(db);
    }
}

unsafe extern "C" fn filter(command: *mut RedisModuleCommandFilterCtx) {
    edge((), || look_at(&Command(command)));
}

fn look_at(command: &Command) {
    let count = command.count();
    if count == 2 && command.is(0, b"SELECT") && follows_a_primary() {
        let db = from_utf8(command.arg(1)).ok().and_then(|db| db.parse().ok());
        command.with_sender(|sender| sender.db = db.unwrap_or(sender.db));
    }
    if count < SHORTEST || !command.is(0, b"COPY") || !(3..count).any(|at| command.is(at, b"DB")) {
        return;
    }
    if !follows_a_primary() {
        return command.replace_name(REFUSAL);
    }
    command.with_sender(|sender| {
        sender.copies.truncate(COPIES_MAX);
        sender.copies.push_back(sender.db);
    });
}

/// A command that is about to be looked up.
struct Command(*mut RedisModuleCommandFilterCtx);

impl Command {
    fn count(&self) -> c_int {
        // SAFETY: the command is valid while the filter runs, and so is this value.
        unsafe { api!(RedisModule_CommandFilterArgsCount)(self.0) }
    }

    /// The caller has counted the arguments.
    fn arg(&self, at: c_int) -> &[u8] {
        // SAFETY: as above, and there is such an argument.
        unsafe { bytes_of(api!(RedisModule_CommandFilterArgGet)(self.0, at)) }
    }

    fn is(&self, at: c_int, word: &[u8]) -> bool {
        self.arg(at).eq_ignore_ascii_case(word)
    }

    /// What is known of the connection it comes from.
    fn with_sender(&self, body: impl FnOnce(&mut Sender)) {
        // SAFETY: as above. The servers that need this filter have the function.
        let client = unsafe { api!(RedisModule_CommandFilterGetClientId)(self.0) };
        SENDER.with(|sender| {
            if sender.as_ref().is_none_or(|sender| sender.client != client) {
                let db = client_info(client).map(|info| info.db.into());
                *sender = db.map(|db| Sender { client, db, copies: VecDeque::new() });
            }
            sender.as_mut().map(body)
        });
    }

    fn replace_name(&self, name: &[u8]) {
        // SAFETY: as above; the server takes the string over.
        unsafe {
            let name = api!(RedisModule_CreateString)(null_mut(), name.as_ptr().cast(), name.len());
            api!(RedisModule_CommandFilterArgReplace)(self.0, 0, name);
        }
    }
}

/// What a primary did is done here as well.
fn follows_a_primary() -> bool {
    // SAFETY: without a context the flags are those of the server alone.
    let flags = unsafe { api!(RedisModule_GetContextFlags)(null_mut()) }.unsigned_abs();
    flags & (raw::REDISMODULE_CTX_FLAGS_SLAVE | raw::REDISMODULE_CTX_FLAGS_LOADING) != 0
}
