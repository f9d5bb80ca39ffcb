//! NodeAffinity: node selectors and node affinity.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{NodeAffinity as Affinity, NodeSelectorTerm};

use crate::cluster::affinity::term_matches;
use crate::cluster::node::NodeState;
use crate::cluster::pod::PodState;
use crate::cluster::{Cluster, NodeIndex};
use crate::framework::{Filter, Plugin, Prepared, Rejection, Scorer, View, stretch};

const NAME: &str = "NodeAffinity";
const NO_MATCH: &str = "node(s) didn't match Pod's node affinity/selector";
const NO_MATCH_ADDED: &str = "node(s) didn't match scheduler-enforced node affinity";

pub struct NodeAffinity {
    /// The affinity that the profile adds to every pod.
    pub added: Option<Affinity>,
}

struct Required {
    pod: Arc<PodState>,
    added: Option<Vec<NodeSelectorTerm>>,
}

struct Preferred(Vec<(i64, NodeSelectorTerm)>);

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        NAME
    }

    fn filter(&self, pod: &Arc<PodState>, _cluster: &mut Cluster) -> Prepared {
        let added = self.added.as_ref();
        let added = added.and_then(|added| added.required_during_scheduling_ignored_during_execution.clone());
        let added = added.map(|selector| selector.node_selector_terms);
        if pod.node_requirement.is_empty() && added.is_none() {
            return Prepared::Nothing;
        }
        let filter: Box<dyn Filter> = Box::new(Required { pod: Arc::clone(pod), added });
        match pod.node_requirement.names() {
            Some(names) if names.is_empty() => {
                Prepared::Reject(Rejection::unresolvable(NAME, "pod affinity terms conflict"))
            }
            Some(names) => Prepared::Only(names, Some(filter)),
            None => Prepared::Filter(filter),
        }
    }

    fn scorer(&self, pod: &Arc<PodState>, _cluster: &mut Cluster, _feasible: &[NodeIndex]) -> Option<Box<dyn Scorer>> {
        let own = pod.object.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
        let own = own.and_then(|affinity| affinity.node_affinity.as_ref());
        let terms: Vec<(i64, NodeSelectorTerm)> = own
            .into_iter()
            .chain(self.added.as_ref())
            .flat_map(|affinity| affinity.preferred_during_scheduling_ignored_during_execution.iter().flatten())
            .filter(|term| term.weight != 0)
            .map(|term| (i64::from(term.weight), term.preference.clone()))
            .collect();
        if terms.is_empty() { None } else { Some(Box::new(Preferred(terms))) }
    }
}

impl Filter for Required {
    fn check(&self, view: &View<'_>) -> Option<Rejection> {
        if let Some(added) = &self.added
            && !added.iter().any(|term| term_matches(term, view.node))
        {
            return Some(Rejection::unresolvable(NAME, NO_MATCH_ADDED));
        }
        (!self.pod.node_requirement.matches(view.node)).then(|| Rejection::unresolvable(NAME, NO_MATCH))
    }
}

impl Scorer for Preferred {
    fn score(&self, _index: NodeIndex, node: &NodeState) -> i64 {
        self.0.iter().filter(|(_, term)| term_matches(term, node)).map(|(weight, _)| weight).sum()
    }

    fn normalize(&self, scores: &mut [i64]) {
        stretch(scores, false);
    }
}
