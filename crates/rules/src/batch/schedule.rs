//! Validation of cron schedules. The CronJob controller computes the times.

use knarr_api::go_duration;

use super::time_zone;

/// The range of one of the five fields, and the names of its numbers.
struct Bounds {
    low: u64,
    high: u64,
    names: &'static [&'static str],
}

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const FIELDS: [Bounds; 5] = [
    Bounds { low: 0, high: 59, names: &[] },
    Bounds { low: 0, high: 23, names: &[] },
    Bounds { low: 1, high: 31, names: &[] },
    Bounds { low: 1, high: 12, names: &MONTHS },
    Bounds { low: 0, high: 6, names: &WEEKDAYS },
];
const DESCRIPTORS: [&str; 7] = ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];

/// Validates a schedule. Returns the message of the first error.
pub fn check(schedule: &str) -> Result<(), String> {
    let mut spec = schedule;
    if spec.starts_with("TZ=") || spec.starts_with("CRON_TZ=") {
        let start = spec.find('=').map_or(0, |at| at + 1);
        let Some(end) = spec.find(' ') else {
            return Err("invalid schedule format: runtime error: slice bounds out of range [:-1]".to_owned());
        };
        let zone = &spec[start..end];
        if !time_zone::is_known(zone) {
            return Err(format!("provided bad location {zone}: {}", time_zone::unknown(zone)));
        }
        spec = spec[end..].trim();
    }
    if spec.starts_with('@') {
        return check_descriptor(spec);
    }
    let fields: Vec<&str> = spec.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
    }
    for (field, bounds) in fields.iter().zip(&FIELDS) {
        for range in field.split(',').filter(|range| !range.is_empty()) {
            check_range(range, bounds)?;
        }
    }
    Ok(())
}

fn check_descriptor(text: &str) -> Result<(), String> {
    if DESCRIPTORS.contains(&text) {
        return Ok(());
    }
    match text.strip_prefix("@every ") {
        Some(duration) => match go_duration::parse(duration) {
            Ok(_) => Ok(()),
            Err(wrong) => Err(format!("failed to parse duration {text}: {wrong}")),
        },
        None => Err(format!("unrecognized descriptor: {text}")),
    }
}

/// Validates `number`, `low-high` or `*`, each with an optional `/step`.
fn check_range(range: &str, bounds: &Bounds) -> Result<(), String> {
    let parts: Vec<&str> = range.split('/').collect();
    let ends: Vec<&str> = parts[0].split('-').collect();
    let (start, mut end) = if matches!(ends[0], "*" | "?") {
        (bounds.low, bounds.high)
    } else {
        let start = number_or_name(ends[0], bounds.names, bounds.low)?;
        match ends.as_slice() {
            [_] => (start, start),
            [_, end] => (start, number_or_name(end, bounds.names, bounds.low)?),
            _ => return Err(format!("too many hyphens: {range}")),
        }
    };
    let step = match parts.as_slice() {
        [_] => 1,
        [_, step] => {
            if ends.len() == 1 {
                end = bounds.high;
            }
            number(step)?
        }
        _ => return Err(format!("too many slashes: {range}")),
    };
    let Bounds { low, high, .. } = bounds;
    if start < *low {
        return Err(format!("beginning of range ({start}) below minimum ({low}): {range}"));
    }
    if end > *high {
        return Err(format!("end of range ({end}) above maximum ({high}): {range}"));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {range}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {range}"));
    }
    Ok(())
}

fn number_or_name(text: &str, names: &[&str], first: u64) -> Result<u64, String> {
    let lower = text.to_lowercase();
    match names.iter().zip(first..).find(|(name, _)| **name == lower) {
        Some((_, number)) => Ok(number),
        None => number(text),
    }
}

fn number(text: &str) -> Result<u64, String> {
    let fault = |why: &str| format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: {why}");
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if unsigned.is_empty() || !unsigned.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(fault("invalid syntax"));
    }
    match text.parse::<i64>() {
        Ok(number) => u64::try_from(number).map_err(|_| format!("negative number ({number}) not allowed: {text}")),
        Err(_) => Err(fault("value out of range")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_accepted_or_rejected() {
        for (schedule, wrong) in [
            ("*/5 * * * *", None),
            ("0 0 1,15 JAN-mar sun", None),
            ("@hourly", None),
            ("@every 1h", None),
            ("TZ=Europe/Berlin 0 0 * * *", None),
            ("not a schedule", Some("expected exactly 5 fields, found 3: [not a schedule]")),
            ("60 * * * *", Some("end of range (60) above maximum (59): 60")),
            ("* * 0 * *", Some("beginning of range (0) below minimum (1): 0")),
            ("5-1 * * * *", Some("beginning of range (5) beyond end of range (1): 5-1")),
            ("*/0 * * * *", Some("step of range should be a positive number: */0")),
            ("1-2-3 * * * *", Some("too many hyphens: 1-2-3")),
            ("1/2/3 * * * *", Some("too many slashes: 1/2/3")),
            ("x * * * *", Some("failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax")),
            ("@sometimes", Some("unrecognized descriptor: @sometimes")),
            ("@every x", Some("failed to parse duration @every x: time: invalid duration \"x\"")),
            ("TZ=Mars/Base 0 0 * * *", Some("provided bad location Mars/Base: unknown time zone Mars/Base")),
        ] {
            assert_eq!(check(schedule).err().as_deref(), wrong, "{schedule}");
        }
    }
}
