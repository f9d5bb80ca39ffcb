//! Rules of the group `flowcontrol.apiserver.k8s.io`.

mod conditions;
pub mod flow_schema;
pub mod priority_level_configuration;

use crate::KindRules;

/// The rules of a kind of this group.
pub fn rules_of(kind: &str) -> Option<&'static dyn KindRules> {
    Some(match kind {
        "FlowSchema" => &flow_schema::FlowSchema,
        "PriorityLevelConfiguration" => &priority_level_configuration::PriorityLevelConfiguration,
        _ => return None,
    })
}
