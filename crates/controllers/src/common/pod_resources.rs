//! Resource requests and limits of a whole pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use knarr_client::pod_resources::{Amounts, combined};
use knarr_client::quantity::Quantity;

pub type Resources = BTreeMap<String, Quantity>;

/// The runtime's overhead is added to the requests.
pub fn requests(pod: &Pod) -> Resources {
    let mut total = total(pod, |resources| resources.requests.clone().unwrap_or_default());
    total.add(&overhead(pod));
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

/// The combined resources of the containers, replaced by the pod-level resources where there are any.
fn total(pod: &Pod, of: fn(&ResourceRequirements) -> BTreeMap<String, ApiQuantity>) -> Resources {
    let Some(spec) = &pod.spec else { return Resources::new() };
    let of_container = |container: &Container| parsed(container.resources.as_ref().map(of).unwrap_or_default());
    let mut total = combined(spec, of_container);
    total.extend(spec.resources.as_ref().map(|resources| parsed(of(resources))).unwrap_or_default());
    total
}

fn overhead(pod: &Pod) -> Resources {
    let given = pod.spec.as_ref().and_then(|spec| spec.overhead.clone());
    parsed(given.unwrap_or_default())
}

fn parsed(list: BTreeMap<String, ApiQuantity>) -> Resources {
    list.into_iter().map(|(name, value)| (name, Quantity::of(&value))).collect()
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
    fn overhead_always_adds_to_requests_but_only_raises_limits() {
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
