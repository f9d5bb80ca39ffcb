//! Rules of the group `coordination.k8s.io`.

pub mod lease;

use crate::KindRules;

/// The rules of a kind of this group.
pub fn rules_of(kind: &str) -> Option<&'static dyn KindRules> {
    Some(match kind {
        "Lease" => &lease::Lease,
        _ => return None,
    })
}
