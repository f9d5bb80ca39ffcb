//! Validation of embedded resources (`x-kubernetes-embedded-resource`).

use crate::field::{Errors, Path};
use crate::json_schema::JsonSchemaProps;
use crate::names;
use serde_json::{Map, Value};

/// Checks `apiVersion` and `kind` of the resources embedded in a value. Their metadata is not checked.
pub(super) fn check_embedded(value: &Value, props: &JsonSchemaProps, path: &Path<'_>, errors: &mut Errors) {
    match value {
        Value::Object(fields) => {
            if props.embedded {
                check_kind(fields, path, errors);
            }
            for (name, value) in fields {
                if let Some(property) = props.properties.get(name) {
                    check_embedded(value, property, &path.child(name), errors);
                } else if let Some(additional) = props.additional_schema() {
                    check_embedded(value, additional, &path.key(name), errors);
                }
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                if let Some(element) = props.items.as_deref() {
                    check_embedded(item, element, &path.index(at), errors);
                }
            }
        }
        _ => {}
    }
}

fn check_kind(fields: &Map<String, Value>, path: &Path<'_>, errors: &mut Errors) {
    for name in ["apiVersion", "kind"] {
        let path = path.child(name);
        match fields.get(name) {
            None => errors.required(&path, ""),
            Some(Value::String(text)) if text.is_empty() => errors.invalid(&path, "", "must not be empty"),
            Some(Value::String(text)) if name == "apiVersion" => {
                if text.matches('/').count() > 1 {
                    errors.invalid(&path, text.as_str(), format!("unexpected GroupVersion string: {text}"));
                }
            }
            Some(Value::String(text)) => {
                let wrong = names::dns_1035_label(&text.to_lowercase());
                if !wrong.is_empty() {
                    let detail = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
                    errors.invalid(&path, text.as_str(), detail);
                }
            }
            Some(other) => errors.invalid(&path, other.clone(), "must be a string"),
        }
    }
}
