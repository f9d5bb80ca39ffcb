//! NodeResourcesBalancedAllocation: prefers nodes whose CPU and memory utilization the pod brings closer together.

use std::cell::RefCell;
use std::sync::Arc;

use crate::cluster::node::NodeState;
use crate::cluster::pod::PodState;
use crate::cluster::{Cluster, NodeIndex};
use crate::framework::{MAX_SCORE, Plugin, Scorer};

pub struct BalancedAllocation {
    /// The resources to balance.
    pub resources: Vec<String>,
}

struct Balance {
    /// The resources that count for the pod, and its requests of each.
    requests: Vec<(String, i64)>,
    /// The utilization of each resource on a node, without and with the pod; reused, since this runs for every node that fits.
    parts: RefCell<Vec<(f64, f64)>>,
}

impl Plugin for BalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }

    fn scorer(&self, pod: &Arc<PodState>, _cluster: &mut Cluster, _feasible: &[NodeIndex]) -> Option<Box<dyn Scorer>> {
        let is_everywhere = |name: &str| matches!(name, "cpu" | "memory" | "ephemeral-storage");
        let requests = self.resources.iter().map(|name| (name.clone(), pod.requests.get(name)));
        let requests: Vec<(String, i64)> =
            requests.filter(|(name, amount)| *amount > 0 || is_everywhere(name)).collect();
        // A pod without requests cannot change the balance.
        let has_requests = requests.iter().any(|(_, amount)| *amount > 0);
        has_requests.then(|| Box::new(Balance { requests, parts: RefCell::default() }) as Box<dyn Scorer>)
    }
}

impl Scorer for Balance {
    fn score(&self, _index: NodeIndex, node: &NodeState) -> i64 {
        let mut parts = self.parts.borrow_mut();
        parts.clear();
        for (name, requests) in &self.requests {
            let (capacity, used) = (node.allocatable.get(name), node.requested.get(name));
            if capacity > 0 {
                let part = |used: i64| (used as f64 / capacity as f64).min(1.0);
                parts.push((part(used), part(used + requests)));
            }
        }
        let (before, after) = (parts.iter().map(|(before, _)| *before), parts.iter().map(|(_, after)| *after));
        MAX_SCORE / 2 + (MAX_SCORE / 2 + balance(after) - balance(before)) / 2
    }
}

/// 100 when all resources have the same utilization, less the more the utilizations deviate.
fn balance(parts: impl Iterator<Item = f64> + Clone) -> i64 {
    let count = parts.clone().count();
    let deviation = match count {
        0 | 1 => 0.0,
        2 => {
            let mut parts = parts;
            ((parts.next().unwrap_or(0.0) - parts.next().unwrap_or(0.0)) / 2.0).abs()
        }
        _ => {
            let mean = parts.clone().sum::<f64>() / count as f64;
            (parts.map(|part| (part - mean) * (part - mean)).sum::<f64>() / count as f64).sqrt()
        }
    };
    ((1.0 - deviation) * MAX_SCORE as f64) as i64
}

#[cfg(test)]
mod tests {
    use super::balance;

    #[test]
    fn balance_is_best_when_parts_are_equal() {
        for (parts, score) in [
            (&[0.5, 0.5][..], 100),
            (&[1.0, 0.0], 50),
            (&[0.3, 0.6], 85),
            (&[1.0, 1.0], 100),
            (&[0.7], 100),
            (&[], 100),
            (&[0.0, 0.5, 1.0], 59),
        ] {
            assert_eq!(balance(parts.iter().copied()), score, "{parts:?}");
        }
    }
}
