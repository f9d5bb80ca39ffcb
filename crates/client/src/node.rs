//! Helpers to read a node's state.

use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeStatus};
use knarr_semantics::cidr::Cidr;

/// The name of a node.
pub fn name(node: &Node) -> &str {
    node.metadata.name.as_deref().unwrap_or_default()
}

/// The condition of a type.
pub fn condition<'a>(status: &'a NodeStatus, kind: &str) -> Option<&'a NodeCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

/// Whether the Ready condition is true.
pub fn is_ready(node: &Node) -> bool {
    node.status.as_ref().and_then(|status| condition(status, "Ready")).is_some_and(|ready| ready.status == "True")
}

/// The pod CIDRs in the spec.
pub fn pod_cidrs(node: &Node) -> Vec<Cidr> {
    let Some(spec) = &node.spec else { return Vec::new() };
    let several: Vec<Cidr> = spec.pod_cidrs.iter().flatten().filter_map(|text| text.parse().ok()).collect();
    if several.is_empty() { spec.pod_cidr.iter().filter_map(|text| text.parse().ok()).collect() } else { several }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nodes_are_ready_by_their_condition() {
        for (conditions, ready) in [
            (json!(null), false),
            (json!([]), false),
            (json!([{"type": "DiskPressure", "status": "True"}]), false),
            (json!([{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": "True"}]), true),
            (json!([{"type": "Ready", "status": "Unknown"}]), false),
        ] {
            let node: Node = serde_json::from_value(json!({"status": {"conditions": conditions}})).unwrap();
            assert_eq!(is_ready(&node), ready, "{conditions}");
        }
        assert!(!is_ready(&Node::default()));
    }

    #[test]
    fn the_list_of_cidrs_comes_first() {
        for (spec, expected) in [
            (json!({}), vec![]),
            (json!({"podCIDR": "10.1.0.0/24"}), vec!["10.1.0.0/24"]),
            (
                json!({"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00::/64"]}),
                vec!["10.1.0.0/24", "fd00::/64"],
            ),
            (json!({"podCIDR": "10.1.0.0/24", "podCIDRs": []}), vec!["10.1.0.0/24"]),
            (json!({"podCIDRs": ["x"]}), vec![]),
        ] {
            let node: Node = serde_json::from_value(json!({"spec": spec})).unwrap();
            let found: Vec<String> = pod_cidrs(&node).iter().map(ToString::to_string).collect();
            assert_eq!(found, expected, "{spec}");
        }
    }
}
