//! Black-box tests: every command and guarantee of the module, seen through a socket on real servers of every supported
//! kind. One file per server concern; `harness` owns binaries, ports, directories, clocks and shutdown. What needs no
//! server is tested beside the code in `src/`.

// Tests assert by panicking, and only a process owner may send signals and ask for a parent-death signal.
#![allow(unsafe_code, clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

mod guard;
mod guard_cluster;
mod guard_docs;
mod guard_effects;
mod guard_refused;
mod guard_rights;
mod harness;
mod smoke;
mod transcript;
