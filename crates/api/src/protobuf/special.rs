//! Values whose forms in JSON and protobuf differ.

use jiff::Timestamp;

use crate::time;

/// The zero time of Go: the start of the year 1.
const ZERO_SECONDS: i64 = -62_135_596_800;

/// Seconds and nanoseconds of a time, truncated to microseconds; `None` for the zero time.
pub(super) fn parse_time(text: &str) -> Result<Option<(i64, i32)>, String> {
    let at = time::parse(text).ok_or_else(|| format!("{text:?} is not a time"))?;
    // The second at or before it, which differs before 1970.
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
}
