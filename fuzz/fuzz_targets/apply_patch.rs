//! An apply configuration, applied by one manager, then by another, then forced; and recorded ownership of any shape.
#![no_main]

use knarr_api::apply::{self, SingleVersion, Tracker};
use knarr_api::decode;
use knarr_fuzz::{node, pod};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let kind = ("", "v1", "Pod");
    if let Ok(fields) = serde_json::from_slice(input)
        && let Ok(set) = apply::decode_fields(&fields)
    {
        let written = apply::encode_fields(&set);
        assert_eq!(apply::decode_fields(&written).map(|set| apply::encode_fields(&set)), Ok(written));
    }
    let Ok(read) = decode::yaml(input, node(kind)) else { return };
    let tracker = Tracker {
        node: node(kind),
        api_version: "v1",
        kind: "Pod",
        subresource: "",
        ignored: None,
        versions: &SingleVersion,
        now: "2026-01-01T00:00:00Z",
    };
    let mut live = pod();
    tracker.update(None, &mut live, "first");
    for (manager, force) in [("second", false), ("third", true), ("second", true)] {
        if let Ok(applied) = tracker.apply(Some(&live), &read.value, manager, force) {
            live = applied;
        }
    }
});
