//! `LOCK.INFO key`
//!
//! Null if the lock is free, else a map of who holds it. Never shows a token. Works on replicas.

use super::answer;
use crate::core::lock::Lock;
use crate::core::table::Table;
use crate::core::time::Instant;
use crate::engine;
use crate::metadata::{Arg, KeyUse, Record};
use crate::server::args::Args;
use crate::server::context::Context;
use crate::server::register::Command;

/// What the command is.
pub const RECORD: Record = Record {
    name: "LOCK.INFO",
    summary: "Shows who holds a lock, for how long, and who waits for it.",
    complexity: "O(1).",
    since: "0.1.0",
    arity: 2,
    flags: "readonly fast",
    categories: "read fast",
    key: KeyUse::Read,
    args: &[Arg::KEY],
};

struct Picture {
    fence: u64,
    ttl_ms: u64,
    age_ms: u64,
    label: Vec<u8>,
    client: u64,
    primary: bool,
}

/// The command.
pub struct LockInfo;

impl Command for LockInfo {
    const RECORD: &'static Record = &RECORD;

    fn run(context: &Context, args: Args<'_>) {
        answer(context, || {
            let picture = engine::read(context, args, |table, found, now| {
                table.look(found, now).map(|lock| Picture::of(table, lock, now))
            })?;
            match picture {
                Some(picture) => picture.reply(context),
                None => context.reply_null_array(),
            }
            Ok(())
        });
    }
}

impl Picture {
    fn of(table: &Table, lock: &Lock, now: Instant) -> Self {
        Self {
            fence: lock.fence().get(),
            ttl_ms: table.ms_left(lock, now),
            age_ms: lock.granted().ms_until(now),
            label: lock.label().to_vec(),
            client: lock.client(),
            primary: table.is_serving(),
        }
    }

    fn reply(&self, context: &Context) {
        let number = |name: &str, value: u64| {
            context.reply_bytes(name.as_bytes());
            context.reply_int(i64::try_from(value).unwrap_or(i64::MAX));
        };
        let text = |name: &str, value: &[u8]| {
            context.reply_bytes(name.as_bytes());
            context.reply_bytes(value);
        };
        context.reply_map(9);
        text("mode", b"exclusive");
        number("fence", self.fence);
        number("ttl-ms", self.ttl_ms);
        number("held", 1);
        number("limit", 1);
        context.reply_bytes(b"holders");
        context.reply_array(1);
        context.reply_map(7);
        text("label", &self.label);
        number("fence", self.fence);
        number("ttl-ms", self.ttl_ms);
        number("age-ms", self.age_ms);
        number("holds", 1);
        number("ephemeral", 0);
        number("client", self.client);
        number("waiters", 0);
        context.reply_bytes(b"queue");
        context.reply_array(0);
        text("role", if self.primary { b"primary" } else { b"replica" });
    }
}
