//! Type errors of objects that a strategic merge patch built.
//!
//! Kubernetes converts such an object in memory, and its messages differ from those of the JSON decoder.

use serde_json::Value;

use crate::decode;
use crate::schema::{NodeRef, Shape};

/// The message for the first value of a wrong type, or none.
pub fn cannot_restore(value: &Value, node: NodeRef<'_>) -> Option<String> {
    if value.is_null() {
        return None;
    }
    match &node.get().shape {
        Shape::Object(object) => {
            let Value::Object(fields) = value else {
                return Some(format!("cannot restore struct from: {}", kind_of(value)));
            };
            let known = fields.iter().filter_map(|(name, value)| Some((object.field(name)?, value)));
            known.into_iter().find_map(|(field, value)| cannot_restore(value, node.at(field.node)))
        }
        Shape::Map(element) => match value {
            Value::Object(entries) => entries.values().find_map(|entry| cannot_restore(entry, node.at(*element))),
            _ => Some(format!("cannot restore map from {}", kind_of(value))),
        },
        Shape::List(list) => match value {
            Value::Array(items) => items.iter().find_map(|item| cannot_restore(item, node.at(list.element))),
            _ => Some(format!("cannot restore slice from {}", kind_of(value))),
        },
        Shape::String => match value {
            Value::String(_) => None,
            // Go would convert an integer to a string, and Kubernetes refuses that with its own message.
            Value::Number(number) if number.is_i64() => Some(format!("cannot convert int64 to {}", node.get().go_type)),
            _ => Some("unrecognized type: string".to_owned()),
        },
        Shape::Integer { bits } => match value {
            Value::Number(number) if number.is_i64() => None,
            Value::Number(number) if number.as_f64().is_some_and(|float| float.fract() == 0.0) => None,
            Value::Number(_) => Some(format!("cannot convert float64 to {}", node.get().go_type)),
            _ => Some(format!("unrecognized type: int{bits}")),
        },
        Shape::Number => (!value.is_number()).then(|| "unrecognized type: float64".to_owned()),
        Shape::Boolean => (!value.is_boolean()).then(|| "unrecognized type: bool".to_owned()),
        Shape::Bytes => match value {
            Value::String(_) => {
                decode::value(value, node).err().map(|error| format!("error decoding from json: {error}"))
            }
            _ => Some(format!("cannot restore slice from {}", kind_of(value))),
        },
        // These have their own decoding.
        _ => decode::value(value, node).err().map(|error| error.to_string()),
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "nil",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::builtin;
    use serde_json::json;

    #[test]
    fn refusals_name_the_types() {
        let node = builtin().kind("", "v1", "ConfigMap").expect("kind");
        for (object, expected) in [
            (json!({"data": {"a": "1"}, "metadata": {"labels": null}}), None),
            (json!({"metadata": "x"}), Some("cannot restore struct from: string")),
            (json!({"data": {"a": 1}}), Some("cannot convert int64 to string")),
            (json!({"data": {"a": true}}), Some("unrecognized type: string")),
            (json!({"data": ["x"]}), Some("cannot restore map from slice")),
            (json!({"immutable": "x"}), Some("unrecognized type: bool")),
            (json!({"metadata": {"finalizers": "x"}}), Some("cannot restore slice from string")),
            (json!({"metadata": {"generation": "x"}}), Some("unrecognized type: int64")),
            (json!({"metadata": {"ownerReferences": ["x"]}}), Some("cannot restore struct from: string")),
            (
                json!({"metadata": {"creationTimestamp": "x"}}),
                Some("parsing time \"x\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"x\" as \"2006\""),
            ),
        ] {
            assert_eq!(cannot_restore(&object, node).as_deref(), expected, "{object}");
        }
    }
}
