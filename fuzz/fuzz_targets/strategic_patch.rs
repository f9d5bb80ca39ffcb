//! A strategic merge patch, decoded and applied.
#![no_main]

use knarr_api::{decode, patch};
use knarr_fuzz::{node, pod};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let kind = ("", "v1", "Pod");
    if let Ok(read) = patch::read_merge_patch(input)
        && let Ok(object) = patch::strategic_merge(pod(), read.value, node(kind))
    {
        let _ = decode::value(&object, node(kind));
    }
});
