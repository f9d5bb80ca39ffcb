//! Numbers that may be percentages ("25%").

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_client::semantics::int_or_percent;

/// The number out of `total`; `None` for text that is no percentage.
pub fn scaled(value: &IntOrString, total: i32, round_up: bool) -> Option<i32> {
    match value {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(text) => int_or_percent::scaled(text, total, round_up),
    }
}

/// Surge and unavailability of a rolling update; they are never both zero, or nothing could move.
pub fn surge_and_unavailable(
    surge: Option<&IntOrString>,
    unavailable: Option<&IntOrString>,
    desired: i32,
) -> Option<(i32, i32)> {
    let surge = surge.map_or(Some(0), |value| scaled(value, desired, true))?;
    let unavailable = unavailable.map_or(Some(0), |value| scaled(value, desired, false))?;
    Some(if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_round_as_requested() {
        let percent = |text: &str| IntOrString::String(text.into());
        for (value, total, up, down) in [
            (IntOrString::Int(3), 10, Some(3), Some(3)),
            (percent("25%"), 10, Some(3), Some(2)),
            (percent("100%"), 7, Some(7), Some(7)),
            (percent("0%"), 7, Some(0), Some(0)),
            (percent("x"), 7, None, None),
        ] {
            assert_eq!((scaled(&value, total, true), scaled(&value, total, false)), (up, down), "{value:?}");
        }
        assert_eq!(surge_and_unavailable(Some(&percent("25%")), Some(&percent("25%")), 1), Some((1, 0)));
        assert_eq!(surge_and_unavailable(None, Some(&percent("25%")), 1), Some((0, 1)));
    }
}
