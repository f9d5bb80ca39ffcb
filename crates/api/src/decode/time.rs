//! Times in bodies: RFC 3339, with the errors of Go.

use super::path::quoted;
use crate::time;
use jiff::civil::Date;
use jiff::tz::Offset;

/// Parses a time and returns it in UTC with whole seconds, or none for the zero time.
pub fn seconds(text: &str) -> Result<Option<String>, String> {
    if is_canonical(text) {
        return Ok(Some(text.to_owned()).filter(|text| text != ZERO));
    }
    let at = Reader::new(text, "2006-01-02T15:04:05Z07:00").read(false)?;
    Ok(Some(time::seconds(at)).filter(|text| text != ZERO))
}

/// Parses a time with a fraction of six digits.
pub(super) fn micros(text: &str) -> Result<Option<String>, String> {
    let at = Reader::new(text, "2006-01-02T15:04:05.000000Z07:00").read(true)?;
    Ok(Some(time::micros(at)).filter(|text| text != "0001-01-01T00:00:00.000000Z"))
}

const ZERO: &str = "0001-01-01T00:00:00Z";

/// Whether the text is certainly in canonical form.
fn is_canonical(text: &str) -> bool {
    let bytes = text.as_bytes();
    let digits = |range: std::ops::Range<usize>| {
        bytes[range]
            .iter()
            .try_fold(0u32, |number, byte| byte.is_ascii_digit().then(|| number * 10 + u32::from(byte - b'0')))
    };
    bytes.len() == 20
        && [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':'), (19, b'Z')].iter().all(|(at, c)| bytes[*at] == *c)
        && digits(0..4).is_some()
        && digits(5..7).is_some_and(|month| (1..=12).contains(&month))
        && digits(8..10).is_some_and(|day| (1..=28).contains(&day))
        && digits(11..13).is_some_and(|hour| hour < 24)
        && digits(14..16).is_some_and(|minute| minute < 60)
        && digits(17..19).is_some_and(|second| second < 60)
}

struct Reader<'a> {
    text: &'a str,
    layout: &'static str,
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str, layout: &'static str) -> Self {
        Reader { text, layout, rest: text }
    }

    fn read(mut self, fraction: bool) -> Result<jiff::Timestamp, String> {
        let year = self.year()?;
        self.literal("-")?;
        let month = self.number("01", true)?;
        self.within(month, 1..=12, "month")?;
        self.literal("-")?;
        let day = self.number("02", true)?;
        self.literal("T")?;
        let hour = self.number("15", false)?;
        self.within(hour, 0..=23, "hour")?;
        self.literal(":")?;
        let minute = self.number("04", true)?;
        self.within(minute, 0..=59, "minute")?;
        self.literal(":")?;
        let second = self.number("05", true)?;
        self.within(second, 0..=59, "second")?;
        let nanosecond = if fraction { self.fixed_fraction()? } else { self.free_fraction() };
        let offset = self.offset()?;
        if !self.rest.is_empty() {
            return Err(format!("parsing time {}: extra text: {}", quoted(self.text), quoted(self.rest)));
        }
        let date = Date::new(year, month as i8, day as i8).map_err(|_| self.out_of_range("day"))?;
        let at = date.at(hour as i8, minute as i8, second as i8, nanosecond);
        offset.to_timestamp(at).map_err(|_| self.out_of_range("year"))
    }

    fn year(&mut self) -> Result<i16, String> {
        match self.rest.get(..4).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit())) {
            Some(digits) => {
                self.rest = &self.rest[4..];
                Ok(digits.parse().unwrap_or_default())
            }
            None => Err(self.cannot_parse("2006")),
        }
    }

    fn number(&mut self, element: &str, two: bool) -> Result<u32, String> {
        let count = self.rest.bytes().take(2).take_while(u8::is_ascii_digit).count();
        if count == 0 || (two && count < 2) {
            return Err(self.cannot_parse(element));
        }
        let (digits, rest) = self.rest.split_at(count);
        self.rest = rest;
        Ok(digits.parse().unwrap_or_default())
    }

    fn literal(&mut self, text: &str) -> Result<(), String> {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                Ok(())
            }
            None => Err(self.cannot_parse(text)),
        }
    }

    fn free_fraction(&mut self) -> i32 {
        let Some(after) = self.rest.strip_prefix(['.', ',']) else { return 0 };
        let count = after.bytes().take_while(u8::is_ascii_digit).count();
        if count == 0 {
            return 0;
        }
        let (digits, rest) = after.split_at(count);
        self.rest = rest;
        nanoseconds(digits)
    }

    fn fixed_fraction(&mut self) -> Result<i32, String> {
        let digits = self.rest.strip_prefix(['.', ',']).and_then(|after| after.get(..6));
        match digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit())) {
            Some(digits) => {
                self.rest = &self.rest[7..];
                Ok(nanoseconds(digits))
            }
            None => Err(self.cannot_parse(".000000")),
        }
    }

    fn offset(&mut self) -> Result<Offset, String> {
        if let Some(rest) = self.rest.strip_prefix('Z') {
            self.rest = rest;
            return Ok(Offset::UTC);
        }
        let parts = self.rest.get(..6).and_then(|text| {
            let bytes = text.as_bytes();
            let number = |at: usize| text.get(at..at + 2).filter(|two| two.bytes().all(|b| b.is_ascii_digit()));
            let sign = match bytes[0] {
                b'+' => 1,
                b'-' => -1,
                _ => return None,
            };
            let (hours, minutes) = (number(1)?, number(4)?);
            (bytes[3] == b':').then(|| (sign, hours.parse().unwrap_or(0), minutes.parse().unwrap_or(0)))
        });
        let Some((sign, hours, minutes)) = parts else { return Err(self.cannot_parse("Z07:00")) };
        self.within(hours, 0..=24, "time zone offset hour")?;
        self.within(minutes, 0..=60, "time zone offset minute")?;
        self.rest = &self.rest[6..];
        Offset::from_seconds(sign * (hours as i32 * 3600 + minutes as i32 * 60))
            .map_err(|_| self.out_of_range("time zone offset hour"))
    }

    fn within(&self, number: u32, range: std::ops::RangeInclusive<u32>, what: &str) -> Result<(), String> {
        if range.contains(&number) { Ok(()) } else { Err(self.out_of_range(what)) }
    }

    fn out_of_range(&self, what: &str) -> String {
        format!("parsing time {}: {what} out of range", quoted(self.text))
    }

    fn cannot_parse(&self, element: &str) -> String {
        format!(
            "parsing time {} as {}: cannot parse {} as {}",
            quoted(self.text),
            quoted(self.layout),
            quoted(self.rest),
            quoted(element)
        )
    }
}

fn nanoseconds(digits: &str) -> i32 {
    let mut number = 0;
    for at in 0..9 {
        number = number * 10 + digits.as_bytes().get(at).map_or(0, |byte| i32::from(byte - b'0'));
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_any_zone_and_printed_in_utc() {
        for (text, expected) in [
            ("2026-11-15T04:05:06Z", Ok(Some("2026-11-15T04:05:06Z"))),
            ("2026-11-15T04:05:06.789+02:00", Ok(Some("2026-11-15T02:05:06Z"))),
            ("2026-01-31T23:59:59-01:30", Ok(Some("2026-02-01T01:29:59Z"))),
            ("0001-01-01T00:00:00Z", Ok(None)),
            ("2026-02-30T00:00:00Z", Err(r#"parsing time "2026-02-30T00:00:00Z": day out of range"#)),
            ("2026-13-01T00:00:00Z", Err(r#"parsing time "2026-13-01T00:00:00Z": month out of range"#)),
            ("", Err(r#"parsing time "" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "2006""#)),
            ("2026-01-02", Err(r#"parsing time "2026-01-02" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "T""#)),
            ("2026-01-02T00:00:00Zx", Err(r#"parsing time "2026-01-02T00:00:00Zx": extra text: "x""#)),
        ] {
            let expected = expected.map(|time| time.map(str::to_owned)).map_err(str::to_owned);
            assert_eq!(seconds(text), expected, "{text}");
        }
    }

    #[test]
    fn micro_times_need_six_digits() {
        assert_eq!(micros("2026-01-02T03:04:05.678901Z"), Ok(Some("2026-01-02T03:04:05.678901Z".to_owned())));
        assert_eq!(
            micros("2026-01-02T03:04:05Z"),
            Err(r#"parsing time "2026-01-02T03:04:05Z" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "Z" as ".000000""#
                .to_owned())
        );
    }
}
