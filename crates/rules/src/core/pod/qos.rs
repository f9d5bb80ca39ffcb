//! The quality of service (QoS) class of a pod.

use knarr_api::qos;
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::resources::{self, ResourceList, Side};

/// The class by the pod's own resources if it has any, else by those of its containers.
pub fn class(spec: &Value) -> &'static str {
    let whole = spec.at(&["resources"]);
    let is_set = |side: Side| {
        whole.fields(&[side.field()]).is_some_and(|list| list.keys().any(|name| resources::is_pod_level(name)))
    };
    let class = if is_set(Side::Requests) || is_set(Side::Limits) {
        qos::class(std::iter::once(amounts(whole)))
    } else {
        let containers = ["containers", "initContainers"].into_iter().flat_map(|list| spec.items(&[list]));
        qos::class(containers.map(|container| amounts(container.at(&["resources"]))))
    };
    class.as_str()
}

fn amounts(requirements: &Value) -> (ResourceList, ResourceList) {
    let of = |side: Side| resources::list(requirements.at(&[side.field()]));
    (of(Side::Requests), of(Side::Limits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn classes_follow_from_requirements() {
        let both = json!({"cpu": "1", "memory": "1Gi"});
        for (resources, expected) in [
            (json!({}), "BestEffort"),
            (json!({"requests": {"cpu": "1"}}), "Burstable"),
            (json!({"requests": both, "limits": both}), "Guaranteed"),
            (json!({"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": both}), "Burstable"),
            (json!({"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}), "BestEffort"),
            (json!({"requests": {"cpu": "0"}}), "BestEffort"),
        ] {
            assert_eq!(class(&json!({"containers": [{"resources": resources}]})), expected, "{resources}");
        }
        let mixed = json!({"containers": [{"resources": {"requests": both, "limits": both}}, {"resources": {}}]});
        assert_eq!(class(&mixed), "Burstable");
    }
}
