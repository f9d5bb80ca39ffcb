//! Defaults of a schema.

use crate::json_schema::JsonSchemaProps;
use serde_json::Value;

/// Sets defaults for absent fields and for nulls that are not allowed.
pub(super) fn set_defaults(value: &mut Value, props: &JsonSchemaProps) {
    let forbidden_null = |value: &Value, props: &JsonSchemaProps| value.is_null() && !props.nullable;
    match value {
        Value::Object(fields) => {
            for (name, property) in &props.properties {
                let Some(default) = &property.default else { continue };
                if fields.get(name).is_none_or(|value| forbidden_null(value, property)) {
                    fields.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in fields.iter_mut() {
                if let Some(property) = props.properties.get(name) {
                    set_defaults(value, property);
                } else if let Some(additional) = props.additional_schema() {
                    if forbidden_null(value, additional) {
                        *value = additional.default.clone().unwrap_or_default();
                    }
                    set_defaults(value, additional);
                }
            }
        }
        Value::Array(items) => {
            let Some(element) = props.items.as_deref() else { return };
            for item in items {
                if forbidden_null(item, element) {
                    *item = element.default.clone().unwrap_or_default();
                }
                set_defaults(item, element);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn defaults_fill_what_is_missing() {
        let props = JsonSchemaProps::read(&json!({"type": "object", "properties": {
            "a": {"type": "string", "default": "x"}, "n": {"type": "string", "nullable": true, "default": "y"},
            "spec": {"type": "object", "default": {}, "properties": {"b": {"type": "integer", "default": 1}}},
            "list": {"type": "array", "items": {"type": "object", "properties": {"c": {"type": "boolean", "default": true}}}},
            "map": {"type": "object", "additionalProperties": {"type": "string", "default": "z"}}}}));
        let mut object = json!({"a": null, "n": null, "list": [{}, {"c": false}], "map": {"k": null}});
        set_defaults(&mut object, &props);
        assert_eq!(
            object,
            json!({"a": "x", "n": null, "spec": {"b": 1}, "list": [{"c": true}, {"c": false}], "map": {"k": "z"}})
        );
    }
}
