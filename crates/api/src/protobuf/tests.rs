use serde_json::{Value, json};

use super::*;

fn cases() -> impl Iterator<Item = (Value, Vec<u8>)> {
    let mut lines = include_str!("cases.txt").lines().filter(|line| !line.starts_with('#'));
    std::iter::from_fn(move || {
        let object = serde_json::from_str(lines.next()?).unwrap();
        let digits = lines.next()?;
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        Some((object, (0..digits.len()).step_by(2).map(byte).collect()))
    })
}

#[test]
fn objects_and_bytes_become_each_other() {
    for (object, bytes) in cases() {
        assert_eq!(encode(&object).unwrap(), bytes, "{object}");
        assert_eq!(decode(&bytes, None).unwrap(), object);
    }
}

#[test]
fn absent_fields_are_completed() {
    // A Namespace of nothing, as a sparing encoder writes it.
    let kind = GroupVersionKind::new("v1", "Namespace");
    let object = decode_message(&kind, b"").unwrap();
    assert_eq!(object, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {}, "spec": {}, "status": {}}));
}

#[test]
fn the_expected_kind_stands_in_for_a_missing_one() {
    let bytes = wrap("", "", &[]);
    assert_eq!(decode(&bytes, None), Err(ProtobufError::NoKind));
    let options = decode(&bytes, Some(&GroupVersionKind::new("v1", "DeleteOptions"))).unwrap();
    assert_eq!(options, json!({"apiVersion": "v1", "kind": "DeleteOptions"}));
    let grouped = wrap("apps/v1", "DeleteOptions", &[0x08, 0x05]);
    assert_eq!(decode(&grouped, None).unwrap()["gracePeriodSeconds"], 5);
}

#[test]
fn lists_are_put_together_from_encoded_items() {
    let items = [json!({"metadata": {"name": "a"}, "data": {"k": "v"}}), json!({"metadata": {"name": "b"}})];
    let list =
        json!({"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {"resourceVersion": "7"}, "items": items});
    let kind = GroupVersionKind::new("v1", "ConfigMap");
    let encoded: Vec<Vec<u8>> = items.iter().map(|item| encode_message(&kind, item).unwrap()).collect();
    let lengths = encoded.iter().map(Vec::len);
    let mut spliced = list_prefix("v1", "ConfigMapList", &list["metadata"], lengths).unwrap();
    for item in &encoded {
        spliced.extend_from_slice(&list_item_prefix(item.len()));
        spliced.extend_from_slice(item);
    }
    spliced.extend_from_slice(list_suffix());
    assert_eq!(spliced, encode(&list).unwrap());
}

#[test]
fn watch_frames_hold_an_object_in_its_envelope() {
    let object = wrap("v1", "Secret", &[]);
    let frame = watch_frame("ADDED", &object);
    let (length, event) = frame.split_at(4);
    assert_eq!(u32::from_be_bytes(length.try_into().unwrap()) as usize, event.len());
    assert_eq!(&event[..7], b"\x0a\x05ADDED");
    assert!(event.ends_with(&object));
}

#[test]
fn broken_bytes_are_errors_and_never_more() {
    let pod = GroupVersionKind::new("v1", "Pod");
    assert_eq!(decode(b"{}", None), Err(ProtobufError::NoMagic));
    assert_eq!(decode(b"k8s\0\x0a\xff", None), Err(ProtobufError::Truncated));
    assert!(matches!(decode(&wrap("v1", "Unknown", &[]), None), Err(ProtobufError::UnknownKind { .. })));
    assert!(matches!(decode_message(&pod, &[0x08, 1]), Err(ProtobufError::WireType { wire_type: 0, .. })));
    assert!(matches!(decode_message(&pod, b"\x0a\x03\x0a\x01\xff"), Err(ProtobufError::Value { .. })));
    // Every truncation and every flipped byte of every case ends well.
    for (_, bytes) in cases() {
        for at in 0..bytes.len() {
            let _ = decode(&bytes[..at], None);
            let mut flipped = bytes.clone();
            flipped[at] ^= 0xff;
            let _ = decode(&flipped, None);
        }
    }
}

#[test]
fn depth_and_number_of_messages_are_bounded() {
    let schema = GroupVersionKind::new("apiextensions.k8s.io/v1", "CustomResourceDefinition");
    // Field 28 (`not`) of a JSON schema holds another one.
    let mut nested = Vec::new();
    for _ in 0..300 {
        let mut writer = wire::Writer::new(nested.len() + 8);
        writer.text(28, &nested);
        nested = writer.finish();
    }
    for number in [1, 4, 7, 2] {
        let mut writer = wire::Writer::new(nested.len() + 8);
        writer.text(number, &nested);
        nested = writer.finish();
    }
    assert_eq!(decode_message(&schema, &nested), Err(ProtobufError::TooDeep(200)));

    let containers: Vec<u8> = [0x12, 0x00].repeat(250_000);
    let mut writer = wire::Writer::new(containers.len() + 8);
    writer.text(2, &containers);
    let pod = GroupVersionKind::new("v1", "Pod");
    assert_eq!(decode_message(&pod, &writer.finish()), Err(ProtobufError::TooMany(200_000)));
}

/// An empty claim template has metadata, a specification, resources and a status, which take no bytes.
#[test]
fn what_is_printed_without_being_sent_is_counted() {
    let claims = |count: usize| {
        let claims: Vec<u8> = [0x22, 0x00].repeat(count);
        let mut writer = wire::Writer::new(claims.len() + 8);
        writer.text(2, &claims);
        decode_message(&GroupVersionKind::new("apps/v1", "StatefulSet"), &writer.finish())
    };
    let decoded = claims(10).unwrap();
    assert_eq!(decoded["spec"]["volumeClaimTemplates"][9]["spec"], json!({"resources": {}}));
    assert_eq!(claims(100_000), Err(ProtobufError::TooMany(200_000)));
}

#[test]
fn a_list_of_schemas_without_one_is_none() {
    let mut writer = wire::Writer::new(8);
    writer.number(2, 1);
    let mut nested = writer.finish();
    for number in [24, 1, 4, 7, 2] {
        let mut writer = wire::Writer::new(nested.len() + 8);
        writer.text(number, &nested);
        nested = writer.finish();
    }
    let kind = GroupVersionKind::new("apiextensions.k8s.io/v1", "CustomResourceDefinition");
    let definition = decode_message(&kind, &nested).unwrap();
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    assert!(schema.is_object() && schema["items"].is_null(), "{definition}");
}

#[test]
fn values_of_the_wrong_type_are_errors() {
    for object in [
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": 1}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": []}),
        json!({"apiVersion": "v1", "kind": "Secret", "data": {"a": "%"}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"creationTimestamp": "now"}}),
        json!({"apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {"cpu": "much"}}}),
    ] {
        assert!(matches!(encode(&object), Err(ProtobufError::Value { .. })), "{object}");
    }
}
