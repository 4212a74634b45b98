//! Black-box tests: every command and guarantee of the module, seen through a socket on real servers of every supported
//! kind. One file per server concern; `harness` owns binaries, ports, directories, clocks and shutdown. What needs no
//! server is tested beside the code in `src/`.

// Tests assert by panicking, and only a process owner may send signals and ask for a parent-death signal.
#![allow(unsafe_code, clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

mod acl;
mod acquire;
mod bytes;
mod check;
mod clock;
mod cluster;
mod config;
mod crash;
mod docs;
mod events;
mod eviction;
mod expire;
mod extend;
mod guard;
mod guard_cluster;
mod guard_docs;
mod guard_effects;
mod guard_refused;
mod guard_rights;
mod harness;
mod info_command;
mod keyspace;
mod label;
mod label_option;
mod lease_end;
mod legacy;
mod load;
mod markdown;
mod memory;
mod metadata;
mod metrics;
mod options;
mod pause;
mod payload;
mod promotion;
mod readme;
mod regression;
mod regression_life;
mod release;
mod replication;
mod restart;
mod reuse;
mod script;
mod signals;
mod smoke;
mod syntax;
mod transcript;
