//! Values as Go's standard library reads and writes them: durations (`1h30m`, `250ms`) and quoted text.
//!
//! They are in the API, in configuration files, on command lines and in messages. The error messages are those of
//! `time.ParseDuration`: clients and scripts see them.

mod quote;

pub use quote::{escape, quote};

use std::time::Duration;

/// Returns a duration in nanoseconds, or Go's error message.
pub fn parse(text: &str) -> Result<i64, String> {
    let invalid = || format!("time: invalid duration {}", quote_bytes(text));
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let whole = digits(rest);
        rest = &rest[whole.len()..];
        let mut fraction = "";
        if let Some(after) = rest.strip_prefix('.') {
            fraction = digits(after);
            rest = &after[fraction.len()..];
        }
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let unit_end = rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len());
        let (unit, after) = rest.split_at(unit_end);
        if unit.is_empty() {
            return Err(format!("time: missing unit in duration {}", quote_bytes(text)));
        }
        rest = after;
        let nanoseconds: i128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return Err(format!("time: unknown unit {} in duration {}", quote_bytes(unit), quote_bytes(text))),
        };
        let number: i128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| invalid())? };
        total = total.checked_add(number.checked_mul(nanoseconds).ok_or_else(invalid)?).ok_or_else(invalid)?;
        // Further digits are below a nanosecond even for hours.
        let kept = &fraction[..fraction.len().min(18)];
        if !kept.is_empty() {
            let scale = 10_i128.pow(kept.len() as u32);
            total += kept.parse::<i128>().map_err(|_| invalid())? * nanoseconds / scale;
        }
    }
    i64::try_from(if negative { -total } else { total }).map_err(|_| invalid())
}

/// Parses a duration that is not negative.
pub fn parse_positive(text: &str) -> Option<Duration> {
    u64::try_from(parse(text).ok()?).ok().map(Duration::from_nanos)
}

/// Formats nanoseconds as Go does: `1h30m0s`, `1.5s`, `100ms`.
pub fn format(nanoseconds: i64) -> String {
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let total = nanoseconds.unsigned_abs();
    let decimal = |value: u64, unit: u64, name: &str| {
        let digits = unit.ilog10() as usize;
        let fraction = format!("{:0digits$}", value % unit);
        let fraction = fraction.trim_end_matches('0');
        let point = if fraction.is_empty() { "" } else { "." };
        format!("{}{point}{fraction}{name}", value / unit)
    };
    match total {
        0 => "0s".to_owned(),
        1..1_000 => format!("{sign}{total}ns"),
        1_000..1_000_000 => format!("{sign}{}", decimal(total, 1_000, "µs")),
        1_000_000..1_000_000_000 => format!("{sign}{}", decimal(total, 1_000_000, "ms")),
        _ => {
            let minutes = total / 60_000_000_000;
            let seconds = decimal(total % 60_000_000_000, 1_000_000_000, "s");
            match (minutes / 60, minutes % 60) {
                (0, 0) => format!("{sign}{seconds}"),
                (0, minutes) => format!("{sign}{minutes}m{seconds}"),
                (hours, minutes) => format!("{sign}{hours}h{minutes}m{seconds}"),
            }
        }
    }
}

/// Formats a duration as [`format()`] does.
pub fn format_duration(duration: Duration) -> String {
    format(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}

/// Quotes as Go's package `time` does: bytes outside of printable ASCII are hexadecimal.
fn quote_bytes(text: &str) -> String {
    let mut quoted = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => quoted.extend(['\\', char::from(byte)]),
            b' '..0x80 => quoted.push(char::from(byte)),
            _ => quoted.push_str(&format!("\\x{byte:02x}")),
        }
    }
    quoted.push('"');
    quoted
}

fn digits(text: &str) -> &str {
    &text[..text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_or_rejected() {
        for (text, read) in [
            ("1h30m", Ok(5_400_000_000_000)),
            ("-1.5s", Ok(-1_500_000_000)),
            ("0", Ok(0)),
            (".5ms", Ok(500_000)),
            ("", Err("time: invalid duration \"\"")),
            ("5", Err("time: missing unit in duration \"5\"")),
            ("5x", Err("time: unknown unit \"x\" in duration \"5x\"")),
            ("abc", Err("time: invalid duration \"abc\"")),
            ("1.5.2s", Err("time: missing unit in duration \"1.5.2s\"")),
            ("1µ\"", Err("time: unknown unit \"\\xc2\\xb5\\\"\" in duration \"1\\xc2\\xb5\\\"\"")),
            ("-9223372036854775808ns", Ok(i64::MIN)),
            ("9223372036854775808ns", Err("time: invalid duration \"9223372036854775808ns\"")),
        ] {
            assert_eq!(parse(text), read.map_err(str::to_owned), "{text}");
        }
    }

    #[test]
    fn durations_are_formatted_as_in_go() {
        for (text, nanoseconds, written) in [
            ("0", 0, "0s"),
            ("1h30m", 5_400_000_000_000, "1h30m0s"),
            ("1.5s", 1_500_000_000, "1.5s"),
            ("100ms", 100_000_000, "100ms"),
            ("-2m", -120_000_000_000, "-2m0s"),
            ("7ns", 7, "7ns"),
            ("1us", 1_000, "1µs"),
            ("61s", 61_000_000_000, "1m1s"),
        ] {
            assert_eq!(parse(text), Ok(nanoseconds), "{text}");
            assert_eq!(format(nanoseconds), written, "{text}");
        }
        for text in ["", "1", "s", "1x", ".s", "-"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn positive_durations_are_those_of_go() {
        for (text, expected) in [
            ("100ms", Some(Duration::from_millis(100))),
            ("5s", Some(Duration::from_secs(5))),
            ("1m", Some(Duration::from_secs(60))),
            ("1m0s", Some(Duration::from_secs(60))),
            ("1h1m30s", Some(Duration::from_secs(3690))),
            ("1.5h", Some(Duration::from_secs(5400))),
            (".5s", Some(Duration::from_millis(500))),
            ("0.25ms", Some(Duration::from_micros(250))),
            ("15us", Some(Duration::from_micros(15))),
            ("15µs", Some(Duration::from_micros(15))),
            ("7ns", Some(Duration::from_nanos(7))),
            ("0", Some(Duration::ZERO)),
            ("+1s", Some(Duration::from_secs(1))),
            ("-1s", None),
            ("5", None),
            ("", None),
            (".s", None),
            ("1.2.3s", None),
            ("1d", None),
            ("soon", None),
            ("1s ", None),
            ("9999999999h", None),
        ] {
            assert_eq!(parse_positive(text), expected, "{text:?}");
        }
    }
}
