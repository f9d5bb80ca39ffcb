//! Pods that have no node yet.

use knarr_api::value::Read;
use serde_json::Value;

use crate::evidence::Evidence;
use crate::{Finding, claims, condition, nodes};

/// Schedulers that do not answer have other names than ours.
const DEFAULT_SCHEDULER: &str = "default-scheduler";

pub fn explain(evidence: &Evidence, pod: &Value) -> Vec<Finding> {
    if let Some(finding) = gated(pod) {
        return vec![finding];
    }
    let mut findings = claims::explain(evidence, pod);
    findings.extend(nominated(pod));
    if findings.is_empty() {
        findings.extend(nodes::explain(evidence, pod));
    }
    if findings.is_empty() {
        findings.extend(no_answer(pod));
    }
    findings
}

fn gated(pod: &Value) -> Option<Finding> {
    let gates = pod.items(&["spec", "schedulingGates"]);
    let names: Vec<&str> = gates.iter().map(|gate| gate.text(&["name"])).collect();
    (!names.is_empty()).then(|| {
        Finding::new(
            format!("it is held back by the scheduling gate {}", names.join(", ")),
            vec![format!("spec.schedulingGates holds {}", names.join(", "))],
            "whoever set the gate takes it away when the pod may go on; to let it go now, remove it from spec.schedulingGates",
        )
    })
}

fn nominated(pod: &Value) -> Option<Finding> {
    let node = pod.text(&["status", "nominatedNodeName"]);
    (!node.is_empty()).then(|| {
        Finding::new(
            format!("less important pods on {node} are being ended to make room for it"),
            vec![format!("status.nominatedNodeName is {node}")],
            "wait until they have ended; their grace periods decide how long that takes",
        )
    })
}

fn no_answer(pod: &Value) -> Option<Finding> {
    let scheduler = pod.text(&["spec", "schedulerName"]);
    let told = condition(pod, "PodScheduled");
    match told {
        None if scheduler != DEFAULT_SCHEDULER && !scheduler.is_empty() => Some(Finding::new(
            format!("it asks for the scheduler {scheduler}, which has not answered"),
            vec![format!("spec.schedulerName is {scheduler}, and no PodScheduled condition was written")],
            format!("start {scheduler}, or make the pod again without spec.schedulerName"),
        )),
        None => Some(Finding::new(
            "the scheduler has not looked at it yet",
            vec!["no PodScheduled condition was written".to_owned()],
            "if this lasts longer than a few seconds, see whether the scheduler runs",
        )),
        Some(condition) => Some(Finding::new(
            "no node takes it",
            vec![condition.text(&["message"]).to_owned()],
            "change what the pod asks for, or add a node that has it",
        )),
    }
}
