//! The QoS class of a pod, which decides who loses resources first when the node runs short.

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use knarr_client::quantity::Quantity;

use crate::pod;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QosClass {
    BestEffort,
    Burstable,
    Guaranteed,
}

impl QosClass {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BestEffort => "BestEffort",
            Self::Burstable => "Burstable",
            Self::Guaranteed => "Guaranteed",
        }
    }
}

impl QosClass {
    /// The name of the class's cgroup. Guaranteed pods are directly in that of all pods.
    pub fn cgroup(self) -> Option<&'static str> {
        match self {
            Self::BestEffort => Some("besteffort"),
            Self::Burstable => Some("burstable"),
            Self::Guaranteed => None,
        }
    }
}

const COUNTED: [&str; 2] = ["cpu", "memory"];

/// Guaranteed: every container has limits of CPU and memory and requests exactly these. Best effort: no container
/// requests anything.
pub fn qos_class(pod: &Pod) -> QosClass {
    if let Some(whole) = &pod::spec(pod).resources
        && sets_anything(whole)
    {
        return if is_exact(whole) { QosClass::Guaranteed } else { QosClass::Burstable };
    }
    let containers = || pod::init_containers(pod).map(|(_, container)| container).chain(pod::main_containers(pod));
    let of = |container: &Container| container.resources.clone().unwrap_or_default();
    if !containers().any(|container| sets_anything(&of(container))) {
        QosClass::BestEffort
    } else if containers().all(|container| is_exact(&of(container))) {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

fn sets_anything(resources: &ResourceRequirements) -> bool {
    let positive = |name: &str, amount| COUNTED.contains(&name) && !Quantity::of(amount).is_zero();
    let all = resources.requests.iter().flatten().chain(resources.limits.iter().flatten());
    all.into_iter().any(|(name, amount)| positive(name, amount))
}

fn is_exact(resources: &ResourceRequirements) -> bool {
    COUNTED.iter().all(|name| {
        let limit = resources.limits.as_ref().and_then(|limits| limits.get(*name)).map(Quantity::of);
        let request = resources.requests.as_ref().and_then(|requests| requests.get(*name)).map(Quantity::of);
        limit.is_some_and(|limit| !limit.is_zero() && request.is_none_or(|request| request == limit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
