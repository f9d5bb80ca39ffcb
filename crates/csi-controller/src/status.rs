//! Status of claims during expansion: conditions and allocated resources, written in one patch.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimCondition};
use knarr_client::time;
use serde_json::{Map, Value, json};

pub(crate) const RESIZING: &str = "Resizing";
pub(crate) const FILE_SYSTEM_RESIZE_PENDING: &str = "FileSystemResizePending";

/// The claim's conditions with some removed and one added.
pub(crate) fn conditions(
    claim: &PersistentVolumeClaim,
    remove: &[&str],
    add: Option<(&str, &str)>,
) -> Vec<PersistentVolumeClaimCondition> {
    let own = claim.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut conditions: Vec<_> = own.filter(|condition| !remove.contains(&condition.type_.as_str())).cloned().collect();
    if let Some((kind, message)) = add
        && !conditions.iter().any(|condition| condition.type_ == kind)
    {
        conditions.push(PersistentVolumeClaimCondition {
            type_: kind.to_owned(),
            status: "True".to_owned(),
            last_transition_time: Some(time::now()),
            message: (!message.is_empty()).then(|| message.to_owned()),
            ..PersistentVolumeClaimCondition::default()
        });
    }
    conditions
}

/// A patch of the status, which the server rejects if the claim has changed meanwhile. Null removes a field.
pub(crate) fn patch(claim: &PersistentVolumeClaim, status: Map<String, Value>) -> Value {
    json!({"metadata": {"resourceVersion": claim.metadata.resource_version}, "status": status})
}
