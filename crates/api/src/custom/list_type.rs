//! Lists of type `set` and `map` must not contain an element twice.

use crate::field::{Errors, Path};
use crate::json_schema::JsonSchemaProps;
use serde_json::{Map, Value};
use std::collections::HashMap;

/// Finds the second occurrence of every element that occurs more than once.
pub(super) fn check_lists(value: &Value, props: &JsonSchemaProps, path: &Path<'_>, errors: &mut Errors) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if let Some(additional) = props.additional_schema() {
                    check_lists(value, additional, &path.key(name), errors);
                }
                if let Some(property) = props.properties.get(name) {
                    check_lists(value, property, &path.child(name), errors);
                }
            }
        }
        Value::Array(items) => {
            match props.list_type.as_deref() {
                Some("set") => {
                    for at in repeated(items.iter()) {
                        errors.duplicate(&path.index(at), items[at].clone());
                    }
                }
                Some("map") => check_keys(items, props, path, errors),
                _ => {}
            }
            if let Some(element) = props.items.as_deref() {
                for (at, item) in items.iter().enumerate() {
                    check_lists(item, element, &path.index(at), errors);
                }
            }
        }
        _ => {}
    }
}

fn check_keys(items: &[Value], props: &JsonSchemaProps, path: &Path<'_>, errors: &mut Errors) {
    if let Some(at) = items.iter().position(|item| !item.is_object() && !item.is_null()) {
        let detail = "must be an object for an array of list-type map";
        return errors.invalid(&path.index(at), items[at].clone(), detail);
    }
    let key_of = |item: &Value| {
        let fields = props.list_map_keys.iter().filter_map(|key| Some((key.clone(), item.get(key)?.clone())));
        Value::Object(fields.collect::<Map<String, Value>>())
    };
    let keys: Vec<Value> = items.iter().map(key_of).collect();
    for at in repeated(keys.iter()) {
        errors.duplicate(&path.index(at), keys[at].clone());
    }
}

/// The indices at which a value occurs for the second time.
fn repeated<'v>(values: impl Iterator<Item = &'v Value>) -> Vec<usize> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut places = Vec::new();
    for (at, value) in values.enumerate() {
        let times = seen.entry(value.to_string()).or_default();
        *times += 1;
        if *times == 2 {
            places.push(at);
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn repeated_elements_are_found_once() {
        let props = JsonSchemaProps::read(&json!({"type": "object", "properties": {
            "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "properties": {"name": {"type": "string"}}}}}}));
        let object = json!({"set": ["a", "b", "a", "a"], "map": [{"name": "x"}, {"name": "x", "y": 1}, {}, {}]});
        let mut errors = Errors::new();
        check_lists(&object, &props, &Path::root(""), &mut errors);
        let found: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                r#"map[1]: Duplicate value: {"name":"x"}"#,
                "map[3]: Duplicate value: {}",
                r#"set[2]: Duplicate value: "a""#,
            ]
        );
    }
}
