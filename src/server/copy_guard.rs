//! COPY to another database, on servers where it would be lost. Valkey 8.1 before 8.1.9 and 9.0 before 9.0.5 tell a
//! module of a key on the client's own connection, and leave it in the database it told of (valkey#4024). For MOVE the
//! way back is known (see `events`). For COPY it is not, and the client's next command, the replicas and the append-only file all would get the wrong database.
//! So there it is refused, from when notifications are subscribed.

use super::args::bytes_of;
use super::context::Context;
use super::{api, edge};
use redis_module::raw::{self, RedisModuleCommandFilterCtx};
use std::ffi::c_int;
use std::ptr::null_mut;

/// Where the option stands: `COPY source destination DB number`.
const SHORTEST: c_int = 5;

/// There is no such command, and the server's error names it: so the client is told why.
const REFUSAL: &[u8] = b"COPY ... DB: this server loses it while a module listens (valkey#4024), use DUMP and RESTORE";

/// Releases of Valkey that lose it, and the first of each that does not.
const LOSING: [(&str, u32); 2] = [("8.1.", 9), ("9.0.", 5)];

fn loses(version: &str) -> bool {
    LOSING.iter().any(|(line, mended)| {
        version.strip_prefix(line).is_some_and(|patch| patch.parse().is_ok_and(|patch: u32| patch < *mended))
    })
}

/// Refuses it from now on, where it has to be. Allowed at any time.
pub(super) fn set_up(context: &Context) {
    if loses(&context.server_info(c"server", c"valkey_version").unwrap_or_default()) {
        // SAFETY: context and callback are valid; no flag is set.
        let filter = unsafe { api!(RedisModule_RegisterCommandFilter)(context.raw(), Some(filter), 0) };
        if filter.is_null() {
            super::log::warning("COPY to another database cannot be refused: this server loses it (valkey#4024)");
        }
    }
}

unsafe extern "C" fn filter(command: *mut RedisModuleCommandFilterCtx) {
    edge((), || {
        // SAFETY: the command is valid in this callback, and so are the arguments it has.
        unsafe {
            let count = api!(RedisModule_CommandFilterArgsCount)(command);
            if count < SHORTEST {
                return;
            }
            let is = |at: c_int, word: &[u8]| {
                bytes_of(api!(RedisModule_CommandFilterArgGet)(command, at)).eq_ignore_ascii_case(word)
            };
            if !is(0, b"COPY") || !(3..count).any(|at| is(at, b"DB")) || follows_a_primary() {
                return;
            }
            let refusal = api!(RedisModule_CreateString)(null_mut(), REFUSAL.as_ptr().cast(), REFUSAL.len());
            api!(RedisModule_CommandFilterArgReplace)(command, 0, refusal);
        }
    });
}

/// What a primary did is done here as well.
fn follows_a_primary() -> bool {
    // SAFETY: without a context the flags are those of the server alone.
    let flags = unsafe { api!(RedisModule_GetContextFlags)(null_mut()) }.unsigned_abs();
    flags & (raw::REDISMODULE_CTX_FLAGS_SLAVE | raw::REDISMODULE_CTX_FLAGS_LOADING) != 0
}

#[cfg(test)]
mod tests {
    use super::loses;

    #[test]
    fn only_servers_that_lose_it_refuse_it() {
        for version in ["8.1.0", "8.1.8", "9.0.0", "9.0.4"] {
            assert!(loses(version), "{version}");
        }
        for version in ["", "7.2.11", "8.0.6", "8.1.9", "8.1.10", "9.0.5", "9.1.0", "18.1.0"] {
            assert!(!loses(version), "{version}");
        }
    }
}
