//! The usage that objects are charged with.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, Pod, PodAffinityTerm, ResourceQuota, ScopedResourceSelectorRequirement, Service,
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_client::pod;
use knarr_client::pod_resources::{self, QosClass, ResourceList as Resources, Side};
use knarr_client::quantity::{self, Format, Quantity};

/// Counted with the objects themselves, which this controller reads anyway.
const TYPED: [&str; 3] = ["count/pods", "count/services", "count/persistentvolumeclaims"];
/// Names from before `count/` existed.
const PLAIN: [&str; 4] = ["configmaps", "secrets", "replicationcontrollers", "resourcequotas"];

/// Events come from components, not from users whom the quota limits.
const NEVER_COUNTED: [&str; 2] = ["count/events", "count/events.events.k8s.io"];

pub(super) fn is_never_counted(resource: &str) -> bool {
    NEVER_COUNTED.contains(&resource)
}

fn count(number: usize) -> Quantity {
    Quantity::new(number as i64, Format::DecimalSi)
}

/// The resource whose objects a resource name counts.
pub(super) fn counted_kind(resource: &str) -> Option<String> {
    if TYPED.contains(&resource) || is_never_counted(resource) {
        return None;
    }
    match resource.strip_prefix("count/") {
        Some(kind) => Some(kind.to_owned()),
        None => PLAIN.contains(&resource).then(|| resource.to_owned()),
    }
}

pub(super) fn of_pod(pod: &Pod, now: Timestamp) -> Resources {
    let mut used = Resources::from([("count/pods".to_owned(), count(1))]);
    if !uses_resources(pod, now) {
        return used;
    }
    used.insert("pods".to_owned(), count(1));
    for (name, value) in pod_resources::of_pod(pod, Side::Requests) {
        match name.as_str() {
            "cpu" | "memory" | "ephemeral-storage" => count_both(&mut used, name, value),
            _ if pod_resources::is_huge_page(&name) => count_both(&mut used, name, value),
            _ if name.contains('/') => {
                used.insert(format!("requests.{name}"), value);
            }
            _ => {}
        }
    }
    for (name, value) in pod_resources::of_pod(pod, Side::Limits) {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            used.insert(format!("limits.{name}"), value);
        }
    }
    used
}

/// Counts a request under both of its names.
fn count_both(used: &mut Resources, name: String, value: Quantity) {
    used.insert(format!("requests.{name}"), value.clone());
    used.insert(name, value);
}

/// A pod counts until it has finished, or its grace period after deletion has passed.
fn uses_resources(pod: &Pod, now: Timestamp) -> bool {
    if pod::is_terminal(pod) {
        return false;
    }
    match (&pod.metadata.deletion_timestamp, pod.metadata.deletion_grace_period_seconds) {
        (Some(deleted), Some(grace)) => {
            now <= deleted.0.saturating_add(SignedDuration::from_secs(grace)).unwrap_or(Timestamp::MAX)
        }
        _ => true,
    }
}

pub(super) fn of_service(service: &Service) -> Resources {
    let spec = service.spec.clone().unwrap_or_default();
    let ports = spec.ports.unwrap_or_default();
    let (node_ports, balancers) = match spec.type_.as_deref() {
        Some("NodePort") => (ports.len(), 0),
        Some("LoadBalancer") if spec.allocate_load_balancer_node_ports == Some(false) => {
            (ports.iter().filter(|port| port.node_port.unwrap_or(0) != 0).count(), 1)
        }
        Some("LoadBalancer") => (ports.len(), 1),
        _ => (0, 0),
    };
    Resources::from([
        ("count/services".to_owned(), count(1)),
        ("services".to_owned(), count(1)),
        ("services.nodeports".to_owned(), count(node_ports)),
        ("services.loadbalancers".to_owned(), count(balancers)),
    ])
}

pub(super) fn of_claim(claim: &PersistentVolumeClaim) -> Resources {
    let mut used = Resources::from([
        ("persistentvolumeclaims".to_owned(), count(1)),
        ("count/persistentvolumeclaims".to_owned(), count(1)),
    ]);
    let spec = claim.spec.clone().unwrap_or_default();
    let class = spec.storage_class_name.filter(|class| !class.is_empty());
    if let Some(class) = &class {
        used.insert(format!("{class}.storageclass.storage.k8s.io/persistentvolumeclaims"), count(1));
    }
    let storage = spec.resources.and_then(|resources| resources.requests?.get("storage").map(quantity::of));
    if let Some(storage) = storage {
        used.insert("requests.storage".to_owned(), storage.clone());
        if let Some(class) = &class {
            used.insert(format!("{class}.storageclass.storage.k8s.io/requests.storage"), storage);
        }
    }
    used
}

pub(super) fn has_scopes(quota: &ResourceQuota) -> bool {
    !requirements(quota).is_empty()
}

/// Whether the pod matches all scopes of the quota.
pub(super) fn covers_pod(quota: &ResourceQuota, pod: &Pod) -> bool {
    requirements(quota).iter().all(|requirement| in_scope(requirement, pod))
}

/// Whether the claim matches all scopes of the quota: the only one for claims is the volume attributes class.
pub(super) fn covers_claim(quota: &ResourceQuota, claim: &PersistentVolumeClaim) -> bool {
    let classes = attributes_classes(claim);
    requirements(quota).iter().all(|requirement| {
        requirement.scope_name == "VolumeAttributesClass"
            && match classes.is_empty() {
                true => name_matches(None, requirement),
                false => classes.iter().any(|class| name_matches(Some(class), requirement)),
            }
    })
}

/// The attributes classes that a claim requests, has, or is being changed to.
fn attributes_classes(claim: &PersistentVolumeClaim) -> BTreeSet<&str> {
    let status = claim.status.as_ref();
    let requested = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref());
    let current = status.and_then(|status| status.current_volume_attributes_class_name.as_deref());
    let target = status.and_then(|status| status.modify_volume_status.as_ref());
    let target = target.and_then(|change| change.target_volume_attributes_class_name.as_deref());
    [requested, current, target].into_iter().flatten().filter(|class| !class.is_empty()).collect()
}

fn name_matches(name: Option<&str>, requirement: &ScopedResourceSelectorRequirement) -> bool {
    let listed = |name: &str| requirement.values.iter().flatten().any(|value| value == name);
    match requirement.operator.as_str() {
        "Exists" => name.is_some(),
        "DoesNotExist" => name.is_none(),
        "In" => name.is_some_and(listed),
        "NotIn" => !name.is_some_and(listed),
        _ => false,
    }
}

fn requirements(quota: &ResourceQuota) -> Vec<ScopedResourceSelectorRequirement> {
    let Some(spec) = &quota.spec else { return Vec::new() };
    let plain = spec.scopes.iter().flatten().map(|scope| ScopedResourceSelectorRequirement {
        scope_name: scope.clone(),
        operator: "Exists".to_owned(),
        values: None,
    });
    let selected = spec.scope_selector.iter().flat_map(|selector| selector.match_expressions.iter().flatten().cloned());
    plain.chain(selected).collect()
}

fn in_scope(requirement: &ScopedResourceSelectorRequirement, pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    let has_deadline = spec.is_some_and(|spec| spec.active_deadline_seconds.is_some_and(|seconds| seconds >= 0));
    match requirement.scope_name.as_str() {
        "Terminating" => has_deadline,
        "NotTerminating" => !has_deadline,
        "BestEffort" => is_best_effort(pod),
        "NotBestEffort" => !is_best_effort(pod),
        "CrossNamespacePodAffinity" => selects_other_namespaces(pod),
        "PriorityClass" => {
            let class = spec.and_then(|spec| spec.priority_class_name.as_deref()).filter(|class| !class.is_empty());
            name_matches(class, requirement)
        }
        _ => false,
    }
}

fn is_best_effort(pod: &Pod) -> bool {
    let reported = pod.status.as_ref().and_then(|status| status.qos_class.as_deref());
    if let Some(class) = reported {
        return class == "BestEffort";
    }
    pod_resources::qos_class(pod) == QosClass::BestEffort
}

fn selects_other_namespaces(pod: &Pod) -> bool {
    let beyond = |term: &PodAffinityTerm| {
        term.namespaces.as_ref().is_some_and(|names| !names.is_empty()) || term.namespace_selector.is_some()
    };
    let Some(affinity) = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref()) else { return false };
    let near = affinity.pod_affinity.iter().flat_map(|near| {
        let required = near.required_during_scheduling_ignored_during_execution.iter().flatten();
        let preferred = near.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        required.chain(preferred.map(|weighted| &weighted.pod_affinity_term))
    });
    let far = affinity.pod_anti_affinity.iter().flat_map(|far| {
        let required = far.required_during_scheduling_ignored_during_execution.iter().flatten();
        let preferred = far.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        required.chain(preferred.map(|weighted| &weighted.pod_affinity_term))
    });
    near.chain(far).any(beyond)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn rendered(used: Resources) -> Vec<String> {
        used.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    #[test]
    fn pods_are_charged_by_state() {
        let pod = |status: Value| -> Pod {
            serde_json::from_value(json!({
                "spec": {"containers": [{"name": "c", "resources": {
                    "requests": {"cpu": "100m", "memory": "1Gi", "example.com/gpu": "2"}, "limits": {"cpu": "1"}}}]},
                "status": status
            }))
            .unwrap()
        };
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(rendered(of_pod(&pod(json!({"phase": "Succeeded"})), now)), ["count/pods=1"]);
        assert_eq!(
            rendered(of_pod(&pod(json!({"phase": "Running"})), now)),
            [
                "count/pods=1",
                "cpu=100m",
                "limits.cpu=1",
                "memory=1Gi",
                "pods=1",
                "requests.cpu=100m",
                "requests.example.com/gpu=2",
                "requests.memory=1Gi"
            ]
        );
    }

    #[test]
    fn services_and_claims_are_charged() {
        let service = |spec: Value| serde_json::from_value::<Service>(json!({"spec": spec})).unwrap();
        let balancer = service(json!({"type": "LoadBalancer", "ports": [{"port": 1}, {"port": 2}]}));
        assert!(rendered(of_service(&balancer)).contains(&"services.nodeports=2".to_owned()));
        assert!(
            rendered(of_service(&service(json!({"ports": [{"port": 1}]}))))
                .contains(&"services.nodeports=0".to_owned())
        );
        let claim: PersistentVolumeClaim = serde_json::from_value(
            json!({"spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "5Gi"}}}}),
        )
        .unwrap();
        assert!(
            rendered(of_claim(&claim)).contains(&"fast.storageclass.storage.k8s.io/requests.storage=5Gi".to_owned())
        );
    }

    #[test]
    fn scopes() {
        let quota = |spec: Value| serde_json::from_value::<ResourceQuota>(json!({"spec": spec})).unwrap();
        let pod = |spec: Value| {
            let mut full = json!({"containers": [{"name": "c"}]});
            for (key, value) in spec.as_object().cloned().unwrap() {
                full[key] = value;
            }
            serde_json::from_value::<Pod>(json!({"spec": full})).unwrap()
        };
        let high = json!({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}});
        for (scope, of, covered) in [
            (json!({}), json!({}), true),
            (json!({"scopes": ["BestEffort"]}), json!({}), true),
            (json!({"scopes": ["NotBestEffort"]}), json!({}), false),
            (json!({"scopes": ["Terminating"]}), json!({"activeDeadlineSeconds": 5}), true),
            (json!({"scopes": ["NotTerminating", "BestEffort"]}), json!({"activeDeadlineSeconds": 5}), false),
            (high.clone(), json!({"priorityClassName": "high"}), true),
            (high, json!({}), false),
        ] {
            assert_eq!(covers_pod(&quota(scope.clone()), &pod(of)), covered, "{scope}");
        }
    }

    #[test]
    fn attributes_classes_are_a_scope_of_claims() {
        let claim = |spec: Value, status: Value| {
            serde_json::from_value::<PersistentVolumeClaim>(json!({"spec": spec, "status": status})).unwrap()
        };
        let claims = [
            claim(json!({}), json!({})),
            claim(json!({"volumeAttributesClassName": "gold"}), json!({})),
            claim(
                json!({"volumeAttributesClassName": "silver"}),
                json!({"currentVolumeAttributesClassName": "gold",
                    "modifyVolumeStatus": {"targetVolumeAttributesClassName": "silver", "status": "Pending"}}),
            ),
        ];
        for (operator, covered) in [
            ("In", [false, true, true]),
            ("NotIn", [true, false, true]),
            ("Exists", [false, true, true]),
            ("DoesNotExist", [true, false, false]),
        ] {
            let quota: ResourceQuota = serde_json::from_value(json!({"spec": {"scopeSelector": {"matchExpressions": [
                    {"scopeName": "VolumeAttributesClass", "operator": operator, "values": ["gold"]}]}}}))
            .unwrap();
            let found: Vec<bool> = claims.iter().map(|claim| covers_claim(&quota, claim)).collect();
            assert_eq!(found, covered, "{operator}");
        }
        let pods: ResourceQuota = serde_json::from_value(json!({"spec": {"scopes": ["BestEffort"]}})).unwrap();
        assert!(!covers_claim(&pods, &claims[1]) && covers_claim(&ResourceQuota::default(), &claims[0]));
    }

    #[test]
    fn which_names_count_kinds() {
        for (name, kind) in [
            ("count/deployments.apps", Some("deployments.apps")),
            ("configmaps", Some("configmaps")),
            ("count/pods", None),
            ("count/events", None),
            ("requests.cpu", None),
        ] {
            assert_eq!(counted_kind(name).as_deref(), kind);
        }
    }
}
