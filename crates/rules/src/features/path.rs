//! Paths of fields in objects, through lists and maps: `containers|initContainers[].lifecycle?.stopSignal`. The table of gated
//! fields (`component-flags/src/gated_fields.txt`) describes how they are written.

use serde_json::{Map, Value};

const CONTAINERS: &str = "containers|initContainers|ephemeralContainers";
const STATUSES: &str = "containerStatuses|initContainerStatuses|ephemeralContainerStatuses";

/// Where a field is, in every element of the lists on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldPath {
    steps: Vec<Step>,
    condition: Condition,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    /// Fields of the same object.
    names: Vec<&'static str>,
    /// Whether the path goes on in every element.
    is_collection: bool,
    /// Whether the field is removed if the removal left it empty.
    is_pruned: bool,
}

/// Which values the path names.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    Any,
    /// All but this string.
    Other(&'static str),
    /// Objects with a string that is not empty in this field.
    With(&'static str),
}

impl FieldPath {
    pub fn parse(text: &'static str) -> Self {
        let (path, condition) = if let Some((path, value)) = text.split_once('!') {
            (path, Condition::Other(value))
        } else if let Some((path, field)) = text.split_once('~') {
            (path, Condition::With(field))
        } else {
            (text, Condition::Any)
        };
        FieldPath { steps: path.split('.').map(Step::parse).collect(), condition }
    }

    /// The same path in an object that contains the value it starts from.
    pub fn below(&self, parents: &'static str) -> Self {
        let steps = parents.split('.').map(Step::parse).chain(self.steps.iter().cloned()).collect();
        FieldPath { steps, condition: self.condition.clone() }
    }

    /// Whether the object has a value there.
    pub fn is_set(&self, object: &Value) -> bool {
        is_set(object, &self.steps, &self.condition)
    }

    /// Removes the field everywhere.
    pub fn remove(&self, object: &mut Value) {
        remove(object, &self.steps, &self.condition);
    }
}

impl Step {
    fn parse(text: &'static str) -> Self {
        let (text, is_pruned) = text.strip_suffix('?').map_or((text, false), |text| (text, true));
        let (text, is_collection) = text.strip_suffix("[]").map_or((text, false), |text| (text, true));
        let names = match text {
            "$containers" => CONTAINERS,
            "$statuses" => STATUSES,
            own => own,
        };
        Step { names: names.split('|').collect(), is_collection, is_pruned }
    }
}

impl Condition {
    fn holds(&self, value: &Value) -> bool {
        match self {
            Condition::Any => true,
            Condition::Other(text) => value != text,
            Condition::With(field) => value.get(field).and_then(Value::as_str).is_some_and(|text| !text.is_empty()),
        }
    }
}

fn is_set(object: &Value, steps: &[Step], condition: &Condition) -> bool {
    let Some((step, rest)) = steps.split_first() else {
        let is_empty = object.is_null() || object.as_array().is_some_and(Vec::is_empty);
        return !is_empty && condition.holds(object);
    };
    let mut values = step.names.iter().filter_map(|name| object.get(name));
    values.any(|value| match value {
        Value::Array(items) if step.is_collection => items.iter().any(|item| is_set(item, rest, condition)),
        Value::Object(fields) if step.is_collection => fields.values().any(|field| is_set(field, rest, condition)),
        _ if step.is_collection => false,
        value => is_set(value, rest, condition),
    })
}

/// Returns whether something was removed.
fn remove(object: &mut Value, steps: &[Step], condition: &Condition) -> bool {
    let (Some((step, rest)), Some(fields)) = (steps.split_first(), object.as_object_mut()) else { return false };
    let mut has_removed = false;
    for name in &step.names {
        let Some(value) = fields.get_mut(*name) else { continue };
        if rest.is_empty() {
            if condition.holds(value) {
                fields.remove(*name);
                has_removed = true;
            }
            continue;
        }
        let here = match value {
            Value::Array(items) if step.is_collection => remove_from_all(items.iter_mut(), rest, condition),
            Value::Object(values) if step.is_collection => remove_from_all(values.values_mut(), rest, condition),
            _ if step.is_collection => false,
            _ => remove(value, rest, condition),
        };
        has_removed |= here;
        if here && step.is_pruned && value.as_object().is_some_and(Map::is_empty) {
            fields.remove(*name);
        }
    }
    has_removed
}

fn remove_from_all<'a>(values: impl Iterator<Item = &'a mut Value>, rest: &[Step], condition: &Condition) -> bool {
    let mut has_removed = false;
    for value in values {
        has_removed |= remove(value, rest, condition);
    }
    has_removed
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_are_found_and_removed() {
        for (path, object, is_set, left) in [
            ("spec.a", json!({"spec": {"a": 1, "b": 2}}), true, json!({"spec": {"b": 2}})),
            ("spec.a", json!({"spec": {"b": 2}}), false, json!({"spec": {"b": 2}})),
            ("spec.a", json!({"spec": {"a": []}}), false, json!({"spec": {}})),
            ("spec.a", json!({"spec": {"a": null}}), false, json!({"spec": {}})),
            ("spec.a", json!({"spec": "text"}), false, json!({"spec": "text"})),
            ("a|b[].c|d", json!({"b": [{"c": 1}, {"d": 2, "e": 3}]}), true, json!({"b": [{}, {"e": 3}]})),
            ("a[].b", json!({"a": {"x": {"b": 1}, "y": {"c": 1}}}), true, json!({"a": {"x": {}, "y": {"c": 1}}})),
            ("a[].b", json!({"a": 7}), false, json!({"a": 7})),
            (
                "$containers[].lifecycle?.stopSignal",
                json!({"containers": [
                    {"lifecycle": {"stopSignal": "A"}}, {"lifecycle": {"stopSignal": "A", "preStop": {}}}, {"lifecycle": {}}
                ]}),
                true,
                json!({"containers": [{}, {"lifecycle": {"preStop": {}}}, {"lifecycle": {}}]}),
            ),
            (
                "a[].policy!Always",
                json!({"a": [{"policy": "Always"}, {"policy": "Never"}]}),
                true,
                json!({"a": [{"policy": "Always"}, {}]}),
            ),
            ("a.policy!Always", json!({"a": {"policy": "Always"}}), false, json!({"a": {"policy": "Always"}})),
            ("a.ref~namespace", json!({"a": {"ref": {"namespace": "n"}}}), true, json!({"a": {}})),
            (
                "a.ref~namespace",
                json!({"a": {"ref": {"namespace": ""}}}),
                false,
                json!({"a": {"ref": {"namespace": ""}}}),
            ),
        ] {
            let mut object = object;
            let parsed = FieldPath::parse(path);
            assert_eq!(parsed.is_set(&object), is_set, "{path} in {object}");
            parsed.remove(&mut object);
            assert_eq!(object, left, "{path}");
        }
    }
}
