//! Which nodes a daemon set runs on, and the pods it creates there.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    Affinity, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Toleration,
};
use knarr_client::{owner, pod};

use crate::common::history::REVISION_HASH;
use crate::common::key::name;
use knarr_client::node_fit::{affinity_allows, untolerated};

const GENERATION: &str = "deprecated.daemonset.template.generation";
const GENERATION_LABEL: &str = "pod-template-generation";

/// Whether a pod should be started on the node, and whether a running one may stay.
pub(super) fn suits(set: &DaemonSet, node: &Node) -> (bool, bool) {
    let Some(spec) = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()) else { return (false, false) };
    if spec.node_name.as_deref().is_some_and(|desired| !desired.is_empty() && desired != name(node)) {
        return (false, false);
    }
    if !affinity_allows(spec, node) {
        return (false, false);
    }
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let tolerations = all_tolerations(spec);
    let may_start = untolerated(taints, &tolerations, &["NoExecute", "NoSchedule"]).is_none();
    let may_stay = untolerated(taints, &tolerations, &["NoExecute"]).is_none();
    (may_start, may_stay)
}

/// Daemons tolerate node problems, which they may be there to solve.
fn all_tolerations(spec: &PodSpec) -> Vec<Toleration> {
    let mut tolerations = spec.tolerations.clone().unwrap_or_default();
    let mut add = |key: &str, effect: &str| {
        let desired = Toleration {
            key: Some(format!("node.kubernetes.io/{key}")),
            operator: Some("Exists".to_owned()),
            effect: Some(effect.to_owned()),
            ..Toleration::default()
        };
        let same = |present: &Toleration| {
            present.key == desired.key
                && present.effect == desired.effect
                && present.operator == desired.operator
                && present.value.as_deref().unwrap_or("").is_empty()
        };
        match tolerations.iter_mut().find(|present| same(present)) {
            Some(present) => *present = desired,
            None => tolerations.push(desired),
        }
    };
    add("not-ready", "NoExecute");
    add("unreachable", "NoExecute");
    add("disk-pressure", "NoSchedule");
    add("memory-pressure", "NoSchedule");
    add("pid-pressure", "NoSchedule");
    add("unschedulable", "NoSchedule");
    if spec.host_network == Some(true) {
        add("network-unavailable", "NoSchedule");
    }
    tolerations
}

/// The pod for a node; its affinity makes the scheduler place it there.
pub(super) fn new_pod(set: &DaemonSet, node: &str, hash: &str) -> Pod {
    let Some(spec) = &set.spec else { return Pod::default() };
    let mut pod = pod::from_template(&spec.template);
    pod.metadata.generate_name = Some(format!("{}-", name(set)));
    pod.metadata.owner_references = Some(vec![owner::controller_reference(set)]);
    let labels = pod.metadata.labels.get_or_insert_default();
    if let Some(generation) = template_generation(set) {
        labels.insert(GENERATION_LABEL.to_owned(), generation.to_owned());
    }
    labels.insert(REVISION_HASH.to_owned(), hash.to_owned());
    let spec = pod.spec.get_or_insert_default();
    spec.tolerations = Some(all_tolerations(spec));
    let only_there = NodeSelectorTerm {
        match_fields: Some(vec![NodeSelectorRequirement {
            key: "metadata.name".to_owned(),
            operator: "In".to_owned(),
            values: Some(vec![node.to_owned()]),
        }]),
        match_expressions: None,
    };
    let affinity = spec.affinity.get_or_insert_with(Affinity::default);
    affinity
        .node_affinity
        .get_or_insert_with(NodeAffinity::default)
        .required_during_scheduling_ignored_during_execution =
        Some(NodeSelector { node_selector_terms: vec![only_there] });
    pod
}

fn template_generation(set: &DaemonSet) -> Option<&str> {
    set.metadata.annotations.as_ref()?.get(GENERATION).map(String::as_str)
}

/// Whether a pod is of the current template.
pub(super) fn is_current(set: &DaemonSet, pod: &Pod, hash: &str) -> bool {
    let label = |key: &str| pod.metadata.labels.as_ref().and_then(|labels| labels.get(key)).map(String::as_str);
    let by_generation = template_generation(set).is_some() && template_generation(set) == label(GENERATION_LABEL);
    by_generation || !hash.is_empty() && label(REVISION_HASH) == Some(hash)
}

/// The node a pod runs on or is meant for.
pub(super) fn target_node(pod: &Pod) -> Option<&str> {
    if let Some(node) = pod::node_name(pod) {
        return Some(node);
    }
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = &affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms;
    let fields = terms.iter().flat_map(|term| term.match_fields.iter().flatten());
    let mut named = fields.filter(|field| field.key == "metadata.name" && field.operator == "In");
    named.find_map(|field| field.values.as_ref()?.first()).map(String::as_str)
}

/// Pods by node; pods for no node are left out.
pub(super) fn by_node(pods: Vec<Arc<Pod>>) -> BTreeMap<String, Vec<Arc<Pod>>> {
    let mut by_node: BTreeMap<String, Vec<Arc<Pod>>> = BTreeMap::new();
    for pod in pods {
        if let Some(node) = target_node(&pod) {
            by_node.entry(node.to_owned()).or_default().push(pod);
        }
    }
    for pods in by_node.values_mut() {
        pods.sort_by_key(|pod| {
            // Scheduled pods come before others, then the oldest.
            (pod::node_name(pod).is_none(), pod.metadata.creation_timestamp.clone(), pod.metadata.name.clone())
        });
    }
    by_node
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn nodes_suit_by_affinity_and_taints() {
        let set: DaemonSet = serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": {"selector": {},
            "template": {"spec": {"containers": [], "nodeSelector": {"os": "linux"}}}}}))
        .unwrap();
        let node = |labels: Value, taints: Value| -> Node {
            serde_json::from_value(json!({"metadata": {"name": "n", "labels": labels}, "spec": {"taints": taints}}))
                .unwrap()
        };
        let linux = json!({"os": "linux"});
        for (node, expected) in [
            (node(linux.clone(), json!([])), (true, true)),
            (node(json!({}), json!([])), (false, false)),
            (node(linux.clone(), json!([{"key": "k", "effect": "NoSchedule"}])), (false, true)),
            (node(linux.clone(), json!([{"key": "k", "effect": "NoExecute"}])), (false, false)),
            (
                node(linux.clone(), json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}])),
                (true, true),
            ),
            (node(linux, json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}])), (false, true)),
        ] {
            assert_eq!(suits(&set, &node), expected, "{node:?}");
        }
        let pod = new_pod(&set, "n7", "abc");
        assert_eq!(target_node(&pod), Some("n7"));
        assert!(is_current(&set, &pod, "abc") && !is_current(&set, &pod, "def"));
        assert_eq!(by_node(vec![Arc::new(pod), Arc::new(Pod::default())]).len(), 1);
    }
}
