//! The configs of the module, `lock.*`.

use crate::core::table::Limits;
use crate::core::time::LEASE_MS_MAX;
use crate::server::settings::Setting;

/// Lease in ms of an ACQUIRE that names none: long enough for a slow request, short enough to wait out a crash.
pub static DEFAULT_TTL: Setting = Setting::new("default-ttl", 30_000, 1, LEASE_MS_MAX as i64);

/// Longest lease in ms that a command may ask for: a day. Leases stored already are never cut by it.
pub static MAX_TTL: Setting = Setting::new("max-ttl", 86_400_000, 1, LEASE_MS_MAX as i64);

/// Milliseconds from the start of the process, or its promotion, in which it gives no locks out.
pub static GRACE: Setting = Setting::new("grace", 0, 0, LEASE_MS_MAX as i64);

/// Connections that may be blocked waiting at a time. Each costs the server 35 to 50 KB, most of it reply buffers.
pub static MAX_WAITERS: Setting = Setting::new("max-waiters", 1_000, 0, 1_000_000);

/// Places kept by polling cost bytes, not buffers: there may be this many times as many.
const POLLED_PER_BLOCKED: usize = 10;

/// Every config.
pub static ALL: &[&Setting] = &[&DEFAULT_TTL, &MAX_TTL, &GRACE, &MAX_WAITERS];

/// How many may wait now.
pub fn limits() -> Limits {
    let blocked = usize::try_from(MAX_WAITERS.get()).unwrap_or(0);
    Limits { blocked, polled: blocked.saturating_mul(POLLED_PER_BLOCKED) }
}

/// How long the grace is, in ms.
pub fn grace_ms() -> u64 {
    GRACE.get().unsigned_abs()
}
