//! What scheduling decisions look at: nodes, the pods on them, and indexes over both that change with each pod and
//! node and are never rebuilt for a decision.

pub mod affinity;
pub mod groups;
pub mod images;
pub mod labels;
pub mod node;
pub mod pod;
pub mod ports;
pub mod resources;
pub mod topology;

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Node, Pod};

use groups::Groups;
use images::Images;
use node::NodeState;
use pod::{PodState, pod_key};
use topology::ExistingTerms;

/// A node's place in `Cluster::nodes`; stable while the node exists.
pub type NodeIndex = usize;

#[derive(Default)]
pub struct Cluster {
    /// Places of removed nodes are `None` and are used again.
    nodes: Vec<Option<NodeState>>,
    free: Vec<NodeIndex>,
    by_name: HashMap<Arc<str>, NodeIndex>,
    /// All nodes in an order that alternates between zones, so that a search over a part of them sees every zone.
    order: Vec<NodeIndex>,
    order_is_stale: bool,
    /// Bound and assumed pods by namespace and name.
    pods: HashMap<Arc<str>, Placed>,
    pub groups: Groups,
    pub existing_terms: ExistingTerms,
    pub images: Images,
    pub namespaces: labels::Namespaces,
}

struct Placed {
    pod: Arc<PodState>,
    node: Arc<str>,
    /// The decision was made here and the API has not confirmed it yet.
    assumed: bool,
}

impl Cluster {
    pub fn node_count(&self) -> usize {
        self.by_name.len()
    }

    pub fn node(&self, index: NodeIndex) -> &NodeState {
        // Indexes come from this cluster and are dropped with their node.
        self.nodes[index].as_ref().expect("a node's index outlived the node")
    }

    pub fn index_of(&self, name: &str) -> Option<NodeIndex> {
        self.by_name.get(name).copied()
    }

    pub fn nodes(&self) -> impl Iterator<Item = (NodeIndex, &NodeState)> {
        self.nodes.iter().enumerate().filter_map(|(index, node)| node.as_ref().map(|node| (index, node)))
    }

    /// The nodes in search order.
    pub fn order(&mut self) -> &[NodeIndex] {
        if self.order_is_stale {
            self.order = labels::alternate_zones(self.nodes());
            self.order_is_stale = false;
        }
        &self.order
    }

    pub fn set_node(&mut self, node: Arc<Node>) {
        let name: Arc<str> = node.metadata.name.as_deref().unwrap_or_default().into();
        if let Some(index) = self.index_of(&name) {
            let state = self.nodes[index].as_mut().expect("a named node is there");
            let moved = state.topology_changes(&node);
            let before = state.clone_empty();
            self.images.replace(Some(&before), Some(&node));
            if moved {
                self.order_is_stale = true;
                self.groups.node_leaves(index);
                self.existing_terms.node_leaves(state);
            }
            state.set(node);
            if moved {
                self.groups.node_joins(index, state, &self.namespaces);
                self.existing_terms.node_joins(state);
            }
            return;
        }
        let mut state = NodeState::new(node);
        self.images.replace(None, Some(state.object()));
        // Pods may have been seen before their node.
        let here: Vec<Arc<PodState>> =
            self.pods.values().filter(|placed| placed.node == name).map(|placed| Arc::clone(&placed.pod)).collect();
        for pod in here {
            state.add(pod);
        }
        let index = match self.free.pop() {
            Some(index) => {
                self.nodes[index] = Some(state);
                index
            }
            None => {
                self.nodes.push(Some(state));
                self.nodes.len() - 1
            }
        };
        self.by_name.insert(name, index);
        self.order_is_stale = true;
        let state = self.nodes[index].as_ref().expect("it was just put there");
        self.groups.node_joins(index, state, &self.namespaces);
        self.existing_terms.node_joins(state);
    }

    pub fn remove_node(&mut self, name: &str) {
        let Some(index) = self.by_name.remove(name) else { return };
        if let Some(state) = self.nodes[index].take() {
            self.groups.node_leaves(index);
            self.existing_terms.node_leaves(&state);
            self.images.replace(Some(&state), None);
        }
        self.free.push(index);
        self.order_is_stale = true;
    }

    /// Takes in what the API says of a bound pod.
    pub fn set_pod(&mut self, pod: &Arc<Pod>, node: &str) {
        let key = pod_key(pod);
        if let Some(placed) = self.pods.get_mut(&key) {
            if &*placed.node == node && placed.pod.is_same(pod) {
                placed.assumed = false;
                return;
            }
            self.forget(&key);
        }
        self.place(Arc::new(PodState::new(Arc::clone(pod))), node, false);
    }

    pub fn remove_pod(&mut self, key: &str) {
        self.forget(key);
    }

    /// Counts a pod as placed before the API has confirmed it.
    pub fn assume(&mut self, pod: Arc<PodState>, node: &str) {
        self.place(pod, node, true);
    }

    /// Takes an assumed pod away again; a pod that the API has confirmed since stays.
    pub fn unassume(&mut self, key: &str) {
        if self.pods.get(key).is_some_and(|placed| placed.assumed) {
            self.forget(key);
        }
    }

    pub fn is_placed(&self, key: &str) -> bool {
        self.pods.contains_key(key)
    }

    pub fn set_namespace(&mut self, namespace: &Namespace) {
        self.namespaces.set(namespace);
    }

    fn place(&mut self, pod: Arc<PodState>, node: &str, assumed: bool) {
        if let Some(index) = self.index_of(node) {
            let state = self.nodes[index].as_mut().expect("a named node is there");
            state.add(Arc::clone(&pod));
            self.groups.pod_joins(index, &pod, &self.namespaces);
            self.existing_terms.pod_joins(state, &pod);
        }
        let key = Arc::clone(&pod.key);
        self.pods.insert(key, Placed { pod, node: node.into(), assumed });
    }

    fn forget(&mut self, key: &str) {
        let Some(placed) = self.pods.remove(key) else { return };
        if let Some(index) = self.index_of(&placed.node) {
            let state = self.nodes[index].as_mut().expect("a named node is there");
            state.remove(&placed.pod);
            self.groups.pod_leaves(index, &placed.pod, &self.namespaces);
            self.existing_terms.pod_leaves(state, &placed.pod);
        }
    }
}
