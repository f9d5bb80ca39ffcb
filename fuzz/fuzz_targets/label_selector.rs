//! A label selector.
#![no_main]

use knarr_api::selector::LabelSelector;

libfuzzer_sys::fuzz_target!(|input: &str| {
    if let Ok(selector) = LabelSelector::parse(input) {
        let _ = selector.matches(knarr_fuzz::pod()["metadata"]["labels"].as_object());
    }
});
