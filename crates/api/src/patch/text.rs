//! The text of a patched object in messages.
//!
//! Kubernetes applies JSON and merge patches to the text of an object. Objects along the paths of the patch are decoded and
//! encoded again, with their fields in alphabetical order; all others keep the order in which their types declare the fields.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::schema::{NodeRef, Shape};

/// The fields that a patch touches, as a tree.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TouchedFields(BTreeMap<String, TouchedFields>);

impl TouchedFields {
    /// The fields that a merge patch touches: those where both it and the object have an object.
    pub fn by_merge(current: &Value, patch: &Value) -> TouchedFields {
        let (Value::Object(current), Value::Object(patch)) = (current, patch) else { return TouchedFields::default() };
        let within = patch.iter().filter_map(|(name, patch)| {
            let current = current.get(name).filter(|current| current.is_object())?;
            patch.is_object().then(|| (name.clone(), TouchedFields::by_merge(current, patch)))
        });
        TouchedFields(within.collect())
    }

    /// The fields that JSON patches with these pointers touch: all parents of the targets, as far as the patched object
    /// has them. A pointer may be as long as a body and lead nowhere, and a tree is dropped by recursion.
    pub fn by_pointers<'a>(changed: &Value, pointers: impl Iterator<Item = &'a [String]>) -> TouchedFields {
        let mut touched = TouchedFields::default();
        for pointer in pointers {
            let holders = pointer.split_last().map_or(&[][..], |(_, holders)| holders);
            let (mut at, mut value) = (&mut touched, changed);
            for part in holders {
                let below = match value {
                    Value::Object(fields) => fields.get(part),
                    Value::Array(items) => part.parse::<usize>().ok().and_then(|at| items.get(at)),
                    _ => None,
                };
                let Some(below) = below.filter(|below| below.is_object() || below.is_array()) else { break };
                value = below;
                at = at.0.entry(part.clone()).or_default();
            }
        }
        touched
    }
}

/// The text of a patched object. A custom resource has no declared order: it is given without a schema.
pub fn text(object: &Value, node: Option<NodeRef<'_>>, touched: &TouchedFields) -> String {
    let mut out = String::new();
    write(&mut out, object, node, Some(touched));
    out
}

fn write(out: &mut String, value: &Value, node: Option<NodeRef<'_>>, touched: Option<&TouchedFields>) {
    let shape = node.map(|node| (node, &node.get().shape));
    match value {
        Value::Object(fields) => {
            let mut names: Vec<&String> = fields.keys().collect();
            if let (None, Some((_, Shape::Object(object)))) = (touched, shape) {
                names.sort_by_key(|name| object.field(name).map_or(u32::MAX, |field| field.place));
            }
            out.push('{');
            for (at, name) in names.into_iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                push_escaped(out, &Value::from(name.as_str()));
                out.push(':');
                let within = match shape {
                    Some((node, Shape::Object(object))) => object.field(name).map(|field| node.at(field.node)),
                    Some((node, Shape::Map(element))) => Some(node.at(*element)),
                    _ => None,
                };
                write(out, &fields[name], within, touched.and_then(|touched| touched.0.get(name)));
            }
            out.push('}');
        }
        Value::Array(items) => {
            let element = match shape {
                Some((node, Shape::List(list))) => Some(node.at(list.element)),
                _ => None,
            };
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write(out, item, element, touched.and_then(|touched| touched.0.get(&at.to_string())));
            }
            out.push(']');
        }
        leaf => push_escaped(out, leaf),
    }
}

/// Characters that mean something in HTML are escaped, as Go's JSON does.
fn push_escaped(out: &mut String, leaf: &Value) {
    for character in leaf.to_string().chars() {
        match character {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => out.push_str(&format!("\\u{:04x}", character as u32)),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::builtin;
    use serde_json::json;

    #[test]
    fn untouched_fields_keep_their_order() {
        let node = builtin().kind("", "v1", "Pod").expect("kind");
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"b": "<", "a": "1"}, "name": "x"},
            "spec": {"containers": [{"image": "i", "name": "c"}], "volumes": []}});
        let plain = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x","labels":{"a":"1","b":"\u003c"}},"spec":{"volumes":[],"containers":[{"name":"c","image":"i"}]}}"#;
        assert_eq!(text(&pod, Some(node), &TouchedFields::default()), plain);
        let merged = TouchedFields::by_merge(&pod, &json!({"metadata": {"labels": {"a": "1"}}, "status": {}}));
        let pointer = ["metadata", "labels", "a"].map(str::to_owned);
        assert_eq!(merged, TouchedFields::by_pointers(&pod, [&pointer[..]].into_iter()));
        let touched = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"a":"1","b":"\u003c"},"name":"x"},"spec":{"volumes":[],"containers":[{"name":"c","image":"i"}]}}"#;
        assert_eq!(text(&pod, Some(node), &merged), touched);
    }

    #[test]
    fn pointers_that_lead_nowhere_cost_nothing() {
        let object = json!({"a": [{"b": {"c": 1}}], "x": "text"});
        let pointers = [["a", "0", "b", "c"], ["x", "y", "z", "w"], ["a", "1", "b", "c"]];
        let pointers = pointers.map(|pointer| pointer.map(str::to_owned).to_vec());
        // As a tree, this would nest deeper than any stack.
        let endless = vec!["a".to_owned(); 1_000_000];
        let all = pointers.iter().chain([&endless]).map(Vec::as_slice);
        let touched = TouchedFields::by_pointers(&object, all);
        let leaf = |name: &str, below| TouchedFields([(name.to_owned(), below)].into());
        assert_eq!(touched, leaf("a", leaf("0", leaf("b", TouchedFields::default()))));
    }
}
