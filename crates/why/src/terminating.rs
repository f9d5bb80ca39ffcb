//! Pods that are to go and are still there.

use jiff::{SignedDuration, Timestamp};
use knarr_api::value::Read;
use serde_json::Value;

use crate::Finding;
use crate::evidence::Evidence;

pub fn explain(evidence: &Evidence, pod: &Value) -> Vec<Finding> {
    let finding = by_finalizer(pod)
        .or_else(|| by_node(evidence, pod))
        .or_else(|| by_grace(evidence, pod))
        .unwrap_or_else(|| overdue(pod));
    vec![finding]
}

fn by_finalizer(pod: &Value) -> Option<Finding> {
    let finalizers: Vec<&str> = pod.items(&["metadata", "finalizers"]).iter().filter_map(Value::as_str).collect();
    let ended =
        pod.text(&["spec", "nodeName"]).is_empty() || matches!(pod.text(&["status", "phase"]), "Succeeded" | "Failed");
    (!finalizers.is_empty() && (ended || pod.integer(&["metadata", "deletionGracePeriodSeconds"]) == Some(0))).then(|| {
        Finding::new(
            format!("it is kept by the finalizer {}", finalizers.join(", ")),
            vec![format!("metadata.finalizers holds {}", finalizers.join(", "))],
            "the controller that set the finalizer takes it away when its work is done; see that it runs. Removing it by hand skips that work",
        )
    })
}

fn by_node(evidence: &Evidence, pod: &Value) -> Option<Finding> {
    let name = pod.text(&["spec", "nodeName"]);
    if name.is_empty() || !evidence.lists.contains_key("nodes") {
        return None;
    }
    let told = match evidence.find("nodes", "", name) {
        None => format!("no Node {name}"),
        Some(node) => {
            let ready = crate::condition(node, "Ready")?;
            if ready.text(&["status"]) == "True" {
                return None;
            }
            format!("node {name} is not ready: {}", ready.text(&["message"]))
        }
    };
    Some(Finding::new(
        format!("its node {name} does not answer, so nobody can say that it has ended"),
        vec![told],
        format!(
            "bring {name} back; if it never comes back, `kubectl delete pod {} --force`",
            pod.text(&["metadata", "name"])
        ),
    ))
}

fn by_grace(evidence: &Evidence, pod: &Value) -> Option<Finding> {
    let until: Timestamp = pod.text(&["metadata", "deletionTimestamp"]).parse().ok()?;
    let left = until.duration_since(evidence.now);
    if left <= SignedDuration::ZERO {
        return None;
    }
    let grace = pod.integer(&["metadata", "deletionGracePeriodSeconds"]).unwrap_or_default();
    let hook = pod.items(&["spec", "containers"]).iter().find(|container| container.has(&["lifecycle", "preStop"]));
    let mut told = vec![format!("it has {grace} s to end, {} s of them are left", left.as_secs())];
    told.extend(hook.map(|container| format!("container {} has a preStop hook", container.text(&["name"]))));
    Some(Finding::new(
        "it is still within its grace period",
        told,
        "wait; a program that ends on SIGTERM ends sooner, and terminationGracePeriodSeconds says how long it may take",
    ))
}

fn overdue(pod: &Value) -> Finding {
    let running: Vec<&str> = pod
        .items(&["status", "containerStatuses"])
        .iter()
        .filter(|status| status.has(&["state", "running"]))
        .map(|status| status.text(&["name"]))
        .collect();
    let told = if running.is_empty() {
        "its grace period is over, and no container runs".to_owned()
    } else {
        format!("its grace period is over, and {} still runs", running.join(", "))
    };
    Finding::new(
        "its node has not finished ending it",
        vec![told],
        "see the node's log: a volume that cannot be taken down, or a runtime that does not answer, keeps it",
    )
}
