//! Equality of lists and maps, in a time that grows with their length and not with the square of it: who sends an object
//! chooses how long its lists are, and the cost of a comparison is that of its length.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};

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
    let others = Index::new(b, a, |item| item);
    a.iter().all(|item| others.find(item).is_some())
}

/// Whether all entries of a map have an equal one in another of the same length.
pub(super) fn equal_entries(a: &[(Value<'_>, Value<'_>)], b: &[(Value<'_>, Value<'_>)]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let others = Index::new(b, a, |(key, _)| key);
    a.iter().all(|(key, value)| others.find(key).is_some_and(|(_, other)| value.equals(other)))
}

/// Whether the order of a list does not matter.
pub(super) fn is_unordered(list: &Value<'_>) -> bool {
    matches!(list, Value::JsonList(_, Some(props)) if matches!(props.list_type.as_deref(), Some("set" | "map")))
}

/// Whether a value is, or contains, a list whose order does not matter.
fn contains_unordered(value: &Value<'_>) -> bool {
    match value {
        Value::Optional(Some(inner)) => contains_unordered(inner),
        Value::Message(message) => message.fields.iter().any(|(_, value)| contains_unordered(value)),
        _ => {
            is_unordered(value)
                || value.elements().is_some_and(|items| items.iter().any(contains_unordered))
                || value.entries().is_some_and(|entries| entries.iter().any(|(_, value)| contains_unordered(value)))
        }
    }
}

/// Items that are found by an equal value.
pub(super) struct Index<'i, 'a, T> {
    items: &'i [T],
    key: fn(&T) -> &Value<'a>,
    /// The places of items by the hash of their keys; none for few items.
    places: Option<(Hashes, HashMap<u64, Vec<usize>>)>,
}

impl<'i, 'a, T> Index<'i, 'a, T> {
    /// An index of these items, in which those of another list are found.
    pub fn new(items: &'i [T], wanted: &[T], key: for<'t> fn(&'t T) -> &'t Value<'a>) -> Self {
        let places = (items.len() > FEW).then(|| {
            let any_order = items.iter().chain(wanted).any(|item| contains_unordered(key(item)));
            let hashes = Hashes { state: RandomState::new(), any_order, unequal: Cell::new(0) };
            let mut places = HashMap::<u64, Vec<usize>>::with_capacity(items.len());
            for (at, item) in items.iter().enumerate() {
                places.entry(hashes.of(key(item))).or_default().push(at);
            }
            (hashes, places)
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
            Some((hashes, places)) => places.get(&hashes.of(wanted))?.iter().copied().find(is_it),
        }
    }
}

/// Numbers that are the same for equal values, and rarely for others, whatever the type: a list in which many items had the
/// same one would be compared each with each.
struct Hashes {
    state: RandomState,
    /// Whether lists count in any order, as there are lists whose order does not matter.
    any_order: bool,
    /// How many values were met that are equal to nothing.
    unequal: Cell<u64>,
}

impl Hashes {
    fn of(&self, value: &Value<'_>) -> u64 {
        match value {
            Value::Bool(value) => self.hash(2, value),
            Value::Int(number) => self.of_number(*number as f64),
            Value::Uint(number) => self.of_number(*number as f64),
            Value::Double(number) if number.is_nan() => self.of_unequal(),
            Value::Double(number) => self.of_number(*number),
            Value::String(text) => self.hash(4, &**text),
            Value::Bytes(bytes) => self.hash(5, &**bytes),
            Value::Timestamp(time) => self.hash(8, time),
            Value::Duration(duration) => self.hash(9, duration),
            Value::Type(name) => self.hash(10, name),
            // Not as doubles, which differ with the form of the quantity.
            Value::Quantity(quantity) => self.hash(11, [-9, 0].map(|scale| quantity.saturating_value(scale))),
            Value::Url(url) => self.hash(12, url),
            Value::Ip(address) => self.hash(13, address),
            Value::Cidr(address, length) => self.hash(14, (address, length)),
            Value::Semver(version) => self.hash(15, (version.numbers, &version.before)),
            Value::Format(name) => self.hash(16, name),
            Value::Optional(inner) => self.hash(17, inner.as_ref().map(|inner| self.of(inner))),
            Value::Message(message) => {
                self.of_all(18, message.fields.iter().map(|(name, value)| self.hash(name, self.of(value))))
            }
            Value::Null => self.hash(19, ()),
            Value::Authorizer(_) | Value::Decision(_) | Value::Unfit(_) => self.of_unequal(),
            Value::List(_) | Value::JsonList(..) => {
                let items = value.elements().unwrap_or_default();
                let hashes = items.iter().map(|item| self.of(item));
                match self.any_order {
                    true => self.of_all(6, hashes),
                    false => hashes.fold(6, |all, own| self.hash(all, own)),
                }
            }
            Value::Map(_) | Value::MapOfMaps(_) | Value::JsonMap(..) => {
                let entries = value.entries().unwrap_or_default();
                self.of_all(7, entries.iter().map(|(key, value)| self.hash(self.of(key), self.of(value))))
            }
        }
    }

    fn hash(&self, kind: impl Hash, value: impl Hash) -> u64 {
        self.state.hash_one((kind, value))
    }

    /// As doubles, as which numbers are compared. What is beyond their precision is distinguished later.
    fn of_number(&self, number: f64) -> u64 {
        self.hash(1, (number + 0.0).to_bits())
    }

    /// In any order.
    fn of_all(&self, kind: u64, hashes: impl Iterator<Item = u64>) -> u64 {
        self.hash(kind, hashes.fold(0, u64::wrapping_add))
    }

    /// Of a value that is not even equal to itself.
    fn of_unequal(&self) -> u64 {
        self.unequal.set(self.unequal.get() + 1);
        self.hash(20, self.unequal.get())
    }
}

/// Counts comparisons, as tests of how long something takes depend on the machine.
#[cfg(test)]
pub(super) mod comparisons {
    use std::cell::Cell;

    thread_local! {
        static COUNT: Cell<usize> = const { Cell::new(0) };
    }

    pub fn count_one() {
        COUNT.set(COUNT.get() + 1);
    }

    /// How many comparisons of values this takes.
    pub fn during(run: impl FnOnce()) -> usize {
        let before = COUNT.get();
        run();
        COUNT.get() - before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json_schema::JsonSchemaProps;
    use crate::quantity::Quantity;
    use serde_json::{Value as Json, json};
    use std::sync::Arc;

    /// A list of a type and another one, in reverse, with how many comparisons it takes to find them equal.
    fn comparisons_of_sets(count: usize, items: &Json, item: impl Fn(usize) -> Json) -> usize {
        let schema = json!({"type": "array", "x-kubernetes-list-type": "set", "items": items});
        let props = JsonSchemaProps::read(&schema);
        let a = Json::from((0..count).map(item).collect::<Vec<_>>());
        let mut b = a.clone();
        b.as_array_mut().unwrap().reverse();
        let are_equal = |a: &Json, b: &Json| Value::of_json(a, Some(&props)).equals(&Value::of_json(b, Some(&props)));
        let compared = comparisons::during(|| assert!(are_equal(&a, &b), "{items}"));
        b[0] = b[1].clone();
        b[1] = a[0].clone();
        assert!(!are_equal(&a, &b), "{items}");
        b.as_array_mut().unwrap().pop();
        assert!(!are_equal(&a, &b), "{items}");
        compared
    }

    /// The elements of a list in another order for each number.
    fn permutation(mut number: usize) -> Json {
        let mut left: Vec<usize> = (0..8).collect();
        let next = |count: usize| {
            let at = number % count;
            number /= count;
            left.remove(at)
        };
        (1..=8).rev().map(next).collect::<Vec<_>>().into()
    }

    #[test]
    fn long_lists_in_any_order_are_compared_in_proportion() {
        let text = |format: &str| json!({"type": "string", "format": format});
        let list = json!({"type": "array", "x-kubernetes-list-type": "atomic", "items": {"type": "integer"}});
        let object = json!({"type": "object", "properties": {"a": list}});
        let date = |at: usize| format!("{:04}-{:02}-{:02}", 1000 + at / 336, at / 28 % 12 + 1, at % 28 + 1);
        let cases: [(Json, Box<dyn Fn(usize) -> Json>); 7] = [
            (text(""), Box::new(|at| at.to_string().into())),
            (text("duration"), Box::new(|at| format!("{at}ns").into())),
            (text("date"), Box::new(move |at| date(at).into())),
            (text("date-time"), Box::new(move |at| format!("{}T00:00:00Z", date(at)).into())),
            (json!({"type": "number"}), Box::new(|at| (at as f64 / 8.0).into())),
            (list, Box::new(permutation)),
            (object, Box::new(|at| json!({"a": permutation(at)}))),
        ];
        for (items, item) in cases {
            let compared = comparisons_of_sets(5000, &items, item);
            assert!(compared < 100_000, "{compared} comparisons of {items}");
        }
    }

    #[test]
    fn equal_values_have_equal_hashes() {
        let hashes = |any_order| Hashes { state: RandomState::new(), any_order, unequal: Cell::new(0) };
        let hashes = [hashes(false), hashes(true)];
        let quantity = |text: &str| Value::Quantity(Arc::new(Quantity::parse(text).unwrap()));
        let list = |items: Vec<Value<'static>>| Value::list(items);
        for (a, b) in [
            (Value::Int(1), Value::Double(1.0)),
            (Value::Uint(1), Value::Int(1)),
            (Value::Int(1_000_000_000_000_000_000), Value::Double(1e18)),
            (Value::Double(-0.0), Value::Int(0)),
            (list(vec![Value::Int(1), Value::Null]), list(vec![Value::Uint(1), Value::Null])),
            (Value::text("a"), Value::text("a")),
            (quantity("1k"), quantity("1000")),
            (quantity("0"), quantity("-0")),
            (Value::some(Value::Int(1)), Value::some(Value::Double(1.0))),
        ] {
            assert!(a.equals(&b), "{a:?} {b:?}");
            assert!(hashes.iter().all(|hashes| hashes.of(&a) == hashes.of(&b)), "{a:?} {b:?}");
        }
    }

    #[test]
    fn lists_within_are_equal_in_any_order_if_their_type_says_so() {
        let any_order = json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "integer"}});
        let schema = json!({"type": "array", "x-kubernetes-list-type": "set", "items": any_order});
        let props = JsonSchemaProps::read(&schema);
        let (a, b): (Vec<_>, Vec<_>) = (0..50).map(|at| (json!([at, 100]), json!([100, at]))).unzip();
        let (a, b) = (Json::from(a), Json::from(b));
        let (a_set, b_list) = (Value::of_json(&a, Some(&props)), Value::of_json(&b, None));
        assert!(a_set.equals(&b_list));
        assert!(!b_list.equals(&a_set));
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
