//! The functions and operators.

mod addresses;
mod arithmetic;
mod authorizer;
mod conversions;
mod format_text;
mod kubernetes;
mod lists;
mod optionals;
mod texts;
mod times;

pub(super) use conversions::format_value;
pub(super) use format_text::numbers_length;
pub use kubernetes::semver;
pub(super) use lists::reads_list;
pub(super) use times::parse_duration;

use super::error::EvaluateError;
use super::value::Value;

type Outcome<'a> = Result<Value<'a>, EvaluateError>;

/// One library of functions; returns none for other functions and for values of other types.
type Library = for<'v> fn(&str, &[Value<'v>]) -> Option<Outcome<'v>>;

/// Calls a function. The receiver, if there is one, is the first value.
pub(super) fn call<'a>(function: &str, values: &[Value<'a>]) -> Outcome<'a> {
    let libraries: [Library; 10] = [
        arithmetic::call,
        conversions::call,
        texts::call,
        lists::call,
        times::call,
        optionals::call,
        kubernetes::call,
        addresses::call,
        format_text::call,
        authorizer::call,
    ];
    libraries
        .iter()
        .find_map(|library| library(function, values))
        .unwrap_or_else(|| Err(EvaluateError::no_such_overload()))
}

fn flag<'a>(flag: bool) -> Option<Outcome<'a>> {
    Some(Ok(Value::Bool(flag)))
}

fn count<'a>(count: usize) -> Option<Outcome<'a>> {
    Some(Ok(Value::Int(count as i64)))
}

fn failed<'a>(message: impl Into<String>) -> Option<Outcome<'a>> {
    Some(Err(EvaluateError::new(message)))
}
