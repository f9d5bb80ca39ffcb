//! Rules of the group `apiregistration.k8s.io` (API aggregation).

pub mod api_service;

use crate::KindRules;

/// The rules of a kind of this group.
pub fn rules_of(kind: &str) -> Option<&'static dyn KindRules> {
    match kind {
        "APIService" => Some(&api_service::ApiService),
        _ => None,
    }
}
