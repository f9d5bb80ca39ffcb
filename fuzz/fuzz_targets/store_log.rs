//! The store's log on disk.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| knarr_store::fuzzing::log(input));
