//! NodeResourcesFit: a node must have room for a pod's requests, and is scored by how much or how little it has left.

use std::sync::Arc;

use crate::cluster::node::NodeState;
use crate::cluster::pod::PodState;
use crate::cluster::resources::requests_of_containers;
use crate::cluster::{Cluster, NodeIndex};
use crate::framework::{Filter, MAX_SCORE, Plugin, Prepared, Rejection, Scorer, View};

const NAME: &str = "NodeResourcesFit";

/// How a node's utilization becomes a score.
#[derive(Clone, Debug, PartialEq)]
pub struct Strategy {
    pub kind: StrategyKind,
    /// Resources that count, with their weights.
    pub resources: Vec<(String, i64)>,
    pub ignored: Vec<String>,
    pub ignored_groups: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum StrategyKind {
    LeastAllocated,
    MostAllocated,
    /// Points of a piecewise linear function: utilization in percent, score of 0 … 10.
    RequestedToCapacityRatio(Vec<(i64, i64)>),
}

impl Default for Strategy {
    fn default() -> Self {
        Strategy {
            kind: StrategyKind::LeastAllocated,
            resources: vec![("cpu".into(), 1), ("memory".into(), 1)],
            ignored: Vec::new(),
            ignored_groups: Vec::new(),
        }
    }
}

pub struct ResourcesFit {
    pub strategy: Strategy,
}

struct FitFilter {
    pod: Arc<PodState>,
    ignored: Vec<String>,
    ignored_groups: Vec<String>,
}

struct Score {
    pod: Arc<PodState>,
    /// The pod's CPU and memory. Scores use the containers' requests, though on its node the pod counts with its pod-level
    /// requests.
    pod_requests: (i64, i64),
    strategy: Strategy,
}

impl Plugin for ResourcesFit {
    fn name(&self) -> &'static str {
        NAME
    }

    fn filter(&self, pod: &Arc<PodState>, _cluster: &mut Cluster) -> Prepared {
        Prepared::Filter(Box::new(FitFilter {
            pod: Arc::clone(pod),
            ignored: self.strategy.ignored.clone(),
            ignored_groups: self.strategy.ignored_groups.clone(),
        }))
    }

    fn scorer(&self, pod: &Arc<PodState>, _cluster: &mut Cluster, _feasible: &[NodeIndex]) -> Option<Box<dyn Scorer>> {
        let is_whole = pod.object.spec.as_ref().is_some_and(|spec| spec.resources.is_some());
        let pod_requests = if is_whole {
            let requests = requests_of_containers(&pod.object);
            (requests.milli_cpu, requests.memory)
        } else {
            (pod.scored_requests.milli_cpu, pod.scored_requests.memory)
        };
        Some(Box::new(Score { pod: Arc::clone(pod), pod_requests, strategy: self.strategy.clone() }))
    }
}

impl Filter for FitFilter {
    fn check(&self, view: &View<'_>) -> Option<Rejection> {
        let (node, requests) = (view.node, &self.pod.requests);
        let mut reasons = Vec::new();
        let mut unresolvable = false;
        if node.pods.len() as i64 + 1 > node.allocatable.pods {
            reasons.push("Too many pods".to_owned());
        }
        let mut short = |name: &str, requests: i64, used: i64, capacity: i64| {
            if requests > 0 && requests > capacity - used {
                reasons.push(format!("Insufficient {name}"));
                unresolvable |= requests > capacity;
            }
        };
        short("cpu", requests.milli_cpu, node.requested.milli_cpu, node.allocatable.milli_cpu);
        short("memory", requests.memory, node.requested.memory, node.allocatable.memory);
        short(
            "ephemeral-storage",
            requests.ephemeral_storage,
            node.requested.ephemeral_storage,
            node.allocatable.ephemeral_storage,
        );
        for (name, amount) in &requests.others {
            // Devices satisfy it on nodes that do not offer it themselves; that is checked by their plugin.
            let by_devices =
                || node.allocatable.get(name) <= 0 && view.cluster.resource_claims.class_for_resource(name).is_some();
            if !self.is_ignored(name) && !by_devices() {
                short(name, *amount, node.requested.get(name), node.allocatable.get(name));
            }
        }
        if reasons.is_empty() { None } else { Some(Rejection { plugin: NAME, reasons, unresolvable, is_error: false }) }
    }
}

impl FitFilter {
    fn is_ignored(&self, name: &str) -> bool {
        let group = name.split('/').next().unwrap_or_default();
        self.ignored.iter().any(|own| own == name) || self.ignored_groups.iter().any(|own| own == group)
    }
}

impl Scorer for Score {
    fn score(&self, _index: NodeIndex, node: &NodeState) -> i64 {
        let (mut sum, mut weights) = (0, 0);
        for (name, weight) in &self.strategy.resources {
            let (capacity, used) = self.allocation(node, name);
            if capacity == 0 {
                continue;
            }
            let score = self.strategy.kind.score(used, capacity);
            // With a custom shape, resources with score 0 do not count.
            if score == 0 && matches!(self.strategy.kind, StrategyKind::RequestedToCapacityRatio(_)) {
                continue;
            }
            sum += score * weight;
            weights += weight;
        }
        if weights == 0 {
            return 0;
        }
        match self.strategy.kind {
            StrategyKind::RequestedToCapacityRatio(_) => (sum as f64 / weights as f64).round() as i64,
            _ => sum / weights,
        }
    }
}

impl Score {
    /// What a node has of a resource, and what would be requested with the pod on it. Containers without CPU or memory
    /// requests count with a default. Extended resources that the pod does not request do not count.
    fn allocation(&self, node: &NodeState, name: &str) -> (i64, i64) {
        match name {
            "cpu" => (node.allocatable.milli_cpu, node.scored.milli_cpu + self.pod_requests.0),
            "memory" => (node.allocatable.memory, node.scored.memory + self.pod_requests.1),
            name => {
                let requests = self.pod.requests.get(name);
                if requests == 0 && name != "ephemeral-storage" {
                    return (0, 0);
                }
                (node.allocatable.get(name), node.requested.get(name) + requests)
            }
        }
    }
}

impl StrategyKind {
    fn score(&self, used: i64, capacity: i64) -> i64 {
        match self {
            StrategyKind::LeastAllocated if used > capacity => 0,
            StrategyKind::LeastAllocated => (capacity - used) * MAX_SCORE / capacity,
            StrategyKind::MostAllocated => used.min(capacity) * MAX_SCORE / capacity,
            StrategyKind::RequestedToCapacityRatio(points) => {
                let utilization = if used > capacity { 100 } else { used * 100 / capacity };
                on_line(points, utilization)
            }
        }
    }
}

/// The shape's value at a utilization; its scores of 0 … 10 are scaled to 0 … 100.
fn on_line(points: &[(i64, i64)], at: i64) -> i64 {
    let scaled = |score: i64| score * MAX_SCORE / 10;
    let Some(next) = points.iter().position(|(utilization, _)| at <= *utilization) else {
        return points.last().map_or(0, |(_, score)| scaled(*score));
    };
    let (to, to_score) = points[next];
    if next == 0 {
        return scaled(to_score);
    }
    let (from, from_score) = points[next - 1];
    let (from_score, to_score) = (scaled(from_score), scaled(to_score));
    from_score + (to_score - from_score) * (at - from) / (to - from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_score_as_published() {
        let line = StrategyKind::RequestedToCapacityRatio(vec![(0, 0), (100, 10)]);
        for (kind, used, capacity, score) in [
            (&StrategyKind::LeastAllocated, 1000, 4000, 75),
            (&StrategyKind::LeastAllocated, 5000, 4000, 0),
            (&StrategyKind::MostAllocated, 1000, 4000, 25),
            (&StrategyKind::MostAllocated, 5000, 4000, 100),
            (&line, 1000, 4000, 25),
            (&line, 4000, 4000, 100),
        ] {
            assert_eq!(kind.score(used, capacity), score, "{kind:?} {used}/{capacity}");
        }
        assert_eq!(on_line(&[(0, 10), (50, 5), (100, 0)], 75), 25);
    }
}
