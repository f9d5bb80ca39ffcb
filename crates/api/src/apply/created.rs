//! The fields that the creator of an object owns, as FieldsV1.
//!
//! A comparison with an empty object gives the same result, but every create comes this way, so
//! the fields are encoded directly.

use super::element::PathElement;
use super::set::{Entry, Set};
use super::typing::{Atom, ListAtom, MapAtom, Type, element_of};
use crate::schema::{List, NodeRef, Object, Presence, Shape};
use serde_json::{Map, Value};

/// The fields of a new object of a built-in kind, without those in `not_owned` and at or below those in `ignored`, or none
/// if list elements have no identity.
pub(super) fn created_fields(
    object: &Value,
    node: NodeRef<'_>,
    not_owned: &Set,
    ignored: Option<&Set>,
) -> Option<Map<String, Value>> {
    let (Value::Object(fields), Some(shape)) = (object, node.object()) else { return None };
    set_fields(fields, node, shape, Some(not_owned), ignored)
}

/// The fields of a struct that is always present, so that it is not owned itself.
fn set_fields(
    fields: &Map<String, Value>,
    node: NodeRef<'_>,
    object: &Object,
    not_owned: Option<&Set>,
    ignored: Option<&Set>,
) -> Option<Map<String, Value>> {
    let mut owned = Map::new();
    for (name, value) in fields {
        let field = object.field(name)?;
        let (left_out, dropped) = (entry(not_owned, name), entry(ignored, name));
        if dropped.is_some_and(|dropped| dropped.member) {
            continue;
        }
        let target = node.at(field.node);
        let kind = Type::Node(target);
        let (always_there, null_before) = match field.presence {
            Presence::Always => (true, false),
            Presence::Nullable => (true, true),
            _ => (false, false),
        };
        let contents = match (kind.atom(Some(value)), value) {
            (Atom::Map(map), Value::Object(inner))
                if always_there && !map.atomic && !(null_before && inner.is_empty()) =>
            {
                let below = match target.object() {
                    Some(object) if !null_before => {
                        let (left_out, dropped) =
                            (left_out.map(|entry| &entry.below), dropped.map(|entry| &entry.below));
                        set_fields(inner, target, object, left_out, dropped)?
                    }
                    _ => entries(inner, map)?,
                };
                if below.is_empty() {
                    continue;
                }
                below
            }
            _ if left_out.is_some_and(|left_out| left_out.member) => continue,
            (Atom::List(ListAtom::Associative { list, element }), Value::Array(items))
                if always_there && !items.is_empty() =>
            {
                elements(items, list, element)?
            }
            _ if null_before && value.is_null() => continue,
            _ if always_there && !null_before && is_zero(value, target) => continue,
            _ => whole(value, kind)?,
        };
        owned.insert(key(name), Value::Object(contents));
    }
    Some(owned)
}

/// The value itself and all fields below it.
fn whole(value: &Value, kind: Type<'_>) -> Option<Map<String, Value>> {
    let mut contents = match (kind.atom(Some(value)), value) {
        (Atom::Map(map), Value::Object(fields)) if !map.atomic => entries(fields, map)?,
        (Atom::List(ListAtom::Associative { list, element }), Value::Array(items)) => elements(items, list, element)?,
        _ => Map::new(),
    };
    if !contents.is_empty() {
        contents.insert(".".to_owned(), Value::Object(Map::new()));
    }
    Some(contents)
}

fn entries(fields: &Map<String, Value>, map: MapAtom<'_>) -> Option<Map<String, Value>> {
    let mut owned = Map::new();
    for (name, value) in fields {
        let contents = whole(value, map.child(name).unwrap_or(Type::Deduced))?;
        owned.insert(key(name), Value::Object(contents));
    }
    Some(owned)
}

fn elements(items: &[Value], list: &List, element: NodeRef<'_>) -> Option<Map<String, Value>> {
    let mut owned: Map<String, Value> = Map::new();
    for item in items {
        let found: PathElement = element_of(list, element, item).ok()?;
        let contents = match owned.get(&found.encode()) {
            // Elements that occur more than once are owned together, as a whole.
            Some(_) => Map::new(),
            None => whole(item, Type::Node(element))?,
        };
        owned.insert(found.encode(), Value::Object(contents));
    }
    Some(owned)
}

fn entry<'s>(set: Option<&'s Set>, name: &str) -> Option<&'s Entry> {
    set?.get_field(name)
}

fn key(name: &str) -> String {
    let mut key = String::with_capacity(name.len() + 2);
    key.push_str("f:");
    key.push_str(name);
    key
}

/// Whether a value is the zero value of a field that is always present.
fn is_zero(value: &Value, node: NodeRef<'_>) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty() || (text == "0" && matches!(node.shape, Shape::Quantity)),
        Value::Array(_) => false,
        Value::Object(fields) => fields.is_empty(),
    }
}
