//! The `format` function: `'%s has %d'.format([name, count])`.

use super::super::error::EvaluateError;
use super::super::value::Value;
use super::conversions::format_value;
use super::{Outcome, failed};

pub(super) fn call<'a>(function: &str, values: &[Value<'a>]) -> Option<Outcome<'a>> {
    match (function, values) {
        ("format", [Value::String(text), arguments]) => {
            let arguments = arguments.elements()?;
            match filled(text, &arguments) {
                Ok(text) => Some(Ok(Value::text(text))),
                Err(message) => failed(message),
            }
        }
        _ => None,
    }
}

/// The maximum number of decimal places.
const MAX_PRECISION: usize = 1_100;

/// How long numbers may get when they are formatted. They are short values, unlike their texts.
pub(in super::super) fn numbers_length(values: &[Value<'_>]) -> u64 {
    const MAX_DIGITS: u64 = 310;
    let [Value::String(text), arguments] = values else { return 0 };
    let Some(arguments) = arguments.elements() else { return 0 };
    // A clause starts with its precision, if it has one. `%%` is none, so which argument a clause has is not counted here.
    let precision = |clause: &str| {
        let Some(digits) = clause.strip_prefix('.') else { return 0 };
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        digits[..end].parse().unwrap_or(MAX_PRECISION).min(MAX_PRECISION) as u64
    };
    let digits = |argument: &Value<'_>| match argument {
        Value::Double(_) => MAX_DIGITS,
        Value::Int(_) | Value::Uint(_) => u64::from(u64::BITS),
        _ => 0,
    };
    text.split('%').skip(1).map(precision).sum::<u64>() + arguments.iter().map(digits).sum::<u64>()
}

fn filled(text: &str, arguments: &[Value<'_>]) -> Result<String, String> {
    let mut arguments = arguments.iter();
    let mut out = String::new();
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        if characters.peek() == Some(&'%') {
            characters.next();
            out.push('%');
            continue;
        }
        let mut precision = None;
        if characters.peek() == Some(&'.') {
            characters.next();
            let mut digits = String::new();
            while let Some(digit) = characters.next_if(char::is_ascii_digit) {
                digits.push(digit);
            }
            precision = digits.parse::<usize>().ok();
            if !digits.is_empty() && precision.is_none_or(|precision| precision > MAX_PRECISION) {
                return Err(format!("precision {digits} is too large"));
            }
        }
        let clause = characters.next().ok_or("unexpected end of string")?;
        let argument = arguments.next().ok_or("index out of range")?;
        out.push_str(&clause_text(clause, precision, argument).map_err(|error| error.to_string())?);
    }
    Ok(out)
}

fn clause_text(clause: char, precision: Option<usize>, value: &Value<'_>) -> Result<String, EvaluateError> {
    let wrong = || {
        EvaluateError::new(format!(
            "error during formatting: no formatting function for %{clause} and {}",
            value.type_name()
        ))
    };
    Ok(match (clause, value) {
        ('s', value) => format_value(value),
        ('d', Value::Int(number)) => number.to_string(),
        ('d', Value::Uint(number)) => number.to_string(),
        ('d', Value::Double(number)) => format!("{number}"),
        ('f', value) => format!("{:.*}", precision.unwrap_or(6), double(value).ok_or_else(wrong)?),
        ('e', value) => exponent(double(value).ok_or_else(wrong)?, precision.unwrap_or(6)),
        ('b', Value::Bool(flag)) => u8::from(*flag).to_string(),
        ('b', Value::Int(number)) => signed(*number, |size| format!("{size:b}")),
        ('b', Value::Uint(number)) => format!("{number:b}"),
        ('o', Value::Int(number)) => signed(*number, |size| format!("{size:o}")),
        ('o', Value::Uint(number)) => format!("{number:o}"),
        ('x', Value::Int(number)) => signed(*number, |size| format!("{size:x}")),
        ('X', Value::Int(number)) => signed(*number, |size| format!("{size:X}")),
        ('x', Value::Uint(number)) => format!("{number:x}"),
        ('X', Value::Uint(number)) => format!("{number:X}"),
        ('x', Value::String(text)) => text.bytes().map(|byte| format!("{byte:02x}")).collect(),
        ('X', Value::String(text)) => text.bytes().map(|byte| format!("{byte:02X}")).collect(),
        ('x', Value::Bytes(bytes)) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        ('X', Value::Bytes(bytes)) => bytes.iter().map(|byte| format!("{byte:02X}")).collect(),
        ('b' | 'd' | 'o' | 'x' | 'X', _) => return Err(wrong()),
        _ => {
            return Err(EvaluateError::new(format!(
                "could not parse formatting clause: unrecognized formatting clause \"{clause}\""
            )));
        }
    })
}

fn double(value: &Value<'_>) -> Option<f64> {
    match value {
        Value::Double(number) => Some(*number),
        Value::Int(number) => Some(*number as f64),
        Value::Uint(number) => Some(*number as f64),
        _ => None,
    }
}

fn signed(number: i64, shown: impl Fn(u64) -> String) -> String {
    format!("{}{}", if number < 0 { "-" } else { "" }, shown(number.unsigned_abs()))
}

fn exponent(number: f64, precision: usize) -> String {
    let text = format!("{number:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
    format!("{mantissa}e{sign}{digits:0>2}")
}
