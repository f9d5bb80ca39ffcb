//! Resource requests and limits of a whole pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use knarr_client::quantity::Quantity;

pub type Resources = BTreeMap<String, Quantity>;

/// The runtime's overhead is added to the requests.
pub fn requests(pod: &Pod) -> Resources {
    let mut total = total(pod, |resources| resources.requests.clone().unwrap_or_default());
    add(&mut total, &overhead(pod));
    total
}

/// The runtime's overhead raises an existing limit; it creates none.
pub fn limits(pod: &Pod) -> Resources {
    let mut total = total(pod, |resources| resources.limits.clone().unwrap_or_default());
    for (name, value) in overhead(pod) {
        if let Some(limit) = total.get_mut(&name).filter(|limit| !limit.is_zero()) {
            *limit += value;
        }
    }
    total
}

/// Containers run in parallel; init containers one after another before them, beside the sidecars started so far.
fn total(pod: &Pod, of: fn(&ResourceRequirements) -> BTreeMap<String, ApiQuantity>) -> Resources {
    let Some(spec) = &pod.spec else { return Resources::new() };
    let of_container = |container: &Container| parsed(container.resources.as_ref().map(of).unwrap_or_default());
    let mut running = Resources::new();
    for container in &spec.containers {
        add(&mut running, &of_container(container));
    }
    let mut sidecars = Resources::new();
    let mut starting = Resources::new();
    for container in spec.init_containers.iter().flatten() {
        let own = of_container(container);
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut sidecars, &own);
            add(&mut running, &own);
            raise(&mut starting, &sidecars);
        } else {
            let mut together = sidecars.clone();
            add(&mut together, &own);
            raise(&mut starting, &together);
        }
    }
    raise(&mut running, &starting);
    for (name, value) in spec.resources.as_ref().map(|resources| parsed(of(resources))).unwrap_or_default() {
        running.insert(name, value);
    }
    running
}

fn overhead(pod: &Pod) -> Resources {
    let given = pod.spec.as_ref().and_then(|spec| spec.overhead.clone());
    parsed(given.unwrap_or_default())
}

fn parsed(list: BTreeMap<String, ApiQuantity>) -> Resources {
    list.into_iter().map(|(name, value)| (name, Quantity::of(&value))).collect()
}

pub fn add(total: &mut Resources, more: &Resources) {
    for (name, value) in more {
        *total.entry(name.clone()).or_insert(Quantity::new(0, value.format())) += *value;
    }
}

fn raise(total: &mut Resources, to: &Resources) {
    for (name, value) in to {
        let present = total.entry(name.clone()).or_insert(*value);
        *present = (*present).max(*value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn requested(spec: Value) -> Vec<(String, String)> {
        let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        requests(&pod).into_iter().map(|(name, value)| (name, value.to_string())).collect()
    }

    #[test]
    fn containers_add_up_and_init_containers_compete() {
        let container = |cpu: &str| json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
        let sidecar =
            |cpu: &str| json!({"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": cpu}}});
        let cpu = |spec: Value| requested(spec)[0].1.clone();
        assert_eq!(cpu(json!({"containers": [container("100m"), container("200m")]})), "300m");
        assert_eq!(cpu(json!({"containers": [container("100m")], "initContainers": [container("1")]})), "1");
        let spec = json!({"containers": [container("100m")], "initContainers": [sidecar("50m"), container("120m")]});
        assert_eq!(cpu(spec), "170m");
        assert_eq!(cpu(json!({"containers": [container("100m")], "overhead": {"cpu": "10m"}})), "110m");
        assert_eq!(cpu(json!({"containers": [container("100m")], "resources": {"requests": {"cpu": "2"}}})), "2");
        assert!(requested(json!({"containers": [{"name": "c"}]})).is_empty());
    }

    #[test]
    fn overhead_is_requested_always_and_limits_nothing_alone() {
        let rendered = |found: Resources| {
            let parts: Vec<String> = found.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
            parts.join(",")
        };
        let overhead = json!({"cpu": "10m", "memory": "1Mi"});
        for (resources, expected) in [
            (json!({}), ("cpu=10m,memory=1Mi", "")),
            (json!({"requests": {"cpu": "100m"}}), ("cpu=110m,memory=1Mi", "")),
            (json!({"limits": {"cpu": "1"}}), ("cpu=10m,memory=1Mi", "cpu=1010m")),
            (json!({"limits": {"cpu": "0"}}), ("cpu=10m,memory=1Mi", "cpu=0")),
            (
                json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}}),
                ("cpu=10m,memory=1025Mi", "memory=2049Mi"),
            ),
        ] {
            let containers = json!([{"name": "c", "resources": resources}]);
            let pod: Pod =
                serde_json::from_value(json!({"spec": {"containers": containers, "overhead": overhead}})).unwrap();
            let found = (rendered(requests(&pod)), rendered(limits(&pod)));
            assert_eq!((&*found.0, &*found.1), expected, "{resources}");
        }
    }
}
