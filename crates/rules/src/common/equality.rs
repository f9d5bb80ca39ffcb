//! Semantic equality: absent, null and empty values are equal, and so are quantities of equal value.

use knarr_api::quantity::Quantity;
use serde_json::{Map, Value};

/// Returns whether two values are semantically equal (upstream: `apiequality.Semantic.DeepEqual`).
pub fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => same_fields(a, b),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        _ => a == b || (is_empty(a) && is_empty(b)),
    }
}

fn same_fields(a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
    let absent = Value::Null;
    let covers = |left: &Map<String, Value>, right: &Map<String, Value>| {
        left.iter().all(|(name, value)| {
            let other = right.get(name).unwrap_or(&absent);
            if holds_quantities(name) {
                same_quantities(value, other)
            } else {
                same(value, other) || (is_map(name) && other.is_null() && value.as_object().is_some_and(Map::is_empty))
            }
        })
    };
    let is_nothing =
        |name: &str, value: &Value| is_empty(value) || (is_map(name) && value.as_object().is_some_and(Map::is_empty));
    covers(a, b) && b.iter().all(|(name, value)| a.contains_key(name) || is_nothing(name, value))
}

/// Returns whether a value counts as absent. An empty object does not, because it is a pointer that is set.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::Object(_) => false,
    }
}

/// Fields that are maps; an empty one counts as absent.
fn is_map(name: &str) -> bool {
    holds_quantities(name)
        || matches!(name, "labels" | "annotations" | "nodeSelector" | "matchLabels" | "data" | "selector")
}

fn holds_quantities(name: &str) -> bool {
    matches!(
        name,
        "limits" | "requests" | "capacity" | "allocatable" | "overhead" | "hard" | "used" | "allocatedResources"
    )
}

fn same_quantities(a: &Value, b: &Value) -> bool {
    let empty = Map::new();
    let (Some(a), Some(b)) = (a.as_object().or(Some(&empty)), b.as_object().or(Some(&empty))) else { return a == b };
    let equal = |left: &Value, right: &Value| {
        left == right
            || match (left.as_str().map(Quantity::parse), right.as_str().map(Quantity::parse)) {
                (Some(Ok(left)), Some(Ok(right))) => left == right,
                _ => same(left, right),
            }
    };
    a.len() == b.len() && a.iter().all(|(name, value)| b.get(name).is_some_and(|other| equal(value, other)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn meaning_is_compared() {
        for (a, b, expected) in [
            (json!({"a": []}), json!({}), true),
            (json!({"a": null, "b": 1}), json!({"b": 1}), true),
            (json!({"a": {}}), json!({}), false),
            (json!({"limits": {"cpu": "1000m"}}), json!({"limits": {"cpu": "1"}}), true),
            (json!({"limits": {"cpu": "1"}}), json!({"limits": {"cpu": "2"}}), false),
            (json!({"limits": {}}), json!({}), true),
            (json!({"labels": {}}), json!({}), true),
            (json!([1, 2]), json!([1]), false),
        ] {
            assert_eq!(same(&a, &b), expected, "{a} {b}");
            assert_eq!(same(&b, &a), expected, "{b} {a}");
        }
    }
}
