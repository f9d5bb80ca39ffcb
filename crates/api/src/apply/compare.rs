//! Comparison of two objects, as sets of paths.

use super::element::{PathElement, equal_values};
use super::set::{Entry, Set};
use super::typing::{Atom, ListAtom, MapAtom, Type, as_list, as_map, element_of};
use crate::schema::{List, NodeRef};
use serde_json::{Map, Value};

#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// Paths that only the old object has.
    pub removed: Set,
    /// Paths whose values differ.
    pub modified: Set,
    /// Paths that only the new object has.
    pub added: Set,
}

impl Comparison {
    /// Removes the paths at and below the given ones.
    pub fn without(mut self, ignored: Option<&Set>) -> Self {
        if let Some(ignored) = ignored {
            for set in [&mut self.removed, &mut self.modified, &mut self.added] {
                *set = set.difference_below(ignored);
            }
        }
        self
    }

    /// The paths that were modified or added.
    pub fn changed(&self) -> Set {
        self.modified.union(&self.added)
    }

    /// As [`Self::changed`], without a copy.
    pub fn into_changed(self) -> Set {
        self.modified.join(self.added)
    }
}

/// Compares two objects of one type, except for their managedFields.
pub(super) fn compare(old: &Value, new: &Value, kind: Type<'_>) -> Result<Comparison, String> {
    let found = difference(Some(old), Some(new), kind, 0)?;
    Ok(Comparison { removed: found.removed.below, modified: found.modified.below, added: found.added.below })
}

/// The differences at one path and below it.
#[derive(Default)]
struct Found {
    removed: Mark,
    modified: Mark,
    added: Mark,
}

#[derive(Default)]
struct Mark {
    member: bool,
    below: Set,
}

impl Found {
    fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.modified.is_empty() && self.added.is_empty()
    }
}

impl Mark {
    fn is_empty(&self) -> bool {
        !self.member && self.below.is_empty()
    }
}

fn difference(old: Option<&Value>, new: Option<&Value>, kind: Type<'_>, depth: usize) -> Result<Found, String> {
    let mut found = Found::default();
    let mut is_leaf = false;
    let (old_atom, new_atom) = (kind.atom(old), kind.atom(new));
    if new.is_none() {
        is_leaf = handle(&mut found, old_atom, old, new, depth)?;
    } else {
        if old.is_some() && !old_atom.same_kind(&new_atom) {
            handle(&mut found, old_atom, old, new, depth)?;
        }
        is_leaf |= handle(&mut found, new_atom, old, new, depth)?;
    }
    if !is_leaf {
        found.added.member |= old.is_none();
        found.removed.member |= old.is_some() && new.is_none();
    }
    Ok(found)
}

/// Compares two values by their structure; returns whether they were compared as a whole.
fn handle(
    found: &mut Found,
    atom: Atom<'_>,
    old: Option<&Value>,
    new: Option<&Value>,
    depth: usize,
) -> Result<bool, String> {
    match atom {
        Atom::Map(map) => {
            let (old_fields, new_fields) = (as_map(old), as_map(new));
            let empty = old_fields.is_none_or(Map::is_empty) && new_fields.is_none_or(Map::is_empty);
            if !map.atomic && !empty {
                compare_fields(found, map, old_fields, new_fields, depth)?;
                return Ok(false);
            }
        }
        Atom::List(ListAtom::Associative { list, element }) => {
            let items = |value| as_list(value).map_or(&[][..], Vec::as_slice);
            let (old_items, new_items) = (items(old), items(new));
            if !(old_items.is_empty() && new_items.is_empty()) {
                compare_items(found, list, element, old_items, new_items, depth)?;
                return Ok(false);
            }
        }
        Atom::List(ListAtom::Atomic(_)) | Atom::Scalar(_) => {}
    }
    compare_whole(found, old, new);
    Ok(true)
}

fn compare_whole(found: &mut Found, old: Option<&Value>, new: Option<&Value>) {
    match (old, new) {
        (None, _) => found.added.member = true,
        (_, None) => found.removed.member = true,
        (Some(old), Some(new)) => found.modified.member |= !equal_values(old, new),
    }
}

fn compare_fields(
    found: &mut Found,
    map: MapAtom<'_>,
    old: Option<&Map<String, Value>>,
    new: Option<&Map<String, Value>>,
    depth: usize,
) -> Result<(), String> {
    let mut collected = Collected::default();
    for (name, old, new) in Zipped::new(old, new) {
        // Most values are equal scalars.
        if old == new || (depth == 1 && name == "managedFields") {
            continue;
        }
        let kind = map.child(name).unwrap_or(Type::Deduced);
        let below = difference(old, new, kind, depth + 1)?;
        if !below.is_empty() {
            collected.add(PathElement::field(name), below);
        }
    }
    collected.join(found);
    Ok(())
}

fn compare_items<'v>(
    found: &mut Found,
    list: &List,
    element: NodeRef<'_>,
    old: &'v [Value],
    new: &'v [Value],
    depth: usize,
) -> Result<(), String> {
    // In the order of their keys, equal ones as in the lists: those of the old list first.
    let mut all: Vec<(PathElement, bool, &'v Value)> = Vec::with_capacity(old.len() + new.len());
    for (is_new, items) in [(false, old), (true, new)] {
        for (at, item) in items.iter().enumerate() {
            let key = element_of(list, element, item).map_err(|error| format!("element {at}: {error}"))?;
            all.push((key, is_new, item));
        }
    }
    all.sort_by(|(a, ..), (b, ..)| a.cmp(b));
    let mut collected = Collected::default();
    for same in all.chunk_by(|(a, ..), (b, ..)| a == b) {
        let (old, new) = same.split_at(same.partition_point(|(_, is_new, _)| !is_new));
        let one = |old: Option<&Value>, new: Option<&Value>| match (old, new) {
            (None, None) => Ok(Found::default()),
            _ => difference(old, new, Type::Node(element), depth + 1),
        };
        let first = |items: &[(PathElement, bool, &'v Value)]| items.first().map(|(_, _, item)| *item);
        let below = match (old.len(), new.len()) {
            (0 | 1, 0 | 1) if first(old) == first(new) => continue,
            (0 | 1, 0 | 1) => one(first(old), first(new))?,
            (0 | 1, _) => {
                let mut below = one(first(old), None)?;
                below.added.member = true;
                below
            }
            (_, 0 | 1) => {
                let mut below = one(None, first(new))?;
                below.removed.member = true;
                below
            }
            _ => {
                let same = old.len() == new.len() && old.iter().zip(new).all(|(old, new)| equal_values(old.2, new.2));
                Found { modified: Mark { member: !same, ..Mark::default() }, ..Found::default() }
            }
        };
        collected.add(same[0].0.clone(), below);
    }
    collected.join(found);
    Ok(())
}

#[derive(Default)]
struct Collected {
    removed: Vec<Entry>,
    modified: Vec<Entry>,
    added: Vec<Entry>,
}

impl Collected {
    fn add(&mut self, element: PathElement, below: Found) {
        let marks =
            [(&mut self.removed, below.removed), (&mut self.modified, below.modified), (&mut self.added, below.added)];
        let mut left = marks.iter().filter(|(_, mark)| !mark.is_empty()).count();
        let mut element = Some(element);
        for (entries, mark) in marks {
            if mark.is_empty() {
                continue;
            }
            left -= 1;
            let name = if left == 0 { element.take() } else { element.clone() };
            entries.extend(name.map(|element| Entry { element, member: mark.member, below: mark.below }));
        }
    }

    fn join(self, found: &mut Found) {
        let marks =
            [(&mut found.removed, self.removed), (&mut found.modified, self.modified), (&mut found.added, self.added)];
        for (mark, entries) in marks {
            if !entries.is_empty() {
                let below = Set::from_unsorted(entries);
                mark.below = std::mem::take(&mut mark.below).join(below);
            }
        }
    }
}

/// Iterates over the fields of two maps together, in order of their names.
pub(super) struct Zipped<'a> {
    old: Option<&'a Map<String, Value>>,
    new: Option<&'a Map<String, Value>>,
    old_left: Option<serde_json::map::Iter<'a>>,
    new_left: Option<serde_json::map::Iter<'a>>,
}

impl<'a> Zipped<'a> {
    /// Starts before the first field.
    pub fn new(old: Option<&'a Map<String, Value>>, new: Option<&'a Map<String, Value>>) -> Self {
        Zipped { old, new, old_left: old.map(Map::iter), new_left: new.map(Map::iter) }
    }
}

impl<'a> Iterator for Zipped<'a> {
    type Item = (&'a str, Option<&'a Value>, Option<&'a Value>);

    fn next(&mut self) -> Option<Self::Item> {
        if let Some((name, old)) = self.old_left.as_mut().and_then(Iterator::next) {
            return Some((name, Some(old), self.new.and_then(|fields| fields.get(name))));
        }
        let old = self.old;
        let only_new = |name: &str| old.is_none_or(|fields| !fields.contains_key(name));
        let (name, new) = self.new_left.as_mut()?.find(|(name, _)| only_new(name))?;
        Some((name, None, Some(new)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::fields_v1::encode;
    use super::*;
    use crate::decode::zero;
    use crate::schema::builtin;
    use serde_json::json;

    fn compared(old: Value, new: Value) -> Value {
        let node = builtin().kind("", "v1", "Pod").expect("pod");
        let found = compare(&old, &new, Type::Node(node)).expect("comparable");
        json!({"removed": encode(&found.removed), "modified": encode(&found.modified), "added": encode(&found.added)})
    }

    #[test]
    fn a_new_object_adds_every_field() {
        let node = builtin().kind("", "v1", "Pod").expect("pod");
        let new = json!({"metadata": {"name": "p", "labels": {"a": "b"}}, "spec": {"containers": [{"name": "c",
            "resources": {}, "ports": [{"containerPort": 80, "protocol": "TCP"}]}], "nodeSelector": {"x": "y"}}});
        assert_eq!(
            compared(zero(node), new)["added"],
            json!({"f:metadata": {"f:name": {}, "f:labels": {".": {}, "f:a": {}}}, "f:spec": {"f:nodeSelector": {},
                "f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:name": {}, "f:resources": {}, "f:ports": {".": {},
                    "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}, "f:protocol": {}}}}}}})
        );
    }

    #[test]
    fn changes_are_classified() {
        let old = json!({"metadata": {"labels": {"a": "1", "b": "2"}, "managedFields": [1]},
            "spec": {"containers": [{"name": "c", "image": "x"}, {"name": "d"}], "priority": 1}});
        let new = json!({"metadata": {"labels": {"a": "9", "c": "3"}},
            "spec": {"containers": [{"name": "c", "image": "y"}, {"name": "e"}], "priority": 1.0}});
        assert_eq!(
            compared(old, new),
            json!({
                "removed": {"f:metadata": {"f:labels": {"f:b": {}}},
                    "f:spec": {"f:containers": {"k:{\"name\":\"d\"}": {".": {}, "f:name": {}}}}},
                "modified": {"f:metadata": {"f:labels": {"f:a": {}}},
                    "f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {"f:image": {}}}}},
                "added": {"f:metadata": {"f:labels": {"f:c": {}}},
                    "f:spec": {"f:containers": {"k:{\"name\":\"e\"}": {".": {}, "f:name": {}}}}},
            })
        );
    }

    #[test]
    fn repeated_elements_are_compared_together() {
        let pod = |envs: Value| json!({"spec": {"containers": [{"name": "c", "env": envs}]}});
        let env = |value: &str| json!({"name": "A", "value": value});
        let found = compared(pod(json!([env("1"), env("2")])), pod(json!([env("1"), env("3")])));
        let expected =
            json!({"f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {"f:env": {"k:{\"name\":\"A\"}": {}}}}}});
        assert_eq!(found["modified"], expected);
        let found = compared(pod(json!([env("1")])), pod(json!([env("1"), env("1")])));
        assert_eq!(found["added"], expected);
    }
}
