//! Resource lists (`cpu: 500m`, `memory: 1Gi`): rounding, sums, and the requests and limits of a whole pod.

use knarr_api::pod_resources;
pub use knarr_api::pod_resources::{Amounts, ResourceList, Side, is_huge_page, is_pod_level};
use knarr_api::quantity::{Quantity, scale};
use knarr_api::value::Read;
use serde_json::{Map, Value};

/// Rounds quantities up to multiples of 1m, as Kubernetes does when it decodes a resource list.
pub fn round_to_milli(list: Option<&mut Value>) {
    for (_, value) in list.and_then(Value::as_object_mut).into_iter().flatten() {
        let Value::String(text) = value else { continue };
        let may_be_finer = text.bytes().any(|byte| matches!(byte, b'n' | b'u' | b'.' | b'e' | b'E'));
        if may_be_finer && let Ok(mut quantity) = Quantity::parse(text) {
            quantity.round_up(scale::MILLI);
            *value = Value::from(quantity.to_string());
        }
    }
}

/// Rounds the limits and requests of resource requirements.
pub fn round_requirements(requirements: Option<&mut Value>) {
    if let Some(Value::Object(requirements)) = requirements {
        round_to_milli(requirements.get_mut("limits"));
        round_to_milli(requirements.get_mut("requests"));
    }
}

/// Returns the quantity in a field. Decoded objects contain valid quantities only.
pub fn quantity(value: &Value) -> Quantity {
    value.as_str().and_then(|text| Quantity::parse(text).ok()).unwrap_or_default()
}

/// Parses a resource list.
pub fn list(value: &Value) -> ResourceList {
    let fields = value.as_object().into_iter().flatten();
    fields.map(|(name, value)| (name.clone(), quantity(value))).collect()
}

/// Renders a resource list as JSON.
pub fn to_value(list: &ResourceList) -> Value {
    Value::Object(list.iter().map(|(name, quantity)| (name.clone(), Value::from(quantity.to_string()))).collect())
}

/// Returns what all containers of a pod need together.
pub fn of_containers(spec: &Value, side: Side) -> ResourceList {
    let of = |container: &Value| list(container.at(&["resources", side.field()]));
    let init = spec.items(&["initContainers"]).iter().map(|container| (is_sidecar(container), of(container)));
    pod_resources::combined(spec.items(&["containers"]).iter().map(of), init)
}

/// Returns what a whole pod requests, or what limits it: its containers, its own resources, and its overhead.
pub fn of_pod(pod: &Value, side: Side) -> ResourceList {
    let spec = pod.at(&["spec"]);
    let pod_level = list(spec.at(&["resources", side.field()]));
    pod_resources::of_pod(side, of_containers(spec, side), pod_level, &list(spec.at(&["overhead"])))
}

/// Returns whether an init container keeps running beside the main containers.
pub fn is_sidecar(container: &Value) -> bool {
    pod_resources::is_sidecar(container.text(&["restartPolicy"]))
}

/// Returns whether the name is native: without a prefix, or with one in kubernetes.io.
pub fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Returns whether the limits of a resource may exceed its requests.
pub fn allows_overcommit(name: &str) -> bool {
    is_native(name) && !is_huge_page(name)
}

/// Returns whether a resource is extended: not native, and with a name that is valid in quotas.
pub fn is_extended(name: &str) -> bool {
    if is_native(name) || name.starts_with("requests.") {
        return false;
    }
    knarr_api::names::qualified_name(&format!("requests.{name}")).is_empty()
}

/// Returns whether a quota can limit a resource of this name; counts of objects and extended resources aside.
pub fn is_quota_resource(name: &str) -> bool {
    matches!(
        name,
        "cpu"
            | "memory"
            | "ephemeral-storage"
            | "requests.cpu"
            | "requests.memory"
            | "requests.storage"
            | "requests.ephemeral-storage"
            | "limits.cpu"
            | "limits.memory"
            | "limits.ephemeral-storage"
            | "pods"
            | "resourcequotas"
            | "services"
            | "replicationcontrollers"
            | "secrets"
            | "persistentvolumeclaims"
            | "configmaps"
            | "services.nodeports"
            | "services.loadbalancers"
    ) || is_huge_page(name)
        || name.starts_with("requests.hugepages-")
}

/// Copies the entries that the target lacks.
pub fn fill_in(target: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (name, value) in from {
        if !target.contains_key(name) {
            target.insert(name.clone(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fine_quantities_are_rounded_up() {
        let mut list = json!({"cpu": "100u", "memory": "1Gi", "x": "1n", "y": "1500m"});
        round_to_milli(Some(&mut list));
        assert_eq!(list, json!({"cpu": "1m", "memory": "1Gi", "x": "1m", "y": "1500m"}));
    }

    #[test]
    fn pods_are_summed() {
        let container = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}});
        let sidecar = |cpu: &str| json!({"restartPolicy": "Always", "resources": {"requests": {"cpu": cpu}}});
        for (spec, containers, pod) in [
            (json!({"containers": [container("1"), container("500m")]}), "1500m", "1500m"),
            (json!({"initContainers": [container("3")], "containers": [container("1")]}), "3", "3"),
            (json!({"initContainers": [sidecar("1"), container("3")], "containers": [container("1")]}), "4", "4"),
            (json!({"initContainers": [container("3"), sidecar("1")], "containers": [container("2")]}), "3", "3"),
            (json!({"containers": [container("1")], "overhead": {"cpu": "250m"}}), "1", "1250m"),
            (json!({"containers": [container("1")], "resources": {"requests": {"cpu": "5"}}}), "1", "5"),
        ] {
            assert_eq!(of_containers(&spec, Side::Requests)["cpu"].to_string(), containers, "{spec}");
            assert_eq!(of_pod(&json!({"spec": spec}), Side::Requests)["cpu"].to_string(), pod, "{spec}");
        }
        let limited = json!({"spec": {"containers": [{"resources": {"limits": {"cpu": "1"}}}],
            "overhead": {"cpu": "10m", "memory": "1Mi"}}});
        assert_eq!(to_value(&of_pod(&limited, Side::Limits)), json!({"cpu": "1010m"}));
    }
}
