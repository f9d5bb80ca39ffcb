//! A field selector.
#![no_main]

use knarr_api::selector::FieldSelector;

libfuzzer_sys::fuzz_target!(|input: &str| {
    if let Ok(selector) = FieldSelector::parse(input) {
        let _ = selector.matches_with(|field| field.to_owned().into());
    }
});
