//! Whether a pod may run on a node: node selector, node affinity and taints.

use k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration,
};

use crate::selector::Labels;

/// Whether the pod's node selector and required node affinity match the node.
pub fn affinity_allows(spec: &PodSpec, node: &Node) -> bool {
    let labels = node.metadata.labels.clone().unwrap_or_default();
    if !spec.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value)) {
        return false;
    }
    let required = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = required.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    required.is_none_or(|required| selector_matches(required, node))
}

/// Whether one of the selector's terms matches the node.
pub fn selector_matches(selector: &NodeSelector, node: &Node) -> bool {
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let name = node.metadata.name.as_deref().unwrap_or_default();
    selector.node_selector_terms.iter().any(|term| term_matches(term, &labels, name))
}

/// An empty term matches nothing.
fn term_matches(term: &NodeSelectorTerm, labels: &Labels, node: &str) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let field = |requirement: &NodeSelectorRequirement| {
        requirement.key == "metadata.name" && requirement_met(requirement, Some(node))
    };
    (!expressions.is_empty() || !fields.is_empty())
        && expressions.iter().all(|each| requirement_met(each, labels.get(&each.key).map(String::as_str)))
        && fields.iter().all(field)
}

fn requirement_met(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = |value: &str| values.iter().any(|each| each == value);
    let number = |text: &str| text.parse::<i64>().ok();
    let bound = values.first().and_then(|text| number(text));
    match requirement.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => value.and_then(number).zip(bound).is_some_and(|(value, bound)| value > bound),
        "Lt" => value.and_then(number).zip(bound).is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

/// Whether a toleration tolerates a taint.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or("");
    let key = toleration.key.as_deref().unwrap_or("");
    if !effect.is_empty() && effect != taint.effect || !key.is_empty() && key != taint.key {
        return false;
    }
    let (tolerated, tainted) = (toleration.value.as_deref().unwrap_or(""), taint.value.as_deref().unwrap_or(""));
    let numbers = || Some((tainted.parse::<i64>().ok()?, tolerated.parse::<i64>().ok()?));
    match toleration.operator.as_deref().unwrap_or("") {
        "" | "Equal" => !key.is_empty() && tolerated == tainted,
        "Exists" => true,
        "Lt" => numbers().is_some_and(|(tainted, tolerated)| tainted < tolerated),
        "Gt" => numbers().is_some_and(|(tainted, tolerated)| tainted > tolerated),
        _ => false,
    }
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
