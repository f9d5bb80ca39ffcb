//! Lists and sets.

use super::super::error::EvaluateError;
use super::super::value::Value;
use super::{Outcome, failed, flag};
use std::cmp::Ordering;

const FUNCTIONS: [&str; 16] = [
    "isSorted",
    "sum",
    "min",
    "max",
    "indexOf",
    "lastIndexOf",
    "slice",
    "reverse",
    "distinct",
    "flatten",
    "sort",
    "first",
    "last",
    "sets.contains",
    "sets.intersects",
    "sets.equivalent",
];

/// Whether a function reads the items of a list.
pub(in super::super) fn reads_list(function: &str) -> bool {
    FUNCTIONS.contains(&function)
}

pub(super) fn call<'a>(function: &str, values: &[Value<'a>]) -> Option<Outcome<'a>> {
    if let ("lists.range", [Value::Int(count)]) = (function, values) {
        return Some(Ok(Value::list((0..*count).map(Value::Int).collect())));
    }
    // The items of a list of JSON are converted only for a function that reads them, and costs as much.
    if !reads_list(function) {
        return None;
    }
    let elements = values.first()?.elements()?;
    match (function, &values[1..]) {
        ("isSorted", []) => {
            for pair in elements.windows(2) {
                match pair[0].compare(&pair[1]) {
                    Ok(Ordering::Greater) => return flag(false),
                    Ok(_) => {}
                    Err(error) => return Some(Err(error)),
                }
            }
            flag(true)
        }
        ("sum", []) => Some(sum(&elements)),
        ("min", []) => Some(extreme(&elements, Ordering::Less, "min")),
        ("max", []) => Some(extreme(&elements, Ordering::Greater, "max")),
        ("indexOf", [item]) => position(elements.iter().position(|element| element.equals(item))),
        ("lastIndexOf", [item]) => position(elements.iter().rposition(|element| element.equals(item))),
        ("slice", [Value::Int(from), Value::Int(to)]) => {
            let range = usize::try_from(*from).ok().zip(usize::try_from(*to).ok());
            match range.and_then(|(from, to)| elements.get(from..to)) {
                Some(part) => Some(Ok(Value::list(part.to_vec()))),
                None => failed(format!("cannot slice({from}, {to}), list is length {}", elements.len())),
            }
        }
        ("reverse", []) => Some(Ok(Value::list(elements.iter().rev().cloned().collect()))),
        ("distinct", []) => {
            let mut kept: Vec<Value<'a>> = Vec::new();
            for element in elements.iter() {
                if !kept.iter().any(|other| other.equals(element)) {
                    kept.push(element.clone());
                }
            }
            Some(Ok(Value::list(kept)))
        }
        ("flatten", []) => Some(Ok(Value::list(flatten(&elements, 1)))),
        ("flatten", [Value::Int(depth)]) => Some(Ok(Value::list(flatten(&elements, *depth)))),
        ("sort", []) => {
            let mut sorted = elements.to_vec();
            let mut failure = None;
            sorted.sort_by(|a, b| {
                a.compare(b).unwrap_or_else(|error| {
                    failure = Some(error);
                    Ordering::Equal
                })
            });
            Some(failure.map_or(Ok(Value::list(sorted)), Err))
        }
        ("first", []) => Some(Ok(elements.first().cloned().map_or(Value::Optional(None), Value::some))),
        ("last", []) => Some(Ok(elements.last().cloned().map_or(Value::Optional(None), Value::some))),
        ("sets.contains", [other]) => {
            let other = other.elements()?;
            flag(other.iter().all(|item| elements.iter().any(|element| element.equals(item))))
        }
        ("sets.intersects", [other]) => {
            let other = other.elements()?;
            flag(other.iter().any(|item| elements.iter().any(|element| element.equals(item))))
        }
        ("sets.equivalent", [other]) => {
            let other = other.elements()?;
            let within =
                |a: &[Value<'a>], b: &[Value<'a>]| a.iter().all(|item| b.iter().any(|other| other.equals(item)));
            flag(within(&elements, &other) && within(&other, &elements))
        }
        _ => None,
    }
}

fn position<'a>(at: Option<usize>) -> Option<Outcome<'a>> {
    Some(Ok(Value::Int(at.map_or(-1, |at| at as i64))))
}

fn sum<'a>(elements: &[Value<'a>]) -> Outcome<'a> {
    let Some((first, rest)) = elements.split_first() else { return Ok(Value::Int(0)) };
    // Only what has a fixed size is summed: sums of texts and lists would be copied once for each element.
    if !matches!(first, Value::Int(_) | Value::Uint(_) | Value::Double(_) | Value::Duration(_)) {
        return Err(EvaluateError::no_such_overload());
    }
    rest.iter().try_fold(first.clone(), |sum, element| super::call("_+_", &[sum, element.clone()]))
}

fn extreme<'a>(elements: &[Value<'a>], wanted: Ordering, name: &str) -> Outcome<'a> {
    let mut best: Option<&Value<'a>> = None;
    for element in elements {
        match best {
            Some(other) if element.compare(other)? != wanted => {}
            _ => best = Some(element),
        }
    }
    best.cloned().ok_or_else(|| EvaluateError::new(format!("{name} called on empty list")))
}

fn flatten<'a>(elements: &[Value<'a>], depth: i64) -> Vec<Value<'a>> {
    let mut flat = Vec::new();
    for element in elements {
        match element.elements() {
            Some(inner) if depth > 0 => flat.extend(flatten(&inner, depth - 1)),
            _ => flat.push(element.clone()),
        }
    }
    flat
}
