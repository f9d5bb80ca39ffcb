//! What clients of the ingress ask.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| knarr_ingress::fuzzing::request(input));
