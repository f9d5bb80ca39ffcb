//! PodTopologySpread: spreads similar pods over zones, hosts or other topology labels.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::TopologySpreadConstraint;
use knarr_client::node_fit::untolerated;

use crate::cluster::counts::Counts;
use crate::cluster::groups::PerNode;
use crate::cluster::labels::{HOSTNAME, ZONE};
use crate::cluster::node::NodeState;
use crate::cluster::placed::PlacedPod;
use crate::cluster::pod::{PodState, Spread};
use crate::cluster::{Cluster, NodeIndex};
use crate::framework::{Filter, MAX_SCORE, Plugin, Prepared, Rejection, Scorer, View};

const NAME: &str = "PodTopologySpread";

pub struct TopologySpread {
    pub defaults: SpreadDefaults,
}

/// The default constraints of pods without their own.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum SpreadDefaults {
    /// Softly over hosts (skew 3) and zones (skew 5), for pods that a service or workload selects.
    #[default]
    System,
    List(Vec<TopologySpreadConstraint>),
}

impl SpreadDefaults {
    fn constraints(&self) -> Vec<TopologySpreadConstraint> {
        let soft = |key: &str, skew: i32| TopologySpreadConstraint {
            topology_key: key.to_owned(),
            max_skew: skew,
            when_unsatisfiable: "ScheduleAnyway".to_owned(),
            ..TopologySpreadConstraint::default()
        };
        match self {
            SpreadDefaults::System => vec![soft(HOSTNAME, 3), soft(ZONE, 5)],
            SpreadDefaults::List(list) => list.clone(),
        }
    }
}

/// A constraint with the counts of each of its topology values, over the nodes that count for it.
struct Counted {
    constraint: Spread,
    counts: Arc<Counts>,
    /// How many values there are, with pods or without.
    domains: usize,
    min: i64,
    counts_self: bool,
}

struct Hard {
    pod: Arc<PodState>,
    constraints: Vec<Counted>,
}

struct Soft {
    constraints: Vec<SoftCounted>,
    /// Feasible nodes in order that lack one of the labels: they score nothing.
    ignored: Vec<bool>,
}

struct SoftCounted {
    constraint: Spread,
    counts: Arc<Counts>,
    per_node: Arc<PerNode>,
    weight: f64,
}

impl Plugin for TopologySpread {
    fn name(&self) -> &'static str {
        NAME
    }

    fn filter(&self, pod: &Arc<PodState>, cluster: &mut Cluster) -> Prepared {
        let constraints = self.constraints(pod, cluster, true);
        if constraints.is_empty() {
            return Prepared::Nothing;
        }
        let counted = constraints.iter().map(|constraint| count(pod, constraint, &constraints, cluster)).collect();
        Prepared::Filter(Box::new(Hard { pod: Arc::clone(pod), constraints: counted }))
    }

    fn scorer(&self, pod: &Arc<PodState>, cluster: &mut Cluster, feasible: &[NodeIndex]) -> Option<Box<dyn Scorer>> {
        let constraints = self.constraints(pod, cluster, false);
        if constraints.is_empty() {
            return None;
        }
        // The system's defaults spread over hosts even where nodes have no zone.
        let needs_all_labels = !pod.spread.is_empty() || self.defaults != SpreadDefaults::System;
        Some(Box::new(score_state(pod, &constraints, cluster, feasible, needs_all_labels)))
    }
}

impl TopologySpread {
    /// The pod's own constraints or, where it has none, the defaults for similar pods.
    fn constraints(&self, pod: &PodState, cluster: &Cluster, hard: bool) -> Vec<Spread> {
        if !pod.spread.is_empty() {
            return pod.spread.iter().filter(|constraint| constraint.hard == hard).cloned().collect();
        }
        if hard && self.defaults == SpreadDefaults::System {
            return Vec::new();
        }
        let Some(selector) = cluster.workloads.selector_of(&pod.object) else { return Vec::new() };
        let all = self.defaults.constraints();
        let compiled = all.iter().map(|constraint| Spread::new(constraint, Some(&selector)));
        compiled.filter(|constraint| constraint.hard == hard).collect()
    }
}

fn has_all_keys(node: &NodeState, constraints: &[Spread]) -> bool {
    constraints.iter().all(|constraint| node.labels().contains_key(&constraint.topology_key))
}

/// Whether a node's pods count for a constraint at all.
fn counts_for(pod: &PodState, constraint: &Spread, node: &NodeState) -> bool {
    if constraint.honors_affinity && !pod.node_requirement.matches(node) {
        return false;
    }
    if constraint.honors_taints {
        let tolerations = pod.object.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
        return untolerated(node.taints(), tolerations, &["NoSchedule", "NoExecute"]).is_none();
    }
    true
}

/// Whether all nodes with the constraint's label count for it, so that the cluster's own counts are the constraint's.
fn counts_everywhere(pod: &PodState, constraint: &Spread, all: &[Spread], cluster: &mut Cluster) -> bool {
    let node_count = cluster.node_count();
    !constraint.honors_taints
        && (!constraint.honors_affinity || pod.node_requirement.is_empty())
        && (all.len() == 1 || all.iter().all(|one| cluster.domains(&one.topology_key).nodes() == node_count))
}

fn count(pod: &Arc<PodState>, constraint: &Spread, all: &[Spread], cluster: &mut Cluster) -> Counted {
    let (namespace, selector, text) = (pod.namespace(), &constraint.selector, &constraint.selector_text);
    let (counts, domains) = if counts_everywhere(pod, constraint, all, cluster) {
        let domains = cluster.domains(&constraint.topology_key).len();
        (cluster.spread_counts(namespace, selector, text, &constraint.topology_key), domains)
    } else {
        let per_node = cluster.spread_per_node(namespace, selector, text);
        let mut counts = Counts::default();
        let mut values = HashSet::new();
        for (index, node) in cluster.nodes() {
            if has_all_keys(node, all) && counts_for(pod, constraint, node) {
                let value = node.labels()[&constraint.topology_key].as_str();
                values.insert(value);
                counts.change(value, per_node.get(&index).copied().unwrap_or(0));
            }
        }
        (Arc::new(counts), values.len())
    };
    // With fewer domains than `minDomains`, the minimum is zero: spreading waits for more domains.
    let lacks_domains = i64::try_from(domains).unwrap_or(i64::MAX) < constraint.min_domains;
    let min = if lacks_domains { 0 } else { counts.min(domains) };
    let counts_self = constraint.selector.matches(pod.labels());
    Counted { constraint: constraint.clone(), counts, domains, min, counts_self }
}

impl Filter for Hard {
    fn check(&self, view: &View<'_>) -> Option<Rejection> {
        for counted in &self.constraints {
            let Some(value) = view.node.labels().get(&counted.constraint.topology_key) else {
                return Some(Rejection::unresolvable(
                    NAME,
                    "node(s) didn't match pod topology spread constraints (missing required label)",
                ));
            };
            let change = self.change(counted, view);
            let here = counted.counts.get(value) + change;
            let min = if change == 0 { counted.min } else { counted.min_with(value, here) };
            if here + i64::from(counted.counts_self) - min > counted.constraint.max_skew {
                return Some(Rejection::resolvable(NAME, "node(s) didn't match pod topology spread constraints"));
            }
        }
        None
    }
}

impl Hard {
    /// How many more pods count in the view than in the cluster.
    fn change(&self, counted: &Counted, view: &View<'_>) -> i64 {
        if view.removed.is_empty() && view.added.is_empty() {
            return 0;
        }
        if !counts_for(&self.pod, &counted.constraint, view.node) {
            return 0;
        }
        let matching = |pods: &[Arc<PlacedPod>]| {
            let same = |pod: &&Arc<PlacedPod>| {
                pod.namespace() == self.pod.namespace()
                    && !pod.is_terminating()
                    && counted.constraint.selector.matches(pod.labels())
            };
            i64::try_from(pods.iter().filter(same).count()).unwrap_or(i64::MAX)
        };
        matching(view.added) - matching(view.removed)
    }
}

impl Counted {
    /// The minimum when the value's count is `here`: a node that loses pods may become the emptiest.
    fn min_with(&self, value: &str, here: i64) -> i64 {
        if i64::try_from(self.domains).unwrap_or(i64::MAX) < self.constraint.min_domains {
            return 0;
        }
        self.counts.min_of_others(value, self.domains).map_or(here, |others| others.min(here))
    }
}

fn score_state(
    pod: &Arc<PodState>,
    constraints: &[Spread],
    cluster: &mut Cluster,
    feasible: &[NodeIndex],
    needs_all_labels: bool,
) -> Soft {
    let is_ignored = |index: &NodeIndex| needs_all_labels && !has_all_keys(cluster.node(*index), constraints);
    let ignored: Vec<bool> = feasible.iter().map(is_ignored).collect();
    let scored = ignored.iter().filter(|ignored| !**ignored).count();
    let mut counted = Vec::new();
    for constraint in constraints {
        let by_host = constraint.topology_key == HOSTNAME;
        let domains = if by_host {
            scored
        } else {
            let mut values = HashSet::new();
            for (index, _) in feasible.iter().zip(&ignored).filter(|(_, ignored)| !**ignored) {
                values.insert(cluster.node(*index).labels().get(&constraint.topology_key).map(String::as_str));
            }
            values.len()
        };
        let (namespace, selector, text) = (pod.namespace(), &constraint.selector, &constraint.selector_text);
        let per_node = cluster.spread_per_node(namespace, selector, text);
        let counts = if by_host {
            Arc::default()
        } else if counts_everywhere(
            pod,
            constraint,
            if needs_all_labels { constraints } else { &constraints[..1] },
            cluster,
        ) {
            cluster.spread_counts(namespace, selector, text, &constraint.topology_key)
        } else {
            let mut counts = Counts::default();
            // Only nodes with matching pods can add to a count.
            for (index, pods) in per_node.iter() {
                let node = cluster.node(*index);
                if (!needs_all_labels || has_all_keys(node, constraints))
                    && counts_for(pod, constraint, node)
                    && let Some(value) = node.labels().get(&constraint.topology_key)
                {
                    counts.change(value, *pods);
                }
            }
            Arc::new(counts)
        };
        let weight = ((domains + 2) as f64).ln();
        counted.push(SoftCounted { constraint: constraint.clone(), counts, per_node, weight });
    }
    Soft { constraints: counted, ignored }
}

impl Scorer for Soft {
    fn score(&self, index: NodeIndex, node: &NodeState) -> i64 {
        let mut score = 0.0;
        for counted in &self.constraints {
            let Some(value) = node.labels().get(&counted.constraint.topology_key) else { continue };
            let count = if counted.constraint.topology_key == HOSTNAME {
                counted.per_node.get(&index).copied().unwrap_or(0)
            } else {
                counted.counts.get(value)
            };
            score += count as f64 * counted.weight + (counted.constraint.max_skew - 1) as f64;
        }
        score.round() as i64
    }

    /// The fewer similar pods, the higher the score.
    fn normalize(&self, scores: &mut [i64]) {
        let counted = || scores.iter().zip(&self.ignored).filter(|(_, ignored)| !**ignored).map(|(score, _)| *score);
        let min = counted().min().unwrap_or(0);
        let max = counted().max().unwrap_or(0);
        for (score, ignored) in scores.iter_mut().zip(&self.ignored) {
            *score = match (*ignored, max) {
                (true, _) => 0,
                (false, 0) => MAX_SCORE,
                (false, max) => MAX_SCORE * (max + min - *score) / max,
            };
        }
    }
}
