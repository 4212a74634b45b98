//! Black-box tests: every command and guarantee of the module, seen through a socket on real servers of every supported
//! kind. One file per server concern; `harness` owns binaries, ports, directories, clocks and shutdown. What needs no
//! server is tested beside the code in `src/`.

// Tests assert by panicking, and only a process owner may send signals and ask for a parent-death signal.
#![allow(unsafe_code, clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

mod acknowledged;
mod acl;
mod acquire;
mod at_once;
mod audience;
mod bytes;
mod check;
mod clock;
mod cluster;
mod cluster_waiting;
mod config;
mod crash;
mod deadlock;
mod docs;
mod ephemeral;
mod events;
mod eviction;
mod expire;
mod extend;
mod failover_waiting;
mod floor;
mod grace;
mod guard;
mod guard_cluster;
mod guard_docs;
mod guard_effects;
mod guard_refused;
mod guard_rights;
mod harness;
mod holds;
mod info_command;
mod interop;
mod keyspace;
mod label;
mod label_option;
mod lease_end;
mod leave;
mod legacy;
mod limit;
mod line_shown;
mod load;
mod markdown;
mod maxhold;
mod memory;
mod metadata;
mod metrics;
mod modes_kept;
mod options;
mod pause;
mod pause_waiting;
mod payload;
mod poll;
mod promises;
mod promotion;
mod quorum;
mod readme;
#[allow(dead_code)]
#[path = "../../examples/redlock.rs"]
mod redlock;
mod refused_waiting;
mod regression;
mod regression_life;
mod regression_lines;
mod regression_modes;
mod regression_waiting;
mod release;
mod replication;
mod resend;
mod restart;
mod reuse;
mod script;
mod shared;
mod signals;
mod smoke;
mod stress;
mod syntax;
mod track_record;
mod transcript;
mod undelivered;
mod upgrade;
mod waiting;
mod waiting_time;
mod wake;
