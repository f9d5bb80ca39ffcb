//! The resources of one container in the kernel's units.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use knarr_client::quantity::{milli_value, value};
use knarr_cri::messages::{HugepageLimit, LinuxContainerResources};

use crate::cgroup::amounts::combined;
use crate::cgroup::cpu::{CPU_PERIOD, cpu_quota, cpu_shares};
use crate::cgroup::qos::{QosClass, qos_class};
use crate::node_memory::NodeMemory;
use crate::pod::{self, Role};

type Amounts = Option<BTreeMap<String, Quantity>>;

pub fn milli_of(amounts: &Amounts, name: &str) -> i64 {
    amounts.as_ref().and_then(|amounts| amounts.get(name)).map_or(0, milli_value)
}

pub fn value_of(amounts: &Amounts, name: &str) -> i64 {
    amounts.as_ref().and_then(|amounts| amounts.get(name)).map_or(0, value)
}

pub fn linux_resources(pod: &Pod, container: &Container, node: &NodeMemory) -> LinuxContainerResources {
    let (requests, limits) = (pod::requests(container), &effective_limits(pod, container));
    let cpu_limit = milli_of(limits, "cpu");
    let has_request = requests.as_ref().is_some_and(|requests| requests.contains_key("cpu"));
    let cpu_request = if has_request { milli_of(requests, "cpu") } else { cpu_limit };
    let memory_limit = value_of(limits, "memory");
    let mut resources = LinuxContainerResources {
        cpu_period: CPU_PERIOD,
        cpu_quota: cpu_quota(cpu_limit),
        cpu_shares: cpu_shares(cpu_request),
        memory_limit_in_bytes: memory_limit,
        oom_score_adj: oom_score(pod, container, node.capacity),
        hugepage_limits: hugepages(limits),
        ..Default::default()
    };
    if node.unified {
        // An OOM kill takes the whole container, so that none keeps running with processes missing.
        let group = if node.single_process_oom_kill { "0" } else { "1" };
        resources.unified.insert("memory.oom.group".into(), group.into());
        if node.limits_swap {
            resources.unified.insert("memory.swap.max".into(), swap_limit(pod, container, node).to_string());
        }
    }
    resources
}

/// The swap of a container: its part of the memory requests, for burstable pods that are not critical. A container that
/// requests no memory, or as much as its limit, gets none.
fn swap_limit(pod: &Pod, container: &Container, node: &NodeMemory) -> u64 {
    let Some(swap) = node.swap else { return 0 };
    let amounts = [pod::requests(container), pod::limits(container)].map(|amounts| value_of(amounts, "memory"));
    let [request, limit] = amounts;
    let is_eligible = qos_class(pod) == QosClass::Burstable && !pod::is_critical(pod) && request != limit;
    let request = u64::try_from(request).unwrap_or(0);
    if !is_eligible || node.capacity == 0 || request > node.capacity {
        return 0;
    }
    u64::try_from(u128::from(request) * u128::from(swap) / u128::from(node.capacity)).unwrap_or(0)
}

/// The container's own limits, and the pod-level limits for the rest.
pub fn effective_limits(pod: &Pod, container: &Container) -> Amounts {
    let own = pod::limits(container);
    let Some(whole) = pod::spec(pod).resources.as_ref().and_then(|resources| resources.limits.as_ref()) else {
        return own.clone();
    };
    let mut limits = own.clone().unwrap_or_default();
    limits.retain(|_, amount| value(amount) != 0);
    for (name, amount) in whole {
        limits.entry(name.clone()).or_insert_with(|| amount.clone());
    }
    Some(limits)
}

/// Each container's equal share of the pod-level memory request that containers don't request themselves.
fn share_of_rest(pod: &Pod) -> i64 {
    let whole = pod::spec(pod).resources.as_ref().map_or(0, |resources| value_of(&resources.requests, "memory"));
    if whole == 0 {
        return 0;
    }
    let own = combined(pod, |container| Some(value_of(pod::requests(container), "memory"))).unwrap_or(0);
    let count = pod::init_containers(pod).count() + pod::main_containers(pod).count();
    whole.saturating_sub(own) / i64::try_from(count.max(1)).unwrap_or(1)
}

fn hugepages(limits: &Amounts) -> Vec<HugepageLimit> {
    let named = limits.iter().flatten().filter_map(|(name, amount)| Some((name.strip_prefix("hugepages-")?, amount)));
    named
        .map(|(size, amount)| HugepageLimit {
            // "2Mi" is "2MB" to the kernel.
            page_size: format!("{}B", size.trim_end_matches('i')),
            limit: u64::try_from(value(amount)).unwrap_or(0),
        })
        .collect()
}

/// The OOM score: best-effort containers are killed first, guaranteed ones last.
pub fn oom_score(pod: &Pod, container: &Container, memory_capacity: u64) -> i64 {
    const NODE_CRITICAL: i32 = 2_000_001_000;
    if pod::spec(pod).priority.is_some_and(|priority| priority >= NODE_CRITICAL) {
        return -997;
    }
    match qos_class(pod) {
        QosClass::Guaranteed => -997,
        QosClass::BestEffort => 1000,
        QosClass::Burstable => {
            let own = |container: &Container| value_of(pod::requests(container), "memory");
            let is_sidecar =
                pod::init_containers(pod).any(|(role, c)| role == Role::Sidecar && c.name == container.name);
            // A sidecar is killed no earlier than the containers it serves.
            let minimum = pod::main_containers(pod).map(own).min().filter(|_| is_sidecar).unwrap_or(0);
            let request = own(container).max(minimum).saturating_add(share_of_rest(pod));
            let capacity = i128::from(memory_capacity.max(1));
            let score = 1000 - 1000 * i128::from(request) / capacity;
            i64::try_from(score.clamp(3, 999)).unwrap_or(999)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn amounts_become_kernel_units() {
        let cases = [
            (json!({}), (2, 0, 0, 1000)),
            (json!({ "requests": { "cpu": "500m", "memory": "250" } }), (512, 0, 0, 750)),
            (
                json!({ "limits": { "cpu": "1", "memory": "100" }, "requests": { "cpu": "1", "memory": "100" } }),
                (1024, 100_000, 100, -997),
            ),
            (json!({ "limits": { "cpu": "1m" }, "requests": { "cpu": "0" } }), (2, 1000, 0, 999)),
        ];
        for (resources, expected) in cases {
            let pod: Pod =
                serde_json::from_value(json!({ "spec": { "containers": [{ "name": "a", "resources": resources }] } }))
                    .expect("a pod");
            let result = linux_resources(
                &pod,
                &pod::spec(&pod).containers[0],
                &NodeMemory { capacity: 1000, ..NodeMemory::default() },
            );
            let found = (result.cpu_shares, result.cpu_quota, result.memory_limit_in_bytes, result.oom_score_adj);
            assert_eq!(found, expected, "{resources}");
        }
    }

    #[test]
    fn burstable_containers_share_the_swap() {
        let node =
            NodeMemory { capacity: 1000, unified: true, limits_swap: true, swap: Some(500), ..NodeMemory::default() };
        for (resources, priority, node, expected) in [
            (json!({ "requests": { "memory": "100" } }), 0, node, Some("50")),
            (json!({ "requests": { "memory": "100" }, "limits": { "memory": "200" } }), 0, node, Some("50")),
            (json!({ "requests": { "memory": "333" } }), 0, node, Some("166")),
            // More than the node has.
            (json!({ "requests": { "memory": "1001" } }), 0, node, Some("0")),
            // As much as the limit, in a burstable pod.
            (json!({ "requests": { "memory": "100" }, "limits": { "memory": "100" } }), 0, node, Some("0")),
            // No memory at all, and best effort.
            (json!({ "requests": { "cpu": "1" } }), 0, node, Some("0")),
            (json!({}), 0, node, Some("0")),
            // A critical pod.
            (json!({ "requests": { "memory": "100" } }), 2_000_000_000, node, Some("0")),
            // NoSwap.
            (json!({ "requests": { "memory": "100" } }), 0, NodeMemory { swap: None, ..node }, Some("0")),
            // Without the kernel's controller.
            (json!({ "requests": { "memory": "100" } }), 0, NodeMemory { limits_swap: false, ..node }, None),
            (json!({ "requests": { "memory": "100" } }), 0, NodeMemory { unified: false, ..node }, None),
        ] {
            let pod: Pod = serde_json::from_value(json!({ "spec": { "priority": priority,
                "containers": [{ "name": "a", "resources": resources }] } }))
            .expect("a pod");
            let result = linux_resources(&pod, &pod::spec(&pod).containers[0], &node);
            assert_eq!(result.unified.get("memory.swap.max").map(String::as_str), expected, "{resources} {priority}");
        }
    }

    #[test]
    fn what_the_pod_as_a_whole_has_holds_for_containers_that_say_nothing() {
        let pod: Pod = serde_json::from_value(json!({ "spec": {
            "resources": { "requests": { "memory": "400", "cpu": "1" }, "limits": { "memory": "800", "cpu": "2" } },
            "initContainers": [{ "name": "side", "restartPolicy": "Always" }],
            "containers": [
                { "name": "none" },
                { "name": "own", "resources": { "requests": { "memory": "100", "cpu": "100m" },
                    "limits": { "cpu": "500m" } } } ] } }))
        .expect("a pod");
        let of = |container: &Container| {
            let result = linux_resources(&pod, container, &NodeMemory { capacity: 1000, ..NodeMemory::default() });
            (result.cpu_shares, result.cpu_quota, result.memory_limit_in_bytes, result.oom_score_adj)
        };
        let spec = pod::spec(&pod);
        assert_eq!(of(&spec.containers[0]), (2048, 200_000, 800, 900));
        assert_eq!(of(&spec.containers[1]), (102, 50_000, 800, 800));
        assert_eq!(of(&spec.init_containers.as_ref().expect("one")[0]), (2048, 200_000, 800, 900));
    }
}
