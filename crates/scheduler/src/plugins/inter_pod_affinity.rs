//! InterPodAffinity: pods near or apart from other pods, by what they ask for and by what pods already placed ask for.

use std::collections::HashMap;
use std::sync::Arc;

use crate::cluster::affinity::Term;
use crate::cluster::groups::PerNode;
use crate::cluster::labels::Namespaces;
use crate::cluster::node::NodeState;
use crate::cluster::pod::PodState;
use crate::cluster::topology::Kind;
use crate::cluster::{Cluster, NodeIndex};
use crate::framework::{Filter, MAX_SCORE, Plugin, Prepared, Rejection, Scorer, View};

const NAME: &str = "InterPodAffinity";

pub struct InterPodAffinity {
    /// What a placed pod's required affinity adds to the score of nodes that satisfy it.
    pub hard_weight: i64,
}

/// Pods by topology value.
type ByValue = HashMap<String, i64>;

struct Required {
    pod: Arc<PodState>,
    /// For each required term, the matching pods by topology value.
    near: Vec<(Term, ByValue)>,
    apart: Vec<(Term, ByValue)>,
    /// Terms of placed pods that keep this pod away: topology key → value → how many pods.
    kept_away: HashMap<String, ByValue>,
    /// Whether the pod satisfies its own affinity: the first of a group may go anywhere.
    matches_itself: bool,
}

impl Plugin for InterPodAffinity {
    fn name(&self) -> &'static str {
        NAME
    }

    fn filter(&self, pod: &Arc<PodState>, cluster: &mut Cluster) -> Prepared {
        let mut kept_away: HashMap<String, ByValue> = HashMap::new();
        for carried in cluster.existing_terms.of(Kind::RequiredAnti) {
            if carried.term.matches(pod.namespace(), pod.labels(), &cluster.namespaces) {
                let values = kept_away.entry(carried.term.key.topology_key.clone()).or_default();
                for (value, count) in &carried.by_value {
                    *values.entry(value.clone()).or_default() += count;
                }
            }
        }
        if pod.required_affinity.is_empty() && pod.required_anti_affinity.is_empty() && kept_away.is_empty() {
            return Prepared::Nothing;
        }
        let matches_itself = matches_all(&pod.required_affinity, pod, &cluster.namespaces);
        let near = near_counts(pod, cluster);
        let apart = pod
            .required_anti_affinity
            .iter()
            .map(|term| {
                let per_node = cluster.term_counts(term).clone();
                (term.clone(), by_value(&per_node, &term.key.topology_key, cluster))
            })
            .collect();
        Prepared::Filter(Box::new(Required { pod: Arc::clone(pod), near, apart, kept_away, matches_itself }))
    }

    fn scorer(&self, pod: &Arc<PodState>, cluster: &mut Cluster, _feasible: &[NodeIndex]) -> Option<Box<dyn Scorer>> {
        let mut scores = Preferences::default();
        for (terms, sign) in [(&pod.preferred_affinity, 1), (&pod.preferred_anti_affinity, -1)] {
            for term in terms {
                let per_node = cluster.term_counts(term).clone();
                for (value, count) in by_value(&per_node, &term.key.topology_key, cluster) {
                    scores.add(&term.key.topology_key, &value, sign * term.weight * count);
                }
            }
        }
        for (kind, sign) in
            [(Kind::PreferredAffinity, 1), (Kind::PreferredAnti, -1), (Kind::RequiredAffinity, self.hard_weight)]
        {
            for carried in cluster.existing_terms.of(kind) {
                let weight = if kind == Kind::RequiredAffinity { sign } else { sign * carried.term.weight };
                if weight != 0 && carried.term.matches(pod.namespace(), pod.labels(), &cluster.namespaces) {
                    for (value, count) in &carried.by_value {
                        scores.add(&carried.term.key.topology_key, value, weight * count);
                    }
                }
            }
        }
        if scores.0.is_empty() { None } else { Some(Box::new(scores)) }
    }
}

fn matches_all(terms: &[Term], pod: &PodState, namespaces: &Namespaces) -> bool {
    terms.iter().all(|term| term.matches(pod.namespace(), pod.labels(), namespaces))
}

fn by_value(per_node: &PerNode, topology_key: &str, cluster: &Cluster) -> ByValue {
    let mut values = ByValue::new();
    for (index, count) in per_node {
        if let Some(value) = cluster.node(*index).labels().get(topology_key) {
            *values.entry(value.clone()).or_default() += count;
        }
    }
    values
}

/// A placed pod counts for affinity only when it matches all the terms.
fn near_counts(pod: &Arc<PodState>, cluster: &mut Cluster) -> Vec<(Term, ByValue)> {
    let terms = &pod.required_affinity;
    match terms.as_slice() {
        [] => Vec::new(),
        [term] => {
            let per_node = cluster.term_counts(term).clone();
            vec![(term.clone(), by_value(&per_node, &term.key.topology_key, cluster))]
        }
        many => {
            // Nodes with a pod that matches the first term are the only ones where one can match all.
            let first = cluster.term_counts(&many[0]).clone();
            let mut counts: Vec<(Term, ByValue)> = many.iter().map(|term| (term.clone(), ByValue::new())).collect();
            for index in first.keys() {
                let node = cluster.node(*index);
                let matching = node.pods.iter().filter(|placed| matches_all(many, placed, &cluster.namespaces)).count();
                let matching = i64::try_from(matching).unwrap_or(i64::MAX);
                for (term, values) in counts.iter_mut().filter(|_| matching > 0) {
                    if let Some(value) = node.labels().get(&term.key.topology_key) {
                        *values.entry(value.clone()).or_default() += matching;
                    }
                }
            }
            counts
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

impl Required {
    /// How many more pods the view has that match.
    fn difference(view: &View<'_>, matches: impl Fn(&Arc<PodState>) -> bool) -> i64 {
        if view.removed.is_empty() && view.added.is_empty() {
            return 0;
        }
        let count =
            |pods: &[Arc<PodState>]| i64::try_from(pods.iter().filter(|pod| matches(pod)).count()).unwrap_or(i64::MAX);
        count(view.added) - count(view.removed)
    }

    fn satisfies_affinity(&self, view: &View<'_>) -> bool {
        let namespaces = Namespaces::default();
        let mut missing = false;
        for (term, values) in &self.near {
            let Some(value) = view.node.labels().get(&term.key.topology_key) else { return false };
            let change = Self::difference(view, |pod| matches_all(&self.pod.required_affinity, pod, &namespaces));
            missing |= values.get(value).copied().unwrap_or(0) + change <= 0;
        }
        if !missing {
            return true;
        }
        // Nobody matches anywhere: a pod that matches itself may begin the group here.
        self.near.iter().all(|(_, values)| values.is_empty()) && self.matches_itself
    }

    fn satisfies_anti_affinity(&self, view: &View<'_>) -> bool {
        self.apart.iter().all(|(term, values)| {
            let Some(value) = view.node.labels().get(&term.key.topology_key) else { return true };
            let namespaces = Namespaces::default();
            let change = Self::difference(view, |pod| term.matches(pod.namespace(), pod.labels(), &namespaces));
            values.get(value).copied().unwrap_or(0) + change <= 0
        })
    }

    fn satisfies_placed(&self, view: &View<'_>) -> bool {
        let namespaces = Namespaces::default();
        let keeps_away = |pod: &PodState, key: &str| {
            let against = |term: &Term| {
                term.key.topology_key == key && term.matches(self.pod.namespace(), self.pod.labels(), &namespaces)
            };
            i64::try_from(pod.required_anti_affinity.iter().filter(|term| against(term)).count()).unwrap_or(i64::MAX)
        };
        let labels = view.node.labels();
        let of_known = self.kept_away.iter().all(|(key, values)| {
            let Some(value) = labels.get(key) else { return true };
            let removed: i64 = view.removed.iter().map(|pod| keeps_away(pod, key)).sum();
            values.get(value).copied().unwrap_or(0) - removed <= 0
        });
        let of_added = view.added.iter().all(|pod| {
            pod.required_anti_affinity.iter().all(|term| {
                !labels.contains_key(&term.key.topology_key)
                    || !term.matches(self.pod.namespace(), self.pod.labels(), &namespaces)
            })
        });
        of_known && of_added
    }
}

/// Points by topology key and value.
#[derive(Default)]
struct Preferences(HashMap<String, ByValue>);

impl Preferences {
    fn add(&mut self, key: &str, value: &str, points: i64) {
        *self.0.entry(key.to_owned()).or_default().entry(value.to_owned()).or_default() += points;
    }
}

impl Scorer for Preferences {
    fn score(&self, _index: NodeIndex, node: &NodeState) -> i64 {
        let of = |(key, values): (&String, &ByValue)| {
            node.labels().get(key).and_then(|value| values.get(value)).copied().unwrap_or(0)
        };
        self.0.iter().map(of).sum()
    }

    fn normalize(&self, scores: &mut [i64]) {
        let least = scores.iter().copied().min().unwrap_or(0);
        let most = scores.iter().copied().max().unwrap_or(0);
        for score in scores.iter_mut() {
            *score = if most > least {
                (MAX_SCORE as f64 * ((*score - least) as f64 / (most - least) as f64)) as i64
            } else {
                0
            };
        }
    }
}
