//! Validation of the defaults inside schemas.

use knarr_api::custom;
use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

use super::schema_fields;

/// Reports defaults that violate their schema, or (`pruned`) have fields that it does not specify.
pub fn validate(errors: &mut Errors, path: &Path<'_>, schema: &Value, pruned: bool) {
    let default = &schema["default"];
    if !default.is_null() {
        let at = path.child("default");
        if pruned && has_unknown(default, schema) {
            errors.invalid(&at, default.clone(), "must not have unknown fields");
        }
        errors.extend(custom::check_value(&at, schema, default));
    }
    if schema["items"].is_object() {
        validate(errors, &path.child("items"), &schema["items"], pruned);
    }
    let properties = path.child("properties");
    for (name, property) in schema.fields(&["properties"]).into_iter().flatten() {
        validate(errors, &properties.key(name), property, pruned);
    }
}

/// Returns whether any default in the schema has a field that its schema does not specify.
pub fn any_unknown(schema: &Value) -> bool {
    schema_fields::any(schema, &mut |schema| schema.has(&["default"]) && has_unknown(&schema["default"], schema))
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
    fn unknown_fields_in_defaults_are_reported() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "object", "default": {"x": 1, "y": 2},
            "properties": {"x": {"type": "integer"}}}}});
        let mut errors = Errors::new();
        validate(&mut errors, &Path::root("s"), &schema, true);
        let read: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
        assert_eq!(read, ["s.properties[a].default: Invalid value: {\"x\":1,\"y\":2}: must not have unknown fields"]);
    }
}
