//! Fields of type IntOrString that hold a number or a percentage (`25%`).

/// The digits before the percent sign, if the text is a percentage: digits and nothing else.
pub fn percent(text: &str) -> Option<i64> {
    let digits = text.strip_suffix('%').filter(|digits| !digits.is_empty())?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().unwrap_or(i64::MAX))
}

/// A percentage of a total; the part after the point is rounded. `None` for text that is no percentage.
pub fn scaled(text: &str, total: i32, round_up: bool) -> Option<i32> {
    // Components read a sign, which validation refuses.
    let percent: i64 = text.strip_suffix('%')?.parse().ok()?;
    let product = percent.saturating_mul(i64::from(total));
    let whole = product.div_euclid(100);
    let rounded = if round_up && product.rem_euclid(100) != 0 { whole + 1 } else { whole };
    i32::try_from(rounded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_read_and_rounded() {
        for (text, read, up, down) in [
            ("25%", Some(25), Some(3), Some(2)),
            ("100%", Some(100), Some(10), Some(10)),
            ("125%", Some(125), Some(13), Some(12)),
            ("0%", Some(0), Some(0), Some(0)),
            ("1%", Some(1), Some(1), Some(0)),
            ("%", None, None, None),
            ("x%", None, None, None),
            ("7", None, None, None),
            ("", None, None, None),
            // What validation refuses, components that find it stored still read as Go does.
            ("+25%", None, Some(3), Some(2)),
            ("-25%", None, Some(-2), Some(-3)),
            ("25%%", None, None, None),
            ("99999999999%", Some(99_999_999_999), None, None),
            ("99999999999999999999%", Some(i64::MAX), None, None),
        ] {
            assert_eq!(percent(text), read, "{text}");
            assert_eq!((scaled(text, 10, true), scaled(text, 10, false)), (up, down), "{text}");
        }
    }
}
