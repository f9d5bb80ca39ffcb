//! The order of the elements of a merged list.

use serde_json::Value;
use std::collections::HashMap;

/// The identity of list elements: one of their fields, or the whole element.
#[derive(Clone, Copy)]
pub(super) struct Identity<'a>(pub Option<&'a str>);

impl Identity<'_> {
    /// The identity of an element, if it has one.
    pub fn of<'v>(&self, element: &'v Value) -> Option<&'v Value> {
        match self.0 {
            Some(key) => element.get(key),
            None => Some(element),
        }
    }

    fn written(&self, element: &Value) -> Option<String> {
        self.of(element).map(Value::to_string)
    }
}

/// An index of the elements of a list, so that merging takes linear time.
pub(super) struct Places<'a> {
    identity: Identity<'a>,
    first: HashMap<String, usize>,
}

impl<'a> Places<'a> {
    /// The index of a list.
    pub fn of(list: &[Value], identity: Identity<'a>) -> Self {
        let mut places = Places { identity, first: HashMap::with_capacity(list.len()) };
        for (at, element) in list.iter().enumerate() {
            places.note(element, at);
        }
        places
    }

    /// The first index of an equal element.
    pub fn find(&self, element: &Value) -> Option<usize> {
        self.first.get(&self.identity.written(element)?).copied()
    }

    /// Adds an element at an index after all others.
    pub fn note(&mut self, element: &Value, at: usize) {
        if let Some(written) = self.identity.written(element) {
            self.first.entry(written).or_insert(at);
        }
    }
}

/// Orders a merged list: elements of the patch are in its order, the others keep their order, and are inserted
/// before the first element of the patch that they preceded.
pub(super) fn arrange(
    merged: Vec<Value>,
    patch_order: &[Value],
    live_order: &[Value],
    identity: Identity<'_>,
) -> Vec<Value> {
    let (in_patch, live) = (Places::of(patch_order, identity), Places::of(live_order, identity));
    let (mut named, mut others): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|element| in_patch.find(element).is_some());
    named.sort_by_cached_key(|element| in_patch.find(element));
    others.sort_by_cached_key(|element| live.find(element).unwrap_or(usize::MAX));
    let mut arranged = Vec::with_capacity(named.len() + others.len());
    let mut others = others.into_iter().peekable();
    for element in named {
        let place = live.find(&element);
        while let Some(other) = others.next_if(|other| {
            let other = live.find(other);
            matches!((other, place), (Some(other), Some(place)) if other < place)
        }) {
            arranged.push(other);
        }
        arranged.push(element);
    }
    arranged.extend(others);
    arranged
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn named_elements_lead_and_others_keep_their_place() {
        for (merged, patch, live, expected) in [
            (json!(["A", "B", "C"]), json!(["C"]), json!(["A", "B"]), json!(["C", "A", "B"])),
            (json!(["A", "B", "C"]), json!(["B"]), json!(["A", "B", "C"]), json!(["A", "B", "C"])),
            (json!(["A", "B", "C", "D"]), json!(["D", "A"]), json!(["A", "B", "C", "D"]), json!(["B", "C", "D", "A"])),
        ] {
            let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
            assert_eq!(Value::from(arrange(list(&merged), &list(&patch), &list(&live), Identity(None))), expected);
        }
    }
}
