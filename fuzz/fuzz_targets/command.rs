//! Arguments of a command, a line each. What has to be true of them is in src/fuzzing.rs.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| redis_lock::fuzzing::command(bytes));
