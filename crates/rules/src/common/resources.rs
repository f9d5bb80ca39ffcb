//! Resource lists (`cpu: 500m`, `memory: 1Gi`): rounding, sums, and the requests and limits of a whole pod.

use std::collections::BTreeMap;

use knarr_api::quantity::{Quantity, scale};
use knarr_api::value::Read;
use serde_json::{Map, Value};

/// Quantities by resource name.
pub type ResourceList = BTreeMap<String, Quantity>;

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

/// Adds a resource list to a sum.
pub fn add(sum: &mut ResourceList, more: &ResourceList) {
    for (name, quantity) in more {
        match sum.get_mut(name) {
            Some(total) => total.add(quantity),
            None => {
                sum.insert(name.clone(), quantity.clone());
            }
        }
    }
}

/// Raises each total to the quantity in `other` if that is greater.
pub fn raise_to_max(totals: &mut ResourceList, other: &ResourceList) {
    for (name, quantity) in other {
        if totals.get(name).is_none_or(|have| quantity > have) {
            totals.insert(name.clone(), quantity.clone());
        }
    }
}

/// The requests or the limits of resource requirements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Requests,
    Limits,
}

impl Side {
    /// Returns the field in resource requirements.
    pub fn field(self) -> &'static str {
        match self {
            Side::Requests => "requests",
            Side::Limits => "limits",
        }
    }
}

/// Returns what all containers of a pod need together: the sum of those that run concurrently, or the maximum of any
/// startup step if that is more. Restartable init containers (sidecars) keep running beside all later containers.
pub fn of_containers(spec: &Value, side: Side) -> ResourceList {
    let mut total = ResourceList::new();
    for container in spec.items(&["containers"]) {
        add(&mut total, &list(container.at(&["resources", side.field()])));
    }
    let mut sidecars = ResourceList::new();
    let mut startup = ResourceList::new();
    for container in spec.items(&["initContainers"]) {
        let mut step = list(container.at(&["resources", side.field()]));
        if is_sidecar(container) {
            add(&mut total, &step);
            add(&mut sidecars, &step);
            raise_to_max(&mut startup, &sidecars);
        } else {
            add(&mut step, &sidecars);
            raise_to_max(&mut startup, &step);
        }
    }
    raise_to_max(&mut total, &startup);
    total
}

/// Returns whether an init container keeps running beside the main containers.
pub fn is_sidecar(container: &Value) -> bool {
    container.text(&["restartPolicy"]) == "Always"
}

/// Returns whether a resource may be requested for the pod as a whole.
pub fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || is_huge_page(name)
}

/// Returns whether a resource is a huge page size.
pub fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
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
    fn a_pod_needs_its_containers_or_its_largest_start_up_step() {
        let container = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}});
        let sidecar = |cpu: &str| json!({"restartPolicy": "Always", "resources": {"requests": {"cpu": cpu}}});
        for (init, main, cpu) in [
            (json!([]), json!([container("1"), container("500m")]), "1500m"),
            (json!([container("3")]), json!([container("1")]), "3"),
            (json!([sidecar("1"), container("3")]), json!([container("1")]), "4"),
            (json!([container("3"), sidecar("1")]), json!([container("2")]), "3"),
        ] {
            let spec = json!({"initContainers": init, "containers": main});
            assert_eq!(of_containers(&spec, Side::Requests)["cpu"].to_string(), cpu);
        }
    }
}
