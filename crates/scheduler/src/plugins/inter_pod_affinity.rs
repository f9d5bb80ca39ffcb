//! InterPodAffinity: pods near or apart from other pods, by their own terms and by those of placed pods.

use std::sync::Arc;

use crate::cluster::affinity::{Term, TermKey};
use crate::cluster::counts::Counts;
use crate::cluster::labels::Namespaces;
use crate::cluster::node::NodeState;
use crate::cluster::placed::PlacedPod;
use crate::cluster::pod::PodState;
use crate::cluster::topology::Kind;
use crate::cluster::{Cluster, NodeIndex};
use crate::framework::{Filter, MAX_SCORE, Plugin, Prepared, Rejection, Scorer, View};

const NAME: &str = "InterPodAffinity";

pub struct InterPodAffinity {
    /// The score that a placed pod's required affinity adds to nodes that satisfy it.
    pub hard_weight: i64,
    /// Pods without preferred terms are not scored by those of others.
    pub ignores_preferred_of_others: bool,
}

struct Required {
    pod: Arc<PodState>,
    /// For each required term, the matching pods by topology value.
    near: Vec<(Term, Arc<Counts>)>,
    apart: Vec<(Term, Arc<Counts>)>,
    /// Anti-affinity terms of placed pods that exclude this pod, by their topology label.
    excluding: Vec<(Arc<TermKey>, Arc<Counts>)>,
    /// Whether the pod satisfies its own affinity: the first of a group may run anywhere.
    matches_itself: bool,
}

impl Plugin for InterPodAffinity {
    fn name(&self) -> &'static str {
        NAME
    }

    fn filter(&self, pod: &Arc<PodState>, cluster: &mut Cluster) -> Prepared {
        let against = cluster
            .existing_terms
            .of(Kind::RequiredAnti)
            .filter(|carried| carried.term.matches(pod.namespace(), pod.labels(), &cluster.namespaces));
        let excluding: Vec<(Arc<TermKey>, Arc<Counts>)> =
            against.map(|carried| (Arc::clone(&carried.term.key), Arc::clone(&carried.counts))).collect();
        if pod.required_affinity.is_empty() && pod.required_anti_affinity.is_empty() && excluding.is_empty() {
            return Prepared::Nothing;
        }
        let matches_itself = matches_all(&pod.required_affinity, pod, &cluster.namespaces);
        let near = near_counts(pod, cluster);
        let apart = pod.required_anti_affinity.iter().map(|term| (term.clone(), cluster.term_counts(term))).collect();
        Prepared::Filter(Box::new(Required { pod: Arc::clone(pod), near, apart, excluding, matches_itself }))
    }

    fn scorer(&self, pod: &Arc<PodState>, cluster: &mut Cluster, _feasible: &[NodeIndex]) -> Option<Box<dyn Scorer>> {
        let prefers = !pod.preferred_affinity.is_empty() || !pod.preferred_anti_affinity.is_empty();
        if self.ignores_preferred_of_others && !prefers {
            return None;
        }
        let mut preferences = Vec::new();
        for (terms, sign) in [(&pod.preferred_affinity, 1), (&pod.preferred_anti_affinity, -1)] {
            for term in terms {
                let counts = cluster.term_counts(term);
                let key = Arc::clone(&term.key);
                preferences.push(Preference { key, weight: sign * term.weight, counts });
            }
        }
        for kind in [Kind::PreferredAffinity, Kind::PreferredAnti, Kind::RequiredAffinity] {
            for carried in cluster.existing_terms.of(kind) {
                let weight = match kind {
                    Kind::RequiredAffinity => self.hard_weight,
                    Kind::PreferredAnti => -carried.term.weight,
                    _ => carried.term.weight,
                };
                if weight != 0 && carried.term.matches(pod.namespace(), pod.labels(), &cluster.namespaces) {
                    let (key, counts) = (Arc::clone(&carried.term.key), Arc::clone(&carried.counts));
                    preferences.push(Preference { key, weight, counts });
                }
            }
        }
        preferences.retain(|preference| !preference.counts.is_empty());
        if preferences.is_empty() { None } else { Some(Box::new(Preferences(preferences))) }
    }
}

fn matches_all(terms: &[Term], pod: &PlacedPod, namespaces: &Namespaces) -> bool {
    terms.iter().all(|term| term.matches(pod.namespace(), pod.labels(), namespaces))
}

/// A placed pod counts for affinity only when it matches all the terms.
fn near_counts(pod: &Arc<PodState>, cluster: &mut Cluster) -> Vec<(Term, Arc<Counts>)> {
    match &*pod.required_affinity {
        [] => Vec::new(),
        [term] => vec![(term.clone(), cluster.term_counts(term))],
        many => {
            // Nodes with a pod that matches the first term are the only ones where one can match all.
            let first = cluster.term_per_node(&many[0]);
            let mut counts: Vec<Counts> = many.iter().map(|_| Counts::default()).collect();
            for index in first.keys() {
                let node = cluster.node(*index);
                let matching = node.pods.iter().filter(|placed| matches_all(many, placed, &cluster.namespaces)).count();
                for (term, counts) in many.iter().zip(&mut counts) {
                    if let Some(value) = node.labels().get(&term.key.topology_key) {
                        counts.change(value, i64::try_from(matching).unwrap_or(i64::MAX));
                    }
                }
            }
            many.iter().cloned().zip(counts.into_iter().map(Arc::new)).collect()
        }
    }
}

impl Filter for Required {
    fn check(&self, view: &View<'_>) -> Option<Rejection> {
        if !self.satisfies_affinity(view) {
            return Some(Rejection::unresolvable(NAME, "node(s) didn't match pod affinity rules"));
        }
        if !self.satisfies_anti_affinity(view) {
            return Some(Rejection::resolvable(NAME, "node(s) didn't match pod anti-affinity rules"));
        }
        if !self.satisfies_placed(view) {
            return Some(Rejection::resolvable(NAME, "node(s) didn't satisfy existing pods anti-affinity rules"));
        }
        None
    }
}

/// How many more pods in the view match.
fn difference(view: &View<'_>, matches: impl Fn(&PlacedPod) -> bool) -> i64 {
    let count =
        |pods: &[Arc<PlacedPod>]| i64::try_from(pods.iter().filter(|pod| matches(pod)).count()).unwrap_or(i64::MAX);
    count(view.added) - count(view.removed)
}

impl Required {
    fn satisfies_affinity(&self, view: &View<'_>) -> bool {
        if self.near.is_empty() {
            return true;
        }
        let namespaces = &view.cluster.namespaces;
        let change = difference(view, |pod| matches_all(&self.pod.required_affinity, pod, namespaces));
        let mut missing = false;
        for (term, counts) in &self.near {
            let Some(value) = view.node.labels().get(&term.key.topology_key) else { return false };
            missing |= counts.get(value) + change <= 0;
        }
        if !missing {
            return true;
        }
        // No pod matches anywhere: a pod that matches itself may start the group here.
        let no_pod_matches = |(term, counts): &(Term, Arc<Counts>)| match view.node.labels().get(&term.key.topology_key)
        {
            Some(value) if counts.get(value) + change <= 0 => counts.has_only(value),
            _ => counts.is_empty(),
        };
        self.matches_itself && self.near.iter().all(no_pod_matches)
    }

    fn satisfies_anti_affinity(&self, view: &View<'_>) -> bool {
        self.apart.iter().all(|(term, counts)| {
            let Some(value) = view.node.labels().get(&term.key.topology_key) else { return true };
            let change = difference(view, |pod| term.matches(pod.namespace(), pod.labels(), &view.cluster.namespaces));
            counts.get(value) + change <= 0
        })
    }

    fn satisfies_placed(&self, view: &View<'_>) -> bool {
        let labels = view.node.labels();
        let is_against = |term: &Term| term.matches(self.pod.namespace(), self.pod.labels(), &view.cluster.namespaces);
        let carries =
            |pod: &PlacedPod, key: &Arc<TermKey>| pod.required_anti_affinity.iter().any(|own| own.key == *key);
        let of_known = self.excluding.iter().all(|(key, counts)| {
            let Some(value) = labels.get(&key.topology_key) else { return true };
            let here = counts.get(value);
            let left = view.removed.iter().filter(|pod| carries(pod, key)).count();
            here <= i64::try_from(left).unwrap_or(i64::MAX)
        });
        let of_added = view.added.iter().flat_map(|pod| pod.required_anti_affinity.iter());
        of_known && !of_added.into_iter().any(|term| labels.contains_key(&term.key.topology_key) && is_against(term))
    }
}

/// Score of each pod under a node's value of a topology label.
struct Preference {
    key: Arc<TermKey>,
    weight: i64,
    counts: Arc<Counts>,
}

struct Preferences(Vec<Preference>);

impl Scorer for Preferences {
    fn score(&self, _index: NodeIndex, node: &NodeState) -> i64 {
        let points = |preference: &Preference| {
            let value = node.labels().get(&preference.key.topology_key);
            value.map_or(0, |value| preference.weight * preference.counts.get(value))
        };
        self.0.iter().map(points).sum()
    }

    fn normalize(&self, scores: &mut [i64]) {
        let min = scores.iter().copied().min().unwrap_or(0);
        let max = scores.iter().copied().max().unwrap_or(0);
        for score in scores.iter_mut() {
            *score =
                if max > min { (MAX_SCORE as f64 * ((*score - min) as f64 / (max - min) as f64)) as i64 } else { 0 };
        }
    }
}
