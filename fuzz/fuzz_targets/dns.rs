//! DNS messages, from clients and from servers asked on their behalf.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| knarr_dns::fuzzing::message(input));
