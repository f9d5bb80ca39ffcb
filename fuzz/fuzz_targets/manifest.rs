//! Manifests of static pods.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &str| knarr_kubelet::fuzzing::manifest(input));
