//! Whether a pod may run on a node: node selector, node affinity and taints. The rules are in `semantics`.

use k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration,
};
use k8s_openapi::api::resource::v1::{DeviceTaint, DeviceToleration};
use knarr_semantics::{node_selector, taint};

/// Whether the pod's node selector and required node affinity match the node.
pub fn affinity_allows(spec: &PodSpec, node: &Node) -> bool {
    let label = |key: &String| node.metadata.labels.as_ref().and_then(|labels| labels.get(key));
    if !spec.node_selector.iter().flatten().all(|(key, value)| label(key) == Some(value)) {
        return false;
    }
    let required = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = required.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    required.is_none_or(|required| selector_matches(required, node))
}

/// Whether one of the selector's terms matches the node.
pub fn selector_matches(selector: &NodeSelector, node: &Node) -> bool {
    selector.node_selector_terms.iter().any(|term| term_matches(term, node))
}

/// Whether a term matches the node.
pub fn term_matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let expressions = term.match_expressions.iter().flatten().map(requirement);
    let fields = term.match_fields.iter().flatten().map(requirement);
    let name = node.metadata.name.as_deref().unwrap_or_default();
    node_selector::term_matches(expressions, fields, name, |key| {
        node.metadata.labels.as_ref()?.get(key).map(String::as_str)
    })
}

fn requirement(
    requirement: &NodeSelectorRequirement,
) -> node_selector::Requirement<'_, impl Iterator<Item = &str> + Clone> {
    node_selector::Requirement {
        key: &requirement.key,
        operator: &requirement.operator,
        values: requirement.values.iter().flatten().map(String::as_str),
    }
}

/// Whether a toleration tolerates a taint.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let Toleration { key, operator, value, effect, .. } = toleration;
    let read = taint::Toleration { key: text(key), operator: text(operator), value: text(value), effect: text(effect) };
    read.tolerates(taint::Taint { key: &taint.key, value: text(&taint.value), effect: &taint.effect })
}

/// The same for a device.
pub fn tolerates_device(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let DeviceToleration { key, operator, value, effect, .. } = toleration;
    // Numbers are not compared.
    let operator = text(operator);
    let read = taint::Toleration { key: text(key), operator, value: text(value), effect: text(effect) };
    !matches!(operator, "Lt" | "Gt")
        && read.tolerates(taint::Taint { key: &taint.key, value: text(&taint.value), effect: &taint.effect })
}

fn text(field: &Option<String>) -> &str {
    field.as_deref().unwrap_or_default()
}

/// The first taint with one of the effects that no toleration tolerates.
pub fn untolerated<'a>(taints: &'a [Taint], tolerations: &[Toleration], effects: &[&str]) -> Option<&'a Taint> {
    taints
        .iter()
        .filter(|taint| effects.contains(&taint.effect.as_str()))
        .find(|taint| !tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn affinity() {
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": "n1", "labels": {"zone": "a", "cpus": "8"}}})).unwrap();
        let required = |term: Value| json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}});
        let expression = |key: &str, operator: &str, values: Value| {
            required(json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]}))
        };
        for (spec, allows) in [
            (json!({}), true),
            (json!({"nodeSelector": {"zone": "a"}}), true),
            (json!({"nodeSelector": {"zone": "b"}}), false),
            (expression("zone", "In", json!(["a", "b"])), true),
            (expression("zone", "NotIn", json!(["a"])), false),
            (expression("disk", "DoesNotExist", Value::Null), true),
            (expression("cpus", "Gt", json!(["4"])), true),
            (expression("cpus", "Lt", json!(["4"])), false),
            (required(json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]})), true),
            (required(json!({})), false),
        ] {
            let mut full = json!({"containers": []});
            for (key, value) in spec.as_object().cloned().unwrap() {
                full[key] = value;
            }
            assert_eq!(affinity_allows(&serde_json::from_value(full).unwrap(), &node), allows, "{spec}");
        }
    }

    #[test]
    fn taints() {
        let taint: Taint = serde_json::from_value(json!({"key": "k", "value": "v", "effect": "NoExecute"})).unwrap();
        for (toleration, tolerated) in [
            (json!({"key": "k", "value": "v", "effect": "NoExecute"}), true),
            (json!({"key": "k", "operator": "Exists"}), true),
            (json!({"operator": "Exists"}), true),
            (json!({"key": "k", "value": "w"}), false),
            (json!({"key": "k", "operator": "Exists", "effect": "NoSchedule"}), false),
        ] {
            let toleration: Toleration = serde_json::from_value(toleration).unwrap();
            assert_eq!(tolerates(&toleration, &taint), tolerated, "{toleration:?}");
            let left = untolerated(std::slice::from_ref(&taint), &[toleration], &["NoExecute"]);
            assert_eq!(left.is_none(), tolerated);
        }
        assert!(untolerated(&[taint], &[], &["NoSchedule"]).is_none());
    }
}
