//! Applies changes of pods and nodes to the cluster's state and the queue.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Node, Pod};
use knarr_client::pod::{is_terminal, node_name};

use crate::cluster::node::NodeState;
use crate::cluster::placed::pod_key;
use crate::cluster::pod::PodState;
use crate::cluster::resources::pod_requests;
use crate::handlers;
use crate::queue::ClusterEvent;
use crate::scheduler::Scheduler;

impl Scheduler {
    pub(crate) fn pod_changed(&mut self, old: Option<&Arc<Pod>>, new: Option<&Arc<Pod>>) {
        let now = self.clock.now();
        if let (Some(gone), Some(pod)) = (old, new)
            && gone.metadata.uid != pod.metadata.uid
        {
            // Deleted and created again between two events.
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
                self.cluster.set_pod(pod, node_name(pod).unwrap_or_default());
                if self.queue.has_unschedulable() {
                    self.placed_pod_changed(old.filter(|_| was_placed), pod, now);
                }
            }
            Some(pod) if is_terminal(pod) || node_name(pod).is_some_and(|name| !name.is_empty()) => {
                self.pod_gone(pod, was_placed)
            }
            Some(pod) => self.pod_waits(old, pod, now),
            None => {
                if let Some(pod) = old {
                    self.pod_gone(pod, was_placed);
                }
            }
        }
    }

    /// Notifies waiting pods of a scheduled pod that was added or changed.
    fn placed_pod_changed(&mut self, old: Option<&Arc<Pod>>, pod: &Arc<Pod>, now: Timestamp) {
        let namespaces = &self.cluster.namespaces;
        let new = PodState::new(Arc::clone(pod));
        let Some(was) = old else {
            self.queue.on_event(&ClusterEvent::PodAdded(&new), namespaces, now);
            return;
        };
        let relabelled = was.metadata.labels != pod.metadata.labels;
        let shrank = requests_less(was, pod);
        if !relabelled && !shrank {
            return;
        }
        let old = PodState::new(Arc::clone(was));
        if relabelled {
            self.queue.on_event(&ClusterEvent::PodRelabelled { old: &old, new: &new }, namespaces, now);
        }
        if shrank {
            self.queue.on_event(&ClusterEvent::PodShrank { old: &old, new: &new }, namespaces, now);
        }
    }

    fn pod_waits(&mut self, old: Option<&Arc<Pod>>, pod: &Arc<Pod>, now: Timestamp) {
        let key = pod_key(pod);
        let state = Arc::new(PodState::new(Arc::clone(pod)));
        if self.profile_of(&state).is_none() || is_leaving(pod) {
            self.queue.remove(&key);
            self.nominations.remove(&key);
            return;
        }
        // A pending binding will be reported by the API or by its failure.
        if self.cluster.is_placed(&key) {
            return;
        }
        let current = self.nominations.node_of(&key);
        let nominated = nomination_after(old.map(|old| nominated_node(old)), nominated_node(pod), current);
        let nominated = nominated.map(str::to_owned);
        let was_nominated = self.nominations.node_of(&key).is_some_and(|node| Some(node) != nominated.as_deref());
        match nominated {
            Some(node) => self.nominations.set(Arc::clone(&state), &node),
            None => self.nominations.remove(&key),
        }
        if was_nominated {
            self.nomination_dropped(&state, now);
        }
        let is_gated = handlers::is_gated(&state, &self.cluster.resource_claims);
        if !self.queue.is_same(&state.key, state.uid()) {
            tracing::info!(target: "journey", step = "queued", object = format!("pods/{}", state.key));
        }
        self.queue.set(state, is_gated, &self.cluster.namespaces, now);
    }

    fn pod_gone(&mut self, pod: &Arc<Pod>, was_placed: bool) {
        let (key, now) = (pod_key(pod), self.clock.now());
        self.queue.remove(&key);
        let was_nominated = self.nominations.node_of(&key).is_some();
        self.nominations.remove(&key);
        let assumed = self.cluster.is_placed(&key);
        self.cluster.remove_pod(&key);
        if !self.queue.has_unschedulable() || !(was_placed || assumed || was_nominated) {
            return;
        }
        let gone = PodState::new(Arc::clone(pod));
        if was_placed || assumed {
            self.queue.on_event(&ClusterEvent::PodRemoved(&gone), &self.cluster.namespaces, now);
        } else {
            self.nomination_dropped(&gone, now);
        }
    }

    /// A nomination is dropped: its room is free for pods of lower or equal priority.
    fn nomination_dropped(&mut self, pod: &PodState, now: Timestamp) {
        let no_more_important = |other: &PodState| other.key != pod.key && other.priority() <= pod.priority();
        self.queue.on_event_for(&ClusterEvent::PodRemoved(pod), &self.cluster.namespaces, no_more_important, now);
    }

    pub(crate) fn node_changed(&mut self, old: Option<&Arc<Node>>, new: Option<Arc<Node>>) {
        let now = self.clock.now();
        let has_waiting = self.queue.has_unschedulable();
        let before = old.filter(|_| has_waiting).map(|old| NodeState::new(Arc::clone(old)));
        let Some(node) = new else {
            if let Some(old) = old {
                self.cluster.remove_node(old.metadata.name.as_deref().unwrap_or_default());
            }
            if let Some(old) = before {
                self.queue.on_event(&ClusterEvent::NodeRemoved(&old), &self.cluster.namespaces, now);
            }
            return;
        };
        self.cluster.set_node(Arc::clone(&node));
        if !has_waiting {
            return;
        }
        let new = NodeState::new(node);
        let event = match &before {
            None => ClusterEvent::NodeAdded(&new),
            Some(old) => ClusterEvent::NodeChanged { old, new: &new },
        };
        self.queue.on_event(&event, &self.cluster.namespaces, now);
    }
}

fn is_leaving(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether a scheduled pod releases resources by a change of its own.
fn requests_less(old: &Pod, new: &Pod) -> bool {
    // Most changes are to a status that has no resources.
    if old.spec == new.spec && statuses(old) == statuses(new) {
        return false;
    }
    pod_requests(new, false).is_less_somewhere(&pod_requests(old, false))
}

fn statuses(pod: &Pod) -> Option<&Vec<ContainerStatus>> {
    pod.status.as_ref().and_then(|status| status.container_statuses.as_ref())
}

/// The nominated node in a pod's status.
fn nominated_node(pod: &Pod) -> Option<&str> {
    let node = pod.status.as_ref().and_then(|status| status.nominated_node_name.as_deref());
    node.filter(|node| !node.is_empty())
}

/// The node a pod is nominated for after an update. Updates that were in flight when the scheduler nominated the pod do not
/// contain the nomination yet: only one that removes a nomination clears it.
fn nomination_after<'a>(old: Option<Option<&str>>, new: Option<&'a str>, current: Option<&'a str>) -> Option<&'a str> {
    match (old, new) {
        (Some(None), None) => current,
        (_, new) => new,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nomination_outlives_updates_that_do_not_know_of_it() {
        for (old, new, current, expected) in [
            (Some(None), None, Some("a"), Some("a")),
            (Some(None), Some("b"), Some("a"), Some("b")),
            (Some(Some("a")), None, Some("a"), None),
            (Some(Some("a")), Some("a"), None, Some("a")),
            (None, None, Some("a"), None),
        ] {
            assert_eq!(nomination_after(old, new, current), expected, "{old:?} {new:?} {current:?}");
        }
    }
}
