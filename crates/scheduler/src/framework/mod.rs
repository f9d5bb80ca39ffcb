//! The plugin interface. A plugin prepares a filter, a scorer, or neither for a pod; those then evaluate nodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cluster::node::NodeState;
use crate::cluster::placed::PlacedPod;
use crate::cluster::pod::PodState;
use crate::cluster::{Cluster, NodeIndex};

pub use crate::rejection::Rejection;

pub const MAX_SCORE: i64 = 100;

/// A node as a filter sees it: as it is, or without some pods (preemption victims) or with others (nominated pods).
pub struct View<'a> {
    pub cluster: &'a Cluster,
    pub index: NodeIndex,
    pub node: &'a NodeState,
    pub removed: &'a [Arc<PlacedPod>],
    pub added: &'a [Arc<PlacedPod>],
}

/// The result of preparing a filter for a pod.
pub enum Prepared {
    /// Nothing to filter for this pod.
    Nothing,
    Filter(Box<dyn Filter>),
    /// Only these nodes can fit; others are not checked.
    Only(BTreeSet<String>, Option<Box<dyn Filter>>),
    /// No node can fit.
    Reject(Rejection),
}

pub trait Filter: Send + Sync {
    fn check(&self, view: &View<'_>) -> Option<Rejection>;
}

pub trait Scorer: Send {
    fn score(&self, index: NodeIndex, node: &NodeState) -> i64;
    /// Normalizes the scores of all nodes into 0 … 100, where they are not already.
    fn normalize(&self, _scores: &mut [i64]) {}
}

pub trait Plugin: Send + Sync {
    fn name(&self) -> &'static str;
    fn filter(&self, _pod: &Arc<PodState>, _cluster: &mut Cluster) -> Prepared {
        Prepared::Nothing
    }
    /// `feasible` are the nodes that passed all filters.
    fn scorer(&self, _pod: &Arc<PodState>, _cluster: &mut Cluster, _feasible: &[NodeIndex]) -> Option<Box<dyn Scorer>> {
        None
    }
}

/// Scales scores so that the best is 100; with `reverse` the lowest is best.
pub fn stretch(scores: &mut [i64], reverse: bool) {
    let max = scores.iter().copied().max().unwrap_or(0);
    for score in scores.iter_mut() {
        *score = match (max, reverse) {
            (0, true) => MAX_SCORE,
            (0, false) => *score,
            (max, false) => MAX_SCORE * *score / max,
            (max, true) => MAX_SCORE - MAX_SCORE * *score / max,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::stretch;

    #[test]
    fn scores_are_stretched() {
        for (scores, reverse, stretched) in [
            (vec![1, 2, 4], false, vec![25, 50, 100]),
            (vec![1, 2, 4], true, vec![75, 50, 0]),
            (vec![0, 0], true, vec![100, 100]),
            (vec![0, 0], false, vec![0, 0]),
        ] {
            let mut result = scores.clone();
            stretch(&mut result, reverse);
            assert_eq!(result, stretched, "{scores:?}");
        }
    }
}
