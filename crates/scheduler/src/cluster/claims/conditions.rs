//! Conditions that must hold before a pod with a device is bound, such as that the device is attached to the node.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, DeviceRequestAllocationResult, ResourceClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::allocation;

#[derive(Debug, PartialEq)]
pub enum BindingState {
    Ready,
    Waiting,
    /// A failure condition holds; the text goes into the pod's events.
    Failed(String),
}

fn results(claim: &ResourceClaim) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    let devices = allocation(claim).and_then(|allocation| allocation.devices.as_ref());
    devices.into_iter().flat_map(|devices| devices.results.iter().flatten())
}

fn conditions(result: &DeviceRequestAllocationResult) -> &[String] {
    result.binding_conditions.as_deref().unwrap_or_default()
}

pub fn has_conditions(claim: &ResourceClaim) -> bool {
    results(claim).any(|result| !conditions(result).is_empty())
}

/// Whether the claim's devices had their time to become ready.
pub fn is_overdue(claim: &ResourceClaim, timeout: Duration, now: Timestamp) -> bool {
    let since = allocation(claim).and_then(|allocation| allocation.allocation_timestamp.as_ref());
    let timeout = SignedDuration::try_from(timeout).unwrap_or(SignedDuration::MAX);
    has_conditions(claim) && since.is_some_and(|since| now.duration_since(since.0) > timeout)
}

pub fn binding_state(claim: &ResourceClaim) -> BindingState {
    for result in results(claim).filter(|result| !conditions(result).is_empty()) {
        let Some(status) = status_of(claim, result) else { return BindingState::Waiting };
        let known = status.conditions.as_deref().unwrap_or_default();
        let is_true =
            |kind: &String| known.iter().find(|condition| condition.type_ == *kind && condition.status == "True");
        let failed: Option<&Condition> = result.binding_failure_conditions.iter().flatten().find_map(is_true);
        if let Some(failed) = failed {
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            let (reason, message) = (&failed.reason, &failed.message);
            return BindingState::Failed(format!(
                "device binding failed: claim={name}, reason={reason}, message={message:?}"
            ));
        }
        if !conditions(result).iter().all(|kind| is_true(kind).is_some()) {
            return BindingState::Waiting;
        }
    }
    BindingState::Ready
}

fn status_of<'a>(
    claim: &'a ResourceClaim,
    result: &DeviceRequestAllocationResult,
) -> Option<&'a AllocatedDeviceStatus> {
    let mut devices = claim.status.iter().flat_map(|status| status.devices.iter().flatten());
    devices.find(|own| own.driver == result.driver && own.pool == result.pool && own.device == result.device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn claims_wait_for_their_conditions() {
        let failed = "device binding failed: claim=c, reason=Broken, message=\"no \\\"x\\\"\"";
        for (conditions, expected) in [
            (json!(null), BindingState::Waiting),
            (json!([]), BindingState::Waiting),
            (json!([("Attached", "False")]), BindingState::Waiting),
            (json!([("Attached", "True")]), BindingState::Ready),
            (json!([("Attached", "True"), ("Lost", "True")]), BindingState::Failed(failed.to_owned())),
            (json!([("Lost", "False")]), BindingState::Waiting),
        ] {
            let condition = |pair: &serde_json::Value| {
                json!({"type": pair[0], "status": pair[1], "reason": "Broken", "message": "no \"x\"",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"})
            };
            let id = json!({"driver": "d", "pool": "p", "device": "x"});
            let mut result = id.clone();
            result["request"] = "r".into();
            result["bindingConditions"] = json!(["Attached"]);
            result["bindingFailureConditions"] = json!(["Lost"]);
            let mut status = json!({"allocation": {"devices": {"results": [result]}}});
            if let Some(all) = conditions.as_array() {
                let mut device = id;
                device["conditions"] = all.iter().map(condition).collect();
                status["devices"] = json!([device]);
            }
            let claim: ResourceClaim =
                serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {}, "status": status})).unwrap();
            assert!(has_conditions(&claim));
            assert_eq!(binding_state(&claim), expected, "{conditions}");
        }
    }
}
