//! DNS messages of clients and of upstream servers.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| knarr_dns::fuzzing::message(input));
