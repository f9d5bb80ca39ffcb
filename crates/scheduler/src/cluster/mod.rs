//! The state that scheduling decisions read: nodes, the pods on them, and indexes over both that change with each pod and
//! node and are never rebuilt for a decision.

pub mod affinity;
pub mod claims;
pub mod counts;
pub mod domains;
pub mod groups;
pub mod images;
pub mod label_sets;
pub mod labels;
pub mod node;
pub mod placed;
pub mod pod;
pub mod ports;
pub mod resources;
pub mod storage;
pub mod topology;
pub mod workloads;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Node, Pod};

use claims::ResourceClaims;
use domains::Topologies;
use groups::Groups;
use images::Images;
use node::NodeState;
use placed::{PlacedPod, SharedLabels, pod_key};
use storage::Storage;
use topology::ExistingTerms;
use workloads::Workloads;

/// A node's index in `Cluster::nodes`; stable while the node exists.
pub type NodeIndex = usize;

#[derive(Default)]
pub struct Cluster {
    /// Slots of removed nodes are `None` and are reused.
    nodes: Vec<Option<NodeState>>,
    free: Vec<NodeIndex>,
    by_name: HashMap<Arc<str>, NodeIndex>,
    /// All nodes in an order that alternates between zones, so that a partial search sees every zone.
    order: Vec<NodeIndex>,
    order_is_stale: bool,
    /// Bound and assumed pods by namespace and name.
    pods: HashMap<Arc<str>, Placed>,
    /// Pods on nodes that are unknown (yet), by node.
    homeless: HashMap<Arc<str>, HashSet<Arc<str>>>,
    shared_labels: SharedLabels,
    /// How many placed pods use a claim, by namespace and name.
    claim_users: HashMap<String, usize>,
    groups: Groups,
    topologies: Topologies,
    pub existing_terms: ExistingTerms,
    pub images: Images,
    pub namespaces: labels::Namespaces,
    pub storage: Storage,
    pub workloads: Workloads,
    pub resource_claims: ResourceClaims,
    /// Extenders get the victims of a preemption as they are in the API.
    pub keeps_whole_pods: bool,
}

struct Placed {
    pod: Arc<PlacedPod>,
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

    /// The nodes in search order; call `update_order` first.
    pub fn order(&self) -> &[NodeIndex] {
        &self.order
    }

    /// Recomputes the search order after nodes came, went or moved.
    pub fn update_order(&mut self) {
        if self.order_is_stale {
            self.order = labels::alternate_zones(self.nodes());
            self.order_is_stale = false;
        }
    }

    pub fn set_node(&mut self, node: Arc<Node>) {
        let name: Arc<str> = node.metadata.name.as_deref().unwrap_or_default().into();
        match self.index_of(&name) {
            Some(index) => self.change_node(index, node),
            None => self.add_node(name, node),
        }
    }

    fn change_node(&mut self, index: NodeIndex, node: Arc<Node>) {
        let Some(state) = self.nodes[index].as_mut() else { return };
        let moved = state.topology_changes(&node);
        self.images.replace(Some(state), Some(&node));
        if moved {
            self.order_is_stale = true;
            self.groups.node_leaves(index, state);
            self.existing_terms.node_leaves(state);
            self.topologies.node_leaves(state);
        }
        state.set(node);
        if moved {
            self.groups.node_joins(index, state, &self.namespaces);
            self.existing_terms.node_joins(state);
            self.topologies.node_joins(state);
        }
    }

    fn add_node(&mut self, name: Arc<str>, node: Arc<Node>) {
        let mut state = NodeState::new(node);
        self.images.replace(None, Some(state.object()));
        for key in self.homeless.remove(&name).into_iter().flatten() {
            if let Some(placed) = self.pods.get(&key) {
                state.add(Arc::clone(&placed.pod));
            }
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            self.nodes.len() - 1
        });
        self.groups.node_joins(index, &state, &self.namespaces);
        self.existing_terms.node_joins(&state);
        self.topologies.node_joins(&state);
        self.nodes[index] = Some(state);
        self.by_name.insert(name, index);
        self.order_is_stale = true;
    }

    pub fn remove_node(&mut self, name: &str) {
        let Some((name, index)) = self.by_name.remove_entry(name) else { return };
        if let Some(state) = self.nodes[index].take() {
            self.groups.node_leaves(index, &state);
            self.existing_terms.node_leaves(&state);
            self.topologies.node_leaves(&state);
            self.images.replace(Some(&state), None);
            if !state.pods.is_empty() {
                self.homeless.insert(name, state.pods.iter().map(|pod| Arc::clone(&pod.key)).collect());
            }
        }
        self.free.push(index);
        self.order_is_stale = true;
    }

    /// Adds or updates a bound pod from the API.
    pub fn set_pod(&mut self, pod: &Arc<Pod>, node: &str) {
        let key = pod_key(pod);
        let labels = pod.metadata.labels.as_ref().map(|labels| self.shared_labels.share(labels));
        let whole = self.keeps_whole_pods.then(|| Arc::clone(pod));
        if let Some(placed) = self.pods.get_mut(&key) {
            if &*placed.node == node && placed.pod.is_same(pod) {
                placed.assumed = false;
                let mut updated = placed.pod.updated(pod, labels);
                updated.whole = whole;
                placed.pod = Arc::new(updated);
                if let Some(state) = self.by_name.get(node).and_then(|index| self.nodes[*index].as_mut()) {
                    state.refresh(&placed.pod);
                }
                return;
            }
            self.forget(&key);
        }
        let mut state = PlacedPod::new(pod, labels);
        state.whole = whole;
        self.place(Arc::new(state), node, false);
    }

    pub fn remove_pod(&mut self, key: &str) {
        self.forget(key);
    }

    /// Counts a pod as placed before the API has confirmed it.
    pub fn assume(&mut self, pod: Arc<PlacedPod>, node: &str) {
        self.place(pod, node, true);
    }

    /// Removes an assumed pod; a pod that the API has confirmed since stays, and so does another of its name.
    pub fn unassume(&mut self, key: &str, uid: &str) {
        if self.pods.get(key).is_some_and(|placed| placed.assumed && placed.pod.uid() == uid) {
            self.forget(key);
        }
    }

    pub fn is_placed(&self, key: &str) -> bool {
        self.pods.contains_key(key)
    }

    /// How many placed pods use the claim.
    pub fn users_of_claim(&self, key: &str) -> usize {
        self.claim_users.get(key).copied().unwrap_or(0)
    }

    pub fn set_namespace(&mut self, namespace: &Namespace) {
        self.namespaces.set(namespace);
    }

    fn place(&mut self, pod: Arc<PlacedPod>, node: &str, assumed: bool) {
        let key = Arc::clone(&pod.key);
        if let Some(index) = self.index_of(node) {
            if let Some(state) = self.nodes[index].as_mut() {
                state.add(Arc::clone(&pod));
                self.groups.pod_joins(index, state, &pod, &self.namespaces);
                self.existing_terms.pod_joins(state, &pod);
            }
        } else {
            self.homeless.entry(node.into()).or_default().insert(Arc::clone(&key));
        }
        for claim in pod.claims.iter() {
            *self.claim_users.entry(claim.key.clone()).or_default() += 1;
        }
        self.pods.insert(key, Placed { pod, node: node.into(), assumed });
    }

    fn forget(&mut self, key: &str) {
        let Some(placed) = self.pods.remove(key) else { return };
        if let Some(index) = self.index_of(&placed.node) {
            if let Some(state) = self.nodes[index].as_mut() {
                state.remove(&placed.pod);
                self.groups.pod_leaves(index, state, &placed.pod, &self.namespaces);
                self.existing_terms.pod_leaves(state, &placed.pod);
            }
        } else if let Some(left) = self.homeless.get_mut(&placed.node) {
            left.remove(key);
            if left.is_empty() {
                self.homeless.remove(&placed.node);
            }
        }
        for claim in placed.pod.claims.iter() {
            if let Some(users) = self.claim_users.get_mut(&claim.key) {
                *users -= 1;
                if *users == 0 {
                    self.claim_users.remove(&claim.key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
