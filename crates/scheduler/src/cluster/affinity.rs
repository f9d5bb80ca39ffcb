//! Requirements on nodes (selectors, node affinity, tolerations) and on other pods (affinity terms), compiled once per pod.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorTerm, Pod, PodAffinityTerm};
use knarr_client::node_fit;
use knarr_client::selector::{self, Selector};

use super::labels::{Labels, Namespaces};
use super::node::NodeState;

/// Which nodes a pod may run on, by their labels and names.
#[derive(Clone, Debug, Default)]
pub struct NodeRequirement {
    selector: Labels,
    /// `None` when there is no required affinity; an empty list matches nothing.
    terms: Option<Vec<NodeSelectorTerm>>,
}

impl NodeRequirement {
    pub fn of(pod: &Pod) -> Self {
        let Some(spec) = &pod.spec else { return Self::default() };
        let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
        let required = affinity.and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
        NodeRequirement {
            selector: spec.node_selector.clone().unwrap_or_default(),
            terms: required.map(|selector: &NodeSelector| selector.node_selector_terms.clone()),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.selector.is_empty() && self.terms.is_none()
    }

    pub fn matches(&self, node: &NodeState) -> bool {
        let labels = node.labels();
        self.selector.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.terms.as_ref().is_none_or(|terms| terms.iter().any(|term| term_matches(term, node)))
    }

    /// The node names that the terms allow, when every term names some: no other node needs to be checked.
    pub fn names(&self) -> Option<BTreeSet<String>> {
        let terms = self.terms.as_ref()?;
        let mut all = BTreeSet::new();
        for term in terms {
            let mut named: Option<BTreeSet<String>> = None;
            for requirement in term.match_fields.iter().flatten() {
                if requirement.key == "metadata.name" && requirement.operator == "In" {
                    let values: BTreeSet<String> = requirement.values.iter().flatten().cloned().collect();
                    named = Some(match named {
                        Some(before) => before.intersection(&values).cloned().collect(),
                        None => values,
                    });
                }
            }
            all.extend(named?);
        }
        Some(all)
    }
}

/// Whether a term of a node selector matches the node.
pub fn term_matches(term: &NodeSelectorTerm, node: &NodeState) -> bool {
    node_fit::term_matches(term, node.object())
}

/// Which pods an affinity term selects, and over which topology. Equal terms of many pods share one instance.
#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TermKey {
    pub namespaces: BTreeSet<String>,
    /// Canonical text of the namespace selector; empty when there is none.
    pub namespace_selector: String,
    pub selector: String,
    pub topology_key: String,
}

#[derive(Clone, Debug)]
pub struct Term {
    pub key: Arc<TermKey>,
    pub selector: Arc<Selector>,
    /// `None` when only the named namespaces count.
    pub namespace_selector: Option<Arc<Selector>>,
    pub weight: i64,
}

impl Term {
    /// An invalid selector selects nothing, as in Kubernetes for terms that passed older validation.
    pub fn compile(term: &PodAffinityTerm, pod: &Pod, weight: i64) -> Self {
        let mut selector = term.label_selector.clone();
        let labels = pod.metadata.labels.as_ref();
        let mut narrow = |keys: &Option<Vec<String>>, operator: &str| {
            for key in keys.iter().flatten() {
                let Some(value) = labels.and_then(|labels| labels.get(key)) else { continue };
                let requirement = k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement {
                    key: key.clone(),
                    operator: operator.to_owned(),
                    values: Some(vec![value.clone()]),
                };
                let expressions = &mut selector.get_or_insert_default().match_expressions;
                let expressions = expressions.get_or_insert_default();
                if !expressions.contains(&requirement) {
                    expressions.push(requirement);
                }
            }
        };
        narrow(&term.match_label_keys, "In");
        narrow(&term.mismatch_label_keys, "NotIn");
        let mut namespaces: BTreeSet<String> = term.namespaces.iter().flatten().cloned().collect();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.insert(pod.metadata.namespace.clone().unwrap_or_default());
        }
        let text = |selector: &Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector>| {
            selector.as_ref().map(|selector| serde_json::to_string(selector).unwrap_or_default()).unwrap_or_default()
        };
        let key = TermKey {
            namespaces,
            namespace_selector: text(&term.namespace_selector),
            selector: text(&selector),
            topology_key: term.topology_key.clone(),
        };
        let namespace_selector = term
            .namespace_selector
            .as_ref()
            .map(|selector| Arc::new(selector::of(selector).unwrap_or_else(|_| Selector::nothing())));
        let selector = selector::of_option(selector.as_ref()).unwrap_or_else(|_| Selector::nothing());
        Term { key: Arc::new(key), selector: Arc::new(selector), namespace_selector, weight }
    }

    pub fn matches(&self, namespace: &str, labels: Option<&Labels>, namespaces: &Namespaces) -> bool {
        self.covers(namespace, namespaces) && self.selector.matches(labels)
    }

    pub fn covers(&self, namespace: &str, namespaces: &Namespaces) -> bool {
        self.key.namespaces.contains(namespace)
            || self.namespace_selector.as_ref().is_some_and(|selector| selector.matches(namespaces.get(namespace)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(labels: serde_json::Value) -> NodeState {
        NodeState::new(Arc::new(serde_json::from_value(json!({"metadata": {"name": "n", "labels": labels}})).unwrap()))
    }

    #[test]
    fn node_terms_match_labels_and_names() {
        let node = node(json!({"disk": "ssd", "cores": "8"}));
        for (term, matches) in [
            (json!({}), false),
            (json!({"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}), true),
            (json!({"matchExpressions": [{"key": "disk", "operator": "NotIn", "values": ["ssd"]}]}), false),
            (json!({"matchExpressions": [{"key": "none", "operator": "NotIn", "values": ["x"]}]}), true),
            (json!({"matchExpressions": [{"key": "none", "operator": "DoesNotExist"}]}), true),
            (json!({"matchExpressions": [{"key": "cores", "operator": "Gt", "values": ["4"]}]}), true),
            (json!({"matchExpressions": [{"key": "cores", "operator": "Lt", "values": ["4"]}]}), false),
            (json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}), true),
        ] {
            let parsed: NodeSelectorTerm = serde_json::from_value(term.clone()).unwrap();
            assert_eq!(term_matches(&parsed, &node), matches, "{term}");
        }
    }
}
