//! A body in JSON, decoded by the schema of a kind: decoding and encoding round-trip.
#![no_main]

use knarr_api::decode;
use knarr_fuzz::{choose, node};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((kind, body)) = choose(input) else { return };
    let _ = decode::type_meta(body);
    let _ = decode::untyped_json(body);
    let Ok(read) = decode::json(body, node(kind)) else { return };
    let mut value = read.value;
    decode::normalize(&mut value, node(kind));
    let text = serde_json::to_vec(&value).expect("what was read can be written");
    let mut again = decode::json(&text, node(kind)).expect("what was written can be read").value;
    decode::normalize(&mut again, node(kind));
    assert_eq!(value, again);
});
