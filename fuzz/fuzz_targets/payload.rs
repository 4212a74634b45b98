//! Bytes of a lock, as RDB, AOF, RESTORE and the replication stream bring them. What has to be true of them is in src/fuzzing.rs.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| redis_lock::fuzzing::payload(bytes));
