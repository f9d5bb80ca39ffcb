//! What the store keeps on the disk: its records.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| knarr_store::fuzzing::records(input));
