//! Chunked bodies that pass through the ingress.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| knarr_ingress::fuzzing::chunks(input));
