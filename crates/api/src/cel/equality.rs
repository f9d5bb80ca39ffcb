//! Equality of lists and maps, in a time that grows with their length and not with the square of it: who sends an object
//! chooses how long its lists are, and the cost of a comparison is that of its length.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use super::value::Value;

/// Up to this length, comparing each with each is faster than hashing.
const FEW: usize = 16;

/// Whether two lists are equal. Those of type set or map are equal in any order.
pub(super) fn equal_lists(list: &Value<'_>, a: &[Value<'_>], b: &[Value<'_>]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    if !is_unordered(list) {
        return a.iter().zip(b).all(|(a, b)| a.equals(b));
    }
    let others = Index::new(b, |item| item);
    a.iter().all(|item| others.find(item).is_some())
}

/// Whether all entries of a map have an equal one in another of the same length.
pub(super) fn equal_entries(a: &[(Value<'_>, Value<'_>)], b: &[(Value<'_>, Value<'_>)]) -> bool {
    let others = Index::new(b, |(key, _)| key);
    a.len() == b.len() && a.iter().all(|(key, value)| others.find(key).is_some_and(|(_, other)| value.equals(other)))
}

/// Whether the order of a list does not matter.
pub(super) fn is_unordered(list: &Value<'_>) -> bool {
    matches!(list, Value::JsonList(_, Some(props)) if matches!(props.list_type.as_deref(), Some("set" | "map")))
}

/// Items that are found by an equal value.
pub(super) struct Index<'i, 'a, T> {
    items: &'i [T],
    key: fn(&T) -> &Value<'a>,
    /// The places of items by the hash of their keys; none for few items.
    places: Option<(RandomState, HashMap<u64, Vec<usize>>)>,
}

impl<'i, 'a, T> Index<'i, 'a, T> {
    /// An index of these items.
    pub fn new(items: &'i [T], key: fn(&T) -> &Value<'a>) -> Self {
        let places = (items.len() > FEW).then(|| {
            let (state, mut places) = (RandomState::new(), HashMap::<u64, Vec<usize>>::with_capacity(items.len()));
            for (at, item) in items.iter().enumerate() {
                places.entry(hash(key(item), &state)).or_default().push(at);
            }
            (state, places)
        });
        Index { items, key, places }
    }

    fn find(&self, wanted: &Value<'_>) -> Option<&'i T> {
        self.position(wanted).map(|at| &self.items[at])
    }

    /// The place of the first item with an equal value.
    pub fn position(&self, wanted: &Value<'_>) -> Option<usize> {
        let is_it = |at: &usize| wanted.equals((self.key)(&self.items[*at]));
        match &self.places {
            None => (0..self.items.len()).find(is_it),
            Some((state, places)) => places.get(&hash(wanted, state))?.iter().copied().find(is_it),
        }
    }
}

/// A number that is the same for equal values: numbers count by value, and lists of types whose order may not matter and
/// maps by their items in any order. What is rarely compared counts by its type.
fn hash(value: &Value<'_>, state: &RandomState) -> u64 {
    // As doubles, as which they are compared. What is beyond their precision is distinguished later.
    let of_number = |number: f64| state.hash_one((1, (number + 0.0).to_bits()));
    match value {
        Value::Bool(value) => state.hash_one((2, value)),
        Value::Int(number) => of_number(*number as f64),
        Value::Uint(number) => of_number(*number as f64),
        Value::Double(number) => of_number(*number),
        Value::String(text) => state.hash_one((4, &**text)),
        Value::Bytes(bytes) => state.hash_one((5, &**bytes)),
        _ => {
            let mut hasher = state.build_hasher();
            if let Some(items) = value.elements() {
                hasher.write_u64(items.iter().fold(6, |sum: u64, item| sum.wrapping_add(hash(item, state))));
            } else if let Some(entries) = value.entries() {
                let of_entry =
                    |(key, value): &(Value<'_>, Value<'_>)| state.hash_one((hash(key, state), hash(value, state)));
                hasher.write_u64(entries.iter().fold(7, |sum: u64, entry| sum.wrapping_add(of_entry(entry))));
            } else {
                hasher.write(value.type_name().as_bytes());
            }
            hasher.finish()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json_schema::JsonSchemaProps;
    use serde_json::{Value as Json, json};

    #[test]
    fn long_lists_in_any_order_are_compared_in_proportion() {
        let schema = json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
        let props = JsonSchemaProps::read(&schema);
        let list = |count: usize| Json::from((0..count).map(|at| format!("{at}")).collect::<Vec<_>>());
        // With a comparison of each with each, this takes minutes.
        let (a, mut b) = (list(200_000), list(200_000));
        b.as_array_mut().unwrap().reverse();
        let mut other = b.clone();
        other[0] = "other".into();
        let shorter = list(199_999);
        let of = |json| Value::of_json(json, Some(&props));
        assert!(of(&a).equals(&of(&b)));
        assert!(!of(&a).equals(&of(&other)));
        assert!(!of(&a).equals(&of(&shorter)));
    }

    #[test]
    fn equal_values_have_equal_hashes() {
        let state = RandomState::new();
        let list = |items: Vec<Value<'static>>| Value::list(items);
        for (a, b) in [
            (Value::Int(1), Value::Double(1.0)),
            (Value::Uint(1), Value::Int(1)),
            (Value::Int(1_000_000_000_000_000_000), Value::Double(1e18)),
            (Value::Double(-0.0), Value::Int(0)),
            (list(vec![Value::Int(1), Value::Null]), list(vec![Value::Uint(1), Value::Null])),
            (Value::text("a"), Value::text("a")),
        ] {
            assert!(a.equals(&b) && hash(&a, &state) == hash(&b, &state), "{a:?} {b:?}");
        }
    }

    #[test]
    fn maps_are_equal_in_any_order() {
        let map = |range: std::iter::Rev<std::ops::Range<i64>>| {
            let entries: Vec<_> = range.map(|at| (Value::Int(at), Value::Int(at * 2))).collect();
            Value::Map(entries.into())
        };
        let reversed = |count: i64| {
            let entries: Vec<_> = (0..count).map(|at| (Value::Uint(at as u64), Value::Int(at * 2))).collect();
            Value::Map(entries.into())
        };
        assert!(map((0..100_000).rev()).equals(&reversed(100_000)));
        assert!(!map((0..100).rev()).equals(&reversed(99)));
    }
}
