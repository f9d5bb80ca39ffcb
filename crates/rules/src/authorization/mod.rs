//! Rules of the group `authorization.k8s.io`.

pub mod reviews;

use crate::KindRules;

/// The rules of a kind of this group.
pub fn rules_of(kind: &str) -> Option<&'static dyn KindRules> {
    Some(match kind {
        "LocalSubjectAccessReview" => &reviews::LocalSubjectAccessReview,
        "SelfSubjectAccessReview" => &reviews::SelfSubjectAccessReview,
        "SubjectAccessReview" => &reviews::SubjectAccessReview,
        _ => return None,
    })
}
