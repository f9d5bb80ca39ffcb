//! The kinds of the core group.

pub mod persistent_volume_claim;
pub mod pod;
pub mod pod_template;
pub mod volume;

use crate::KindRules;

pub fn rules_of(kind: &str) -> Option<&'static dyn KindRules> {
    Some(match kind {
        "Pod" => &pod::Pod,
        _ => return None,
    })
}
