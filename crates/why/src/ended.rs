//! Pods that failed for good.

use knarr_api::value::Read;
use serde_json::Value;

use crate::Finding;
use crate::crashing;
use crate::evidence::Evidence;

pub fn explain(evidence: &Evidence, pod: &Value) -> Vec<Finding> {
    let (reason, message) = (pod.text(&["status", "reason"]), pod.text(&["status", "message"]));
    let told = vec![format!("status: {reason}: {message}")];
    let (cause, fix) = match reason {
        "Evicted" => (
            "its node ended it to save itself",
            "free what the message names on the node; set requests so that the pod is ended later than others",
        ),
        "DeadlineExceeded" => {
            ("it ran longer than activeDeadlineSeconds allows", "raise activeDeadlineSeconds, or make it faster")
        }
        "NodeAffinity" => {
            ("the node's labels no longer fit what the pod asks for", "change the node's labels or the pod's affinity")
        }
        "OutOfcpu" | "OutOfmemory" | "OutOfpods" | "OutOfephemeral-storage" => (
            "its node had no room for it any more when it came",
            "whatever made it makes another; if this happens again, ask for less",
        ),
        "NodeShutdown" | "Terminated" => ("its node was shut down", "whatever made it makes another elsewhere"),
        "Preempting" | "Preempted" => {
            ("a more important pod took its place", "give it a priority class of its own, or add a node")
        }
        "UnexpectedAdmissionError" | "AppArmor" | "SysctlForbidden" | "Forbidden" => {
            ("its node refused it", "mend what the message names")
        }
        _ => return crashing::explain(evidence, pod),
    };
    vec![Finding::new(cause, told, fix)]
}
