//! Operators: equality, order, arithmetic, membership and indices.

use super::super::equality::Index;
use super::super::error::EvaluateError;
use super::super::value::Value;
use super::{Outcome, conversions, flag};
use jiff::SignedDuration;
use std::cmp::Ordering;

pub(super) fn call<'a>(function: &str, values: &[Value<'a>]) -> Option<Outcome<'a>> {
    match (function, values) {
        ("_==_", [a, b]) => flag(a.equals(b)),
        ("_!=_", [a, b]) => flag(!a.equals(b)),
        ("_<_", [a, b]) => Some(a.compare(b).map(|order| Value::Bool(order == Ordering::Less))),
        ("_<=_", [a, b]) => Some(a.compare(b).map(|order| Value::Bool(order != Ordering::Greater))),
        ("_>_", [a, b]) => Some(a.compare(b).map(|order| Value::Bool(order == Ordering::Greater))),
        ("_>=_", [a, b]) => Some(a.compare(b).map(|order| Value::Bool(order != Ordering::Less))),
        ("!_", [Value::Bool(value)]) => flag(!value),
        ("-_", [Value::Int(number)]) => Some(number.checked_neg().map(Value::Int).ok_or_else(overflow)),
        ("-_", [Value::Double(number)]) => Some(Ok(Value::Double(-number))),
        ("-_", [Value::Duration(duration)]) => Some(durations(duration.checked_neg())),
        ("_+_" | "_-_" | "_*_" | "_/_" | "_%_", [a, b]) => Some(calculate(function, a, b)),
        ("@in", [item, list]) => contains(item, list).map(|found| Ok(Value::Bool(found))),
        ("_[_]", [container, index]) => Some(at(container, index)),
        ("_[?_]", [Value::Optional(None), _]) => Some(Ok(Value::Optional(None))),
        ("_[?_]", [Value::Optional(Some(inner)), index]) => Some(Ok(optional_at(inner, index))),
        ("_[?_]", [container, index]) => Some(Ok(optional_at(container, index))),
        _ => None,
    }
}

fn optional_at<'a>(container: &Value<'a>, index: &Value<'a>) -> Value<'a> {
    at(container, index).map_or(Value::Optional(None), Value::some)
}

fn contains(item: &Value<'_>, list: &Value<'_>) -> Option<bool> {
    if let Some(elements) = list.elements() {
        return Some(elements.iter().any(|element| element.equals(item)));
    }
    let entries = list.entries()?;
    if matches!(list, Value::MapOfMaps(_)) {
        return Some(entries.iter().any(|(key, _)| key.equals(item)));
    }
    Some(list.get(item).is_some())
}

fn at<'a>(container: &Value<'a>, index: &Value<'a>) -> Outcome<'a> {
    match container {
        Value::Optional(None) => Ok(Value::Optional(None)),
        Value::Optional(Some(inner)) => Ok(optional_at(inner, index)),
        Value::List(_) | Value::JsonList(..) => {
            let number = match index {
                Value::Int(number) => *number,
                Value::Uint(number) => i64::try_from(*number).unwrap_or(i64::MAX),
                Value::Double(number) if number.fract() == 0.0 => *number as i64,
                _ => return Err(EvaluateError::new(format!("unsupported index type '{}' in list", index.type_name()))),
            };
            let found = usize::try_from(number).ok().and_then(|at| container.element(at));
            found.ok_or_else(|| EvaluateError::new(format!("index out of bounds: {number}")))
        }
        Value::Map(_) | Value::MapOfMaps(_) | Value::JsonMap(..) => container
            .get(index)
            .ok_or_else(|| EvaluateError::new(format!("no such key: {}", conversions::format_value(index)))),
        _ => Err(EvaluateError::no_such_overload()),
    }
}

fn calculate<'a>(operator: &str, a: &Value<'a>, b: &Value<'a>) -> Outcome<'a> {
    match (operator, a, b) {
        (_, Value::Int(a), Value::Int(b)) => whole(operator, *a, *b),
        (_, Value::Uint(a), Value::Uint(b)) => unsigned(operator, *a, *b),
        ("_+_", Value::Double(a), Value::Double(b)) => Ok(Value::Double(a + b)),
        ("_-_", Value::Double(a), Value::Double(b)) => Ok(Value::Double(a - b)),
        ("_*_", Value::Double(a), Value::Double(b)) => Ok(Value::Double(a * b)),
        ("_/_", Value::Double(a), Value::Double(b)) => Ok(Value::Double(a / b)),
        ("_+_", Value::String(a), Value::String(b)) => Ok(Value::text(format!("{a}{b}"))),
        ("_+_", Value::Bytes(a), Value::Bytes(b)) => Ok(Value::Bytes([&**a, &**b].concat().into())),
        ("_+_", Value::Timestamp(time), Value::Duration(duration))
        | ("_+_", Value::Duration(duration), Value::Timestamp(time)) => {
            time.checked_add(*duration).map(Value::Timestamp).map_err(|_| EvaluateError::new("timestamp overflow"))
        }
        ("_-_", Value::Timestamp(time), Value::Duration(duration)) => {
            time.checked_sub(*duration).map(Value::Timestamp).map_err(|_| EvaluateError::new("timestamp overflow"))
        }
        ("_-_", Value::Timestamp(a), Value::Timestamp(b)) => Ok(Value::Duration(a.duration_since(*b))),
        ("_+_", Value::Duration(a), Value::Duration(b)) => durations(a.checked_add(*b)),
        ("_-_", Value::Duration(a), Value::Duration(b)) => durations(a.checked_sub(*b)),
        ("_+_", a, b) => match (a.elements(), b.elements()) {
            (Some(first), Some(second)) => Ok(Value::list(joined(a, &first, &second))),
            _ => Err(EvaluateError::no_such_overload()),
        },
        _ => Err(EvaluateError::no_such_overload()),
    }
}

/// Lists of type set or map add the elements that they lack; in maps the second operand wins.
fn joined<'a>(list: &Value<'a>, first: &[Value<'a>], second: &[Value<'a>]) -> Vec<Value<'a>> {
    let props = match list {
        Value::JsonList(_, props) => *props,
        _ => None,
    };
    let all = || first.iter().chain(second);
    let keys: Vec<Value<'a>> = match props.and_then(|props| Some((props.list_type.as_deref()?, props))) {
        Some(("set", _)) => all().cloned().collect(),
        Some(("map", props)) => {
            let names = &props.list_map_keys;
            let key = |item: &Value<'a>| names.iter().map(|name| item.field(name).unwrap_or(Value::Null)).collect();
            all().map(|item| Value::list(key(item))).collect()
        }
        _ => return all().cloned().collect(),
    };
    // Found by hash: both lists are as long as their author likes.
    let index = Index::new(&keys, &[], |key| key);
    let mut items = first.to_vec();
    // Where the items of the second list are.
    let mut places = Vec::with_capacity(second.len());
    for (at, item) in second.iter().enumerate() {
        let own = first.len() + at;
        let place = match index.position(&keys[own]) {
            Some(found) if found < first.len() => found,
            Some(found) if found < own => places[found - first.len()],
            _ => items.len(),
        };
        places.push(place);
        match items.get_mut(place) {
            Some(other) => *other = item.clone(),
            None => items.push(item.clone()),
        }
    }
    items
}

fn durations<'a>(duration: Option<SignedDuration>) -> Outcome<'a> {
    duration.map(Value::Duration).ok_or_else(|| EvaluateError::new("duration overflow"))
}

/// The checked arithmetic of a type of integers.
macro_rules! integers {
    ($name:ident, $number:ty, $value:path, $overflow:expr) => {
        fn $name<'a>(operator: &str, a: $number, b: $number) -> Outcome<'a> {
            match operator {
                "_/_" if b == 0 => return Err(EvaluateError::new("division by zero")),
                "_%_" if b == 0 => return Err(EvaluateError::new("modulus by zero")),
                _ => {}
            }
            let number = match operator {
                "_+_" => a.checked_add(b),
                "_-_" => a.checked_sub(b),
                "_*_" => a.checked_mul(b),
                "_/_" => a.checked_div(b),
                _ => a.checked_rem(b),
            };
            number.map($value).ok_or_else($overflow)
        }
    };
}

integers!(whole, i64, Value::Int, overflow);
integers!(unsigned, u64, Value::Uint, || EvaluateError::new("unsigned integer overflow"));

fn overflow() -> EvaluateError {
    EvaluateError::new("integer overflow")
}
