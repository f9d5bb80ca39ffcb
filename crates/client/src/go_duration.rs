//! Durations as Go writes them: `100ms`, `1h30m`, `1.5h`.

use std::time::Duration;

/// Nanoseconds of each unit; longer names first, since the shorter are their prefixes.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("h", 3600 * 1_000_000_000),
];

/// Parses a duration that is not negative; `None` for any other text.
pub fn parse(text: &str) -> Option<Duration> {
    let text = text.strip_prefix('+').unwrap_or(text);
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut nanoseconds: u64 = 0;
    while !rest.is_empty() {
        let end = rest.find(|sign: char| !sign.is_ascii_digit() && sign != '.')?;
        let (number, after) = rest.split_at(end);
        let (unit, size) = UNITS.iter().find(|(unit, _)| {
            after.strip_prefix(unit).is_some_and(|next| {
                next.is_empty() || next.starts_with(|sign: char| sign.is_ascii_digit() || sign == '.')
            })
        })?;
        nanoseconds = nanoseconds.checked_add(scaled(number, *size)?)?;
        rest = &after[unit.len()..];
    }
    // Go counts in signed nanoseconds.
    (!text.is_empty() && i64::try_from(nanoseconds).is_ok()).then(|| Duration::from_nanos(nanoseconds))
}

/// A decimal number of units in nanoseconds; digits below a nanosecond are dropped.
fn scaled(number: &str, size: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut total = whole.checked_mul(size)?;
    let mut place = size;
    for digit in fraction.bytes().take(18) {
        // Exact for the first digits of every unit; below that Go rounds as well.
        total = total.checked_add(u64::from(digit - b'0') * place / 10)?;
        place /= 10;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_go() {
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
            ("5", None),
            ("", None),
            (".s", None),
            ("1.2.3s", None),
            ("1d", None),
            ("soon", None),
            ("1s ", None),
            ("9999999999h", None),
        ] {
            assert_eq!(parse(text), expected, "{text:?}");
        }
    }
}
