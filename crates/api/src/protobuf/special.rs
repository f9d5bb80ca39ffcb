//! Values that are written differently in JSON and in protobuf.

use jiff::Timestamp;

use crate::time;

/// What Kubernetes holds for no time at all: the first moment of the year 1.
const ZERO_SECONDS: i64 = -62_135_596_800;

/// Seconds and nanoseconds of a time, the latter cut to microseconds; `None` for the zero time.
pub(super) fn parse_time(text: &str) -> Result<Option<(i64, i32)>, String> {
    let at = time::parse(text).ok_or_else(|| format!("{text:?} is not a time"))?;
    // The whole second at or before it, which matters before 1970.
    let seconds = at.as_nanosecond().div_euclid(1_000_000_000) as i64;
    let nanoseconds = at.as_nanosecond().rem_euclid(1_000_000_000) as i32;
    if (seconds, nanoseconds) == (ZERO_SECONDS, 0) {
        return Ok(None);
    }
    Ok(Some((seconds, nanoseconds / 1000 * 1000)))
}

/// `None` for the zero time.
pub(super) fn format_time(seconds: i64, nanoseconds: Option<i32>) -> Result<Option<String>, String> {
    let fraction = nanoseconds.unwrap_or(0) / 1000 * 1000;
    if (seconds, fraction) == (ZERO_SECONDS, 0) {
        return Ok(None);
    }
    let at = Timestamp::new(seconds, fraction).map_err(|_| format!("{seconds} seconds is not a time"))?;
    if !(ZERO_SECONDS..253_402_300_800).contains(&seconds) {
        return Err(format!("{seconds} seconds is outside of years 1 to 9999"));
    }
    Ok(Some(if nanoseconds.is_some() { time::micros(at) } else { time::seconds(at) }))
}

const UNITS: [(&str, i64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Nanoseconds of a duration such as `1h30m` or `1.5s`.
pub(super) fn parse_duration(text: &str) -> Option<i64> {
    let negative = text.starts_with('-');
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i64 = 0;
    while !rest.is_empty() {
        let length = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(length);
        let length = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(length);
        let unit = UNITS.iter().find(|(name, _)| *name == unit)?.1;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let whole: i64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        total = total.checked_add(whole.checked_mul(unit)?)?;
        if !fraction.is_empty() {
            let fraction: f64 = format!("0.{fraction}").parse().ok()?;
            total = total.checked_add((fraction * unit as f64) as i64)?;
        }
        rest = after;
    }
    Some(if negative { -total } else { total })
}

/// A duration as Go writes it: `1h30m0s`, `1.5s`, `100ms`.
pub(super) fn format_duration(nanoseconds: i64) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_seconds_or_microseconds() {
        assert_eq!(parse_time("0001-01-01T00:00:00Z"), Ok(None));
        assert_eq!(parse_time("1970-01-01T00:00:01.123456789Z"), Ok(Some((1, 123_456_000))));
        assert_eq!(parse_time("1969-12-31T23:59:58.5Z"), Ok(Some((-2, 500_000_000))));
        assert_eq!(format_time(1, None), Ok(Some("1970-01-01T00:00:01Z".to_owned())));
        assert_eq!(format_time(1, Some(5_000)), Ok(Some("1970-01-01T00:00:01.000005Z".to_owned())));
        assert_eq!(format_time(ZERO_SECONDS, Some(0)), Ok(None));
        for seconds in [i64::MIN, i64::MAX, 253_402_300_800] {
            assert!(format_time(seconds, None).is_err());
        }
        assert!(parse_time("yesterday").is_err());
    }

    #[test]
    fn durations_read_and_write() {
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
            assert_eq!(parse_duration(text), Some(nanoseconds), "{text}");
            assert_eq!(format_duration(nanoseconds), written, "{text}");
        }
        for text in ["", "1", "s", "1x", ".s", "-"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }
}
