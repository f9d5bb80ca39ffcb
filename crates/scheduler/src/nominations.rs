//! Nominations: pods for which victims were evicted from a node.

use std::collections::HashMap;
use std::sync::Arc;

use crate::cluster::placed::PlacedPod;
use crate::cluster::pod::PodState;

/// Pods nominated for a node, while their victims terminate.
#[derive(Default)]
pub struct Nominations {
    by_pod: HashMap<Arc<str>, (Arc<str>, Arc<PodState>)>,
    by_node: HashMap<Arc<str>, Vec<Arc<PodState>>>,
}

impl Nominations {
    pub fn node_of(&self, key: &str) -> Option<&str> {
        self.by_pod.get(key).map(|(node, _)| &**node)
    }

    pub fn is_empty(&self) -> bool {
        self.by_pod.is_empty()
    }

    /// Other pods of the same or higher priority that are nominated for the node.
    pub fn on(&self, node: &str, pod: &PodState) -> Vec<Arc<PlacedPod>> {
        let promised = self.by_node.get(node).into_iter().flatten();
        let others = promised.filter(|other| other.key != pod.key && other.priority() >= pod.priority());
        others.map(|other| Arc::clone(&other.placed)).collect()
    }

    /// Pods of lower priority: they lose their nomination when this pod is placed there.
    pub fn lower_on(&self, node: &str, priority: i32) -> Vec<Arc<PodState>> {
        let promised = self.by_node.get(node).into_iter().flatten();
        promised.filter(|other| other.priority() < priority).cloned().collect()
    }

    pub fn set(&mut self, pod: Arc<PodState>, node: &str) {
        self.remove(&pod.key);
        let node: Arc<str> = node.into();
        self.by_node.entry(Arc::clone(&node)).or_default().push(Arc::clone(&pod));
        self.by_pod.insert(Arc::clone(&pod.key), (node, pod));
    }

    pub fn remove(&mut self, key: &str) {
        if let Some((node, _)) = self.by_pod.remove(key)
            && let Some(pods) = self.by_node.get_mut(&node)
        {
            pods.retain(|pod| &*pod.key != key);
            if pods.is_empty() {
                self.by_node.remove(&node);
            }
        }
    }
}
