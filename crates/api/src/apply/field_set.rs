//! The paths that a configuration sets.

use super::element::PathElement;
use super::set::{Entry, Set};
use super::typing::{Atom, ListAtom, Type, as_map, element_of};
use serde_json::{Map, Value};

/// The paths that the value sets, which the applier will own.
pub(super) fn field_set(value: &Value, kind: Type<'_>) -> Set {
    mark(value, kind).1
}

/// Whether the value itself is set as a whole, and the paths below it.
fn mark(value: &Value, kind: Type<'_>) -> (bool, Set) {
    match kind.atom(Some(value)) {
        Atom::Scalar(_) | Atom::List(ListAtom::Atomic(_)) => (true, Set::default()),
        Atom::Map(map) if map.atomic => (true, Set::default()),
        Atom::Map(map) => {
            let mut entries = Vec::new();
            for (name, value) in as_map(Some(value)).into_iter().flatten() {
                let (whole, below) = mark(value, map.child(name).unwrap_or(Type::Deduced));
                let empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                let member = whole || empty || !map.declares(name);
                entries.push(Entry { element: PathElement::field(name), member, below });
            }
            (false, Set::from_unsorted(entries))
        }
        Atom::List(ListAtom::Associative { list, element }) => {
            let items = value.as_array().map_or(&[][..], Vec::as_slice);
            let mut keyed: Vec<(PathElement, &Value)> =
                items.iter().filter_map(|item| Some((element_of(list, element, item).ok()?, item))).collect();
            keyed.sort_by(|a, b| a.0.cmp(&b.0));
            let mut entries = Vec::with_capacity(keyed.len());
            for same in keyed.chunk_by(|a, b| a.0 == b.0) {
                // Elements that occur more than once are owned together, as a whole.
                let below = if let [(_, item)] = same { mark(item, Type::Node(element)).1 } else { Set::default() };
                entries.push(Entry { element: same[0].0.clone(), member: true, below });
            }
            (false, Set::from_unsorted(entries))
        }
    }
}

/// Adds the parent structs of each path, so that removing a path removes parents that become empty.
pub(super) fn with_named_fields(set: &Set, kind: Option<Type<'_>>) -> Set {
    let atom = kind.map(|kind| kind.atom(None));
    let entries = set.entries().iter().map(|entry| {
        let (declared, child) = match (&entry.element, &atom) {
            (PathElement::Field(name), Some(Atom::Map(map))) => (map.declares(name), map.child(name)),
            (PathElement::Key(_), Some(Atom::List(ListAtom::Associative { element, .. }))) => {
                (false, Some(Type::Node(*element)))
            }
            _ => (false, None),
        };
        let member = entry.member || (declared && !entry.below.entries().is_empty());
        Entry { element: entry.element.clone(), member, below: with_named_fields(&entry.below, child) }
    });
    Set::from_unsorted(entries.collect())
}
