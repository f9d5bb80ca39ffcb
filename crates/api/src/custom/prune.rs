//! Pruning of fields that a schema does not specify and of nulls that it does not allow.

use crate::json_schema::{AdditionalProperties, JsonSchemaProps};
use serde_json::Value;
use std::fmt::Write;

/// How much text the paths of removed fields may have together. Who writes an object decides how many there are and how long.
const MAX_PATH_BYTES: usize = 1 << 20;

/// Removes unspecified fields and returns their paths, sorted.
pub(super) fn prune(object: &mut Value, props: &JsonSchemaProps) -> Vec<String> {
    let mut pruner = Pruner { path: String::new(), unknown: Vec::new(), left: MAX_PATH_BYTES };
    pruner.value(object, Some(props), true);
    pruner.unknown.sort();
    pruner.unknown
}

/// Removes nulls that are not allowed and have no default.
pub(super) fn prune_nulls(value: &mut Value, props: Option<&JsonSchemaProps>) {
    let unwanted = |value: &Value, props: Option<&JsonSchemaProps>| {
        value.is_null() && props.is_some_and(|props| !props.nullable && props.default.is_none())
    };
    match value {
        Value::Object(fields) => fields.retain(|name, value| {
            let props = props.and_then(|props| props.child(name));
            let keep = !unwanted(value, props);
            if keep {
                prune_nulls(value, props);
            }
            keep
        }),
        Value::Array(items) => {
            let props = props.and_then(|props| props.items.as_deref());
            items.iter_mut().for_each(|item| prune_nulls(item, props));
        }
        _ => {}
    }
}

struct Pruner {
    path: String,
    unknown: Vec<String>,
    /// How many more bytes of paths are kept.
    left: usize,
}

impl Pruner {
    fn value(&mut self, value: &mut Value, props: Option<&JsonSchemaProps>, is_resource: bool) {
        let preserve = props.is_some_and(|props| props.preserve_unknown);
        match value {
            Value::Object(fields) => fields.retain(|name, value| {
                let is_meta = matches!(name.as_str(), "apiVersion" | "kind" | "metadata");
                if is_meta && (is_resource || props.is_some_and(|props| props.embedded)) {
                    return true;
                }
                match below(props, name) {
                    Below::Known(child) => {
                        self.within_field(name, |pruner| pruner.value(value, child, false));
                        true
                    }
                    Below::Unknown if preserve => true,
                    Below::Unknown => {
                        if !is_meta || !self.path.is_empty() {
                            self.within_field(name, Self::report);
                        }
                        false
                    }
                }
            }),
            Value::Array(items) => {
                let child = props.and_then(|props| props.items.as_deref());
                if preserve && child.is_none() {
                    return;
                }
                for (at, item) in items.iter_mut().enumerate() {
                    let length = self.path.len();
                    let _ = write!(self.path, "[{at}]");
                    self.value(item, child, false);
                    self.path.truncate(length);
                }
            }
            _ => {}
        }
    }

    fn report(&mut self) {
        if self.left > 0 {
            self.left = self.left.saturating_sub(self.path.len());
            self.unknown.push(self.path.clone());
        }
    }

    fn within_field(&mut self, name: &str, then: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        if length > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        then(self);
        self.path.truncate(length);
    }
}

enum Below<'p> {
    /// The field is allowed; its schema may be unknown.
    Known(Option<&'p JsonSchemaProps>),
    Unknown,
}

fn below<'p>(props: Option<&'p JsonSchemaProps>, name: &str) -> Below<'p> {
    let Some(props) = props else { return Below::Unknown };
    match (props.properties.get(name), &props.additional) {
        (Some(property), _) => Below::Known(Some(property)),
        (None, Some(AdditionalProperties::Schema(schema))) => Below::Known(Some(schema)),
        (None, Some(AdditionalProperties::Allowed(_))) => Below::Known(None),
        (None, None) => Below::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_long_path_is_not_repeated_without_end() {
        let props = json!({"type": "object", "additionalProperties": {"type": "object"}});
        let fields: serde_json::Map<String, Value> = (0..50_000).map(|at| (format!("u{at}"), json!(1))).collect();
        let mut object = json!({ "k".repeat(1 << 20): fields });
        let unknown = prune(&mut object, &JsonSchemaProps::read(&props));
        assert!(!unknown.is_empty() && unknown.iter().map(String::len).sum::<usize>() <= 2 * MAX_PATH_BYTES);
        assert!(object.as_object().unwrap().values().all(|value| *value == json!({})), "all are removed");
    }

    #[test]
    fn unknown_fields_go_and_are_named() {
        let props = JsonSchemaProps::read(&json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"a": {"type": "integer"},
                "list": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "string"}}}},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    "properties": {"known": {"type": "object", "properties": {"k": {"type": "string"}}}}},
                "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"m": {"type": "string"}}}}}}}}));
        let mut object = json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "x"}, "other": 1,
            "spec": {"a": 1, "b": 2, "list": [{"x": "1", "y": 2}], "free": {"any": {"thing": 1}, "known": {"k": "1", "z": 2}},
                "map": {"key": {"m": "1", "n": 2}}}});
        let unknown = prune(&mut object, &props);
        assert_eq!(unknown, ["other", "spec.b", "spec.free.known.z", "spec.list[0].y", "spec.map.key.n"]);
        assert_eq!(
            object,
            json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "x"},
                "spec": {"a": 1, "list": [{"x": "1"}], "free": {"any": {"thing": 1}, "known": {"k": "1"}},
                    "map": {"key": {"m": "1"}}}})
        );
    }

    #[test]
    fn unwanted_nulls_go() {
        let props = JsonSchemaProps::read(&json!({"type": "object", "properties": {"a": {"type": "string"},
            "b": {"type": "string", "nullable": true}, "c": {"type": "string", "default": "x"},
            "d": {"type": "array", "items": {"type": "object", "properties": {"e": {"type": "string"}}}}}}));
        let mut object = json!({"a": null, "b": null, "c": null, "d": [{"e": null}], "f": null});
        prune_nulls(&mut object, Some(&props));
        assert_eq!(object, json!({"b": null, "c": null, "d": [{}], "f": null}));
    }
}
