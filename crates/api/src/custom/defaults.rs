//! Defaults of a schema.

use crate::json_schema::JsonSchemaProps;
use serde_json::Value;

/// How much memory the defaults of one object may take. An object that the store keeps takes less, even if it consists of
/// defaults of a few bytes; but a body has hundreds of thousands of places for them, and a definition says how long each is.
const MAX_BYTES: usize = 64 << 20;

/// Sets defaults for absent fields and for nulls that are not allowed. False if they would take too much memory: then some are
/// missing.
pub(super) fn set_defaults(value: &mut Value, props: &JsonSchemaProps) -> bool {
    let mut defaults = Defaults { left: MAX_BYTES };
    defaults.set(value, props).is_some()
}

struct Defaults {
    /// How much more memory they may take.
    left: usize,
}

impl Defaults {
    fn set(&mut self, value: &mut Value, props: &JsonSchemaProps) -> Option<()> {
        let forbidden_null = |value: &Value, props: &JsonSchemaProps| value.is_null() && !props.nullable;
        match value {
            Value::Object(fields) => {
                for (name, property) in &props.properties {
                    let Some(default) = &property.default else { continue };
                    if fields.get(name).is_none_or(|value| forbidden_null(value, property)) {
                        fields.insert(name.clone(), self.copy(name, default)?);
                    }
                }
                for (name, value) in fields.iter_mut() {
                    if let Some(property) = props.properties.get(name) {
                        self.set(value, property)?;
                    } else if let Some(additional) = props.additional_schema() {
                        self.set_item(value, additional, forbidden_null)?;
                    }
                }
            }
            Value::Array(items) => {
                let Some(element) = props.items.as_deref() else { return Some(()) };
                items.iter_mut().try_for_each(|item| self.set_item(item, element, forbidden_null))?;
            }
            _ => {}
        }
        Some(())
    }

    fn set_item(
        &mut self,
        item: &mut Value,
        props: &JsonSchemaProps,
        forbidden_null: impl Fn(&Value, &JsonSchemaProps) -> bool,
    ) -> Option<()> {
        if forbidden_null(item, props) {
            *item = match &props.default {
                Some(default) => self.copy("", default)?,
                None => Value::Null,
            };
        }
        self.set(item, props)
    }

    fn copy(&mut self, name: &str, default: &Value) -> Option<Value> {
        self.left = self.left.checked_sub(name.len() + memory(default))?;
        Some(default.clone())
    }
}

/// About the memory of a value in a list or an object.
fn memory(value: &Value) -> usize {
    const EACH: usize = 64;
    EACH + match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(memory).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + memory(value)).sum(),
        _ => 0,
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
        assert!(set_defaults(&mut object, &props));
        assert_eq!(
            object,
            json!({"a": "x", "n": null, "spec": {"b": 1}, "list": [{"c": true}, {"c": false}], "map": {"k": "z"}})
        );
    }

    #[test]
    fn long_defaults_are_not_repeated_without_end() {
        let item = json!({"type": "object", "default": {}, "properties": {"text": {"type": "string",
            "default": "x".repeat(10_000)}}});
        let props = JsonSchemaProps::read(&json!({"type": "object", "properties": {
            "list": {"type": "array", "items": item}, "map": {"type": "object", "additionalProperties": item}}}));
        let list = |count: usize| json!({"list": vec![json!(null); count]});
        let map = |count: usize| {
            let fields: serde_json::Map<String, Value> = (0..count).map(|at| (at.to_string(), json!({}))).collect();
            json!({ "map": fields })
        };
        assert!(set_defaults(&mut list(1_000), &props) && set_defaults(&mut map(1_000), &props));
        for mut object in [list(100_000), map(100_000)] {
            assert!(!set_defaults(&mut object, &props));
            assert!(object.to_string().len() < 2 * MAX_BYTES);
        }
    }
}
