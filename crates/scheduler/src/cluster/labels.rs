//! Labels of nodes and namespaces.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;

use super::NodeIndex;
use super::node::NodeState;

pub type Labels = BTreeMap<String, String>;

pub const HOSTNAME: &str = "kubernetes.io/hostname";
pub const ZONE: &str = "topology.kubernetes.io/zone";
pub const REGION: &str = "topology.kubernetes.io/region";

/// The labels of namespaces, for terms with a namespace selector.
#[derive(Default)]
pub struct Namespaces {
    by_name: HashMap<String, Arc<Labels>>,
    /// Increases with every change, so that selections made with an older one are detected as stale.
    pub version: u64,
}

impl Namespaces {
    pub fn set(&mut self, namespace: &Namespace) {
        let name = namespace.metadata.name.clone().unwrap_or_default();
        let labels = Arc::new(namespace.metadata.labels.clone().unwrap_or_default());
        if self.by_name.get(&name) != Some(&labels) {
            self.by_name.insert(name, labels);
            self.version += 1;
        }
    }

    pub fn remove(&mut self, name: &str) {
        if self.by_name.remove(name).is_some() {
            self.version += 1;
        }
    }

    pub fn get(&self, name: &str) -> Option<&Labels> {
        self.by_name.get(name).map(Arc::as_ref)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Labels)> {
        self.by_name.iter().map(|(name, labels)| (name.as_str(), labels.as_ref()))
    }
}

/// All nodes, alternating between zones.
pub fn alternate_zones<'a>(nodes: impl Iterator<Item = (NodeIndex, &'a NodeState)>) -> Vec<NodeIndex> {
    let mut zones: BTreeMap<(String, String), Vec<NodeIndex>> = BTreeMap::new();
    for (index, node) in nodes {
        let label = |key: &str| node.labels().get(key).cloned().unwrap_or_default();
        zones.entry((label(REGION), label(ZONE))).or_default().push(index);
    }
    let longest = zones.values().map(Vec::len).max().unwrap_or(0);
    (0..longest).flat_map(|turn| zones.values().filter_map(move |zone| zone.get(turn).copied())).collect()
}
