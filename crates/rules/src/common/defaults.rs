//! Setting a field where nothing is. A field that is present but empty counts as nothing where Kubernetes has no way to
//! tell the two apart.

use serde_json::{Map, Value};

pub type Fields = Map<String, Value>;

/// Sets a text where there is none or an empty one.
pub fn text(fields: &mut Fields, name: &str, value: &str) {
    if fields.get(name).and_then(Value::as_str).unwrap_or_default().is_empty() {
        fields.insert(name.to_owned(), Value::from(value));
    }
}

/// Sets a number where there is none or zero.
pub fn number(fields: &mut Fields, name: &str, value: i64) {
    if fields.get(name).and_then(Value::as_i64).unwrap_or_default() == 0 {
        fields.insert(name.to_owned(), Value::from(value));
    }
}

/// Sets any value where there is none; what is empty stays.
pub fn value(fields: &mut Fields, name: &str, value: impl Into<Value>) {
    if fields.get(name).is_none_or(Value::is_null) {
        fields.insert(name.to_owned(), value.into());
    }
}

/// The object in a field, if there is one.
pub fn object<'a>(fields: &'a mut Fields, name: &str) -> Option<&'a mut Fields> {
    fields.get_mut(name)?.as_object_mut()
}

/// The object in a field, which is made if there is none.
pub fn object_or_new<'a>(fields: &'a mut Fields, name: &str) -> &'a mut Fields {
    if !fields.get(name).is_some_and(Value::is_object) {
        fields.insert(name.to_owned(), Value::Object(Map::new()));
    }
    match fields.get_mut(name) {
        Some(Value::Object(inner)) => inner,
        _ => unreachable!("it was made an object above"),
    }
}

/// The objects of a list in a field.
pub fn objects<'a>(fields: &'a mut Fields, name: &str) -> impl Iterator<Item = &'a mut Fields> {
    fields.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

pub fn has(fields: &Fields, name: &str) -> bool {
    fields.get(name).is_some_and(|value| !value.is_null())
}
