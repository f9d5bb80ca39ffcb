//! The affinity terms of pods that are placed already, by term and topology value: an incoming pod looks at the distinct
//! terms, not at the pods that carry them.

use std::collections::HashMap;
use std::sync::Arc;

use super::affinity::{Term, TermKey};
use super::node::NodeState;
use super::pod::PodState;

/// One distinct term and how many placed pods carry it, by the topology value of their node.
pub struct Carried {
    pub term: Term,
    pub by_value: HashMap<String, i64>,
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
    terms: HashMap<(Kind, i64, Arc<TermKey>), Carried>,
}

impl ExistingTerms {
    pub fn of(&self, kind: Kind) -> impl Iterator<Item = &Carried> {
        self.terms.iter().filter(move |((own, _, _), _)| *own == kind).map(|(_, carried)| carried)
    }

    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    fn change(&mut self, node: &NodeState, pod: &PodState, by: i64) {
        for (kind, terms) in [
            (Kind::RequiredAnti, &pod.required_anti_affinity),
            (Kind::RequiredAffinity, &pod.required_affinity),
            (Kind::PreferredAffinity, &pod.preferred_affinity),
            (Kind::PreferredAnti, &pod.preferred_anti_affinity),
        ] {
            for term in terms {
                let Some(value) = node.labels().get(&term.key.topology_key) else { continue };
                let key = (kind, term.weight, Arc::clone(&term.key));
                let carried = self
                    .terms
                    .entry(key.clone())
                    .or_insert_with(|| Carried { term: term.clone(), by_value: HashMap::new() });
                let count = carried.by_value.entry(value.clone()).or_default();
                *count += by;
                if *count <= 0 {
                    carried.by_value.remove(value);
                }
                if carried.by_value.is_empty() {
                    self.terms.remove(&key);
                }
            }
        }
    }

    pub(super) fn pod_joins(&mut self, node: &NodeState, pod: &Arc<PodState>) {
        if pod.has_affinity() {
            self.change(node, pod, 1);
        }
    }

    pub(super) fn pod_leaves(&mut self, node: &NodeState, pod: &Arc<PodState>) {
        if pod.has_affinity() {
            self.change(node, pod, -1);
        }
    }

    pub(super) fn node_joins(&mut self, node: &NodeState) {
        for pod in node.pods.iter().filter(|pod| pod.has_affinity()) {
            self.change(node, pod, 1);
        }
    }

    pub(super) fn node_leaves(&mut self, node: &NodeState) {
        for pod in node.pods.iter().filter(|pod| pod.has_affinity()) {
            self.change(node, pod, -1);
        }
    }
}
