//! Times and durations.

use super::super::error::EvaluateError;
use super::super::value::Value;
use super::Outcome;
use crate::go_duration;
use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};

pub(super) fn call<'a>(function: &str, values: &[Value<'a>]) -> Option<Outcome<'a>> {
    match values {
        [Value::Duration(duration)] => {
            let nanos = duration.as_nanos();
            let unit = match function {
                "getHours" => 3_600_000_000_000,
                "getMinutes" => 60_000_000_000,
                "getSeconds" => 1_000_000_000,
                "getMilliseconds" => 1_000_000,
                _ => return None,
            };
            Some(Ok(Value::Int(i64::try_from(nanos / unit).unwrap_or(i64::MAX))))
        }
        [Value::Timestamp(time)] => part(function, *time, TimeZone::UTC).map(Ok),
        [Value::Timestamp(time), Value::String(zone)] => match zone_named(zone) {
            Some(zone) => part(function, *time, zone).map(Ok),
            None => Some(Err(EvaluateError::new(format!("unknown time zone {zone}")))),
        },
        _ => None,
    }
}

fn part<'a>(function: &str, time: Timestamp, zone: TimeZone) -> Option<Value<'a>> {
    let time = time.to_zoned(zone);
    let number = match function {
        "getFullYear" => i64::from(time.year()),
        "getMonth" => i64::from(time.month()) - 1,
        "getDate" => i64::from(time.day()),
        "getDayOfMonth" => i64::from(time.day()) - 1,
        "getDayOfWeek" => i64::from(time.weekday().to_sunday_zero_offset()),
        "getDayOfYear" => i64::from(time.day_of_year()) - 1,
        "getHours" => i64::from(time.hour()),
        "getMinutes" => i64::from(time.minute()),
        "getSeconds" => i64::from(time.second()),
        "getMilliseconds" => i64::from(time.millisecond()),
        _ => return None,
    };
    Some(Value::Int(number))
}

fn zone_named(name: &str) -> Option<TimeZone> {
    if let Some((hours, minutes)) = name.split_once(':') {
        let (sign, hours) = match hours.strip_prefix('-') {
            Some(hours) => (-1, hours),
            None => (1, hours.strip_prefix('+').unwrap_or(hours)),
        };
        let (hours, minutes) = (hours.parse::<i32>().ok()?, minutes.parse::<i32>().ok()?);
        let seconds = hours.checked_mul(3600)?.checked_add(minutes.checked_mul(60)?)?;
        return Offset::from_seconds(sign * seconds).ok().map(Offset::to_time_zone);
    }
    TimeZone::get(name).ok()
}

pub(super) fn parse_timestamp(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

pub(super) fn format_timestamp(time: Timestamp) -> String {
    time.to_string()
}

/// Parses durations such as `1h30m`, `-1.5s` and `100ms`.
pub(in super::super) fn parse_duration(text: &str) -> Option<SignedDuration> {
    go_duration::parse(text).ok().map(SignedDuration::from_nanos)
}

/// Formats seconds with their fraction: `5400s`, `0.1s`.
pub(super) fn format_duration(duration: SignedDuration) -> String {
    let nanos = duration.as_nanos();
    let (seconds, fraction) = (nanos / 1_000_000_000, (nanos % 1_000_000_000).unsigned_abs());
    let sign = if nanos < 0 && seconds == 0 { "-" } else { "" };
    if fraction == 0 {
        return format!("{seconds}s");
    }
    let fraction = format!("{fraction:09}");
    format!("{sign}{seconds}.{}s", fraction.trim_end_matches('0'))
}
