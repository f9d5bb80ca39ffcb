//! Rules of the group `authentication.k8s.io`.

pub mod token_request;

use crate::KindRules;

/// The rules of a kind of this group.
pub fn rules_of(kind: &str) -> Option<&'static dyn KindRules> {
    match kind {
        "TokenRequest" => Some(&token_request::TokenRequest),
        _ => None,
    }
}
