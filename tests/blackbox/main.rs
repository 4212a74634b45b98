//! Black-box tests: every command and guarantee of the module, seen through a socket on real servers of every supported
//! kind. One file per server concern; `harness` owns binaries, ports, directories, clocks and shutdown. What needs no
//! server is tested beside the code in `src/`.

// Tests assert by panicking, and only a process owner may send signals and ask for a parent-death signal.
#![allow(unsafe_code, clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

mod acknowledged;
mod at_once;
mod cluster_waiting;
mod deadlock;
mod failover_waiting;
mod harness;
mod label;
mod leave;
mod line_shown;
mod pause_waiting;
mod poll;
mod refused_waiting;
mod regression_lines;
mod regression_waiting;
mod resend;
mod smoke;
mod stress;
mod undelivered;
mod waiting;
mod waiting_time;
mod wake;
