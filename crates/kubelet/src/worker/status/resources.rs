//! The pod-level resources in the status: allocated and in effect.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use knarr_client::quantity::{self, Quantity as Amount, scale};

use crate::cgroup::amounts::{PodAmounts, combined, pod_amounts};
use crate::pod;
use crate::worker::restart::Phase;

type Amounts = BTreeMap<String, Quantity>;

/// The pod's total requests; none if there are none.
pub fn allocated(pod: &Pod) -> Option<Amounts> {
    Some(sum(pod, |resources| resources.requests.as_ref())).filter(|amounts| !amounts.is_empty())
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
    let mut requests = sum(pod, |resources| resources.requests.as_ref());
    let mut limits = sum(pod, |resources| resources.limits.as_ref());
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

fn sum(pod: &Pod, list: fn(&ResourceRequirements) -> Option<&Amounts>) -> Amounts {
    let spec = pod::spec(pod);
    let of = |container: &Container| container.resources.as_ref().and_then(list).cloned().unwrap_or_default();
    let whole = spec.resources.as_ref().and_then(list);
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut names: BTreeSet<String> = containers.flat_map(|container| of(container).into_keys()).collect();
    names.extend(whole.iter().flat_map(|amounts| amounts.keys().cloned()));
    let amount = |name: String| {
        let own = |container: &Container| of(container).get(&name).map(quantity::of);
        let format = whole
            .and_then(|amounts| amounts.get(&name))
            .map(quantity::of)
            .or_else(|| spec.containers.iter().chain(spec.init_containers.iter().flatten()).find_map(own))?;
        let is_cpu = name == "cpu";
        let unit = if is_cpu { scale::MILLI } else { scale::ONE };
        let read = |amount: Amount| amount.saturating_value(unit);
        let overhead = spec.overhead.as_ref().and_then(|amounts| amounts.get(&name)).map(quantity::of).map_or(0, read);
        let total = match whole.and_then(|amounts| amounts.get(&name)) {
            // Returned unchanged: it may be smaller than the unit of the sum.
            Some(amount) if overhead == 0 => return Some((name, amount.clone())),
            Some(amount) => read(quantity::of(amount)),
            None => combined(pod, |container| Some(own(container).map_or(0, read))).unwrap_or(0),
        };
        let sum = Amount::scaled(total.saturating_add(overhead), unit, format.format());
        Some((name, quantity::to_api(&sum)))
    };
    names.into_iter().filter_map(amount).collect()
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
