//! Cron schedules: five fields (minute, hour, day of month, month, day of week) or a word like `@daily`.

use k8s_openapi::jiff::civil::{Date, Time};
use k8s_openapi::jiff::tz::TimeZone;
use k8s_openapi::jiff::{SignedDuration, Timestamp, ToSpan};
use knarr_client::go_duration;

#[derive(Debug, PartialEq)]
pub(super) enum Schedule {
    Fields {
        minutes: u64,
        hours: u64,
        days: u64,
        months: u64,
        weekdays: u64,
        any_day: bool,
        any_weekday: bool,
    },
    /// `@every 1h30m`
    Every(SignedDuration),
}

#[derive(Debug, thiserror::Error, PartialEq)]
pub(super) enum ScheduleError {
    #[error("expected exactly 5 fields, found {0}: [{1}]")]
    Fields(usize, String),
    #[error("failed to parse int from {0}")]
    Number(String),
    #[error("{0} is out of range: {1}")]
    Range(&'static str, String),
    #[error("unrecognized descriptor: {0}")]
    Descriptor(String),
}

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

impl Schedule {
    pub fn parse(text: &str) -> Result<Self, ScheduleError> {
        let text = text.trim();
        if let Some(length) = text.strip_prefix("@every ") {
            let length = length.trim();
            let (is_negative, length) = length.strip_prefix('-').map_or((false, length), |length| (true, length));
            let length = go_duration::parse_positive(length).and_then(|length| SignedDuration::try_from(length).ok());
            let length = length.ok_or_else(|| ScheduleError::Descriptor(text.to_owned()))?;
            let min = SignedDuration::from_secs(1);
            return Ok(Self::Every(if is_negative { min } else { length.max(min) }));
        }
        let text = match text {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            word if word.starts_with('@') => return Err(ScheduleError::Descriptor(word.to_owned())),
            fields => fields,
        };
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields.as_slice() else {
            return Err(ScheduleError::Fields(fields.len(), fields.join(" ")));
        };
        let is_any = |field: &str| field.split(',').any(|part| part.starts_with('*') || part.starts_with('?'));
        Ok(Self::Fields {
            minutes: field(minutes, 0, 59, &[], "minute")?,
            hours: field(hours, 0, 23, &[], "hour")?,
            days: field(days, 1, 31, &[], "day of month")?,
            months: field(months, 1, 12, &MONTHS, "month")?,
            weekdays: field(weekdays, 0, 6, &WEEKDAYS, "day of week")?,
            any_day: is_any(days),
            any_weekday: is_any(weekdays),
        })
    }

    /// The first start after `after`, in the zone's local time. Hours that a clock change skips are not made up for.
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let Self::Fields { minutes, hours, .. } = self else {
            let Self::Every(length) = self else { return None };
            let start = Timestamp::from_second(after.as_second()).ok()?;
            return start.checked_add(*length).ok();
        };
        let local = after.to_zoned(zone.clone()).datetime();
        let mut day = local.date();
        // Leap days come at most eight years apart.
        for _ in 0..(9 * 366) {
            if self.matches_day(day) {
                for hour in (0..24).filter(|hour| hours & (1 << hour) != 0) {
                    if day == local.date() && i64::from(local.hour()) > hour {
                        continue;
                    }
                    for minute in (0..60).filter(|minute| minutes & (1 << minute) != 0) {
                        let at = day.to_datetime(Time::new(hour as i8, minute as i8, 0, 0).ok()?);
                        let moment = zone.to_ambiguous_timestamp(at).offset();
                        let moment = match moment {
                            k8s_openapi::jiff::tz::AmbiguousOffset::Gap { .. } => continue,
                            k8s_openapi::jiff::tz::AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(at),
                            k8s_openapi::jiff::tz::AmbiguousOffset::Fold { before, .. } => before.to_timestamp(at),
                        };
                        if let Ok(moment) = moment
                            && moment > after
                        {
                            return Some(moment);
                        }
                    }
                }
            }
            day = day.checked_add(1.day()).ok()?;
        }
        None
    }

    /// When both kinds of days are restricted, either matches.
    fn matches_day(&self, day: Date) -> bool {
        let Self::Fields { days, months, weekdays, any_day, any_weekday, .. } = self else { return false };
        let by_day = days & (1 << day.day()) != 0;
        let by_weekday = weekdays & (1 << day.weekday().to_sunday_zero_offset()) != 0;
        let fits = if *any_day || *any_weekday { by_day && by_weekday } else { by_day || by_weekday };
        months & (1 << day.month()) != 0 && fits
    }
}

/// One field as a bit set.
fn field(text: &str, min: u32, max: u32, names: &[&str], what: &'static str) -> Result<u64, ScheduleError> {
    let mut bits = 0;
    for part in text.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, number(step, &[], 0)?),
            None => (part, 1),
        };
        let (first, last) = match range.split_once('-') {
            Some((first, last)) => (number(first, names, min)?, number(last, names, min)?),
            None if range == "*" || range == "?" => (min, max),
            None => {
                let only = number(range, names, min)?;
                (only, if part.contains('/') { max } else { only })
            }
        };
        if first < min || last > max || first > last || step == 0 {
            return Err(ScheduleError::Range(what, part.to_owned()));
        }
        bits |= (first..=last).step_by(step as usize).fold(0u64, |bits, value| bits | 1 << value);
    }
    Ok(bits)
}

/// A number, or a name counted from the minimum value.
fn number(text: &str, names: &[&str], min: u32) -> Result<u32, ScheduleError> {
    let named = names.iter().position(|name| name.eq_ignore_ascii_case(text)).map(|at| at as u32 + min);
    named.or_else(|| text.parse().ok()).ok_or_else(|| ScheduleError::Number(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(schedule: &str, after: &str, zone: &str) -> String {
        let zone = TimeZone::get(zone).unwrap();
        let at = Schedule::parse(schedule).unwrap().next(after.parse().unwrap(), &zone);
        at.map_or("never".to_owned(), |at| at.to_string())
    }

    #[test]
    fn next_moments() {
        for (schedule, after, zone, expected) in [
            ("* * * * *", "2026-01-01T00:00:30Z", "UTC", "2026-01-01T00:01:00Z"),
            ("*/15 * * * *", "2026-01-01T00:15:00Z", "UTC", "2026-01-01T00:30:00Z"),
            ("0 0 * * *", "2026-01-01T00:00:00Z", "UTC", "2026-01-02T00:00:00Z"),
            ("30 8 * * mon-fri", "2026-01-02T09:00:00Z", "UTC", "2026-01-05T08:30:00Z"),
            ("0 0 29 2 *", "2026-01-01T00:00:00Z", "UTC", "2028-02-29T00:00:00Z"),
            ("0 0 13 * 5", "2026-01-01T00:00:00Z", "UTC", "2026-01-02T00:00:00Z"),
            ("0 12 * * *", "2026-01-01T00:00:00Z", "Europe/Berlin", "2026-01-01T11:00:00Z"),
            ("30 2 * * *", "2026-03-28T12:00:00Z", "Europe/Berlin", "2026-03-30T00:30:00Z"),
            ("@hourly", "2026-01-01T00:00:00Z", "UTC", "2026-01-01T01:00:00Z"),
            ("@every 90s", "2026-01-01T00:00:00Z", "UTC", "2026-01-01T00:01:30Z"),
            ("0 0 31 2 *", "2026-01-01T00:00:00Z", "UTC", "never"),
            ("5/20 1 * JAN *", "2026-01-01T01:05:00Z", "UTC", "2026-01-01T01:25:00Z"),
        ] {
            assert_eq!(next(schedule, after, zone), expected, "{schedule}");
        }
    }

    #[test]
    fn invalid_schedules_are_refused() {
        for bad in [
            "",
            "* * * *",
            "60 * * * *",
            "* 24 * * *",
            "a * * * *",
            "*/0 * * * *",
            "5-1 * * * *",
            "@often",
            "* * 0 * *",
        ] {
            assert!(Schedule::parse(bad).is_err(), "{bad}");
        }
    }
}
