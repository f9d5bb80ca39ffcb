//! NodeResourcesBalancedAllocation: prefers nodes whose use of cpu and memory the pod brings closer together.

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
    pod: Arc<PodState>,
    resources: Vec<String>,
}

impl Plugin for BalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }

    fn scorer(&self, pod: &Arc<PodState>, _cluster: &mut Cluster, _feasible: &[NodeIndex]) -> Option<Box<dyn Scorer>> {
        // A pod that asks for nothing cannot change the balance.
        let asks = self.resources.iter().any(|name| pod.requests.get(name) > 0);
        asks.then(|| Box::new(Balance { pod: Arc::clone(pod), resources: self.resources.clone() }) as Box<dyn Scorer>)
    }
}

impl Scorer for Balance {
    fn score(&self, _index: NodeIndex, node: &NodeState) -> i64 {
        let counts = |name: &&String| {
            let is_everywhere = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage");
            node.allocatable.get(name) > 0 && (is_everywhere || self.pod.requests.get(name) > 0)
        };
        let parts = |with: bool| {
            let counted = self.resources.iter().filter(counts);
            balance(counted.map(move |name| {
                let used = node.requested.get(name) + if with { self.pod.requests.get(name) } else { 0 };
                (used as f64 / node.allocatable.get(name) as f64).min(1.0)
            }))
        };
        MAX_SCORE / 2 + (MAX_SCORE / 2 + parts(true) - parts(false)) / 2
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
