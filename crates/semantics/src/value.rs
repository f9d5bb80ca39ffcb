//! Reading and writing fields of JSON objects by path, and the names of their types.

use serde_json::{Map, Value};

/// The type of a value as Go names it, in messages of Kubernetes.
pub fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// The type of a value as JSON names it, in messages of libraries that Kubernetes uses.
pub fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Reads at a path such as `["spec", "nodeName"]`. Absent values and values of another type are empty.
pub trait Read {
    /// The value at a path, or null.
    fn at(&self, path: &[&str]) -> &Value;
    /// The string at a path, or an empty one.
    fn text(&self, path: &[&str]) -> &str;
    /// The integer at a path.
    fn integer(&self, path: &[&str]) -> Option<i64>;
    /// The boolean at a path.
    fn flag(&self, path: &[&str]) -> Option<bool>;
    /// The list at a path, or an empty one.
    fn items(&self, path: &[&str]) -> &[Value];
    /// The object at a path.
    fn fields(&self, path: &[&str]) -> Option<&Map<String, Value>>;
    /// Whether there is a value other than null at a path.
    fn has(&self, path: &[&str]) -> bool {
        !self.at(path).is_null()
    }
}

impl Read for Value {
    fn at(&self, path: &[&str]) -> &Value {
        path.iter().fold(self, |value, key| value.get(key).unwrap_or(&Value::Null))
    }

    fn text(&self, path: &[&str]) -> &str {
        self.at(path).as_str().unwrap_or_default()
    }

    fn integer(&self, path: &[&str]) -> Option<i64> {
        self.at(path).as_i64()
    }

    fn flag(&self, path: &[&str]) -> Option<bool> {
        self.at(path).as_bool()
    }

    fn items(&self, path: &[&str]) -> &[Value] {
        self.at(path).as_array().map_or(&[], Vec::as_slice)
    }

    fn fields(&self, path: &[&str]) -> Option<&Map<String, Value>> {
        self.at(path).as_object()
    }
}

/// Writes at a path; creates the objects on the way.
pub trait Write {
    /// The object at a path, created if it is absent.
    fn object(&mut self, path: &[&str]) -> &mut Map<String, Value>;
    /// Sets the value at a path.
    fn set(&mut self, path: &[&str], value: impl Into<Value>);
    /// Sets the value at a path if it is absent or null.
    fn set_default(&mut self, path: &[&str], value: impl Into<Value>);
    /// Removes the value at a path and returns it.
    fn remove(&mut self, path: &[&str]) -> Option<Value>;
    /// The list at a path, or an empty one.
    fn items_mut(&mut self, path: &[&str]) -> &mut [Value];
    /// The value at a path, if there is one.
    fn find(&mut self, path: &[&str]) -> Option<&mut Value>;
}

impl Write for Value {
    fn object(&mut self, path: &[&str]) -> &mut Map<String, Value> {
        let mut at = self;
        for key in path {
            at = as_object(at).entry(*key).or_insert(Value::Null);
        }
        as_object(at)
    }

    fn set(&mut self, path: &[&str], value: impl Into<Value>) {
        if let Some((last, parents)) = path.split_last() {
            self.object(parents).insert((*last).to_owned(), value.into());
        }
    }

    fn set_default(&mut self, path: &[&str], value: impl Into<Value>) {
        if self.at(path).is_null() {
            self.set(path, value);
        }
    }

    fn remove(&mut self, path: &[&str]) -> Option<Value> {
        let (last, parents) = path.split_last()?;
        self.find(parents)?.as_object_mut()?.remove(*last)
    }

    fn items_mut(&mut self, path: &[&str]) -> &mut [Value] {
        self.find(path).and_then(Value::as_array_mut).map_or(&mut [], Vec::as_mut_slice)
    }

    fn find(&mut self, path: &[&str]) -> Option<&mut Value> {
        path.iter().try_fold(self, |value, key| value.get_mut(key))
    }
}

fn as_object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(object) => object,
        _ => unreachable!("it became an object above"),
    }
}

/// The condition of a type in the status of an object.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object.items(&["status", "conditions"]).iter().find(|condition| condition.text(&["type"]) == kind)
}

/// Whether the condition of a type is true.
pub fn has_condition(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|condition| condition.text(&["status"]) == "True")
}

/// The nesting depth of a value, or none if that takes more visits than are left in `visits`.
/// Does not recurse, so that deep values cannot overflow the stack.
pub fn depth(value: &Value, visits: &mut usize) -> Option<usize> {
    let mut deepest = 0;
    let mut open = vec![(value, 0)];
    while let Some((value, above)) = open.pop() {
        let own = match value {
            Value::Array(items) => {
                *visits = visits.checked_sub(items.len())?;
                open.extend(items.iter().filter(|item| is_nested(item)).map(|item| (item, above + 1)));
                above + 1
            }
            Value::Object(fields) => {
                *visits = visits.checked_sub(fields.len())?;
                open.extend(fields.values().filter(|field| is_nested(field)).map(|field| (field, above + 1)));
                above + 1
            }
            _ => above,
        };
        deepest = deepest.max(own);
    }
    Some(deepest)
}

fn is_nested(value: &Value) -> bool {
    value.is_array() || value.is_object()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn depths_are_measured_within_a_number_of_visits() {
        for (value, expected) in [(json!(1), 0), (json!([]), 1), (json!({"a": [1, {"b": 2}], "c": 1}), 3)] {
            assert_eq!(depth(&value, &mut 10), Some(expected), "{value}");
        }
        assert_eq!(depth(&json!([1, 2, 3]), &mut 2), None);
    }

    #[test]
    fn absent_values_are_empty_and_writes_create_parents() {
        let mut object = json!({"spec": {"replicas": 2}});
        assert_eq!(object.integer(&["spec", "replicas"]), Some(2));
        assert_eq!(object.text(&["spec", "none", "deep"]), "");
        object.set_default(&["spec", "replicas"], 1);
        object.set_default(&["spec", "strategy", "type"], "RollingUpdate");
        assert_eq!(object, json!({"spec": {"replicas": 2, "strategy": {"type": "RollingUpdate"}}}));
        assert_eq!(object.remove(&["spec", "replicas"]), Some(json!(2)));
    }
}
