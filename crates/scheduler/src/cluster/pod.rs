//! A pod with everything that scheduling needs, computed once when it is first observed.

use std::ops::Deref;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Toleration, TopologySpreadConstraint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use knarr_client::selector::{self, Selector};

use super::affinity::NodeRequirement;
use super::placed::PlacedPod;

#[derive(Clone)]
pub struct PodState {
    /// What others see of it once it has a node.
    pub placed: Arc<PlacedPod>,
    pub object: Arc<Pod>,
    pub node_requirement: NodeRequirement,
    pub spread: Vec<Spread>,
}

impl Deref for PodState {
    type Target = PlacedPod;

    fn deref(&self) -> &PlacedPod {
        &self.placed
    }
}

/// A topology spread constraint.
#[derive(Clone, Debug)]
pub struct Spread {
    pub topology_key: String,
    pub max_skew: i64,
    pub min_domains: i64,
    /// Nodes that violate it are filtered out, instead of only scored lower.
    pub hard: bool,
    pub honors_affinity: bool,
    pub honors_taints: bool,
    pub selector: Arc<Selector>,
    /// Canonical text of the selector, the key of its counts.
    pub selector_text: Arc<str>,
}

impl PodState {
    pub fn new(pod: Arc<Pod>) -> Self {
        let placed = PlacedPod::new(&pod, pod.metadata.labels.clone().map(Arc::new));
        Self::with(Arc::new(placed), pod)
    }

    /// The state of a pod of which the part that others see is known.
    pub fn with(placed: Arc<PlacedPod>, pod: Arc<Pod>) -> Self {
        PodState { placed, node_requirement: NodeRequirement::of(&pod), spread: spread_constraints(&pod), object: pod }
    }

    /// The name of the scheduler that is responsible for it.
    pub fn scheduler_name(&self) -> &str {
        let named = self.object.spec.as_ref().and_then(|spec| spec.scheduler_name.as_deref());
        named.unwrap_or("default-scheduler")
    }

    pub fn tolerations(&self) -> &[Toleration] {
        self.object.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default()
    }
}

fn spread_constraints(pod: &Pod) -> Vec<Spread> {
    let constraints = pod.spec.as_ref().and_then(|spec| spec.topology_spread_constraints.as_ref());
    let labels = pod.metadata.labels.as_ref();
    let compile = |constraint: &TopologySpreadConstraint| {
        let mut selector = constraint.label_selector.clone();
        let own = constraint.match_label_keys.iter().flatten().filter_map(|key| labels?.get_key_value(key));
        // A missing selector stays missing: it matches no pods, whatever their labels.
        if let Some(selector) = &mut selector {
            for (key, value) in own {
                selector.match_expressions.get_or_insert_default().push(LabelSelectorRequirement {
                    key: key.clone(),
                    operator: "In".to_owned(),
                    values: Some(vec![value.clone()]),
                });
            }
        }
        Spread::new(constraint, selector.as_ref())
    };
    constraints.into_iter().flatten().map(compile).collect()
}

impl Spread {
    /// The constraint, counting the pods that the selector matches.
    pub fn new(constraint: &TopologySpreadConstraint, selector: Option<&LabelSelector>) -> Self {
        let text = serde_json::to_string(&selector).unwrap_or_default();
        Spread {
            topology_key: constraint.topology_key.clone(),
            max_skew: i64::from(constraint.max_skew),
            min_domains: i64::from(constraint.min_domains.unwrap_or(1)),
            hard: constraint.when_unsatisfiable == "DoNotSchedule",
            honors_affinity: constraint.node_affinity_policy.as_deref() != Some("Ignore"),
            honors_taints: constraint.node_taints_policy.as_deref() == Some("Honor"),
            selector: Arc::new(selector::of_option(selector).unwrap_or_else(|_| Selector::nothing())),
            selector_text: text.into(),
        }
    }
}
