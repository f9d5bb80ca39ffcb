//! Rules of the group `autoscaling`.

mod conversion;
pub mod horizontal_pod_autoscaler;
mod metrics;
pub mod scale;

use crate::KindRules;

/// The rules of a kind of this group.
pub fn rules_of(kind: &str) -> Option<&'static dyn KindRules> {
    Some(match kind {
        "HorizontalPodAutoscaler" => &horizontal_pod_autoscaler::HorizontalPodAutoscaler,
        "Scale" => &scale::Scale,
        _ => return None,
    })
}
