//! Tests of JSON Patch.

use super::*;
use serde_json::json;

fn patched(mut document: Value, patch: Value) -> Result<Value, PatchError> {
    JsonPatch::read(patch.to_string().as_bytes())?.apply(&mut document)?;
    Ok(document)
}

#[test]
fn operations_are_carried_out_in_order() {
    let document = json!({"a": {"b": [1, 2, 3]}, "x/y": 1, "m~n": 2});
    for (patch, expected) in [
        (json!([{"op": "add", "path": "/a/b/1", "value": 9}]), json!([1, 9, 2, 3])),
        (json!([{"op": "add", "path": "/a/b/-", "value": 9}]), json!([1, 2, 3, 9])),
        (json!([{"op": "remove", "path": "/a/b/-1"}]), json!([1, 2])),
        (json!([{"op": "replace", "path": "/a/b/0", "value": null}]), json!([null, 2, 3])),
        (json!([{"op": "move", "from": "/a/b/0", "path": "/a/b/2"}]), json!([2, 3, 1])),
        (json!([{"op": "copy", "from": "/x~1y", "path": "/a/b/-"}]), json!([1, 2, 3, 1])),
        (
            json!([{"op": "test", "path": "/m~0n", "value": 2}, {"op": "test", "path": "/none", "value": null}]),
            json!([1, 2, 3]),
        ),
    ] {
        assert_eq!(patched(document.clone(), patch.clone()).map(|it| it["a"]["b"].clone()), Ok(expected), "{patch}");
    }
}

#[test]
fn what_cannot_be_done_is_unprocessable() {
    for patch in [
        json!([{"op": "remove", "path": "/none"}]),
        json!([{"op": "replace", "path": "/a/7", "value": 1}]),
        json!([{"op": "add", "path": "/none/x", "value": 1}]),
        json!([{"op": "add", "path": "/a/5", "value": 1}]),
        json!([{"op": "test", "path": "/a/0", "value": 2}]),
        json!([{"op": "move", "path": "/a/0"}]),
        json!([{"op": "fly", "path": "/a"}]),
        json!([{"op": "add", "path": "a", "value": 1}]),
    ] {
        assert!(matches!(patched(json!({"a": [1]}), patch.clone()), Err(PatchError::Unprocessable(_))), "{patch}");
    }
}

#[test]
fn invalid_patches_are_malformed() {
    let problem = |text: &str| JsonPatch::read(text.as_bytes()).expect_err("no patch").to_string();
    assert_eq!(problem("{}"), "json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp");
    assert_eq!(
        problem(r#"[{"op":1}]"#),
        "json: cannot unmarshal number into Go struct field jsonPatchOp.op of type string"
    );
    let many = format!("[{}]", vec![r#"{"op":"remove","path":"/a"}"#; 10_001].join(","));
    assert_eq!(problem(&many), "The allowed maximum operations in a JSON patch is 10000, got 10001");
    let patch = JsonPatch::read(br#"[{"op":"remove","path":"/a","foo":1}]"#).expect("patch");
    assert_eq!(patch.problems[0].to_string(), r#"unknown field "[0].foo""#);
}

#[test]
fn copies_of_copies_do_not_grow_without_end() {
    let steps: Vec<Value> =
        (0..60).map(|step| json!({"op": "copy", "from": "/a", "path": format!("/a/{step}")})).collect();
    let patch = JsonPatch::read(json!(steps).to_string().as_bytes()).unwrap();
    let refusal = patch.apply(&mut json!({"a": {"b": "c"}})).unwrap_err().to_string();
    assert!(refusal.starts_with("Unable to complete the copy"), "{refusal}");
}

/// A value of so many arrays around a number.
fn nested(levels: usize) -> Value {
    (0..levels).fold(json!(1), |value, _| json!([value]))
}

#[test]
fn no_operation_nests_a_document_without_end() {
    let down = "/a".repeat(480);
    let value = (0..480).fold(json!({}), |value, _| json!({"a": value}));
    let round = [
        json!({"op": "add", "path": "/b", "value": value}),
        json!({"op": "move", "from": "/x", "path": format!("/b{down}/a")}),
        json!({"op": "move", "from": "/b", "path": "/x"}),
    ];
    let moves: Vec<Value> = std::iter::repeat_n(round, 100).flatten().collect();
    let copies: Vec<Value> = (0..600).map(|_| json!({"op": "copy", "from": "/x", "path": "/x/a"})).collect();
    let shallow = Value::from("0/".repeat(450).trim_end_matches('/'));
    for patch in [
        json!(moves),
        json!(copies),
        json!([{"op": "add", "path": format!("/y/{}/0", shallow.as_str().unwrap()), "value": nested(60)}]),
        json!([{"op": "replace", "path": format!("/y/{}", shallow.as_str().unwrap()), "value": nested(60)}]),
    ] {
        let refusal = patched(json!({"x": {}, "y": nested(451)}), patch).unwrap_err();
        assert_eq!(refusal, PatchError::Unprocessable("exceeded max depth".into()));
    }
}

#[test]
fn a_value_moves_up_and_down_as_often_as_a_patch_has_operations() {
    let down = json!({"op": "move", "from": "/a", "path": "/b/c/d"});
    let up = json!({"op": "move", "from": "/b/c/d", "path": "/a"});
    let moves: Vec<Value> = std::iter::repeat_n([down, up], MAX_OPERATIONS / 2).flatten().collect();
    let document = json!({"a": nested(400), "b": {"c": {}}});
    assert_eq!(patched(document.clone(), json!(moves)), Ok(document));
}

#[test]
fn lenient_reading_leaves_mistakes_to_the_operations() {
    let patch = JsonPatch::read_leniently(br#"[{"op":1,"extra":true}]"#).expect("patch");
    assert!(patch.problems.is_empty());
    assert!(matches!(patch.apply(&mut json!({})), Err(PatchError::Unprocessable(_))));
    let problem = |text: &str| JsonPatch::read_leniently(text.as_bytes()).expect_err("no patch").to_string();
    assert_eq!(problem("{}"), "json: cannot unmarshal object into Go value of type jsonpatch.Patch");
    assert_eq!(problem("[1]"), "json: cannot unmarshal number into Go value of type jsonpatch.Operation");
}

/// Each insertion at the start of a list shifts all of it.
#[test]
fn a_long_list_is_not_shifted_without_end() {
    let document = json!({"list": vec![0; 300_000]});
    for operation in [
        json!({"op": "add", "path": "/list/0", "value": 1}),
        json!({"op": "add", "path": "/list/-200000", "value": 1}),
        json!({"op": "remove", "path": "/list/0"}),
        json!({"op": "move", "from": "/list/0", "path": "/list/1"}),
        json!({"op": "copy", "from": "/list/1", "path": "/list/0"}),
    ] {
        let refusal = patched(document.clone(), Value::Array(vec![operation.clone(); MAX_OPERATIONS])).unwrap_err();
        assert!(refusal.to_string().contains("shift too many values"), "{operation}: {refusal}");
        let few = patched(document.clone(), Value::Array(vec![operation; 100]));
        assert!(few.is_ok());
    }
    let appended = json!({"op": "add", "path": "/list/-", "value": 1});
    assert!(patched(document, Value::Array(vec![appended; MAX_OPERATIONS])).is_ok(), "nothing is shifted");
}
