//! CNI requests of a container runtime.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &str| knarr_network::cni::fuzzing::request(input));
