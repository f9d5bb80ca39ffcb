//! Taints and labels that follow from a node's conditions and labels.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::jiff::Timestamp;
use knarr_client::time;

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// Condition, status, and the NoSchedule taint.
const BY_CONDITION: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
];
/// Labels and their deprecated names; whether the deprecated one always stays.
const DEPRECATED_LABELS: [(&str, &str, bool); 4] = [
    ("kubernetes.io/os", "beta.kubernetes.io/os", true),
    ("kubernetes.io/arch", "beta.kubernetes.io/arch", true),
    ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone", false),
    ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region", false),
];

fn present(node: &Node) -> &[Taint] {
    node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
}

fn changed(node: &Node, desired: Vec<Taint>) -> Option<Vec<Taint>> {
    (present(node) != desired).then_some(desired)
}

/// All taints with those of conditions updated; `None` when they are up to date.
pub(super) fn for_conditions(node: &Node, now: Timestamp) -> Option<Vec<Taint>> {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let mut keys: Vec<&str> = BY_CONDITION
        .iter()
        .filter(|(kind, status, _)| conditions.iter().any(|has| has.type_ == *kind && has.status == *status))
        .map(|(_, _, key)| *key)
        .collect();
    if node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true)) {
        keys.push(UNSCHEDULABLE);
    }
    let is_managed = |taint: &Taint| {
        let key = taint.key.as_str();
        taint.effect == "NoSchedule" && (key == UNSCHEDULABLE || BY_CONDITION.iter().any(|(_, _, known)| *known == key))
    };
    let mut desired: Vec<Taint> = present(node)
        .iter()
        .filter(|taint| !is_managed(taint) || keys.contains(&taint.key.as_str()))
        .cloned()
        .collect();
    for key in keys {
        if !desired.iter().any(|taint| taint.key == key && taint.effect == "NoSchedule") {
            desired.push(new_taint(key, "NoSchedule", now));
        }
    }
    changed(node, desired)
}

fn new_taint(key: &str, effect: &str, added: Timestamp) -> Taint {
    Taint { key: key.to_owned(), effect: effect.to_owned(), value: None, time_added: Some(time::truncated(added)) }
}

fn is_evicting(taint: &Taint) -> bool {
    taint.effect == "NoExecute" && (taint.key == NOT_READY || taint.key == UNREACHABLE)
}

/// Changes that need no rate limit: a ready node loses the taints, and one unhealthy state may replace the other.
pub(super) fn for_readiness(node: &Node, ready: &str, now: Timestamp) -> Option<Vec<Taint>> {
    let evicting = present(node).iter().find(|taint| is_evicting(taint));
    match (ready, evicting) {
        ("True", Some(_)) => without_eviction(node),
        ("False", Some(taint)) if taint.key == UNREACHABLE => Some(swapped(node, NOT_READY, now)),
        ("Unknown", Some(taint)) if taint.key == NOT_READY => Some(swapped(node, UNREACHABLE, now)),
        _ => None,
    }
}

fn swapped(node: &Node, key: &str, now: Timestamp) -> Vec<Taint> {
    let others = present(node).iter().filter(|taint| !is_evicting(taint)).cloned();
    others.chain([new_taint(key, "NoExecute", now)]).collect()
}

pub(super) fn without_eviction(node: &Node) -> Option<Vec<Taint>> {
    changed(node, present(node).iter().filter(|taint| !is_evicting(taint)).cloned().collect())
}

/// The NoExecute taints, if the node lacks the one it should have.
pub(super) fn to_evict(node: &Node, ready: &str, now: Timestamp) -> Option<Vec<Taint>> {
    let key = match ready {
        "False" => NOT_READY,
        "Unknown" => UNREACHABLE,
        _ => return None,
    };
    if present(node).iter().any(is_evicting) {
        return None;
    }
    let mut desired = present(node).to_vec();
    desired.push(new_taint(key, "NoExecute", now));
    Some(desired)
}

/// Deprecated labels that are missing or differ.
pub(super) fn missing_labels(node: &Node) -> BTreeMap<String, String> {
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let missing_keys = |(current, former, always): &(&str, &str, bool)| {
        let value = labels.get(*current)?;
        match labels.get(*former) {
            Some(present) if present == value => None,
            None if !always => None,
            _ => Some(((*former).to_owned(), value.clone())),
        }
    };
    DEPRECATED_LABELS.iter().filter_map(missing_keys).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(ready: &str, taints: Value, unschedulable: bool) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "n", "labels": {"kubernetes.io/os": "linux", "topology.kubernetes.io/zone": "a"}},
            "spec": {"taints": taints, "unschedulable": unschedulable},
            "status": {"conditions": [{"type": "Ready", "status": ready}]}
        }))
        .unwrap()
    }

    fn rendered(taints: Option<Vec<Taint>>) -> Option<Vec<String>> {
        taints.map(|taints| {
            taints.into_iter().map(|t| format!("{}:{}", t.key.rsplit('/').next().unwrap(), t.effect)).collect()
        })
    }

    #[test]
    fn taints_are_derived_from_conditions() {
        let custom = json!([{"key": "team", "effect": "NoSchedule"}]);
        for (node, expected) in [
            (node("True", json!([]), false), None),
            (node("True", custom.clone(), true), Some(vec!["team:NoSchedule", "unschedulable:NoSchedule"])),
            (node("False", json!([]), false), Some(vec!["not-ready:NoSchedule"])),
            (
                node("Unknown", json!([{"key": NOT_READY, "effect": "NoSchedule"}]), false),
                Some(vec!["unreachable:NoSchedule"]),
            ),
            (node("True", json!([{"key": NOT_READY, "effect": "NoSchedule"}]), false), Some(vec![])),
        ] {
            let expected = expected.map(|list| list.into_iter().map(str::to_owned).collect::<Vec<_>>());
            assert_eq!(rendered(for_conditions(&node, Timestamp::UNIX_EPOCH)), expected);
        }
    }

    #[test]
    fn eviction_taints_are_derived_from_readiness() {
        let away = json!([{"key": NOT_READY, "effect": "NoExecute"}]);
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(rendered(for_readiness(&node("True", away.clone(), false), "True", now)), Some(vec![]));
        assert_eq!(
            rendered(for_readiness(&node("Unknown", away.clone(), false), "Unknown", now)),
            Some(vec!["unreachable:NoExecute".into()])
        );
        assert_eq!(for_readiness(&node("False", away.clone(), false), "False", now), None);
        assert_eq!(
            rendered(to_evict(&node("False", json!([]), false), "False", now)),
            Some(vec!["not-ready:NoExecute".into()])
        );
        assert_eq!(to_evict(&node("False", away, false), "False", now), None);
        assert_eq!(to_evict(&node("True", json!([]), false), "True", now), None);
    }

    #[test]
    fn deprecated_labels_are_maintained() {
        let labels = missing_labels(&node("True", json!([]), false));
        assert_eq!(labels, [("beta.kubernetes.io/os".to_owned(), "linux".to_owned())].into());
    }
}
