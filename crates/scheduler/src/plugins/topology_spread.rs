//! PodTopologySpread: pods alike are spread over zones, hosts or whatever labels tell apart.

use std::collections::HashMap;
use std::sync::Arc;

use crate::cluster::affinity::untolerated;
use crate::cluster::labels::HOSTNAME;
use crate::cluster::node::NodeState;
use crate::cluster::pod::{PodState, Spread};
use crate::cluster::{Cluster, NodeIndex};
use crate::framework::{Filter, MAX_SCORE, Plugin, Prepared, Rejection, Scorer, View};

const NAME: &str = "PodTopologySpread";

pub struct TopologySpread {
    pub defaults: SpreadDefaults,
}

/// What pods without constraints of their own are spread by.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum SpreadDefaults {
    /// Softly over hosts (skew 3) and zones (skew 5), for pods that a service or workload selects.
    #[default]
    System,
    List(Vec<k8s_openapi::api::core::v1::TopologySpreadConstraint>),
}

/// A constraint with the counts of each of its topology values, over the nodes that count for it.
struct Counted {
    constraint: Spread,
    by_value: HashMap<String, i64>,
    least: i64,
    counts_self: bool,
}

struct Hard {
    pod: Arc<PodState>,
    constraints: Vec<Counted>,
}

struct Soft {
    constraints: Vec<SoftCounted>,
    /// Nodes that lack one of the labels score nothing.
    ignored: std::collections::HashSet<NodeIndex>,
    order: Vec<NodeIndex>,
}

struct SoftCounted {
    constraint: Spread,
    by_value: HashMap<String, i64>,
    per_node: HashMap<NodeIndex, i64>,
    weight: f64,
}

impl Plugin for TopologySpread {
    fn name(&self) -> &'static str {
        NAME
    }

    fn filter(&self, pod: &Arc<PodState>, cluster: &mut Cluster) -> Prepared {
        let constraints: Vec<Spread> = pod.spread.iter().filter(|constraint| constraint.hard).cloned().collect();
        if constraints.is_empty() {
            return Prepared::Nothing;
        }
        let counted = constraints.iter().map(|constraint| count(pod, constraint, &constraints, cluster)).collect();
        Prepared::Filter(Box::new(Hard { pod: Arc::clone(pod), constraints: counted }))
    }

    fn scorer(&self, pod: &Arc<PodState>, cluster: &mut Cluster, feasible: &[NodeIndex]) -> Option<Box<dyn Scorer>> {
        let constraints: Vec<Spread> = pod.spread.iter().filter(|constraint| !constraint.hard).cloned().collect();
        if constraints.is_empty() {
            return None;
        }
        Some(Box::new(score_state(pod, constraints, cluster, feasible)))
    }
}

fn has_all_keys(node: &NodeState, constraints: &[Spread]) -> bool {
    constraints.iter().all(|constraint| node.labels().contains_key(&constraint.topology_key))
}

/// Whether a node's pods count for a constraint at all.
fn counts(pod: &PodState, constraint: &Spread, node: &NodeState) -> bool {
    if constraint.honors_affinity && !pod.node_requirement.matches(node) {
        return false;
    }
    if constraint.honors_taints {
        let tolerations = pod.object.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
        return untolerated(node.taints(), tolerations, &["NoSchedule", "NoExecute"]).is_none();
    }
    true
}

fn count(pod: &Arc<PodState>, constraint: &Spread, all: &[Spread], cluster: &mut Cluster) -> Counted {
    let per_node = cluster.spread_counts(pod.namespace(), &constraint.selector, &constraint.selector_text).clone();
    let mut by_value: HashMap<String, i64> = HashMap::new();
    for (index, node) in cluster.nodes() {
        if has_all_keys(node, all) && counts(pod, constraint, node) {
            let value = &node.labels()[&constraint.topology_key];
            let pods = per_node.get(&index).copied().unwrap_or(0);
            match by_value.get_mut(value) {
                Some(sum) => *sum += pods,
                None => {
                    by_value.insert(value.clone(), pods);
                }
            }
        }
    }
    let domains = i64::try_from(by_value.len()).unwrap_or(i64::MAX);
    // With fewer domains than wanted, an empty one is imagined: spreading waits for it to exist.
    let least = if domains < constraint.min_domains { 0 } else { by_value.values().copied().min().unwrap_or(0) };
    let counts_self = constraint.selector.matches(pod.labels());
    Counted { constraint: constraint.clone(), by_value, least, counts_self }
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
            let (removed, added) = self.changes(counted, view);
            let here = counted.by_value.get(value).copied().unwrap_or(0) + added - removed;
            let least = counted.least_with(value, here);
            if here + i64::from(counted.counts_self) - least > counted.constraint.max_skew {
                return Some(Rejection::resolvable(NAME, "node(s) didn't match pod topology spread constraints"));
            }
        }
        None
    }
}

impl Hard {
    fn changes(&self, counted: &Counted, view: &View<'_>) -> (i64, i64) {
        if view.removed.is_empty() && view.added.is_empty() {
            return (0, 0);
        }
        let matching = |pods: &[Arc<PodState>]| {
            let same = |pod: &&Arc<PodState>| {
                pod.namespace() == self.pod.namespace() && counted.constraint.selector.matches(pod.labels())
            };
            i64::try_from(pods.iter().filter(same).count()).unwrap_or(i64::MAX)
        };
        (matching(view.removed), matching(view.added))
    }
}

impl Counted {
    /// The least count when the value's count is `here`: a node that loses pods may become the emptiest.
    fn least_with(&self, value: &str, here: i64) -> i64 {
        if self.by_value.get(value) == Some(&here) {
            return self.least;
        }
        let domains = i64::try_from(self.by_value.len()).unwrap_or(i64::MAX);
        if domains < self.constraint.min_domains {
            return 0;
        }
        let others = self.by_value.iter().filter(|(own, _)| own.as_str() != value).map(|(_, count)| *count);
        others.chain([here]).min().unwrap_or(0)
    }
}

fn score_state(pod: &Arc<PodState>, constraints: Vec<Spread>, cluster: &mut Cluster, feasible: &[NodeIndex]) -> Soft {
    let mut ignored = std::collections::HashSet::new();
    for index in feasible {
        if !has_all_keys(cluster.node(*index), &constraints) {
            ignored.insert(*index);
        }
    }
    let mut counted = Vec::new();
    for constraint in &constraints {
        let per_node = cluster.spread_counts(pod.namespace(), &constraint.selector, &constraint.selector_text).clone();
        let mut by_value: HashMap<String, i64> = HashMap::new();
        let by_host = constraint.topology_key == HOSTNAME;
        if !by_host {
            for index in feasible.iter().filter(|index| !ignored.contains(index)) {
                let value = &cluster.node(*index).labels()[&constraint.topology_key];
                if !by_value.contains_key(value) {
                    by_value.insert(value.clone(), 0);
                }
            }
            // Only nodes with matching pods can add to a count.
            for (index, pods) in &per_node {
                let node = cluster.node(*index);
                if has_all_keys(node, &constraints)
                    && counts(pod, constraint, node)
                    && let Some(sum) = by_value.get_mut(&node.labels()[&constraint.topology_key])
                {
                    *sum += pods;
                }
            }
        }
        let size = if by_host { feasible.len() - ignored.len() } else { by_value.len() };
        let weight = ((size + 2) as f64).ln();
        counted.push(SoftCounted { constraint: constraint.clone(), by_value, per_node, weight });
    }
    Soft { constraints: counted, ignored, order: feasible.to_vec() }
}

impl Scorer for Soft {
    fn score(&self, index: NodeIndex, node: &NodeState) -> i64 {
        if self.ignored.contains(&index) {
            return 0;
        }
        let mut score = 0.0;
        for counted in &self.constraints {
            let Some(value) = node.labels().get(&counted.constraint.topology_key) else { continue };
            let count = if counted.constraint.topology_key == HOSTNAME {
                counted.per_node.get(&index).copied().unwrap_or(0)
            } else {
                counted.by_value.get(value).copied().unwrap_or(0)
            };
            score += count as f64 * counted.weight + (counted.constraint.max_skew - 1) as f64;
        }
        score.round() as i64
    }

    /// The fewer pods alike, the higher the score.
    fn normalize(&self, scores: &mut [i64]) {
        let is_ignored: Vec<bool> = self.order.iter().map(|index| self.ignored.contains(index)).collect();
        let counted = || scores.iter().zip(&is_ignored).filter(|(_, ignored)| !**ignored).map(|(score, _)| *score);
        let least = counted().min().unwrap_or(0);
        let most = counted().max().unwrap_or(0);
        for (score, ignored) in scores.iter_mut().zip(&is_ignored) {
            *score = match (*ignored, most) {
                (true, _) => 0,
                (false, 0) => MAX_SCORE,
                (false, most) => MAX_SCORE * (most + least - *score) / most,
            };
        }
    }
}
