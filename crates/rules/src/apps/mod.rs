//! Rules of the group `apps`.

pub mod controller_revision;
pub mod daemon_set;
pub mod deployment;
pub mod replica_set;
pub mod stateful_set;
mod workload;

use crate::KindRules;

/// The rules of a kind of this group.
pub fn rules_of(kind: &str) -> Option<&'static dyn KindRules> {
    Some(match kind {
        "ControllerRevision" => &controller_revision::ControllerRevision,
        "DaemonSet" => &daemon_set::DaemonSet,
        "Deployment" => &deployment::Deployment,
        "ReplicaSet" => &replica_set::ReplicaSet,
        "StatefulSet" => &stateful_set::StatefulSet,
        _ => return None,
    })
}
