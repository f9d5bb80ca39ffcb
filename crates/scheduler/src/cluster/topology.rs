//! The affinity terms of placed pods, by term and topology value: an incoming pod checks the distinct
//! terms, not the pods that have them.

use std::collections::HashMap;
use std::sync::Arc;

use super::affinity::{Term, TermKey};
use super::counts::Counts;
use super::node::NodeState;
use super::placed::PlacedPod;

/// One distinct term and how many placed pods have it, by the topology value of their node.
pub struct TermCounts {
    pub term: Term,
    pub counts: Arc<Counts>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    RequiredAnti,
    RequiredAffinity,
    PreferredAffinity,
    PreferredAnti,
}

#[derive(Default)]
pub struct ExistingTerms {
    terms: HashMap<Kind, HashMap<(i64, Arc<TermKey>), TermCounts>>,
}

impl ExistingTerms {
    pub fn of(&self, kind: Kind) -> impl Iterator<Item = &TermCounts> {
        self.terms.get(&kind).into_iter().flat_map(HashMap::values)
    }

    fn change(&mut self, node: &NodeState, pod: &PlacedPod, by: i64) {
        for (kind, terms) in [
            (Kind::RequiredAnti, &pod.required_anti_affinity),
            (Kind::RequiredAffinity, &pod.required_affinity),
            (Kind::PreferredAffinity, &pod.preferred_affinity),
            (Kind::PreferredAnti, &pod.preferred_anti_affinity),
        ] {
            for term in terms.iter() {
                let Some(value) = node.labels().get(&term.key.topology_key) else { continue };
                let of_kind = self.terms.entry(kind).or_default();
                let key = (term.weight, Arc::clone(&term.key));
                let carried = of_kind
                    .entry(key.clone())
                    .or_insert_with(|| TermCounts { term: term.clone(), counts: Arc::default() });
                let counts = Arc::make_mut(&mut carried.counts);
                counts.change(value, by);
                if counts.is_empty() {
                    of_kind.remove(&key);
                }
            }
        }
    }

    pub(super) fn pod_joins(&mut self, node: &NodeState, pod: &PlacedPod) {
        if pod.has_affinity() {
            self.change(node, pod, 1);
        }
    }

    pub(super) fn pod_leaves(&mut self, node: &NodeState, pod: &PlacedPod) {
        if pod.has_affinity() {
            self.change(node, pod, -1);
        }
    }

    pub(super) fn node_joins(&mut self, node: &NodeState) {
        for pod in &node.pods {
            self.pod_joins(node, pod);
        }
    }

    pub(super) fn node_leaves(&mut self, node: &NodeState) {
        for pod in &node.pods {
            self.pod_leaves(node, pod);
        }
    }
}
