//! `LOCK.INFO key`
//!
//! Null if the lock is free, else a map of who holds it. Never shows a token. Works on replicas.

use super::answer;
use crate::core::lock::Lock;
use crate::core::table::{Site, Table};
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

/// How many holders and waiters are shown.
const SHOWN_MAX: usize = 10;

struct Picture {
    fence: u64,
    ttl_ms: u64,
    age_ms: u64,
    label: Vec<u8>,
    client: u64,
    waiters: usize,
    queue: Vec<Queued>,
    primary: bool,
}

struct Queued {
    label: Vec<u8>,
    waiting_ms: u64,
}

/// The command.
pub struct LockInfo;

impl Command for LockInfo {
    const RECORD: &'static Record = &RECORD;

    fn run(context: &Context, args: Args<'_>) {
        answer(context, || {
            let picture = engine::read(context, args, |table, site, now| {
                table.look(site, now).map(|lock| Picture::of(table, lock, site, now))
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
    fn of(table: &Table, lock: &Lock, site: Site<'_>, now: Instant) -> Self {
        let waiters = table.lines().waiters(site.place).take(SHOWN_MAX);
        let queue =
            waiters.map(|(_, waiter)| Queued { label: waiter.label.to_vec(), waiting_ms: waiter.joined.ms_until(now) });
        Self {
            fence: lock.fence().get(),
            ttl_ms: table.ms_left(lock, now),
            age_ms: lock.granted().ms_until(now),
            label: lock.label().to_vec(),
            client: lock.client(),
            waiters: table.lines().count(site.place),
            queue: queue.collect(),
            primary: table.is_serving(),
        }
    }

    fn reply(&self, context: &Context) {
        context.reply_map(9);
        text(context, "mode", MODE);
        number(context, "fence", self.fence);
        number(context, "ttl-ms", self.ttl_ms);
        number(context, "held", 1);
        number(context, "limit", 1);
        context.reply_bytes(b"holders");
        context.reply_array(1);
        context.reply_map(7);
        text(context, "label", &self.label);
        number(context, "fence", self.fence);
        number(context, "ttl-ms", self.ttl_ms);
        number(context, "age-ms", self.age_ms);
        number(context, "holds", 1);
        number(context, "ephemeral", 0);
        number(context, "client", self.client);
        number(context, "waiters", self.waiters as u64);
        context.reply_bytes(b"queue");
        context.reply_array(self.queue.len());
        for queued in &self.queue {
            context.reply_map(3);
            text(context, "label", &queued.label);
            text(context, "mode", MODE);
            number(context, "waiting-ms", queued.waiting_ms);
        }
        text(context, "role", if self.primary { b"primary" } else { b"replica" });
    }
}

const MODE: &[u8] = b"exclusive";

fn number(context: &Context, name: &str, value: u64) {
    context.reply_bytes(name.as_bytes());
    context.reply_int(i64::try_from(value).unwrap_or(i64::MAX));
}

fn text(context: &Context, name: &str, value: &[u8]) {
    context.reply_bytes(name.as_bytes());
    context.reply_bytes(value);
}
