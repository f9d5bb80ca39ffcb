//! Resolution of YAML scalars to JSON values.

use super::super::untyped::number;
use super::events::Failure;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// A scalar as it was written.
pub(super) struct Scalar {
    pub text: String,
    /// The tag without its well-known prefix, such as `!!str`.
    pub tag: Option<String>,
    /// Not quoted, so its text can be a number, boolean or null.
    pub plain: bool,
}

impl Scalar {
    /// Whether this is the merge key `<<`.
    pub fn is_merge(&self) -> bool {
        self.text == "<<" && (self.tag.as_deref() == Some("!!merge") || self.tag.is_none() && self.plain)
    }

    /// The value by its tag, or by its form if it has none.
    pub fn resolve(&self) -> Result<Value, Failure> {
        let text = || Ok(Value::String(self.text.clone()));
        let Some(tag) = self.tag.as_deref() else {
            return if self.plain { Ok(self.implicit()) } else { text() };
        };
        let wrong = |found: &Value| {
            let found = match found {
                Value::Null => "!!null",
                Value::Bool(_) => "!!bool",
                Value::Number(number) if number.is_f64() => "!!float",
                Value::Number(_) => "!!int",
                _ => "!!str",
            };
            Failure(format!("cannot decode {found} `{}` as a {tag}", self.text))
        };
        let found = self.implicit();
        match (tag, &found) {
            ("!!str", _) => text(),
            ("!!binary", _) => match STANDARD.decode(self.text.replace(['\n', ' '], "")) {
                Ok(bytes) => Ok(Value::String(String::from_utf8_lossy(&bytes).into_owned())),
                Err(_) => Err(Failure("!!binary value contains invalid base64 data".to_owned())),
            },
            ("!!null", Value::Null) | ("!!bool", Value::Bool(_)) | ("!!float", Value::Number(_)) => Ok(found),
            ("!!int", Value::Number(number)) if !number.is_f64() => Ok(found),
            ("!!timestamp", Value::String(_)) => Ok(found),
            ("!!null" | "!!bool" | "!!int" | "!!float" | "!!timestamp", _) => Err(wrong(&found)),
            _ => text(),
        }
    }

    fn implicit(&self) -> Value {
        match self.text.as_str() {
            "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Value::Bool(true),
            "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Value::Bool(false),
            "" | "~" | "null" | "Null" | "NULL" => Value::Null,
            text => implicit_number(text).unwrap_or_else(|| Value::String(text.to_owned())),
        }
    }
}

fn implicit_number(text: &str) -> Option<Value> {
    match text.as_bytes().first()? {
        b'.' => text[1..].starts_with(|c: char| c.is_ascii_digit()).then(|| number(&format!("0{text}")))?,
        b'0'..=b'9' | b'+' | b'-' => {
            let plain = text.replace('_', "");
            whole_number(&plain).or_else(|| decimal_number(&plain))
        }
        _ => None,
    }
}

/// Integers in base 2, 8, 10 and 16; a leading zero means octal.
fn whole_number(text: &str) -> Option<Value> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (digits, base) = if let Some(rest) = lower.strip_prefix("0x") {
        (rest, 16)
    } else if let Some(rest) = lower.strip_prefix("0b") {
        (rest, 2)
    } else if let Some(rest) = lower.strip_prefix("0o") {
        (rest, 8)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (&lower[1..], 8)
    } else {
        (lower.as_str(), 10)
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    let size = u64::from_str_radix(digits, base).ok()?;
    if !negative {
        return Some(Value::from(size));
    }
    i64::try_from(-i128::from(size)).ok().map(Value::from)
}

fn decimal_number(text: &str) -> Option<Value> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent.strip_prefix(['-', '+']).unwrap_or(exponent))),
        None => (unsigned, None),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let well_formed = digits(whole)
        && digits(fraction)
        && !(whole.is_empty() && fraction.is_empty())
        && exponent.is_none_or(|exponent| !exponent.is_empty() && digits(exponent));
    if !well_formed {
        return None;
    }
    number(text.strip_prefix('+').unwrap_or(text))
}
