//! Pods that are not scheduled to a node yet.

use knarr_api::value::{Read, condition};
use serde_json::Value;

use crate::evidence::Evidence;
use crate::{Finding, claims, node_fit};

/// The scheduler that this cluster runs.
const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// Diagnoses a pod that is not scheduled.
pub fn explain(evidence: &Evidence, pod: &Value) -> Vec<Finding> {
    if let Some(finding) = gated(pod) {
        return vec![finding];
    }
    let mut findings = claims::explain(evidence, pod);
    findings.extend(nominated(pod));
    if findings.is_empty() {
        findings.extend(node_fit::explain(evidence, pod));
    }
    if findings.is_empty() {
        findings.extend(not_scheduled(pod));
    }
    findings
}

fn gated(pod: &Value) -> Option<Finding> {
    let gates = pod.items(&["spec", "schedulingGates"]);
    let names: Vec<&str> = gates.iter().map(|gate| gate.text(&["name"])).collect();
    (!names.is_empty()).then(|| {
        Finding::new(
            format!("it waits for the scheduling gate {}", names.join(", ")),
            vec![format!("spec.schedulingGates has {}", names.join(", "))],
            "the controller that set the gate removes it when the pod may be scheduled; check that it runs. Removing the gate by hand skips its check",
        )
    })
}

fn nominated(pod: &Value) -> Option<Finding> {
    let node = pod.text(&["status", "nominatedNodeName"]);
    (!node.is_empty()).then(|| {
        Finding::new(
            format!("pods of lower priority on {node} are being preempted for it"),
            vec![format!("status.nominatedNodeName is {node}")],
            "wait until they have terminated; this takes up to their grace periods",
        )
    })
}

fn not_scheduled(pod: &Value) -> Option<Finding> {
    let scheduler = pod.text(&["spec", "schedulerName"]);
    let observed = condition(pod, "PodScheduled");
    match observed {
        None if scheduler != DEFAULT_SCHEDULER && !scheduler.is_empty() => Some(Finding::new(
            format!("it requires the scheduler {scheduler}, which has not responded"),
            vec![format!("spec.schedulerName is {scheduler}, and there is no PodScheduled condition")],
            format!(
                "start {scheduler}; or remove schedulerName from the workload's template, and the default scheduler is used"
            ),
        )),
        None => Some(Finding::new(
            "the scheduler has not processed it yet",
            vec!["there is no PodScheduled condition".to_owned()],
            "if this lasts longer than a few seconds, check that the scheduler runs",
        )),
        Some(condition) => Some(Finding::new(
            "it fits no node",
            vec![condition.text(&["message"]).to_owned()],
            "change the pod's requirements, or add a node that meets them",
        )),
    }
}
