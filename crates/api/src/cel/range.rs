//! What a macro iterates over.

use super::value::Value;

/// An element or key, and with two variables its value.
pub(super) type Pair<'a> = (Value<'a>, Option<Value<'a>>);

pub(super) type Pairs<'a> = Box<dyn Iterator<Item = Pair<'a>> + 'a>;

/// The range of a macro: elements or keys; with two variables, indices or keys with their values. One after the other: the
/// first may decide, and then the others cost nothing.
pub(super) fn pairs<'a>(range: Value<'a>, two: bool) -> Option<Pairs<'a>> {
    let elements: Box<dyn Iterator<Item = Value<'a>> + 'a> = match range {
        Value::List(items) => Box::new((0..items.len()).map(move |at| items[at].clone())),
        Value::JsonList(items, props) => {
            let element = props.and_then(|props| props.items.as_deref());
            Box::new(items.iter().map(move |item| Value::of_json(item, element)))
        }
        Value::Map(entries) | Value::MapOfMaps(entries) => {
            return Some(Box::new(
                (0..entries.len()).map(move |at| (entries[at].0.clone(), two.then(|| entries[at].1.clone()))),
            ));
        }
        Value::JsonMap(fields, props) => {
            return Some(Box::new(fields.iter().map(move |(name, json)| {
                let value = || Value::of_json(json, props.and_then(|props| props.child(name)));
                (Value::text(name.as_str()), two.then(value))
            })));
        }
        _ => return None,
    };
    Some(match two {
        true => Box::new(elements.enumerate().map(|(at, element)| (Value::Int(at as i64), Some(element)))),
        false => Box::new(elements.map(|element| (element, None))),
    })
}
