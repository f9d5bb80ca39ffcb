//! Merge of an apply configuration into an object.

use super::compare::Zipped;
use super::element::PathElement;
use super::typing::{Atom, ListAtom, MapAtom, Type, as_list, as_map, element_of};
use crate::schema::{List, NodeRef};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Merges the configuration into the live object. The configuration wins where both set a value.
pub(super) fn merge(live: &Value, configuration: &Value, kind: Type<'_>) -> Result<Value, String> {
    merged(Some(live), Some(configuration), kind).map(|value| value.unwrap_or(Value::Null))
}

fn merged(live: Option<&Value>, given: Option<&Value>, kind: Type<'_>) -> Result<Option<Value>, String> {
    let atom = kind.atom(given.or(live));
    match atom {
        Atom::Map(map) => {
            let (live_fields, given_fields) = (as_map(live), as_map(given));
            let empty = live_fields.is_none_or(Map::is_empty) && given_fields.is_none_or(Map::is_empty);
            if !map.atomic && !empty {
                return merged_fields(map, live_fields, given_fields);
            }
        }
        Atom::List(ListAtom::Associative { list, element }) => {
            let items = |value| as_list(value).map_or(&[][..], Vec::as_slice);
            let (live_items, given_items) = (items(live), items(given));
            if !(live_items.is_empty() && given_items.is_empty()) {
                return merged_items(list, element, live_items, given_items);
            }
        }
        _ => {}
    }
    Ok(given.or(live).cloned())
}

fn merged_fields(
    map: MapAtom<'_>,
    live: Option<&Map<String, Value>>,
    given: Option<&Map<String, Value>>,
) -> Result<Option<Value>, String> {
    let mut fields = Map::new();
    for (name, live, given) in Zipped::new(live, given) {
        if let Some(value) = merged(live, given, map.child(name).unwrap_or(Type::Deduced))? {
            fields.insert(name.to_owned(), value);
        }
    }
    Ok((!fields.is_empty()).then_some(Value::Object(fields)))
}

fn merged_items(list: &List, node: NodeRef<'_>, live: &[Value], given: &[Value]) -> Result<Option<Value>, String> {
    let live = Indexed::new(list, node, live, true)?;
    let given = Indexed::new(list, node, given, false)?;
    let mut items = Vec::with_capacity(live.order.len().max(given.order.len()));
    let mut take = |live_item: Option<&Value>, given_item: Option<&Value>| {
        items.extend(merged(live_item, given_item, Type::Node(node))?);
        Ok::<(), String>(())
    };
    // Elements of both sides in the configuration's order; live elements keep their relative order.
    let mut shared = given.order.iter().filter(|element| live.by_element.contains_key(*element)).peekable();
    let mut used: BTreeMap<&PathElement, ()> = BTreeMap::new();
    let (mut live_at, mut given_at) = (0, 0);
    while live_at < live.order.len() || given_at < given.order.len() {
        if let (Some(from_live), Some(from_given)) = (live.order.get(live_at), given.order.get(given_at)) {
            if from_live == from_given {
                used.insert(from_given, ());
                take(live.single(from_given), given.single(from_given))?;
                live_at += 1;
                given_at += 1;
                shared.next();
                continue;
            }
            let waits = shared.peek().is_some_and(|next| *next != from_live);
            if given.by_element.contains_key(from_live) && waits {
                live_at += 1;
                continue;
            }
        }
        if let Some(from_live) = live.order.get(live_at) {
            if !given.by_element.contains_key(from_live) {
                take(Some(live.items[live_at]), None)?;
                live_at += 1;
                continue;
            }
            if used.contains_key(from_live) {
                live_at += 1;
            }
        }
        if let Some(from_given) = given.order.get(given_at) {
            used.insert(from_given, ());
            take(live.single(from_given), given.single(from_given))?;
            given_at += 1;
            if shared.peek() == Some(&from_given) {
                shared.next();
            }
        }
    }
    Ok((!items.is_empty()).then_some(Value::Array(items)))
}

/// A list's elements by their identity.
struct Indexed<'v> {
    items: Vec<&'v Value>,
    order: Vec<PathElement>,
    /// None for elements that occur more than once.
    by_element: BTreeMap<PathElement, Option<&'v Value>>,
}

impl<'v> Indexed<'v> {
    fn new(list: &List, node: NodeRef<'_>, items: &'v [Value], may_repeat: bool) -> Result<Self, String> {
        let mut indexed = Indexed { items: Vec::new(), order: Vec::new(), by_element: BTreeMap::new() };
        for (at, item) in items.iter().enumerate() {
            let element = element_of(list, node, item).map_err(|error| format!("element {at}: {error}"))?;
            let again = indexed.by_element.contains_key(&element);
            if again && !may_repeat {
                return Err(format!("duplicate entries for key {element}"));
            }
            indexed.by_element.insert(element.clone(), (!again).then_some(item));
            indexed.order.push(element);
            indexed.items.push(item);
        }
        Ok(indexed)
    }

    fn single(&self, element: &PathElement) -> Option<&'v Value> {
        self.by_element.get(element).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::builtin;
    use serde_json::json;

    fn containers(live: &[&str], given: &[&str]) -> Vec<String> {
        let node = builtin().node_named("io.k8s.api.core.v1.PodSpec").expect("spec");
        let list = |names: &[&str]| names.iter().map(|name| json!({"name": name})).collect::<Value>();
        let (live, given) = (json!({"containers": list(live)}), json!({"containers": list(given)}));
        let value = merge(&live, &given, Type::Node(node)).expect("merged");
        let items = value["containers"].as_array().cloned().unwrap_or_default();
        items.iter().map(|item| item["name"].as_str().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn lists_merge_in_the_order_of_the_configuration() {
        assert_eq!(containers(&["a", "b", "c"], &["b"]), ["a", "b", "c"]);
        assert_eq!(containers(&["a", "b"], &["b", "a"]), ["b", "a"]);
        assert_eq!(containers(&["a", "b", "c"], &["c", "x", "a"]), ["b", "c", "x", "a"]);
        assert_eq!(containers(&["a"], &["x", "a", "y"]), ["x", "a", "y"]);
        assert_eq!(containers(&[], &["x"]), ["x"]);
    }

    #[test]
    fn maps_merge_and_atomic_values_are_replaced() {
        let node = builtin().node_named("io.k8s.api.core.v1.PodSpec").expect("spec");
        let live = json!({"nodeSelector": {"a": "b"}, "priority": 1, "securityContext": {"runAsUser": 1}});
        let given = json!({"nodeSelector": {"c": "d"}, "securityContext": {"runAsGroup": 2}});
        assert_eq!(
            merge(&live, &given, Type::Node(node)),
            Ok(
                json!({"nodeSelector": {"c": "d"}, "priority": 1, "securityContext": {"runAsGroup": 2, "runAsUser": 1}})
            )
        );
    }
}
