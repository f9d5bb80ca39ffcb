//! What the store keeps on the disk: its log.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| knarr_store::fuzzing::log(input));
