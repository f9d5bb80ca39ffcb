//! Values before and after an update: which correspond to each other, and whether they are equal.

use crate::json_schema::JsonSchemaProps;
use serde_json::Value;
use std::collections::HashMap;

/// A value after an update and the corresponding value before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct CorrelatedValue<'v> {
    pub new: &'v Value,
    pub old: &'v Value,
    props: &'v JsonSchemaProps,
}

impl<'v> CorrelatedValue<'v> {
    /// The new and the old value of the same place, with its schema.
    pub fn new(new: &'v Value, old: &'v Value, props: &'v JsonSchemaProps) -> Self {
        CorrelatedValue { new, old, props }
    }

    /// The field of that name, if both objects have it and the schema describes it.
    pub fn field(&self, name: &str) -> Option<CorrelatedValue<'v>> {
        Some(CorrelatedValue { new: self.new.get(name)?, old: self.old.get(name)?, props: self.props.child(name)? })
    }

    /// The elements of a list with `x-kubernetes-list-type: map`, correlated by their keys.
    pub fn elements(&self) -> Option<CorrelatedElements<'v>> {
        let props = self.props.items.as_deref()?;
        Some(CorrelatedElements { new: self.new.as_array()?, old: KeyedElements::new(self.old, self.props)?, props })
    }

    /// Whether the values are equal. Fields that the schema does not describe count as changed.
    pub fn is_unchanged(&self) -> bool {
        match (self.new, self.old) {
            (Value::Array(new), Value::Array(old)) => {
                if self.props.list_type.as_deref() != Some("map") {
                    return new == old;
                }
                if new.len() != old.len() {
                    return false;
                }
                let Some(elements) = self.elements() else { return new.is_empty() };
                (0..new.len()).all(|at| elements.at(at).is_some_and(|element| element.is_unchanged()))
            }
            (Value::Object(new), Value::Object(old)) => {
                let same = |name: &String| self.field(name).is_some_and(|field| field.is_unchanged());
                new.len() == old.len() && new.keys().all(same)
            }
            (new, old) => new == old,
        }
    }
}

/// The elements of a list after an update, with those before it indexed by key.
pub(super) struct CorrelatedElements<'v> {
    new: &'v [Value],
    old: KeyedElements<'v>,
    props: &'v JsonSchemaProps,
}

impl<'v> CorrelatedElements<'v> {
    /// The new element at an index and the old element with the same keys.
    pub fn at(&self, at: usize) -> Option<CorrelatedValue<'v>> {
        let new = self.new.get(at)?;
        Some(CorrelatedValue { new, old: self.old.get(new)?, props: self.props })
    }
}

/// The elements of a list with `x-kubernetes-list-type: map`, indexed by their keys.
///
/// Lists can have a hundred thousand elements, so that a search for each would take quadratic time.
pub(super) struct KeyedElements<'v> {
    by_key: HashMap<String, &'v Value>,
    key_names: Vec<String>,
}

impl<'v> KeyedElements<'v> {
    /// None if the value is not such a list.
    pub fn new(list: &'v Value, props: &JsonSchemaProps) -> Option<Self> {
        if props.list_type.as_deref() != Some("map") {
            return None;
        }
        let key_names = props.list_map_keys.clone();
        let mut by_key = HashMap::new();
        for element in list.as_array()? {
            if let Some(key) = key(element, &key_names) {
                by_key.entry(key).or_insert(element);
            }
        }
        Some(KeyedElements { by_key, key_names })
    }

    /// The first element with the same keys as `item`.
    pub fn get(&self, item: &Value) -> Option<&'v Value> {
        self.by_key.get(&key(item, &self.key_names)?).copied()
    }
}

fn key(element: &Value, names: &[String]) -> Option<String> {
    let values: Option<Vec<&Value>> = names.iter().map(|name| element.get(name)).collect();
    serde_json::to_string(&values?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_described_fields_can_be_unchanged() {
        let props = JsonSchemaProps::read(
            &json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
            "a": {"type": "integer"}, "list": {"type": "array", "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "properties": {"k": {"type": "string"}}}}}}),
        );
        for (new, old, expected) in [
            (json!({"a": 1}), json!({"a": 1}), true),
            (json!({"a": 1}), json!({"a": 2}), false),
            (json!({"a": 1, "other": 1}), json!({"a": 1, "other": 1}), false),
            (json!({"list": [{"k": "a"}, {"k": "b"}]}), json!({"list": [{"k": "b"}, {"k": "a"}]}), true),
            (json!({"list": [{}]}), json!({"list": [{}]}), false),
        ] {
            assert_eq!(CorrelatedValue::new(&new, &old, &props).is_unchanged(), expected, "{new} {old}");
        }
    }
}
