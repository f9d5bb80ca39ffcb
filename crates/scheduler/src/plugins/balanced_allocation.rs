//! NodeResourcesBalancedAllocation: prefers nodes whose use of cpu and memory the pod brings closer together.

use std::cell::RefCell;
use std::sync::Arc;

use crate::cluster::node::NodeState;
use crate::cluster::pod::PodState;
use crate::cluster::{Cluster, NodeIndex};
use crate::framework::{MAX_SCORE, Plugin, Scorer};

pub struct BalancedAllocation {
    /// The resources to keep in balance.
    pub resources: Vec<String>,
}

struct Balance {
    /// The resources that count for the pod, and how much it asks of each.
    wanted: Vec<(String, i64)>,
    /// What part of each a node has given, without and with the pod; kept, since this runs for every node that fits.
    parts: RefCell<Vec<(f64, f64)>>,
}

impl Plugin for BalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }

    fn scorer(&self, pod: &Arc<PodState>, _cluster: &mut Cluster, _feasible: &[NodeIndex]) -> Option<Box<dyn Scorer>> {
        let is_everywhere = |name: &str| matches!(name, "cpu" | "memory" | "ephemeral-storage");
        let wanted = self.resources.iter().map(|name| (name.clone(), pod.requests.get(name)));
        let wanted: Vec<(String, i64)> = wanted.filter(|(name, amount)| *amount > 0 || is_everywhere(name)).collect();
        // A pod that asks for nothing cannot change the balance.
        let asks = wanted.iter().any(|(_, amount)| *amount > 0);
        asks.then(|| Box::new(Balance { wanted, parts: RefCell::default() }) as Box<dyn Scorer>)
    }
}

impl Scorer for Balance {
    fn score(&self, _index: NodeIndex, node: &NodeState) -> i64 {
        let mut parts = self.parts.borrow_mut();
        parts.clear();
        for (name, wanted) in &self.wanted {
            let (most, used) = (node.allocatable.get(name), node.requested.get(name));
            if most > 0 {
                let part = |used: i64| (used as f64 / most as f64).min(1.0);
                parts.push((part(used), part(used + wanted)));
            }
        }
        let (before, after) = (parts.iter().map(|(before, _)| *before), parts.iter().map(|(_, after)| *after));
        MAX_SCORE / 2 + (MAX_SCORE / 2 + balance(after) - balance(before)) / 2
    }
}

/// 100 when all resources are used to the same part, less the more the parts deviate.
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
