//! Tests of schema validation.

use super::*;
use crate::field::Error;
use serde_json::json;

fn errors(schema: &Value, value: Value, old: Option<Value>) -> Vec<String> {
    let props = JsonSchemaProps::read(schema);
    let correlated = old.as_ref().map(|old| CorrelatedValue::new(&value, old, &props));
    validate(&Validator::new(&props), &value, correlated, "").0.iter().map(Error::to_string).collect()
}

fn spec(property: Value, value: Value) -> Vec<String> {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"x": property}}}});
    errors(&schema, json!({"spec": {"x": value}}), None)
}

#[test]
fn invalid_values_get_the_messages_of_kubernetes() {
    for (property, value, expected) in [
        (json!({"type": "integer"}), json!(1), vec![]),
        (json!({"type": "number"}), json!(1), vec![]),
        (
            json!({"type": "integer"}),
            json!("x"),
            vec![r#"spec.x: Invalid value: "string": spec.x in body must be of type integer: "string""#],
        ),
        (
            json!({"type": "integer"}),
            json!(1.5),
            vec![
                r#"spec.x: Invalid value: "number": spec.x in body must be of type integer: "number""#,
                r#"<nil>: Invalid value: "": Checked value must be of type integer (default format) in spec.x"#,
            ],
        ),
        (
            json!({"type": "string"}),
            json!(null),
            vec![r#"spec.x: Invalid value: "null": spec.x in body must be of type string: "null""#],
        ),
        (json!({"type": "string", "nullable": true}), json!(null), vec![]),
        (
            json!({"type": "integer", "minimum": 1, "maximum": 60}),
            json!(0),
            vec!["spec.x: Invalid value: 0: spec.x in body should be greater than or equal to 1"],
        ),
        (
            json!({"type": "integer", "maximum": 60, "exclusiveMaximum": true}),
            json!(60),
            vec!["spec.x: Invalid value: 60: spec.x in body should be less than 60"],
        ),
        (
            json!({"type": "integer", "multipleOf": 5}),
            json!(7),
            vec!["spec.x: Invalid value: 7: spec.x in body should be a multiple of 5"],
        ),
        (
            json!({"type": "string", "enum": ["a", "b"]}),
            json!("c"),
            vec![r#"spec.x: Unsupported value: "c": supported values: "a", "b""#],
        ),
        (
            json!({"type": "string", "maxLength": 2}),
            json!("abc"),
            vec!["spec.x: Too long: may not be more than 2 bytes"],
        ),
        (
            json!({"type": "string", "minLength": 2}),
            json!("a"),
            vec![r#"spec.x: Invalid value: "a": spec.x in body should be at least 2 chars long"#],
        ),
        (
            json!({"type": "string", "pattern": "^a+$"}),
            json!("b"),
            vec![r#"spec.x: Invalid value: "b": spec.x in body should match '^a+$'"#],
        ),
        (
            json!({"type": "string", "format": "date-time"}),
            json!("b"),
            vec![r#"spec.x: Invalid value: "b": spec.x in body must be of type date-time: "b""#],
        ),
        (json!({"type": "string", "format": "unknown"}), json!("b"), vec![]),
        (
            json!({"type": "array", "maxItems": 1, "items": {"type": "string"}}),
            json!(["a", 1]),
            vec![
                r#"spec.x[1]: Invalid value: "integer": spec.x[1] in body must be of type string: "integer""#,
                "spec.x: Too many: 2: must have at most 1 item",
            ],
        ),
        (
            json!({"type": "object", "required": ["y"], "additionalProperties": {"type": "integer"}}),
            json!({"z": "1"}),
            vec![
                r#"spec.x.z: Invalid value: "string": spec.x.z in body must be of type integer: "string""#,
                "spec.x.y: Required value",
            ],
        ),
        (json!({"x-kubernetes-int-or-string": true}), json!("50%"), vec![]),
        (
            json!({"x-kubernetes-int-or-string": true}),
            json!(true),
            vec![r#"spec.x: Invalid value: "boolean": spec.x in body must be of type integer,string: "boolean""#],
        ),
        (
            json!({"type": "integer", "anyOf": [{"minimum": 10}, {"maximum": 1}]}),
            json!(5),
            vec![
                r#"<nil>: Invalid value: "": "spec.x" must validate at least one schema (anyOf)"#,
                "spec.x: Invalid value: 5: spec.x in body should be greater than or equal to 10",
            ],
        ),
        (
            json!({"type": "integer", "oneOf": [{"minimum": 1}, {"minimum": 2}]}),
            json!(5),
            vec![
                r#"<nil>: Invalid value: "": "spec.x" must validate one and only one schema (oneOf). Found 2 valid alternatives"#,
            ],
        ),
        (
            json!({"type": "integer", "not": {"minimum": 1}}),
            json!(5),
            vec![r#"<nil>: Invalid value: "": "spec.x" must not validate the schema (not)"#],
        ),
        (
            json!({"type": "integer", "allOf": [{"minimum": 9}]}),
            json!(5),
            vec![
                "spec.x: Invalid value: 5: spec.x in body should be greater than or equal to 9",
                r#"<nil>: Invalid value: "": "spec.x" must validate all the schemas (allOf). None validated"#,
            ],
        ),
    ] {
        assert_eq!(spec(property.clone(), value.clone()), expected, "{property} {value}");
    }
}

#[test]
fn unchanged_values_are_not_validated_again() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": 5},
        "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"],
            "items": {"type": "object", "properties": {"n": {"type": "string"}, "v": {"type": "integer", "minimum": 5}}}},
        "plain": {"type": "array", "items": {"type": "integer", "minimum": 5}}}});
    let old = json!({"a": 1, "list": [{"n": "x", "v": 1}], "plain": [1]});
    let new = json!({"a": 1, "list": [{"n": "y", "v": 2}, {"n": "x", "v": 1}], "plain": [1, 9]});
    assert_eq!(
        errors(&schema, new, Some(old)),
        [
            "list[0].v: Invalid value: 2: list[0].v in body should be greater than or equal to 5",
            "plain[0]: Invalid value: 1: plain[0] in body should be greater than or equal to 5",
        ]
    );
}

/// Who writes an object chooses a long key and many values below it.
#[test]
fn a_long_key_is_not_copied_for_each_value_below_it() {
    let schema = json!({"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}}});
    let key = "k".repeat(1 << 20);
    let object = |item: Value| json!({ &key: vec![item; 100_000] });
    let started = std::time::Instant::now();
    assert_eq!(errors(&schema, object(json!(1)), None), Vec::<String>::new());
    let wrong = errors(&schema, object(json!("x")), None);
    assert!(!wrong.is_empty() && wrong.iter().map(String::len).sum::<usize>() < 16 << 20, "{} errors", wrong.len());
    assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
}
