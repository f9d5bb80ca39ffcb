//! A body in YAML, decoded by the schema of a kind.
#![no_main]

use knarr_api::decode;
use knarr_fuzz::{choose, node};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((kind, body)) = choose(input) else { return };
    let _ = decode::untyped_yaml(body);
    if let Ok(read) = decode::yaml(body, node(kind)) {
        serde_json::to_vec(&read.value).expect("what was read can be written");
    }
});
