//! NodeResourcesBalancedAllocation: prefers nodes whose use of cpu and memory the pod brings closer together.

use std::sync::Arc;

use crate::cluster::node::NodeState;
use crate::cluster::pod::PodState;
use crate::cluster::{Cluster, NodeIndex};
use crate::framework::{MAX_SCORE, Plugin, Scorer};

pub struct BalancedAllocation;

struct Balance(Arc<PodState>);

impl Plugin for BalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }

    fn scorer(&self, pod: &Arc<PodState>, _cluster: &mut Cluster, _feasible: &[NodeIndex]) -> Option<Box<dyn Scorer>> {
        // A pod that asks for nothing cannot change the balance.
        let asks = pod.requests.milli_cpu > 0 || pod.requests.memory > 0;
        asks.then(|| Box::new(Balance(Arc::clone(pod))) as Box<dyn Scorer>)
    }
}

impl Scorer for Balance {
    fn score(&self, _index: NodeIndex, node: &NodeState) -> i64 {
        let most = [node.allocatable.milli_cpu, node.allocatable.memory];
        let before = [node.requested.milli_cpu, node.requested.memory];
        let after = [before[0] + self.0.requests.milli_cpu, before[1] + self.0.requests.memory];
        MAX_SCORE / 2 + (MAX_SCORE / 2 + balance(after, most) - balance(before, most)) / 2
    }
}

/// 100 when both resources are used to the same part.
fn balance(used: [i64; 2], most: [i64; 2]) -> i64 {
    if most.contains(&0) {
        return MAX_SCORE;
    }
    let part = |index: usize| (used[index] as f64 / most[index] as f64).min(1.0);
    let deviation = ((part(0) - part(1)) / 2.0).abs();
    ((1.0 - deviation) * MAX_SCORE as f64) as i64
}

#[cfg(test)]
mod tests {
    use super::balance;

    #[test]
    fn balance_is_best_when_parts_are_equal() {
        for (used, most, score) in
            [([5, 5], [10, 10], 100), ([10, 0], [10, 10], 50), ([3, 6], [10, 10], 85), ([20, 10], [10, 10], 100)]
        {
            assert_eq!(balance(used, most), score, "{used:?}");
        }
    }
}
