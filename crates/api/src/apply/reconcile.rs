//! Adaptation of owned fields to schemas in which maps or lists became atomic.

use super::element::PathElement;
use super::set::{Entry, Set};
use super::typing::{Atom, ListAtom, Type};

/// Adapts a set of paths to the schema, or returns none if nothing changes.
pub(super) fn reconcile(set: &Set, kind: Type<'_>) -> Option<Set> {
    let mut changed = false;
    let fitted = fit(set, kind, &mut changed);
    changed.then_some(fitted)
}

fn fit(set: &Set, kind: Type<'_>, changed: &mut bool) -> Set {
    let atom = kind.atom(None);
    let entries = set.entries().iter().map(|entry| {
        let child = match (&entry.element, &atom) {
            (PathElement::Field(name), Atom::Map(map)) => map.child(name),
            (_, Atom::List(ListAtom::Associative { element, .. })) => Some(Type::Node(*element)),
            _ => None,
        };
        let Some(child) = child else { return entry.clone() };
        let has_below = !entry.below.entries().is_empty();
        let became_whole = match child.atom(None) {
            Atom::Map(map) => map.atomic && has_below,
            Atom::List(ListAtom::Atomic(Some(_))) => has_below,
            _ => false,
        };
        if became_whole {
            *changed = true;
            return Entry { element: entry.element.clone(), member: true, below: Set::default() };
        }
        let below =
            if matches!(child, Type::Node(_)) { fit(&entry.below, child, changed) } else { entry.below.clone() };
        Entry { element: entry.element.clone(), member: entry.member, below }
    });
    Set::from_unsorted(entries.collect())
}
