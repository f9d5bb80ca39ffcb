//! How the resources of a typed pod's containers add up. The rules are in `semantics`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
pub use knarr_semantics::pod_resources::{Amounts, ResourceList, Side, is_huge_page, is_pod_level};
pub use knarr_semantics::qos::QosClass;
use knarr_semantics::{pod_resources as rules, qos};

use crate::quantity;

/// Combines the amounts of all containers, without pod-level resources and overhead.
pub fn combined<A: Amounts>(spec: &PodSpec, of: impl Fn(&Container) -> A) -> A {
    let init = spec.init_containers.iter().flatten();
    rules::combined(spec.containers.iter().map(&of), init.map(|each| (is_sidecar(each), of(each))))
}

/// What the whole pod requests, or what limits it: its containers, its own resources, and its overhead.
pub fn of_pod(pod: &Pod, side: Side) -> ResourceList {
    let Some(spec) = &pod.spec else { return ResourceList::new() };
    let containers = combined(spec, |container| list(requirements(container.resources.as_ref(), side)));
    let pod_level = list(requirements(spec.resources.as_ref(), side));
    rules::of_pod(side, containers, pod_level, &list(spec.overhead.as_ref()))
}

/// The QoS class by the pod's own resources if it has any, else by those of its containers. What limits a resource without
/// requesting it requests the limit, as the API server writes it.
pub fn qos_class(pod: &Pod) -> QosClass {
    let Some(spec) = &pod.spec else { return QosClass::BestEffort };
    let amounts = |resources: Option<&ResourceRequirements>| {
        let limits = list(requirements(resources, Side::Limits));
        let mut requests = limits.clone();
        requests.extend(list(requirements(resources, Side::Requests)));
        (requests, limits)
    };
    let whole = amounts(spec.resources.as_ref());
    if whole.0.keys().any(|name| is_pod_level(name)) {
        return qos::class(std::iter::once(whole));
    }
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    qos::class(containers.map(|container| amounts(container.resources.as_ref())))
}

/// Whether an init container keeps running beside the pod's containers.
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref().is_some_and(rules::is_sidecar)
}

fn requirements(resources: Option<&ResourceRequirements>, side: Side) -> Option<&BTreeMap<String, ApiQuantity>> {
    match side {
        Side::Requests => resources?.requests.as_ref(),
        Side::Limits => resources?.limits.as_ref(),
    }
}

fn list(amounts: Option<&BTreeMap<String, ApiQuantity>>) -> ResourceList {
    amounts.into_iter().flatten().map(|(name, amount)| (name.clone(), quantity::of(amount))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn pods_are_summed() {
        let resources = |cpu: &str| json!({"requests": {"cpu": cpu}, "limits": {"cpu": cpu, "memory": "1Gi"}});
        let container = |cpu: &str| json!({"name": "c", "resources": resources(cpu)});
        let sidecar = |cpu: &str| json!({"name": "s", "restartPolicy": "Always", "resources": resources(cpu)});
        for (spec, requests, limits) in [
            (json!({"containers": [{"name": "c"}]}), "", ""),
            (json!({"containers": [container("100m"), container("200m")]}), "cpu=300m", "cpu=300m,memory=2Gi"),
            (
                json!({"containers": [container("100m")], "initContainers": [sidecar("50m"), container("120m")]}),
                "cpu=170m",
                "cpu=170m,memory=2Gi",
            ),
            (
                json!({"containers": [container("100m")], "overhead": {"cpu": "10m", "hugepages-2Mi": "2Mi"}}),
                "cpu=110m,hugepages-2Mi=2Mi",
                "cpu=110m,memory=1Gi",
            ),
            (
                json!({"containers": [container("100m")], "resources": {"requests": {"cpu": "2"}, "limits": {"memory": "3Gi"}}}),
                "cpu=2",
                "cpu=100m,memory=3Gi",
            ),
        ] {
            let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
            for (side, expected) in [(Side::Requests, requests), (Side::Limits, limits)] {
                let found = of_pod(&pod, side);
                let shown: Vec<String> = found.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
                assert_eq!(shown.join(","), expected, "{side:?} of {spec}");
            }
        }
        assert!(of_pod(&Pod::default(), Side::Requests).is_empty());
    }

    #[test]
    fn classes_follow_requests_and_limits() {
        let both = json!({ "cpu": "1", "memory": "1Gi" });
        let cases = [
            (json!([{}]), QosClass::BestEffort),
            (json!([{ "limits": both, "requests": both }]), QosClass::Guaranteed),
            (json!([{ "limits": both }]), QosClass::Guaranteed),
            (json!([{ "limits": both, "requests": { "cpu": "500m" } }]), QosClass::Burstable),
            (json!([{ "limits": both }, {}]), QosClass::Burstable),
            (json!([{ "requests": { "cpu": "0" } }]), QosClass::BestEffort),
            (json!([{ "requests": { "ephemeral-storage": "1Gi" } }]), QosClass::BestEffort),
        ];
        assert_eq!(qos_class(&Pod::default()), QosClass::BestEffort);
        let of_pod = |resources: Value| json!({"spec": {"containers": [{"name": "c"}], "resources": resources}});
        for (pod, expected) in [
            (of_pod(json!({"limits": both})), QosClass::Guaranteed),
            (of_pod(json!({"requests": {"cpu": "1"}})), QosClass::Burstable),
            (of_pod(json!({})), QosClass::BestEffort),
        ] {
            assert_eq!(qos_class(&serde_json::from_value(pod.clone()).expect("a pod")), expected, "{pod}");
        }
        for (resources, expected) in cases {
            let containers: Vec<_> = resources
                .as_array()
                .into_iter()
                .flatten()
                .enumerate()
                .map(|(index, resources)| json!({ "name": index.to_string(), "resources": resources }))
                .collect();
            let pod = serde_json::from_value(json!({ "spec": { "containers": containers } })).expect("a pod");
            assert_eq!(qos_class(&pod), expected, "{resources}");
        }
    }
}
