//! A body in Kubernetes' protobuf: decoding and encoding round-trip.
#![no_main]

use knarr_api::protobuf;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Ok(value) = protobuf::decode(input, None) else { return };
    let Ok(bytes) = protobuf::encode(&value) else { return };
    let again = protobuf::decode(&bytes, None).expect("what was written can be read");
    let bytes_again = protobuf::encode(&again).expect("what was read can be written");
    assert_eq!(bytes, bytes_again);
});
