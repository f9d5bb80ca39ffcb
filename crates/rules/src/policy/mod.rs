//! Rules of the group `policy`.

pub mod pod_disruption_budget;

use crate::KindRules;

/// The rules of a kind of this group.
pub fn rules_of(kind: &str) -> Option<&'static dyn KindRules> {
    match kind {
        "PodDisruptionBudget" => Some(&pod_disruption_budget::PodDisruptionBudget),
        _ => None,
    }
}
