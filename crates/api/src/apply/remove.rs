//! Removal of paths from an object.

use super::element::PathElement;
use super::set::Set;
use super::typing::{Atom, ListAtom, Type, element_of};
use serde_json::{Map, Value};

/// The value without the given paths. Values that become empty, and atomic values, become null.
pub(super) fn remove(value: &Value, paths: &Set, kind: Type<'_>) -> Value {
    match (kind.atom(Some(value)), value) {
        (Atom::Scalar(_), value) => value.clone(),
        (Atom::List(ListAtom::Associative { list, element }), Value::Array(items)) => {
            let kept: Vec<Value> = items
                .iter()
                .filter_map(|item| {
                    let entry = element_of(list, element, item).ok().and_then(|found| paths.get(&found));
                    match entry {
                        Some(entry) if entry.member => None,
                        Some(entry) => Some(remove(item, &entry.below, Type::Node(element))),
                        None => Some(item.clone()),
                    }
                })
                .collect();
            if kept.is_empty() { Value::Null } else { Value::Array(kept) }
        }
        (Atom::Map(map), Value::Object(fields)) if !map.atomic => {
            let mut kept = Map::new();
            for (name, value) in fields {
                let value = match paths.get(&PathElement::field(name)) {
                    Some(entry) if entry.member => continue,
                    Some(entry) => remove(value, &entry.below, map.child(name).unwrap_or(Type::Deduced)),
                    None => value.clone(),
                };
                kept.insert(name.clone(), value);
            }
            if kept.is_empty() { Value::Null } else { Value::Object(kept) }
        }
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::super::fields_v1;
    use super::*;
    use crate::schema::builtin;
    use serde_json::json;

    #[test]
    fn paths_are_removed() {
        let node = builtin().kind("", "v1", "Pod").expect("pod");
        let paths = json!({"f:metadata": {"f:labels": {"f:a": {}}}, "f:spec": {"f:priority": {},
            "f:containers": {"k:{\"name\":\"c\"}": {}, "k:{\"name\":\"d\"}": {"f:image": {}}}}});
        let pod = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"priority": 1, "hostNetwork": true,
            "containers": [{"name": "c"}, {"name": "d", "image": "x"}]}});
        assert_eq!(
            remove(&pod, &fields_v1::decode(&paths).expect("set"), Type::Node(node)),
            json!({"metadata": {"labels": null}, "spec": {"hostNetwork": true, "containers": [{"name": "d"}]}})
        );
    }
}
