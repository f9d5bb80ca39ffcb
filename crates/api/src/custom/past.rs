//! Values before and after an update: which belong together, and whether they are the same.

use super::props::Props;
use serde_json::Value;

/// A value after an update and the one it was before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Past<'v> {
    pub new: &'v Value,
    pub old: &'v Value,
    props: &'v Props,
}

impl<'v> Past<'v> {
    pub fn new(new: &'v Value, old: &'v Value, props: &'v Props) -> Self {
        Past { new, old, props }
    }

    /// What an object holds under a name, where both have it and the schema knows it.
    pub fn field(&self, name: &str) -> Option<Past<'v>> {
        Some(Past { new: self.new.get(name)?, old: self.old.get(name)?, props: self.props.child(name)? })
    }

    /// An element of a list that is a map, with the one that had the same keys.
    pub fn element(&self, at: usize) -> Option<Past<'v>> {
        let new = self.new.as_array()?.get(at)?;
        let old = keyed(new, self.old, self.props)?;
        Some(Past { new, old, props: self.props.items.as_deref()? })
    }

    /// Whether nothing changed, as far as that can be told: what the schema does not know counts as changed.
    pub fn is_unchanged(&self) -> bool {
        match (self.new, self.old) {
            (Value::Array(new), Value::Array(old)) => {
                if self.props.list_type.as_deref() != Some("map") {
                    return new == old;
                }
                let same = |at: usize| self.element(at).is_some_and(|element| element.is_unchanged());
                new.len() == old.len() && (0..new.len()).all(same)
            }
            (Value::Object(new), Value::Object(old)) => {
                let same = |name: &String| self.field(name).is_some_and(|field| field.is_unchanged());
                new.len() == old.len() && new.keys().all(same)
            }
            (new, old) => new == old,
        }
    }
}

/// The element that has the same keys as another, in a list that is a map.
pub(super) fn keyed<'v>(item: &Value, list: &'v Value, props: &Props) -> Option<&'v Value> {
    if props.list_type.as_deref() != Some("map") {
        return None;
    }
    let key = |element: &Value| -> Option<Vec<Value>> {
        props.list_map_keys.iter().map(|key| element.get(key).cloned()).collect()
    };
    let wanted = key(item)?;
    list.as_array()?.iter().find(|element| key(element).as_ref() == Some(&wanted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_what_the_schema_knows_can_be_unchanged() {
        let props = Props::read(
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
            assert_eq!(Past::new(&new, &old, &props).is_unchanged(), expected, "{new} {old}");
        }
    }
}
