//! Helpers that set the default of a field. An empty field counts as absent where Kubernetes cannot tell them apart.

use serde_json::{Map, Value};

/// The fields of a JSON object.
pub type Fields = Map<String, Value>;

/// Sets a string if the field is absent or empty.
pub fn text(fields: &mut Fields, name: &str, value: &str) {
    if fields.get(name).and_then(Value::as_str).unwrap_or_default().is_empty() {
        fields.insert(name.to_owned(), Value::from(value));
    }
}

/// Sets a number if the field is absent or zero.
pub fn number(fields: &mut Fields, name: &str, value: i64) {
    if fields.get(name).and_then(Value::as_i64).unwrap_or_default() == 0 {
        fields.insert(name.to_owned(), Value::from(value));
    }
}

/// Sets a value if the field is absent; an empty value is kept.
pub fn value(fields: &mut Fields, name: &str, value: impl Into<Value>) {
    if fields.get(name).is_none_or(Value::is_null) {
        fields.insert(name.to_owned(), value.into());
    }
}

/// Returns the object in a field, if any.
pub fn object<'a>(fields: &'a mut Fields, name: &str) -> Option<&'a mut Fields> {
    fields.get_mut(name)?.as_object_mut()
}

/// Returns the object in a field, which is created if absent.
pub fn object_or_new<'a>(fields: &'a mut Fields, name: &str) -> &'a mut Fields {
    if !fields.get(name).is_some_and(Value::is_object) {
        fields.insert(name.to_owned(), Value::Object(Map::new()));
    }
    match fields.get_mut(name) {
        Some(Value::Object(inner)) => inner,
        _ => unreachable!("it was made an object above"),
    }
}

/// Returns the objects of a list.
pub fn objects<'a>(fields: &'a mut Fields, name: &str) -> impl Iterator<Item = &'a mut Fields> {
    fields.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

/// Returns whether a field is present.
pub fn has(fields: &Fields, name: &str) -> bool {
    fields.get(name).is_some_and(|value| !value.is_null())
}
