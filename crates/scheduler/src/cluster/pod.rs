//! A pod with everything that scheduling needs, computed once when it is first observed.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus, Toleration, TopologySpreadConstraint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta};
use knarr_client::selector::Selector;

use super::affinity::{NodeRequirement, Term};
use super::labels::Labels;
use super::ports::{HostPort, host_ports};
use super::resources::{Resources, pod_requests};

#[derive(Clone)]
pub struct PodState {
    /// Namespace and name.
    pub key: Arc<str>,
    pub object: Arc<Pod>,
    pub requests: Resources,
    /// Requests with defaults for containers without any; scores use them.
    pub scored_requests: Resources,
    pub host_ports: Vec<HostPort>,
    pub node_requirement: NodeRequirement,
    pub required_affinity: Vec<Term>,
    pub required_anti_affinity: Vec<Term>,
    pub preferred_affinity: Vec<Term>,
    pub preferred_anti_affinity: Vec<Term>,
    pub spread: Vec<Spread>,
    /// The volume claims it uses.
    pub claims: Vec<ClaimUse>,
}

/// A volume claim that a pod uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimUse {
    /// Namespace and name.
    pub key: String,
    pub name: String,
    /// The claim is created for the pod, and named after it and the volume.
    pub is_ephemeral: bool,
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

pub fn pod_key(pod: &Pod) -> Arc<str> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{}", pod.metadata.name.as_deref().unwrap_or_default()).into()
}

impl PodState {
    pub fn new(pod: Arc<Pod>) -> Self {
        let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
        let near = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
        let apart = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
        let required = |terms: Option<&Vec<k8s_openapi::api::core::v1::PodAffinityTerm>>| -> Vec<Term> {
            terms.into_iter().flatten().map(|term| Term::compile(term, &pod, 0)).collect()
        };
        let preferred = |terms: Option<&Vec<k8s_openapi::api::core::v1::WeightedPodAffinityTerm>>| -> Vec<Term> {
            let terms = terms.into_iter().flatten();
            terms.map(|term| Term::compile(&term.pod_affinity_term, &pod, i64::from(term.weight))).collect()
        };
        PodState {
            key: pod_key(&pod),
            requests: pod_requests(&pod, false),
            scored_requests: pod_requests(&pod, true),
            host_ports: host_ports(&pod),
            node_requirement: NodeRequirement::of(&pod),
            required_affinity: required(
                near.and_then(|near| near.required_during_scheduling_ignored_during_execution.as_ref()),
            ),
            required_anti_affinity: required(
                apart.and_then(|apart| apart.required_during_scheduling_ignored_during_execution.as_ref()),
            ),
            preferred_affinity: preferred(
                near.and_then(|near| near.preferred_during_scheduling_ignored_during_execution.as_ref()),
            ),
            preferred_anti_affinity: preferred(
                apart.and_then(|apart| apart.preferred_during_scheduling_ignored_during_execution.as_ref()),
            ),
            spread: spread_constraints(&pod),
            claims: claims(&pod),
            object: pod,
        }
    }

    /// The state of a pod on its node.
    pub fn placed(pod: &Arc<Pod>) -> Self {
        PodState { object: Arc::new(placed_object(pod)), ..Self::new(Arc::clone(pod)) }
    }

    pub fn namespace(&self) -> &str {
        self.object.metadata.namespace.as_deref().unwrap_or_default()
    }

    pub fn name(&self) -> &str {
        self.object.metadata.name.as_deref().unwrap_or_default()
    }

    /// The name of the scheduler that is responsible for it.
    pub fn scheduler_name(&self) -> &str {
        let named = self.object.spec.as_ref().and_then(|spec| spec.scheduler_name.as_deref());
        named.unwrap_or("default-scheduler")
    }

    pub fn uid(&self) -> &str {
        self.object.metadata.uid.as_deref().unwrap_or_default()
    }

    pub fn labels(&self) -> Option<&Labels> {
        self.object.metadata.labels.as_ref()
    }

    pub fn tolerations(&self) -> &[Toleration] {
        self.object.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default()
    }

    pub fn priority(&self) -> i32 {
        self.object.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0)
    }

    pub fn is_terminating(&self) -> bool {
        self.object.metadata.deletion_timestamp.is_some()
    }

    pub fn has_affinity(&self) -> bool {
        !(self.required_affinity.is_empty()
            && self.required_anti_affinity.is_empty()
            && self.preferred_affinity.is_empty()
            && self.preferred_anti_affinity.is_empty())
    }

    /// Whether the other object does not change the pod's use of its node.
    pub fn is_same(&self, other: &Pod) -> bool {
        let own = &self.object.metadata;
        let new = &other.metadata;
        own.uid == new.uid
            && own.labels == new.labels
            && own.deletion_timestamp.is_some() == new.deletion_timestamp.is_some()
            && self.requests == pod_requests(other, false)
    }

    /// The same pod updated from a newer object.
    pub fn with_object(&self, object: Arc<Pod>) -> Self {
        PodState { object, ..self.clone() }
    }
}

/// Of a pod that has a node, what decisions about other pods read. There are many such pods.
pub fn placed_object(pod: &Pod) -> Pod {
    let meta = &pod.metadata;
    let metadata = ObjectMeta {
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        generation: meta.generation,
        labels: meta.labels.clone(),
        deletion_timestamp: meta.deletion_timestamp.clone(),
        ..ObjectMeta::default()
    };
    let spec = pod.spec.as_ref().map(|spec| PodSpec {
        node_name: spec.node_name.clone(),
        priority: spec.priority,
        volumes: spec.volumes.clone().filter(|volumes| !volumes.is_empty()),
        resource_claims: spec.resource_claims.clone(),
        ..PodSpec::default()
    });
    let status = pod.status.as_ref().map(|status| {
        let conditions = status.conditions.iter().flatten().filter(|condition| condition.type_ == "DisruptionTarget");
        PodStatus {
            start_time: status.start_time.clone(),
            conditions: Some(conditions.cloned().collect()),
            resource_claim_statuses: status.resource_claim_statuses.clone(),
            ..PodStatus::default()
        }
    });
    Pod { metadata, spec, status }
}

fn claims(pod: &Pod) -> Vec<ClaimUse> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes
        .filter_map(|volume| {
            let (name, is_ephemeral) = match (&volume.persistent_volume_claim, &volume.ephemeral) {
                (Some(claim), _) => (claim.claim_name.clone(), false),
                (None, Some(_)) => {
                    (format!("{}-{}", pod.metadata.name.as_deref().unwrap_or_default(), volume.name), true)
                }
                (None, None) => return None,
            };
            Some(ClaimUse { key: format!("{namespace}/{name}"), name, is_ephemeral })
        })
        .collect()
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
            selector: Arc::new(Selector::of_option(selector).unwrap_or_else(|_| Selector::nothing())),
            selector_text: text.into(),
        }
    }
}
