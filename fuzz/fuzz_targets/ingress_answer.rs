//! Responses of pods behind the ingress.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| knarr_ingress::fuzzing::response(input));
