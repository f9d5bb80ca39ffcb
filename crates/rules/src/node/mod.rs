//! Rules of the group `node.k8s.io`.

pub mod runtime_class;

use crate::KindRules;

/// The rules of a kind of this group.
pub fn rules_of(kind: &str) -> Option<&'static dyn KindRules> {
    match kind {
        "RuntimeClass" => Some(&runtime_class::RuntimeClass),
        _ => None,
    }
}
