//! The configs of the module, `lock.*`.

use crate::core::time::LEASE_MS_MAX;
use crate::server::settings::Setting;

/// Lease in ms of an ACQUIRE that names none: long enough for a slow request, short enough to wait out a crash.
pub static DEFAULT_TTL: Setting = Setting::new("default-ttl", 30_000, 1, LEASE_MS_MAX as i64);

/// Longest lease in ms that a command may ask for: a day. Leases stored already are never cut by it.
pub static MAX_TTL: Setting = Setting::new("max-ttl", 86_400_000, 1, LEASE_MS_MAX as i64);

/// Every config.
pub static ALL: &[&Setting] = &[&DEFAULT_TTL, &MAX_TTL];
