//! The one place that starts servers, talks to them and judges how they ended. A test starts a [`Server`], speaks
//! through a [`Client`], waits with [`eventually`], and drops everything: what is left behind or crashed fails the
//! test.

// The harness is a vocabulary: not every word is used by every set of tests.
#![allow(dead_code, unused_imports, unused_macros)]

mod arg;
mod builder;
mod client;
mod clock;
mod cluster;
mod crash;
mod disk;
mod foreign;
pub mod forge;
mod grant;
pub mod hold;
mod info;
mod kind;
mod library;
pub mod line;
mod mapped;
mod patience;
pub mod payload;
mod port;
mod process;
mod proxy;
mod replication;
mod reply;
mod resp;
mod scratch;
mod server;

pub use arg::Arg;
pub use builder::Builder;
pub use client::Client;
pub use clock::{now_ticks, Clock, DAY_US, HOUR_US, SECOND_US, TICKS_PER_SECOND, YEAR_US};
pub use cluster::Cluster;
pub use disk::Disk;
pub use foreign::foreign_module;
pub use grant::{assert_left, grant, wait_until_free, Grant};
pub use info::{info, info_int, Info};
pub use kind::{module, target_dir, Kind};
pub use patience::{busily, eventually, let_pass, poll, timed, within_ms};
pub use proxy::{Proxy, Way};
pub use replication::{in_sync, is_primary, until_failed_over, wait_in_sync, wait_until_heard};
pub use reply::Reply;
pub use scratch::Scratch;
pub use server::Server;

pub(crate) use arg::{args, cmd, send};

/// Runs each function once per supported server: `acquire::grants_five_elements::redis_7_0` and so on. Attributes and
/// doc comments go to each of the four tests.
macro_rules! on_every_server {
    ($($(#[$attribute:meta])* fn $name:ident($kind:ident: $kind_type:ty) $body:block)+) => {
        $(
            mod $name {
                use super::*;

                fn check($kind: $kind_type) $body

                #[test]
                $(#[$attribute])*
                fn redis_7_0() {
                    check($crate::harness::Kind::Redis70);
                }

                #[test]
                $(#[$attribute])*
                fn redis_8_0() {
                    check($crate::harness::Kind::Redis80);
                }

                #[test]
                $(#[$attribute])*
                fn valkey_8_1() {
                    check($crate::harness::Kind::Valkey81);
                }

                #[test]
                $(#[$attribute])*
                fn valkey_9_1() {
                    check($crate::harness::Kind::Valkey91);
                }
            }
        )+
    };
}
pub(crate) use on_every_server;
