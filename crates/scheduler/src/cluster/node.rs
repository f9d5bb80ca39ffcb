//! A node and the resources that its pods use.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, LazyLock};

use k8s_openapi::api::core::v1::{Node, Taint};

use super::images;
use super::labels::Labels;
use super::placed::PlacedPod;
use super::ports::UsedPorts;
use super::resources::Resources;

static NO_LABELS: LazyLock<Labels> = LazyLock::new(Labels::new);

#[derive(Clone)]
pub struct NodeState {
    object: Arc<Node>,
    pub allocatable: Resources,
    pub requested: Resources,
    /// Like `requested`, with defaults for containers without requests.
    pub scored: Resources,
    pub ports: UsedPorts,
    pub pods: Vec<Arc<PlacedPod>>,
    /// How many of the pods have each priority: every unschedulable pod checks each node for pods it could preempt.
    priorities: BTreeMap<i32, usize>,
    /// Copied from the object, since every decision reads it for many nodes.
    is_unschedulable: bool,
    is_tainted: bool,
    images: HashSet<String>,
}

impl NodeState {
    pub fn new(object: Arc<Node>) -> Self {
        let mut state = NodeState {
            object: Arc::clone(&object),
            allocatable: Resources::default(),
            requested: Resources::default(),
            scored: Resources::default(),
            ports: UsedPorts::default(),
            pods: Vec::new(),
            priorities: BTreeMap::new(),
            is_unschedulable: false,
            is_tainted: false,
            images: HashSet::new(),
        };
        state.set(object);
        state
    }

    pub fn set(&mut self, object: Arc<Node>) {
        let status = object.status.as_ref();
        self.allocatable = Resources::of(status.and_then(|status| status.allocatable.as_ref()));
        self.images = images::names(&object);
        let spec = object.spec.as_ref();
        self.is_unschedulable = spec.and_then(|spec| spec.unschedulable).unwrap_or(false);
        self.is_tainted = spec.and_then(|spec| spec.taints.as_ref()).is_some_and(|taints| !taints.is_empty());
        self.object = object;
    }

    pub fn object(&self) -> &Node {
        &self.object
    }

    pub fn name(&self) -> &str {
        self.object.metadata.name.as_deref().unwrap_or_default()
    }

    pub fn labels(&self) -> &Labels {
        self.object.metadata.labels.as_ref().unwrap_or(&NO_LABELS)
    }

    pub fn taints(&self) -> &[Taint] {
        if !self.is_tainted {
            return &[];
        }
        self.object.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
    }

    pub fn is_unschedulable(&self) -> bool {
        self.is_unschedulable
    }

    /// The names of the images it has.
    pub fn images(&self) -> &HashSet<String> {
        &self.images
    }

    pub fn topology_changes(&self, other: &Node) -> bool {
        self.object.metadata.labels != other.metadata.labels
    }

    /// Replaces a pod whose requests are unchanged.
    pub fn refresh(&mut self, pod: &Arc<PlacedPod>) {
        if let Some(own) = self.pods.iter_mut().find(|own| own.key == pod.key) {
            *own = Arc::clone(pod);
        }
    }

    pub fn add(&mut self, pod: Arc<PlacedPod>) {
        self.requested.add(&pod.requests);
        self.requested.pods += 1;
        self.scored.add(&pod.scored_requests);
        self.ports.add(&pod.host_ports);
        *self.priorities.entry(pod.priority()).or_default() += 1;
        self.pods.push(pod);
    }

    pub fn remove(&mut self, pod: &Arc<PlacedPod>) {
        let Some(place) = self.pods.iter().position(|own| own.key == pod.key) else { return };
        let pod = self.pods.swap_remove(place);
        self.requested.subtract(&pod.requests);
        self.requested.pods -= 1;
        self.scored.subtract(&pod.scored_requests);
        self.ports.remove(&pod.host_ports);
        if let Entry::Occupied(mut count) = self.priorities.entry(pod.priority()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// Whether it has a pod of lower priority.
    pub fn has_lower(&self, priority: i32) -> bool {
        self.priorities.first_key_value().is_some_and(|(lowest, _)| *lowest < priority)
    }
}
