//! In which order the elements of a merged list stand.

use serde_json::Value;

/// What tells the elements of a list apart: a field of theirs, or the whole element.
#[derive(Clone, Copy)]
pub(super) struct Identity<'a>(pub Option<&'a str>);

impl Identity<'_> {
    pub fn of<'v>(&self, element: &'v Value) -> Option<&'v Value> {
        match self.0 {
            Some(key) => element.get(key),
            None => Some(element),
        }
    }

    pub fn find(&self, list: &[Value], element: &Value) -> Option<usize> {
        let wanted = self.of(element)?;
        list.iter().position(|other| self.of(other) == Some(wanted))
    }
}

/// Orders a merged list: elements the patch names stand as it orders them, the others as they stood, and these go in
/// before the first named one that they stood in front of.
pub(super) fn arrange(
    merged: Vec<Value>,
    patch_order: &[Value],
    live_order: &[Value],
    identity: Identity<'_>,
) -> Vec<Value> {
    let (mut named, mut others): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|element| identity.find(patch_order, element).is_some());
    named.sort_by_key(|element| identity.find(patch_order, element));
    others.sort_by_key(|element| identity.find(live_order, element).map_or(usize::MAX, |at| at));
    let mut arranged = Vec::with_capacity(named.len() + others.len());
    let mut others = others.into_iter().peekable();
    for element in named {
        let place = identity.find(live_order, &element);
        while let Some(other) = others.next_if(|other| {
            let other = identity.find(live_order, other);
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
