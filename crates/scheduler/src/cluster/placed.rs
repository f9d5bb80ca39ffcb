//! What decisions about other pods read of a pod that has a node. There are many such pods, so it is small.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod, PodAffinityTerm, Volume, WeightedPodAffinityTerm};
use knarr_client::csi_migration;

use super::affinity::Term;
use super::labels::Labels;
use super::ports::{HostPort, host_ports};
use super::resources::{Resources, pod_requests};

#[derive(Clone)]
pub struct PlacedPod {
    /// Namespace and name.
    pub key: Arc<str>,
    uid: Box<str>,
    resource_version: Option<Box<str>>,
    pub generation: Option<i64>,
    labels: Option<Arc<Labels>>,
    priority: i32,
    is_terminating: bool,
    /// It is a victim of a preemption.
    is_preempted: bool,
    started: Option<Timestamp>,
    pub requests: Resources,
    /// Requests with defaults for containers without any; scores use them.
    pub scored_requests: Resources,
    pub host_ports: Box<[HostPort]>,
    pub required_affinity: Box<[Term]>,
    pub required_anti_affinity: Box<[Term]>,
    pub preferred_affinity: Box<[Term]>,
    pub preferred_anti_affinity: Box<[Term]>,
    /// The volume claims it uses.
    pub claims: Box<[ClaimUse]>,
    /// The volumes it names itself that only some pods can use, or that a driver attaches.
    pub disks: Box<[Volume]>,
    /// The pod as it is in the API, where extenders have to see it.
    pub whole: Option<Arc<Pod>>,
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

pub fn pod_key(pod: &Pod) -> Arc<str> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{}", pod.metadata.name.as_deref().unwrap_or_default()).into()
}

impl PlacedPod {
    pub fn new(pod: &Pod, labels: Option<Arc<Labels>>) -> Self {
        let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
        let near = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
        let apart = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
        let required = |terms: Option<&Vec<PodAffinityTerm>>| -> Box<[Term]> {
            terms.into_iter().flatten().map(|term| Term::compile(term, pod, 0)).collect()
        };
        let preferred = |terms: Option<&Vec<WeightedPodAffinityTerm>>| -> Box<[Term]> {
            let terms = terms.into_iter().flatten();
            terms.map(|term| Term::compile(&term.pod_affinity_term, pod, i64::from(term.weight))).collect()
        };
        let mut placed = PlacedPod {
            key: pod_key(pod),
            uid: Box::default(),
            resource_version: None,
            generation: None,
            labels,
            priority: pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0),
            is_terminating: false,
            is_preempted: false,
            started: None,
            requests: pod_requests(pod, false),
            scored_requests: pod_requests(pod, true),
            host_ports: host_ports(pod).into(),
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
            claims: claims(pod),
            disks: disks(pod),
            whole: None,
        };
        placed.set_state(pod);
        placed
    }

    /// The same pod, with what changes while it uses its node.
    pub fn updated(&self, pod: &Pod, labels: Option<Arc<Labels>>) -> Self {
        let mut placed = self.clone();
        placed.labels = labels;
        placed.set_state(pod);
        placed
    }

    fn set_state(&mut self, pod: &Pod) {
        let (meta, status) = (&pod.metadata, pod.status.as_ref());
        self.uid = meta.uid.as_deref().unwrap_or_default().into();
        self.resource_version = meta.resource_version.as_deref().map(Box::from);
        self.generation = meta.generation;
        self.is_terminating = meta.deletion_timestamp.is_some();
        self.started = status.and_then(|status| status.start_time.as_ref()).map(|time| time.0);
        let mut conditions = status.into_iter().flat_map(|status| status.conditions.iter().flatten());
        self.is_preempted =
            conditions.find(|condition| condition.type_ == "DisruptionTarget").is_some_and(|condition| {
                condition.status == "True" && condition.reason.as_deref() == Some("PreemptionByScheduler")
            });
    }

    pub fn namespace(&self) -> &str {
        self.key.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    pub fn name(&self) -> &str {
        self.key.split_once('/').map_or("", |(_, name)| name)
    }

    pub fn uid(&self) -> &str {
        &self.uid
    }

    pub fn labels(&self) -> Option<&Labels> {
        self.labels.as_deref()
    }

    pub fn shared_labels(&self) -> Option<Arc<Labels>> {
        self.labels.clone()
    }

    pub fn priority(&self) -> i32 {
        self.priority
    }

    pub fn is_terminating(&self) -> bool {
        self.is_terminating
    }

    /// Whether it is terminating as a victim of a preemption.
    pub fn leaves_by_preemption(&self) -> bool {
        self.is_terminating && self.is_preempted
    }

    /// When it started; pods that have not started yet are the last.
    pub fn started(&self) -> Timestamp {
        self.started.unwrap_or(Timestamp::MAX)
    }

    pub fn has_affinity(&self) -> bool {
        !(self.required_affinity.is_empty()
            && self.required_anti_affinity.is_empty()
            && self.preferred_affinity.is_empty()
            && self.preferred_anti_affinity.is_empty())
    }

    /// Whether the pod in the API uses its node as this one does.
    pub fn is_same(&self, other: &Pod) -> bool {
        let new = &other.metadata;
        Some(&*self.uid) == new.uid.as_deref()
            && self.labels() == new.labels.as_ref()
            && self.is_terminating == new.deletion_timestamp.is_some()
            && self.requests == pod_requests(other, false)
    }

    /// For events about it.
    pub fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(self.namespace().to_owned()),
            name: Some(self.name().to_owned()),
            uid: Some(self.uid.to_string()),
            resource_version: self.resource_version.as_deref().map(str::to_owned),
            ..ObjectReference::default()
        }
    }
}

fn volumes(pod: &Pod) -> impl Iterator<Item = &Volume> {
    pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten())
}

fn claims(pod: &Pod) -> Box<[ClaimUse]> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    volumes(pod)
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

/// Whether only some pods can use the volume at the same time.
pub fn is_disk(volume: &Volume) -> bool {
    volume.gce_persistent_disk.is_some()
        || volume.aws_elastic_block_store.is_some()
        || volume.iscsi.is_some()
        || volume.rbd.is_some()
}

fn disks(pod: &Pod) -> Box<[Volume]> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let is_attached = |volume: &Volume| csi_migration::translate_inline(volume, namespace).is_some();
    volumes(pod).filter(|volume| is_disk(volume) || is_attached(volume)).cloned().collect()
}

/// The labels of placed pods, each set once: pods of a workload have the same.
#[derive(Default)]
pub struct SharedLabels {
    sets: HashSet<Arc<Labels>>,
    /// How many there may be before those that no pod has are dropped.
    limit: usize,
}

impl SharedLabels {
    pub fn share(&mut self, labels: &Labels) -> Arc<Labels> {
        if let Some(known) = self.sets.get(labels) {
            return Arc::clone(known);
        }
        if self.sets.len() >= self.limit {
            self.sets.retain(|set| Arc::strong_count(set) > 1);
            self.limit = 2 * self.sets.len() + 1000;
        }
        let labels = Arc::new(labels.clone());
        self.sets.insert(Arc::clone(&labels));
        labels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_labels_are_shared_and_unused_ones_dropped() {
        let labels = |number: usize| Labels::from([("app".to_owned(), format!("a{number}"))]);
        let mut shared = SharedLabels::default();
        let kept: Vec<_> = (0..10).map(|number| shared.share(&labels(number))).collect();
        assert!(Arc::ptr_eq(&kept[3], &shared.share(&labels(3))));
        for number in 0..10_000 {
            shared.share(&labels(number));
        }
        assert!(shared.sets.len() <= 2 * kept.len() + 1000, "{}", shared.sets.len());
        assert!(kept.iter().enumerate().all(|(number, set)| Arc::ptr_eq(set, &shared.share(&labels(number)))));
    }
}
