//! Calls all extenders that are interested in a pod, one after the other.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Node;

use super::{Extender, ExtenderError, NAME};
use crate::cluster::pod::PodState;
use crate::cluster::{Cluster, NodeIndex};
use crate::cycle::Candidates;
use crate::framework::Rejection;

/// Filters out the nodes that extenders reject. An error means that a required one did not respond.
pub async fn extenders_filter(
    extenders: &[&Extender],
    pod: &PodState,
    cluster: &Cluster,
    candidates: &mut Candidates,
) -> Result<(), ExtenderError> {
    for extender in extenders.iter().filter(|extender| extender.filters()) {
        let nodes: Vec<&Node> = candidates.feasible.iter().map(|index| cluster.node(*index).object()).collect();
        if nodes.is_empty() {
            return Ok(());
        }
        let filtered = match extender.filter(pod, &nodes).await {
            Ok(filtered) => filtered,
            Err(error) if extender.is_ignorable() => {
                tracing::warn!(extender = extender.url(), %error, "an extender was skipped");
                continue;
            }
            Err(error) => return Err(error),
        };
        for index in candidates.feasible.clone() {
            let name = cluster.node(index).name();
            if !filtered.left.contains(name) {
                let unexplained =
                    || Rejection { plugin: NAME, reasons: Vec::new(), unresolvable: false, is_error: false };
                let rejection = filtered.rejected.get(name).cloned().unwrap_or_else(unexplained);
                candidates.reject(index, &rejection);
            }
        }
    }
    Ok(())
}

/// The scores that extenders give to nodes. One that does not respond gives none.
pub async fn extenders_score(
    extenders: &[&Extender],
    pod: &PodState,
    cluster: &Cluster,
    candidates: &Candidates,
) -> HashMap<NodeIndex, i64> {
    let nodes: Vec<&Node> = candidates.feasible.iter().map(|index| cluster.node(*index).object()).collect();
    let mut points = HashMap::new();
    if nodes.len() < 2 {
        return points;
    }
    for extender in extenders.iter().filter(|extender| extender.scores()) {
        match extender.score(pod, &nodes).await {
            Ok(given) => {
                for (name, score) in given {
                    if let Some(index) = cluster.index_of(&name) {
                        *points.entry(index).or_default() += score;
                    }
                }
            }
            Err(error) => tracing::warn!(extender = extender.url(), %error, "an extender returned no scores"),
        }
    }
    points
}
