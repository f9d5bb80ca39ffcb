//! The steps of a pod's journey that the scheduler records.

use tracing::field::Empty;

use crate::cluster::Cluster;
use crate::cluster::pod::PodState;
use crate::cycle::{Chosen, NoFit};

/// The step of a pod's journey in which its node is selected.
pub fn filtering(pod: &PodState, nodes: usize) -> tracing::Span {
    let object = format!("pods/{}", pod.key);
    tracing::info_span!(
        target: "journey",
        "filtered",
        object,
        nodes,
        feasible = Empty,
        chosen = Empty,
        others = Empty,
        detail = Empty
    )
}

/// Adds to that step why nodes did not fit.
pub fn note_misfits(step: &tracing::Span, no_fit: &NoFit) {
    if !step.is_disabled() {
        let diagnosis = &no_fit.diagnosis;
        step.record("others", diagnosis.rejected.clone().unwrap_or_else(|| diagnosis.in_short()));
    }
}

/// The best of the nodes that fit, with their scores.
pub fn scores(chosen: &Chosen, cluster: &Cluster) -> String {
    let best = chosen.scores.iter().map(|(index, points)| format!("{} {points}", cluster.node(*index).name()));
    let best: Vec<String> = best.collect();
    if best.is_empty() { String::new() } else { format!("points: {}", best.join(", ")) }
}
