//! What a container runtime hands to the network plugin.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &str| knarr_network::cni::fuzzing::request(input));
