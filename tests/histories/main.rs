//! What clients of real servers see while everything goes wrong, checked against what is promised. Each run prints its
//! seed; `REDIS_LOCK_HISTORY_SECONDS` and `REDIS_LOCK_HISTORY_SEED` lengthen and repeat it, as far as a machine repeats.
//!
//! * [`worker`]: a client that notes what it saw. [`history`]: the checker. [`witness`]: the append-only file
//! * [`servers`]: one server, a primary with replicas, a cluster
//! * [`unpromised`]: what is not promised does happen: a run that cannot fail proves nothing

// Tests assert by panicking, and only a process owner may send signals and ask for a parent-death signal.
#![allow(unsafe_code, clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

#[path = "../blackbox/stress/dice.rs"]
mod dice;
#[path = "../blackbox/harness/mod.rs"]
mod harness;
mod history;
mod servers;
mod unpromised;
mod witness;
mod worker;
