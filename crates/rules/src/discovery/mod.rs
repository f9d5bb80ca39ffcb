//! Rules of the group `discovery.k8s.io`.

pub mod endpoint_slice;

use crate::KindRules;

/// The rules of a kind of this group.
pub fn rules_of(kind: &str) -> Option<&'static dyn KindRules> {
    match kind {
        "EndpointSlice" => Some(&endpoint_slice::EndpointSlice),
        _ => None,
    }
}
