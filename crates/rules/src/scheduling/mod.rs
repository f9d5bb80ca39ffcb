//! Rules of the group `scheduling.k8s.io`.

pub mod priority_class;

use crate::KindRules;

/// The rules of a kind of this group.
pub fn rules_of(kind: &str) -> Option<&'static dyn KindRules> {
    Some(match kind {
        "PriorityClass" => &priority_class::PriorityClass,
        _ => return None,
    })
}
