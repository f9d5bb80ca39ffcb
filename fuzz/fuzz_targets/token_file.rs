//! A file of static tokens.
#![no_main]

use knarr_apiserver::authenticate::TokenFile;

libfuzzer_sys::fuzz_target!(|input: &str| {
    if let Ok(file) = TokenFile::parse(input) {
        let _ = file.user(input.split(',').next().unwrap_or_default());
    }
});
