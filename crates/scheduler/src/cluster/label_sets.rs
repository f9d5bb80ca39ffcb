//! How many pods of each set of labels each node has.
//!
//! Pods of one workload have the same labels, so there are far fewer sets of labels than pods: those that a selector matches are
//! counted without looking at every pod.

use std::collections::HashMap;
use std::sync::Arc;

use super::NodeIndex;
use super::labels::Labels;
use super::placed::PlacedPod;

/// By namespace, then by labels.
#[derive(Default)]
pub struct LabelSets {
    namespaces: HashMap<Box<str>, HashMap<Option<Arc<Labels>>, PodCounts>>,
}

/// The pods with the same labels, by node.
pub type PodCounts = HashMap<NodeIndex, PodCount>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodCount {
    pub all: i64,
    /// The part of them that is terminating.
    pub terminating: i64,
}

impl LabelSets {
    pub fn add(&mut self, index: NodeIndex, pod: &PlacedPod) {
        if !self.namespaces.contains_key(pod.namespace()) {
            self.namespaces.insert(pod.namespace().into(), HashMap::new());
        }
        let Some(sets) = self.namespaces.get_mut(pod.namespace()) else { return };
        let count = sets.entry(pod.shared_labels()).or_default().entry(index).or_default();
        count.all += 1;
        count.terminating += i64::from(pod.is_terminating());
    }

    pub fn remove(&mut self, index: NodeIndex, pod: &PlacedPod) {
        let Some(sets) = self.namespaces.get_mut(pod.namespace()) else { return };
        let labels = pod.shared_labels();
        let Some(nodes) = sets.get_mut(&labels) else { return };
        if let Some(count) = nodes.get_mut(&index) {
            count.all -= 1;
            count.terminating -= i64::from(pod.is_terminating());
            if count.all == 0 {
                nodes.remove(&index);
            }
        }
        if nodes.is_empty() {
            sets.remove(&labels);
        }
        if sets.is_empty() {
            self.namespaces.remove(pod.namespace());
        }
    }

    /// The pods of each set of labels in a namespace.
    pub fn of_namespace(&self, namespace: &str) -> impl Iterator<Item = (Option<&Labels>, &PodCounts)> {
        let sets = self.namespaces.get(namespace).into_iter().flatten();
        sets.map(|(labels, counts)| (labels.as_deref(), counts))
    }

    pub fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.namespaces.keys().map(|name| &**name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(namespace: &str, app: &str, is_terminating: bool) -> PlacedPod {
        let deleted = is_terminating.then_some("2026-01-01T00:00:00Z");
        let labels = json!({"app": app});
        let metadata = json!({"namespace": namespace, "name": "p", "labels": labels, "deletionTimestamp": deleted});
        let pod = serde_json::from_value(json!({"metadata": metadata})).unwrap();
        PlacedPod::new(&pod, Some(Arc::new(serde_json::from_value(labels).unwrap())))
    }

    #[test]
    fn pods_with_the_same_labels_are_counted_by_node_and_leave_nothing() {
        let pods = [
            (1, pod("a", "web", false)),
            (1, pod("a", "web", true)),
            (2, pod("a", "web", false)),
            (2, pod("a", "db", false)),
            (2, pod("b", "web", false)),
        ];
        let mut sets = LabelSets::default();
        pods.iter().for_each(|(index, pod)| sets.add(*index, pod));
        let is_web = |labels: &Labels| labels["app"] == "web";
        let (_, web) = sets.of_namespace("a").find(|(labels, _)| labels.is_some_and(is_web)).unwrap();
        let count = |all, terminating| PodCount { all, terminating };
        assert_eq!(*web, PodCounts::from([(1, count(2, 1)), (2, count(1, 0))]));
        assert_eq!((sets.of_namespace("a").count(), sets.of_namespace("c").count()), (2, 0));
        pods.iter().for_each(|(index, pod)| sets.remove(*index, pod));
        assert_eq!(sets.namespaces().count(), 0);
    }
}
