//! The pod-level resources in the status: allocated and in effect.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use knarr_client::pod_resources::{self, Side};
use knarr_client::quantity;

use crate::cgroup::amounts::{PodAmounts, pod_amounts};
use crate::worker::restart::Phase;

type Amounts = BTreeMap<String, Quantity>;

/// The pod's total requests; none if there are none.
pub fn allocated(pod: &Pod) -> Option<Amounts> {
    Some(sum(pod, Side::Requests)).filter(|amounts| !amounts.is_empty())
}

/// The resources to report. A terminated pod keeps those it had while it ran.
pub fn reported(pod: &Pod, previous: &PodStatus, phase: Phase) -> ResourceRequirements {
    let was = previous.phase.as_deref();
    match previous.resources.as_ref().filter(|_| matches!(was, Some("Succeeded" | "Failed"))) {
        Some(known) => known.clone(),
        None => of_pod(pod, phase == Phase::Running || was == Some("Running")),
    }
}

/// While the pod runs, the resources of its cgroup; before and after, the sum over its containers.
fn of_pod(pod: &Pod, runs: bool) -> ResourceRequirements {
    let mut requests = sum(pod, Side::Requests);
    let mut limits = sum(pod, Side::Limits);
    if runs {
        let PodAmounts { cpu_limit, memory_limit, .. } = pod_amounts(pod);
        requests.retain(|name, _| matches!(name.as_str(), "cpu" | "memory"));
        limits.retain(|name, _| match name.as_str() {
            "cpu" => cpu_limit.is_some(),
            "memory" => memory_limit.is_some(),
            _ => false,
        });
    }
    let some = |amounts: Amounts| Some(amounts).filter(|amounts| !amounts.is_empty());
    ResourceRequirements { requests: some(requests), limits: some(limits), claims: None }
}

fn sum(pod: &Pod, side: Side) -> Amounts {
    let total = pod_resources::of_pod(pod, side);
    total.into_iter().map(|(name, amount)| (name, quantity::to_api(&amount))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn containers_add_up() {
        let pod: Pod = serde_json::from_value(json!({ "spec": { "containers": [
            { "name": "a", "resources": { "requests": { "cpu": "20m", "memory": "16Mi", "ephemeral-storage": "1Mi" },
                "limits": { "cpu": "1", "memory": "64Mi" } } },
            { "name": "b", "resources": { "requests": { "cpu": "980m" }, "limits": { "memory": "1Gi" } } },
        ] } }))
        .expect("a pod");
        let shown = |runs| serde_json::to_value(of_pod(&pod, runs)).expect("JSON");
        assert_eq!(
            shown(false),
            json!({ "requests": { "cpu": "1", "memory": "16Mi", "ephemeral-storage": "1Mi" },
                "limits": { "cpu": "1", "memory": "1088Mi" } })
        );
        // One container may use as much CPU as it likes, so no limit holds for all.
        assert_eq!(
            shown(true),
            json!({ "requests": { "cpu": "1", "memory": "16Mi" }, "limits": { "memory": "1088Mi" } })
        );
        let small: Pod = serde_json::from_value(json!({ "spec": { "containers": [{ "name": "a" }],
            "resources": { "requests": { "cpu": "4m", "memory": "10m" } } } }))
        .expect("a pod");
        let granted = serde_json::to_value(allocated(&small)).expect("JSON");
        assert_eq!(granted, json!({ "cpu": "4m", "memory": "10m" }), "as it was given");
        let mut previous = PodStatus { phase: Some("Running".into()), ..Default::default() };
        assert_eq!(reported(&pod, &previous, Phase::Failed), of_pod(&pod, true));
        previous.phase = Some("Failed".into());
        previous.resources = Some(ResourceRequirements::default());
        assert_eq!(reported(&pod, &previous, Phase::Failed), ResourceRequirements::default());
        let empty: Pod = serde_json::from_value(json!({ "spec": { "containers": [{ "name": "a" }] } })).expect("a pod");
        assert_eq!(allocated(&empty), None);
        assert_eq!(serde_json::to_value(of_pod(&empty, true)).expect("JSON"), json!({}));
    }
}
