//! How Go's standard library reads values, with its error messages: clients and scripts see them.

pub use knarr_go_duration::quote;

fn syntax(function: &str, text: &str) -> String {
    format!("strconv.{function}: parsing {}: invalid syntax", quote(text))
}

fn range(function: &str, text: &str) -> String {
    format!("strconv.{function}: parsing {}: value out of range", quote(text))
}

pub fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(syntax("ParseBool", text)),
    }
}

/// `strconv.ParseInt` with base 0: decimal, or by prefix hexadecimal, octal or binary.
pub fn parse_int(text: &str, bits: u32) -> Result<i64, String> {
    let (is_negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let magnitude = match magnitude(digits, 0) {
        Magnitude::Invalid => return Err(syntax("ParseInt", text)),
        Magnitude::TooLarge => return Err(range("ParseInt", text)),
        Magnitude::Value(value) => i128::from(value),
    };
    let value = if is_negative { -magnitude } else { magnitude };
    let limit = 1i128 << (bits - 1);
    if value < -limit || value >= limit {
        return Err(range("ParseInt", text));
    }
    i64::try_from(value).map_err(|_| range("ParseInt", text))
}

/// `strconv.ParseUint` with this base, 0 for a prefix.
pub fn parse_uint(text: &str, base: u32, bits: u32) -> Result<u64, String> {
    match magnitude(text, base) {
        Magnitude::Invalid => Err(syntax("ParseUint", text)),
        Magnitude::Value(value) if bits == 64 || value < 1 << bits => Ok(value),
        _ => Err(range("ParseUint", text)),
    }
}

/// `strconv.Atoi`.
pub fn parse_atoi(text: &str) -> Result<i64, String> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(syntax("Atoi", text));
    }
    text.parse().map_err(|_| range("Atoi", text))
}

enum Magnitude {
    Value(u64),
    Invalid,
    TooLarge,
}

fn magnitude(text: &str, base: u32) -> Magnitude {
    let (radix, digits, has_prefix) = if base != 0 {
        (base, text, false)
    } else {
        let lower = text.to_ascii_lowercase();
        match lower.get(..2) {
            Some("0x") => (16, &text[2..], true),
            Some("0b") => (2, &text[2..], true),
            Some("0o") => (8, &text[2..], true),
            _ if text.len() > 1 && text.starts_with('0') => (8, &text[1..], true),
            _ => (10, text, false),
        }
    };
    let Some(digits) = without_underscores(digits, base == 0, has_prefix) else { return Magnitude::Invalid };
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(radix)) {
        return Magnitude::Invalid;
    }
    u64::from_str_radix(&digits, radix).map_or(Magnitude::TooLarge, Magnitude::Value)
}

/// Underscores may separate digits where a prefix chooses the base.
fn without_underscores(digits: &str, allowed: bool, has_prefix: bool) -> Option<String> {
    if !digits.contains('_') {
        return Some(digits.to_owned());
    }
    let is_misplaced = digits.ends_with('_') || digits.contains("__") || (digits.starts_with('_') && !has_prefix);
    (allowed && !is_misplaced).then(|| digits.replace('_', ""))
}

pub fn parse_float(text: &str, bits: u32) -> Result<f64, String> {
    // Rust reads the same decimal numbers; Go's hexadecimal ones are not used for flags.
    let is_number = text.bytes().any(|byte| byte.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.' | b'e' | b'E'));
    let is_named =
        matches!(text.trim_start_matches(['+', '-']).to_ascii_lowercase().as_str(), "inf" | "infinity" | "nan");
    if !is_number && !is_named {
        return Err(syntax("ParseFloat", text));
    }
    let value: f64 = text.parse().map_err(|_| syntax("ParseFloat", text))?;
    let is_large = value.is_infinite() || (bits == 32 && value.is_finite() && value.abs() > f64::from(f32::MAX));
    if is_number && is_large {
        return Err(range("ParseFloat", text));
    }
    Ok(value)
}

/// The first record of comma-separated values, as `encoding/csv` reads it.
pub fn parse_csv(text: &str) -> Result<Vec<String>, String> {
    let mut fields = vec![String::new()];
    let mut characters = text.char_indices().peekable();
    let mut is_start = true;
    while let Some((at, character)) = characters.next() {
        let field = fields.last_mut().expect("there is always a field");
        match character {
            '"' if is_start => {
                is_start = false;
                read_quoted(text, &mut characters, field)?;
            }
            '"' => return Err(format!("parse error on line 1, column {}: bare \" in non-quoted field", at + 1)),
            ',' => {
                fields.push(String::new());
                is_start = true;
            }
            '\n' => break,
            other => {
                field.push(other);
                is_start = false;
            }
        }
    }
    Ok(fields)
}

fn read_quoted(
    text: &str,
    characters: &mut std::iter::Peekable<std::str::CharIndices<'_>>,
    field: &mut String,
) -> Result<(), String> {
    while let Some((at, character)) = characters.next() {
        if character != '"' {
            field.push(character);
            continue;
        }
        match characters.peek() {
            Some((_, '"')) => {
                field.push('"');
                characters.next();
            }
            Some((_, ',' | '\n')) | None => return Ok(()),
            Some(_) => {
                return Err(format!(
                    "parse error on line 1, column {}: extraneous or missing \" in quoted-field",
                    at + 1
                ));
            }
        }
    }
    Err(format!("parse error on line 1, column {}: extraneous or missing \" in quoted-field", text.len() + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_go_reads_them() {
        for (text, bits, expected) in [
            ("10", 64, Ok(10)),
            ("-3", 32, Ok(-3)),
            ("+3", 32, Ok(3)),
            ("0x10", 64, Ok(16)),
            ("010", 64, Ok(8)),
            ("0b11", 64, Ok(3)),
            ("1_000", 64, Ok(1000)),
            ("2147483647", 32, Ok(2_147_483_647)),
            ("2147483648", 32, Err("strconv.ParseInt: parsing \"2147483648\": value out of range")),
            ("-2147483648", 32, Ok(-2_147_483_648)),
            ("-9223372036854775808", 64, Ok(i64::MIN)),
            ("99999999999999999999", 64, Err("strconv.ParseInt: parsing \"99999999999999999999\": value out of range")),
            ("1__0", 64, Err("strconv.ParseInt: parsing \"1__0\": invalid syntax")),
            ("", 64, Err("strconv.ParseInt: parsing \"\": invalid syntax")),
            ("09", 64, Err("strconv.ParseInt: parsing \"09\": invalid syntax")),
            ("1.5", 64, Err("strconv.ParseInt: parsing \"1.5\": invalid syntax")),
            ("é", 64, Err("strconv.ParseInt: parsing \"é\": invalid syntax")),
        ] {
            assert_eq!(parse_int(text, bits), expected.map_err(str::to_owned), "{text}");
        }
        assert_eq!(parse_uint("-1", 0, 64), Err("strconv.ParseUint: parsing \"-1\": invalid syntax".to_owned()));
        assert_eq!(
            parse_uint("2147483648", 10, 31),
            Err("strconv.ParseUint: parsing \"2147483648\": value out of range".to_owned())
        );
        assert_eq!(parse_float("1e3", 32), Ok(1000.0));
        assert!(parse_float("1e300", 32).unwrap_err().ends_with("value out of range"));
        assert!(parse_float("x", 64).unwrap_err().ends_with("parsing \"x\": invalid syntax"));
    }

    #[test]
    fn lists_may_be_quoted() {
        for (text, expected) in [
            ("a,b", Ok(vec!["a", "b"])),
            ("\"a,b\",c", Ok(vec!["a,b", "c"])),
            ("\"a\"\"b\"", Ok(vec!["a\"b"])),
            ("a,", Ok(vec!["a", ""])),
            ("a\"b", Err("parse error on line 1, column 2: bare \" in non-quoted field")),
        ] {
            let read = parse_csv(text);
            assert_eq!(
                read,
                expected.map(|fields| fields.into_iter().map(str::to_owned).collect()).map_err(str::to_owned)
            );
        }
        assert!(parse_csv("\"a").is_err());
    }
}
