//! Conversions between types.

use super::super::error::EvaluateError;
use super::super::value::Value;
use super::times::{format_duration, format_timestamp, parse_duration, parse_timestamp};
use super::{Outcome, count, failed, flag};

pub(super) fn call<'a>(function: &str, values: &[Value<'a>]) -> Option<Outcome<'a>> {
    match (function, values) {
        ("size", [value]) => value.size().and_then(count),
        ("dyn", [value]) => Some(Ok(value.clone())),
        ("type", [value]) => Some(Ok(Value::Type(value.type_name().into()))),
        ("int", [value]) => Some(int(value)),
        ("uint", [value]) => Some(uint(value)),
        ("double", [value]) => Some(double(value)),
        ("bool", [Value::Bool(value)]) => flag(*value),
        ("bool", [Value::String(text)]) => match &**text {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => flag(true),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => flag(false),
            _ => failed("type conversion error from 'string' to 'bool'"),
        },
        ("string", [value]) => text(value).map(|text| Ok(Value::text(text))),
        ("bytes", [Value::Bytes(bytes)]) => Some(Ok(Value::Bytes(bytes.clone()))),
        ("bytes", [Value::String(text)]) => Some(Ok(Value::Bytes(text.as_bytes().into()))),
        ("duration", [Value::Duration(duration)]) => Some(Ok(Value::Duration(*duration))),
        ("duration", [Value::String(text)]) => Some(
            parse_duration(text)
                .map(Value::Duration)
                .ok_or_else(|| EvaluateError::new("type conversion error from 'string' to 'google.protobuf.Duration'")),
        ),
        ("timestamp", [Value::Timestamp(time)]) => Some(Ok(Value::Timestamp(*time))),
        ("timestamp", [Value::Int(seconds)]) => Some(
            jiff::Timestamp::from_second(*seconds)
                .map(Value::Timestamp)
                .map_err(|_| EvaluateError::new("timestamp overflow")),
        ),
        ("timestamp", [Value::String(text)]) => {
            Some(parse_timestamp(text).map(Value::Timestamp).ok_or_else(|| {
                EvaluateError::new("type conversion error from 'string' to 'google.protobuf.Timestamp'")
            }))
        }
        _ => None,
    }
}

fn int<'a>(value: &Value<'a>) -> Outcome<'a> {
    let overflow = || EvaluateError::new("integer overflow");
    match value {
        Value::Int(number) => Ok(Value::Int(*number)),
        Value::Uint(number) => i64::try_from(*number).map(Value::Int).map_err(|_| overflow()),
        Value::Double(number) if number.abs() < 9.223_372_036_854_775e18 => Ok(Value::Int(*number as i64)),
        Value::Double(_) => Err(overflow()),
        Value::String(text) => text.parse().map(Value::Int).map_err(|_| wrong("string", "int")),
        Value::Timestamp(time) => Ok(Value::Int(time.as_second())),
        Value::Duration(duration) => i64::try_from(duration.as_nanos()).map(Value::Int).map_err(|_| overflow()),
        _ => Err(EvaluateError::no_such_overload()),
    }
}

fn uint<'a>(value: &Value<'a>) -> Outcome<'a> {
    let overflow = || EvaluateError::new("unsigned integer overflow");
    match value {
        Value::Uint(number) => Ok(Value::Uint(*number)),
        Value::Int(number) => u64::try_from(*number).map(Value::Uint).map_err(|_| overflow()),
        Value::Double(number) if *number >= 0.0 && *number < 1.844_674_407_370_955e19 => {
            Ok(Value::Uint(*number as u64))
        }
        Value::Double(_) => Err(overflow()),
        Value::String(text) => text.parse().map(Value::Uint).map_err(|_| wrong("string", "uint")),
        _ => Err(EvaluateError::no_such_overload()),
    }
}

fn double<'a>(value: &Value<'a>) -> Outcome<'a> {
    match value {
        Value::Double(number) => Ok(Value::Double(*number)),
        Value::Int(number) => Ok(Value::Double(*number as f64)),
        Value::Uint(number) => Ok(Value::Double(*number as f64)),
        Value::String(text) => text.parse().map(Value::Double).map_err(|_| wrong("string", "double")),
        _ => Err(EvaluateError::no_such_overload()),
    }
}

/// The text that a value converts to.
fn text(value: &Value<'_>) -> Option<String> {
    Some(match value {
        Value::String(text) => text.to_string(),
        Value::Bool(flag) => flag.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Uint(number) => number.to_string(),
        Value::Double(number) => format_double(*number),
        Value::Bytes(bytes) => String::from_utf8(bytes.to_vec()).ok()?,
        Value::Timestamp(time) => format_timestamp(*time),
        Value::Duration(duration) => format_duration(*duration),
        Value::Ip(address) => address.to_string(),
        Value::Cidr(address, length) => format!("{address}/{length}"),
        Value::Type(name) => name.to_string(),
        _ => return None,
    })
}

/// The form of a value in messages.
pub(in super::super) fn format_value(value: &Value<'_>) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Quantity(quantity) => quantity.to_string(),
        Value::Url(url) => url.to_string(),
        other => match (text(other), other.elements(), other.entries()) {
            (Some(text), ..) => text,
            (_, Some(items), _) => format!("[{}]", items.iter().map(format_value).collect::<Vec<_>>().join(", ")),
            (_, _, Some(entries)) => {
                let entries =
                    entries.iter().map(|(key, value)| format!("{}: {}", format_value(key), format_value(value)));
                format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
            }
            _ => other.type_name().to_owned(),
        },
    }
}

pub(super) fn format_double(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let size = number.abs();
    if size != 0.0 && !(1e-4..1e21).contains(&size) {
        let text = format!("{number:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, digits) = exponent.strip_prefix('-').map_or(("+", exponent), |digits| ("-", digits));
        return format!("{mantissa}e{sign}{digits:0>2}");
    }
    format!("{number}")
}

fn wrong(from: &str, to: &str) -> EvaluateError {
    EvaluateError::new(format!("type conversion error from '{from}' to '{to}'"))
}
