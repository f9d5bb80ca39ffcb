//! Validation of time zone names.

use jiff::tz::TimeZone;

/// Returns the errors of a time zone name, in the order of messages.
pub fn faults(name: &str) -> Vec<String> {
    if name.is_empty() {
        return vec!["timeZone must be nil or non-empty string".to_owned()];
    }
    if !name.split('/').all(is_part) {
        return vec![unknown(name)];
    }
    let mut faults = Vec::new();
    if name.eq_ignore_ascii_case("Local") {
        let detail = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        faults.push(detail.to_owned());
    }
    if !is_known(name) {
        faults.push(unknown(name));
    }
    faults
}

/// Returns whether the time zone exists. Names are case-sensitive.
pub fn is_known(name: &str) -> bool {
    matches!(name, "" | "UTC" | "Local") || TimeZone::get(name).is_ok_and(|zone| zone.iana_name() == Some(name))
}

/// Returns the message for an unknown time zone.
pub fn unknown(name: &str) -> String {
    format!("unknown time zone {name}")
}

fn is_part(part: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'+');
    !matches!(part, "." | "..") && !part.starts_with('-') && (1..=14).contains(&part.len()) && part.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_known_or_not() {
        for (name, wrong) in [
            ("Europe/Berlin", vec![]),
            ("UTC", vec![]),
            ("europe/berlin", vec!["unknown time zone europe/berlin"]),
            ("Mars/Base", vec!["unknown time zone Mars/Base"]),
            ("../etc/passwd", vec!["unknown time zone ../etc/passwd"]),
            ("", vec!["timeZone must be nil or non-empty string"]),
            ("Local", vec!["timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"]),
        ] {
            assert_eq!(faults(name), wrong, "{name}");
        }
    }
}
