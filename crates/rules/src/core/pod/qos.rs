//! The quality of service (QoS) class of a pod.

use knarr_api::quantity::Quantity;
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::resources::{self, ResourceList, Side};

/// Computes the class from the requests and limits of a pod.
pub fn class(spec: &Value) -> &'static str {
    let (mut requests, mut limits) = (ResourceList::new(), ResourceList::new());
    let mut guaranteed = true;
    let level = spec.at(&["resources"]);
    let has_level = [Side::Requests, Side::Limits]
        .iter()
        .any(|side| level.fields(&[side.field()]).is_some_and(|l| l.keys().any(|name| resources::is_pod_level(name))));
    if has_level {
        guaranteed &= collect(level, &mut requests, &mut limits);
    } else {
        for list in ["containers", "initContainers"] {
            for container in spec.items(&[list]) {
                guaranteed &= collect(container.at(&["resources"]), &mut requests, &mut limits);
            }
        }
    }
    if requests.is_empty() && limits.is_empty() {
        return "BestEffort";
    }
    guaranteed &= requests.iter().all(|(name, amount)| limits.get(name) == Some(amount));
    if guaranteed && requests.len() == limits.len() { "Guaranteed" } else { "Burstable" }
}

/// Adds CPU and memory of a container to the sums. Returns whether both have limits.
fn collect(requirements: &Value, requests: &mut ResourceList, limits: &mut ResourceList) -> bool {
    let mut limited = 0;
    for (side, sums) in [(Side::Requests, requests), (Side::Limits, limits)] {
        for name in ["cpu", "memory"] {
            let amount = requirements.at(&[side.field(), name]);
            if amount.is_null() {
                continue;
            }
            let amount: Quantity = resources::quantity(amount);
            if amount.signum() > 0 {
                limited += usize::from(side == Side::Limits);
                resources::add(sums, &ResourceList::from([(name.to_owned(), amount)]));
            }
        }
    }
    limited == 2
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
