//! The size of a value when it is written out.
//!
//! Values share memory, so that an expression of a few lines can build one that is small in memory and endless when it
//! is compared, printed or converted to JSON: `cel.bind(b, [a, a], cel.bind(c, [b, b], ...))` doubles with every line.
//! Every function that traverses a whole value checks its weight first.

use serde_json::Value as Json;

use super::value::Value;
use crate::decode::MAX_VALUE_DEPTH;

/// The maximum size of a value that may be traversed.
pub(super) const MAX_WEIGHT: u64 = 16 * 1024 * 1024;

/// One for each nested value plus one for each byte of text; none if that is more than [`MAX_WEIGHT`], or if values
/// nest deeper than objects may.
pub(super) fn weigh(value: &Value<'_>) -> Option<u64> {
    weigh_within(value, MAX_WEIGHT)
}

/// The weight, if it is at most this much. It costs no more than that.
fn weigh_within(value: &Value<'_>, limit: u64) -> Option<u64> {
    let mut left = limit;
    descend(value, &mut left, 0)?;
    Some(limit - left)
}

/// The lesser of two weights, of which the second counts several times; none if both are beyond [`MAX_WEIGHT`]. A comparison
/// ends with the lesser value, and so does this: it must not walk over a large object for each small value.
pub(super) fn lesser(one: &Value<'_>, other: &Value<'_>, times: u64) -> Option<u64> {
    let mut limit = 64;
    loop {
        let times = times.max(1);
        let found = weigh_within(one, limit);
        let found = found.or_else(|| weigh_within(other, limit / times).map(|weight| weight.saturating_mul(times)));
        if found.is_some() || limit >= MAX_WEIGHT {
            return found;
        }
        limit = (limit * 4).min(MAX_WEIGHT);
    }
}

fn descend(value: &Value<'_>, left: &mut u64, depth: usize) -> Option<()> {
    if depth > MAX_VALUE_DEPTH {
        return None;
    }
    spend(left, 1)?;
    match value {
        Value::String(text) => spend(left, text.len()),
        Value::Bytes(bytes) => spend(left, bytes.len()),
        Value::List(items) => items.iter().try_for_each(|item| descend(item, left, depth + 1)),
        Value::Map(entries) | Value::MapOfMaps(entries) => entries.iter().try_for_each(|(key, value)| {
            descend(key, left, depth + 1)?;
            descend(value, left, depth + 1)
        }),
        Value::Message(message) => message.fields.iter().try_for_each(|(name, value)| {
            spend(left, name.len())?;
            descend(value, left, depth + 1)
        }),
        Value::Optional(Some(inner)) => descend(inner, left, depth + 1),
        Value::JsonList(items, _) => items.iter().try_for_each(|item| descend_json(item, left, depth + 1)),
        Value::JsonMap(fields, _) => fields.iter().try_for_each(|(name, value)| {
            spend(left, name.len())?;
            descend_json(value, left, depth + 1)
        }),
        _ => Some(()),
    }
}

fn descend_json(value: &Json, left: &mut u64, depth: usize) -> Option<()> {
    if depth > MAX_VALUE_DEPTH {
        return None;
    }
    spend(left, 1)?;
    match value {
        Json::String(text) => spend(left, text.len()),
        Json::Array(items) => items.iter().try_for_each(|item| descend_json(item, left, depth + 1)),
        Json::Object(fields) => fields.iter().try_for_each(|(name, value)| {
            spend(left, name.len())?;
            descend_json(value, left, depth + 1)
        }),
        _ => Some(()),
    }
}

fn spend(left: &mut u64, weight: usize) -> Option<()> {
    *left = left.checked_sub(weight as u64)?;
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_parts_weigh_as_often_as_they_are_shared() {
        let pair = |value: &Value<'static>| Value::list(vec![value.clone(), value.clone()]);
        let text = Value::text("abc");
        assert_eq!(weigh(&pair(&text)), Some(1 + 2 * 4));
        let doubled = (0..60).fold(text, |value, _| pair(&value));
        assert_eq!(weigh(&doubled), None);
    }

    #[test]
    fn what_nests_too_deep_has_no_weight() {
        let nested = |levels| (0..levels).fold(Value::Null, |value, _| Value::list(vec![value]));
        assert_eq!(weigh(&nested(MAX_VALUE_DEPTH)), Some(MAX_VALUE_DEPTH as u64 + 1));
        assert_eq!(weigh(&nested(MAX_VALUE_DEPTH + 1)), None);
    }

    #[test]
    fn the_lesser_of_two_weights_costs_no_more_than_itself() {
        let doubled = (0..60).fold(Value::Int(1), |value, _| Value::list(vec![value.clone(), value]));
        let small = Value::list(vec![Value::Int(1), Value::Int(2)]);
        assert_eq!((lesser(&doubled, &small, 1), lesser(&small, &doubled, 1)), (Some(3), Some(3)));
        assert_eq!(lesser(&doubled, &small, 100), Some(300));
        assert_eq!(lesser(&doubled, &doubled, 1), None);
    }
}
