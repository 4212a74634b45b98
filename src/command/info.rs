//! `LOCK.INFO key`
//!
//! Null if the lock is free, else a map of who holds it. Never shows a token. Works on replicas.

use super::answer;
use crate::core::hold::Mode;
use crate::core::lock::Lock;
use crate::core::table::{Legacy, Site, Table};
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
    complexity: "O(N) with N the number of holders.",
    since: "0.1.0",
    arity: 2,
    flags: "readonly",
    categories: "read slow",
    key: KeyUse::Read,
    args: &[Arg::KEY],
};

/// How many holders and waiters are shown.
const SHOWN_MAX: usize = 10;

struct Picture {
    mode: &'static str,
    fence: u64,
    ttl_ms: u64,
    held: usize,
    limit: u32,
    holders: Vec<Shown>,
    waiters: usize,
    queue: Vec<Queued>,
    primary: bool,
}

struct Shown {
    label: Vec<u8>,
    fence: u64,
    ttl_ms: u64,
    age_ms: u64,
    holds: usize,
    ephemeral: bool,
    client: u64,
}

struct Queued {
    label: Vec<u8>,
    exclusive: bool,
    waiting_ms: u64,
}

/// The command.
pub struct LockInfo;

impl Command for LockInfo {
    const RECORD: &'static Record = &RECORD;

    fn run(context: &Context, args: Args<'_>) {
        answer(context, || {
            let picture = engine::read(context, args, |table, site, now| match site.legacy {
                Some(legacy) => Some(Picture::of_legacy(table, legacy, site, now)),
                None => table.look(site, now).map(|lock| Picture::of(table, lock, site, now)),
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
        let live = || lock.holders().filter(|seen| table.ms_left(&seen.hold, now) > 0);
        let holders = live().take(SHOWN_MAX).map(|seen| Shown {
            label: seen.label.to_vec(),
            fence: seen.hold.fence.get(),
            ttl_ms: table.ms_left(&seen.hold, now),
            age_ms: seen.hold.granted.ms_until(now),
            holds: seen.hold.count(),
            ephemeral: seen.hold.is_ephemeral(),
            client: seen.hold.client,
        });
        let exclusive = lock.is_exclusive();
        Self {
            mode: if exclusive { EXCLUSIVE } else { SHARED },
            fence: live().map(|seen| seen.hold.fence.get()).max().unwrap_or(0),
            ttl_ms: live().map(|seen| table.ms_left(&seen.hold, now)).max().unwrap_or(0),
            held: live().count(),
            limit: if exclusive { 1 } else { lock.smallest_limit().unwrap_or(0) },
            holders: holders.collect(),
            waiters: table.lines().count(site.place),
            queue: queue(table, site, now),
            primary: table.is_serving(),
        }
    }

    /// Of a lock of another library the server knows how long it lasts, and nothing else.
    fn of_legacy(table: &Table, legacy: Legacy<'_>, site: Site<'_>, now: Instant) -> Self {
        let ttl_ms = legacy.ttl_ms;
        let holder = Shown { label: Vec::new(), fence: 0, ttl_ms, age_ms: 0, holds: 1, ephemeral: false, client: 0 };
        Self {
            mode: LEGACY,
            fence: 0,
            ttl_ms,
            held: 1,
            limit: 1,
            holders: vec![holder],
            waiters: table.lines().count(site.place),
            queue: queue(table, site, now),
            primary: table.is_serving(),
        }
    }

    fn reply(&self, context: &Context) {
        context.reply_map(9);
        text(context, "mode", self.mode.as_bytes());
        number(context, "fence", self.fence);
        number(context, "ttl-ms", self.ttl_ms);
        number(context, "held", self.held as u64);
        number(context, "limit", u64::from(self.limit));
        context.reply_bytes(b"holders");
        context.reply_array(self.holders.len());
        for holder in &self.holders {
            holder.reply(context);
        }
        number(context, "waiters", self.waiters as u64);
        context.reply_bytes(b"queue");
        context.reply_array(self.queue.len());
        for queued in &self.queue {
            context.reply_map(3);
            text(context, "label", &queued.label);
            text(context, "mode", if queued.exclusive { EXCLUSIVE } else { SHARED }.as_bytes());
            number(context, "waiting-ms", queued.waiting_ms);
        }
        text(context, "role", if self.primary { b"primary" } else { b"replica" });
    }
}

impl Shown {
    fn reply(&self, context: &Context) {
        context.reply_map(7);
        text(context, "label", &self.label);
        number(context, "fence", self.fence);
        number(context, "ttl-ms", self.ttl_ms);
        number(context, "age-ms", self.age_ms);
        number(context, "holds", self.holds as u64);
        number(context, "ephemeral", u64::from(self.ephemeral));
        number(context, "client", self.client);
    }
}

const EXCLUSIVE: &str = "exclusive";
const SHARED: &str = "shared";
const LEGACY: &str = "legacy";

fn queue(table: &Table, site: Site<'_>, now: Instant) -> Vec<Queued> {
    let waiters = table.lines().waiters(site.place).take(SHOWN_MAX);
    let queued = waiters.map(|(_, waiter)| Queued {
        label: waiter.label.to_vec(),
        exclusive: waiter.upgrade || waiter.mode == Mode::Exclusive,
        waiting_ms: waiter.joined.ms_until(now),
    });
    queued.collect()
}

fn number(context: &Context, name: &str, value: u64) {
    context.reply_bytes(name.as_bytes());
    context.reply_int(i64::try_from(value).unwrap_or(i64::MAX));
}

fn text(context: &Context, name: &str, value: &[u8]) {
    context.reply_bytes(name.as_bytes());
    context.reply_bytes(value);
}
