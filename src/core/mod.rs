//! The lock itself. Nothing here knows a server, reads a clock, does I/O or uses `unsafe`: the time is passed in
//! and effects are handed out, so every rule can be tested, replayed and checked against a model.
//!
//! * [`time`]: instants of the monotonic clock, leases, wall-clock ticks
//! * [`fence`]: fencing numbers and the one counter that issues them
//! * [`name`]: tokens, labels and the place (database and key) of a lock. [`names`]: those of a token's holds
//! * [`hold`]: one token's hold. [`crowd`]: the holders of a shared lock. [`lock`]: a held lock
//! * [`small`], [`packed`]: a hold, a token and a label in few bytes, as most locks have them
//! * [`deadlines`]: which lock to look at next: a [`calendar`] of all, a [`heap`] of those about to be due
//! * [`line`]: who waits for which lock, in order
//! * [`table`]: all held locks, and what the commands do to them
//! * [`slot`]: the cluster slot of a key
//! * [`codec`]: the bytes of a lock in RDB, AOF and the replication stream

#![forbid(unsafe_code)]

pub mod calendar;
pub mod codec;
pub mod crowd;
pub mod deadlines;
pub mod fence;
pub mod heap;
pub mod hold;
pub mod line;
pub mod lock;
pub mod name;
pub mod names;
pub mod packed;
pub mod slab;
pub mod slot;
pub mod small;
pub mod table;
pub mod texts;
pub mod time;
