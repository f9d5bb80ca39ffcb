//! The values of topology labels on nodes, maintained for the labels that pods use.

use std::collections::HashMap;
use std::sync::Arc;

use super::Cluster;
use super::node::NodeState;

/// The values of one label, each with its number of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domains {
    values: HashMap<Arc<str>, usize>,
    nodes: usize,
}

impl Domains {
    pub fn len(&self) -> usize {
        self.values.len()
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Nodes that have the label.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    fn add(&mut self, value: &str) {
        self.nodes += 1;
        match self.values.get_mut(value) {
            Some(nodes) => *nodes += 1,
            None => {
                self.values.insert(value.into(), 1);
            }
        }
    }

    fn remove(&mut self, value: &str) {
        let Some(nodes) = self.values.get_mut(value) else { return };
        self.nodes -= 1;
        *nodes -= 1;
        if *nodes == 0 {
            self.values.remove(value);
        }
    }
}

/// Clusters use few labels as topologies. Authors of pods can name any, though: beyond this many, all are counted again when they
/// are asked for.
const MAX_TOPOLOGIES: usize = 256;

/// Domains of each label that was queried.
#[derive(Default)]
pub struct Topologies(HashMap<String, Arc<Domains>>);

impl Topologies {
    pub(super) fn node_joins(&mut self, node: &NodeState) {
        for (key, domains) in &mut self.0 {
            if let Some(value) = node.labels().get(key) {
                Arc::make_mut(domains).add(value);
            }
        }
    }

    pub(super) fn node_leaves(&mut self, node: &NodeState) {
        for (key, domains) in &mut self.0 {
            if let Some(value) = node.labels().get(key) {
                Arc::make_mut(domains).remove(value);
            }
        }
    }
}

impl Cluster {
    /// The values of the label on nodes.
    pub fn domains(&mut self, key: &str) -> Arc<Domains> {
        if let Some(known) = self.topologies.0.get(key) {
            return Arc::clone(known);
        }
        let mut domains = Domains::default();
        for (_, node) in self.nodes() {
            if let Some(value) = node.labels().get(key) {
                domains.add(value);
            }
        }
        let domains = Arc::new(domains);
        if self.topologies.0.len() >= MAX_TOPOLOGIES {
            self.topologies.0.clear();
        }
        self.topologies.0.insert(key.to_owned(), Arc::clone(&domains));
        domains
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn invented_topology_keys_do_not_fill_memory() {
        let mut cluster = Cluster::default();
        let node = json!({"metadata": {"name": "n", "labels": {"zone": "z"}}});
        cluster.set_node(Arc::new(serde_json::from_value(node).unwrap()));
        for number in 0..10 * MAX_TOPOLOGIES {
            assert_eq!(cluster.domains(&format!("invented-{number}")).nodes(), 0);
            assert_eq!(cluster.domains("zone").nodes(), 1);
            assert!(cluster.topologies.0.len() <= MAX_TOPOLOGIES);
        }
    }
}
