//! Pods in phase Failed.

use knarr_api::value::Read;
use serde_json::Value;

use crate::Finding;
use crate::crashing;
use crate::evidence::Evidence;

/// Diagnoses a failed pod.
pub fn explain(evidence: &Evidence, pod: &Value) -> Vec<Finding> {
    let (reason, message) = (pod.text(&["status", "reason"]), pod.text(&["status", "message"]));
    let observed = vec![format!("status: {reason}: {message}")];
    let (cause, fix) = match reason {
        "Evicted" => (
            "its node evicted it because it ran out of resources",
            "free the resource that the message names on the node; set requests so that the pod is evicted later than others",
        ),
        "DeadlineExceeded" => (
            "it ran longer than activeDeadlineSeconds allows",
            "raise activeDeadlineSeconds, or make the program faster",
        ),
        "NodeAffinity" => (
            "the node's labels no longer match the pod's node affinity",
            "restore the node's label if it was removed by mistake, or change the pod's affinity",
        ),
        "OutOfcpu" | "OutOfmemory" | "OutOfpods" | "OutOfephemeral-storage" => (
            "its node had no resources left when it arrived",
            "its controller creates a replacement; if this happens again, lower its requests",
        ),
        "NodeShutdown" | "Terminated" => {
            ("its node was shut down", "its controller creates a replacement on another node")
        }
        "Preempting" | "Preempted" => {
            ("a pod of higher priority preempted it", "give it a higher priority class, or add a node")
        }
        "UnexpectedAdmissionError" | "AppArmor" | "SysctlForbidden" | "Forbidden" => {
            ("its node refused it", "fix what the message names")
        }
        _ => return crashing::explain(evidence, pod),
    };
    vec![Finding::new(cause, observed, fix)]
}
