//! Pages of pods and services that are read through the API server.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| knarr_apiserver::subresource::connect::fuzzing::page(input));
