//! Durations as Kubernetes' configuration files have them: `12h`, `1m30s`, `500ms`.

use std::time::Duration;

/// None for a text that is no duration, and for negative ones.
pub fn parse(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut seconds = (!rest.is_empty()).then_some(0.0)?;
    while !rest.is_empty() {
        let digits = rest.find(|sign: char| !sign.is_ascii_digit() && sign != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|sign: char| sign.is_ascii_digit() || sign == '.').unwrap_or(rest.len());
        seconds += number
            * match &rest[..unit] {
                "ns" => 1e-9,
                "us" | "µs" | "μs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return None,
            };
        rest = &rest[unit..];
    }
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed() {
        for (text, expected) in [
            ("12h", Some(43_200_000)),
            ("1m30s", Some(90_000)),
            ("500ms", Some(500)),
            ("1.5s", Some(1500)),
            ("0", Some(0)),
            ("0s", Some(0)),
            ("", None),
            ("15", None),
            ("1x", None),
            ("-1s", None),
            ("s", None),
        ] {
            assert_eq!(parse(text), expected.map(Duration::from_millis), "{text}");
        }
    }
}
