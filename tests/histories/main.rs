//! What clients of real servers see while everything goes wrong, checked against what is promised. Each run prints its
//! seed; `REDIS_LOCK_HISTORY_SECONDS` and `REDIS_LOCK_HISTORY_SEED` lengthen and repeat it, as far as a machine repeats.
//!
//! * [`scene`]: what clients know, and a run. [`network`]: links that fail
//! * [`worker`]: a client that notes what it saw. [`history`]: the checker. [`witness`]: the append-only file
//! * [`single`], [`replicas`], [`sentinel`], [`cluster`], [`independent`]: what servers they are. [`power`]: what a disk keeps
//! * [`unpromised`]: what is not promised does happen: a run that cannot fail proves nothing

// Tests assert by panicking, and only a process owner may send signals and ask for a parent-death signal.
#![allow(unsafe_code, clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

mod cluster;
#[path = "../blackbox/stress/dice.rs"]
mod dice;
#[path = "../blackbox/harness/mod.rs"]
mod harness;
mod history;
mod independent;
mod network;
mod power;
#[path = "../../examples/redlock.rs"]
// Its own program has more than a test needs.
#[allow(dead_code)]
mod redlock;
mod replicas;
mod scene;
mod sentinel;
mod single;
mod unpromised;
mod witness;
mod worker;
