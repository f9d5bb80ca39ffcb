//! Optional values.

use super::super::error::EvaluateError;
use super::super::value::Value;
use super::{Outcome, flag};

pub(super) fn call<'a>(function: &str, values: &[Value<'a>]) -> Option<Outcome<'a>> {
    match (function, values) {
        ("optional.none", []) => Some(Ok(Value::Optional(None))),
        ("optional.of", [value]) => Some(Ok(Value::some(value.clone()))),
        ("optional.ofNonZeroValue", [value]) if is_zero(value) => Some(Ok(Value::Optional(None))),
        ("optional.ofNonZeroValue", [value]) => Some(Ok(Value::some(value.clone()))),
        ("hasValue", [Value::Optional(inner)]) => flag(inner.is_some()),
        ("value", [Value::Optional(inner)]) => Some(
            inner
                .as_ref()
                .map(|inner| (**inner).clone())
                .ok_or_else(|| EvaluateError::new("optional.none() dereference")),
        ),
        ("or" | "orValue", [Value::Optional(None), other]) => Some(Ok(other.clone())),
        _ => None,
    }
}

fn is_zero(value: &Value<'_>) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Int(number) => *number == 0,
        Value::Uint(number) => *number == 0,
        Value::Double(number) => *number == 0.0,
        Value::Optional(inner) => inner.is_none(),
        Value::Duration(duration) => duration.is_zero(),
        other => other.size() == Some(0),
    }
}
