//! What a change of a pod or a node means for the cluster's state and for the queue.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Node, Pod};
use knarr_client::pod::{is_terminal, node_name};

use crate::cluster::pod::{PodState, pod_key};
use crate::cluster::resources::pod_requests;
use crate::handlers;
use crate::queue::Happened;
use crate::scheduler::Scheduler;

impl Scheduler {
    pub(crate) fn pod_changed(&mut self, old: Option<&Arc<Pod>>, new: Option<&Arc<Pod>>) {
        let now = (self.now)();
        if let (Some(gone), Some(pod)) = (old, new)
            && gone.metadata.uid != pod.metadata.uid
        {
            // Deleted and made anew between two looks.
            self.pod_changed(Some(gone), None);
            self.pod_changed(None, Some(pod));
            return;
        }
        let placed = |pod: &Pod| node_name(pod).is_some_and(|name| !name.is_empty()) && !is_terminal(pod);
        let was_placed = old.is_some_and(|pod| placed(pod));
        match new {
            Some(pod) if placed(pod) => {
                let key = pod_key(pod);
                self.queue.remove(&key);
                self.nominations.remove(&key);
                let relabelled = old.is_some_and(|old| old.metadata.labels != pod.metadata.labels);
                self.cluster.set_pod(pod, node_name(pod).unwrap_or_default());
                if !was_placed {
                    self.queue.happened(Happened::PodAdded, now);
                } else if relabelled {
                    self.queue.happened(Happened::PodLabels, now);
                } else if old.is_some_and(|old| asks_for_less(old, pod)) {
                    self.queue.happened(Happened::PodRemoved, now);
                }
            }
            Some(pod) if is_terminal(pod) || node_name(pod).is_some_and(|name| !name.is_empty()) => {
                self.pod_gone(pod, was_placed)
            }
            Some(pod) => self.pod_waits(pod, now),
            None => {
                if let Some(pod) = old {
                    self.pod_gone(pod, was_placed);
                }
            }
        }
    }

    fn pod_waits(&mut self, pod: &Arc<Pod>, now: Timestamp) {
        let key = pod_key(pod);
        let state = Arc::new(PodState::new(Arc::clone(pod)));
        if self.profile_of(&state).is_none() || is_leaving(pod) {
            self.queue.remove(&key);
            self.nominations.remove(&key);
            return;
        }
        // A binding on its way will be told by the API or by its failure.
        if self.cluster.is_placed(&key) {
            return;
        }
        let nominated = pod.status.as_ref().and_then(|status| status.nominated_node_name.clone());
        match nominated.filter(|node| !node.is_empty()) {
            Some(node) => self.nominations.set(Arc::clone(&state), &node),
            None => self.nominations.remove(&key),
        }
        let is_gated = handlers::is_gated(&state, &self.cluster.resource_claims);
        if !self.queue.is_same(&state.key, state.uid()) {
            tracing::info!(target: "journey", step = "queued", object = format!("pods/{}", state.key));
        }
        self.queue.set(state, is_gated, now);
    }

    fn pod_gone(&mut self, pod: &Arc<Pod>, was_placed: bool) {
        let key = pod_key(pod);
        self.queue.remove(&key);
        self.nominations.remove(&key);
        let assumed = self.cluster.is_placed(&key);
        self.cluster.remove_pod(&key);
        if was_placed || assumed {
            self.queue.happened(Happened::PodRemoved, (self.now)());
        }
    }

    pub(crate) fn node_changed(&mut self, old: Option<&Arc<Node>>, new: Option<Arc<Node>>) {
        let now = (self.now)();
        let Some(node) = new else {
            if let Some(old) = old {
                self.cluster.remove_node(old.metadata.name.as_deref().unwrap_or_default());
            }
            return;
        };
        let mut events = Vec::new();
        match old {
            None => events.push(Happened::NodeAdded),
            Some(old) => {
                let allocatable = |node: &Node| node.status.as_ref().and_then(|status| status.allocatable.clone());
                let taints = |node: &Node| {
                    node.spec.as_ref().map(|spec| (spec.taints.clone(), spec.unschedulable.unwrap_or(false)))
                };
                if allocatable(old) != allocatable(&node) {
                    events.push(Happened::NodeAllocatable);
                }
                if old.metadata.labels != node.metadata.labels {
                    events.push(Happened::NodeLabels);
                }
                if taints(old) != taints(&node) {
                    events.push(Happened::NodeTaints);
                }
            }
        }
        self.cluster.set_node(node);
        for event in events {
            self.queue.happened(event, now);
        }
    }
}

fn is_leaving(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether a pod on a node makes room by a change of its own.
fn asks_for_less(old: &Pod, new: &Pod) -> bool {
    // Most changes are to a status that tells nothing of resources.
    if old.spec == new.spec && statuses(old) == statuses(new) {
        return false;
    }
    pod_requests(new, false).is_less_somewhere(&pod_requests(old, false))
}

fn statuses(pod: &Pod) -> Option<&Vec<ContainerStatus>> {
    pod.status.as_ref().and_then(|status| status.container_statuses.as_ref())
}
