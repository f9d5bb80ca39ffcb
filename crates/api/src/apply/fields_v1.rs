//! The FieldsV1 encoding of path sets: nested JSON objects whose keys are path elements.

use super::element::{NoElement, PathElement};
use super::set::{Entry, Set};
use serde_json::{Map, Value};

/// The key that says that the path to the object is in the set itself.
const SELF: &str = ".";

/// Writes a set as FieldsV1.
pub fn encode(set: &Set) -> Value {
    Value::Object(contents(set, false))
}

fn contents(set: &Set, is_member: bool) -> Map<String, Value> {
    let mut fields = Map::new();
    if is_member && !set.entries().is_empty() {
        fields.insert(SELF.to_owned(), Value::Object(Map::new()));
    }
    for entry in set.entries() {
        fields.insert(entry.element.encode(), Value::Object(contents(&entry.below, entry.member)));
    }
    fields
}

/// Decodes a set; elements of unknown kinds are skipped.
pub fn decode(value: &Value) -> Result<Set, String> {
    match value {
        Value::Object(fields) => read(fields).map(|(set, _)| set),
        Value::Null => Ok(Set::default()),
        _ => Err("fieldsV1 must be an object".to_owned()),
    }
}

fn read(fields: &Map<String, Value>) -> Result<(Set, bool), String> {
    let mut entries = Vec::with_capacity(fields.len());
    let mut is_member = false;
    for (key, value) in fields {
        if key == SELF {
            is_member = true;
            continue;
        }
        let element = match PathElement::decode(key) {
            Ok(element) => element,
            Err(NoElement::Unknown) => continue,
            Err(NoElement::Malformed(message)) => return Err(format!("parsing key as path element: {message}")),
        };
        let (below, member) = match value {
            Value::Object(fields) => read(fields)?,
            _ => (Set::default(), true),
        };
        entries.push(Entry { element, member, below });
    }
    let set = Set::from_unsorted(entries);
    let is_member = is_member || set.entries().is_empty();
    Ok((set, is_member))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sets_survive_the_round_trip() {
        let fields = json!({"f:metadata": {"f:labels": {".": {}, "f:app": {}}}, "f:spec": {"f:containers": {
            "k:{\"name\":\"c\"}": {".": {}, "f:image": {}, "f:ports": {".": {},
                "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}}}},
            "f:finalizers": {"v:\"a\"": {}}, "f:x": {"i:0": {}}}});
        let set = decode(&fields).expect("set");
        assert_eq!(encode(&set), fields);
        assert_eq!(encode(&set.union(&set)), fields);
    }

    #[test]
    fn unknown_elements_are_skipped_and_broken_ones_refused() {
        assert_eq!(encode(&decode(&json!({"q:x": {"f:a": {}}, "f:b": {}})).expect("set")), json!({"f:b": {}}));
        assert!(decode(&json!({"k:{": {}})).is_err());
        assert!(decode(&json!([])).is_err());
    }
}
