//! Defaults inside schemas must themselves fit the schema.

use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

/// Defaults with fields that their schema does not know.
pub fn validate_pruned(errors: &mut Errors, path: &Path<'_>, schema: &Value) {
    let default = &schema["default"];
    if !default.is_null() && has_unknown(default, schema) {
        errors.invalid(&path.child("default"), default.clone(), "must not have unknown fields");
    }
    if schema["items"].is_object() {
        validate_pruned(errors, &path.child("items"), &schema["items"]);
    }
    let properties = path.child("properties");
    for (name, property) in schema.fields(&["properties"]).into_iter().flatten() {
        validate_pruned(errors, &properties.key(name), property);
    }
}

/// Whether any default in the schema has a field that its schema does not know.
pub fn any_unknown(schema: &Value) -> bool {
    let mut errors = Errors::new();
    validate_pruned(&mut errors, &Path::default(), schema);
    !errors.is_empty()
}

fn has_unknown(value: &Value, schema: &Value) -> bool {
    match value {
        Value::Array(items) => {
            let schema = &schema["items"];
            !schema.is_null() && items.iter().any(|item| has_unknown(item, schema))
        }
        Value::Object(fields) => {
            let keeps = schema["x-kubernetes-preserve-unknown-fields"] == true;
            let embedded = schema["x-kubernetes-embedded-resource"] == true;
            fields.iter().any(|(name, value)| {
                if embedded && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                    return false;
                }
                match (schema.at(&["properties", name]), &schema["additionalProperties"]) {
                    (Value::Null, Value::Bool(true)) => false,
                    (Value::Null, additional @ Value::Object(_)) => has_unknown(value, additional),
                    (Value::Null, _) => !keeps,
                    (property, _) => has_unknown(value, property),
                }
            })
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unknown_fields_in_defaults_are_told() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "object", "default": {"x": 1, "y": 2},
            "properties": {"x": {"type": "integer"}}}}});
        let mut errors = Errors::new();
        validate_pruned(&mut errors, &Path::root("s"), &schema);
        let read: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
        assert_eq!(read, ["s.properties[a].default: Invalid value: {\"x\":1,\"y\":2}: must not have unknown fields"]);
    }
}
