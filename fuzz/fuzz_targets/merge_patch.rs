//! A merge patch, decoded and applied.
#![no_main]

use knarr_api::{decode, patch};
use knarr_fuzz::{node, pod};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Ok(read) = patch::read_merge_patch(input) {
        let mut object = pod();
        patch::merge(&mut object, read.value);
        let _ = decode::value(&object, node(("", "v1", "Pod")));
    }
});
