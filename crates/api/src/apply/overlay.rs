//! Apply configurations without field ownership, as mutating admission policies use them.

use serde_json::Value;

use super::element::PathElement;
use super::merge::merge;
use super::typing::{Atom, ListAtom, Type};
use super::validate::validate;
use crate::schema::NodeRef;

/// The object with the fields that the configuration sets. Atomic values are refused, since a configuration would
/// remove the fields that it does not name.
pub fn overlay(object: &Value, configuration: &Value, node: NodeRef<'_>) -> Result<Value, String> {
    let kind = Type::Node(node);
    validate(configuration, kind).map_err(|why| format!("failed to convert patch object to typed object: {why}"))?;
    let mut wholes = Vec::new();
    find_wholes(configuration, kind, &mut String::new(), &mut wholes);
    if !wholes.is_empty() {
        let wholes = wholes.join(", ");
        return Err(format!("invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {wholes}"));
    }
    merge(object, configuration, kind).map_err(|why| format!("failed to merge patch: {why}"))
}

fn find_wholes(value: &Value, kind: Type<'_>, path: &mut String, wholes: &mut Vec<String>) {
    let mut below = |element: &PathElement, value: &Value, kind: Type<'_>, wholes: &mut Vec<String>| {
        let length = path.len();
        path.push_str(&element.to_string());
        find_wholes(value, kind, path, wholes);
        path.truncate(length);
    };
    match (kind.atom(Some(value)), value) {
        (Atom::Map(map), Value::Object(fields)) => {
            let whole = map.atomic;
            for (name, value) in fields.iter().filter(|(name, _)| map.declares(name)) {
                if let Some(kind) = map.child(name) {
                    below(&PathElement::field(name), value, kind, wholes);
                }
            }
            if whole {
                wholes.push(path.clone());
            }
        }
        (Atom::List(list), Value::Array(items)) => {
            let (whole, element) = match list {
                ListAtom::Atomic(element) => (true, element),
                ListAtom::Associative { element, .. } => (false, Some(element)),
            };
            for (at, item) in items.iter().enumerate() {
                let kind = element.map_or(Type::Deduced, Type::Node);
                below(&PathElement::Index(at as i64), item, kind, wholes);
            }
            if whole {
                wholes.push(path.clone());
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::builtin;
    use serde_json::json;

    #[test]
    fn configurations_are_merged_by_the_schema() {
        let node = builtin().kind("apps", "v1", "Deployment").expect("schema");
        let object =
            json!({"spec": {"replicas": 1, "template": {"spec": {"containers": [{"name": "a", "image": "x"}]}}}});
        let add = json!({"spec": {"template": {"spec": {"containers": [{"name": "b", "image": "y"}]}}}});
        let made = overlay(&object, &add, node).expect("merged");
        let names: Vec<&Value> = made["spec"]["template"]["spec"]["containers"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|container| &container["name"])
            .collect();
        assert_eq!((names, &made["spec"]["replicas"]), (vec![&json!("a"), &json!("b")], &json!(1)));
        let whole = json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}});
        let refused = overlay(&object, &whole, node).expect_err("atomic");
        assert!(refused.ends_with("may not mutate atomic arrays, maps or structs: .spec.selector"), "{refused}");
    }
}
