//! A JSON patch, decoded and applied.
#![no_main]

use knarr_api::patch::JsonPatch;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Ok(patch) = JsonPatch::read(input) {
        let _ = patch.apply(&mut knarr_fuzz::pod());
    }
});
