//! Objects that are being deleted and still exist.

use jiff::{SignedDuration, Timestamp};
use knarr_api::value::{Read, condition};
use serde_json::Value;

use crate::evidence::Evidence;
use crate::{Finding, claims};

/// Why an object other than a pod still exists.
pub fn of_any(evidence: &Evidence) -> Vec<Finding> {
    let object = &evidence.object;
    if object.text(&["kind"]) == "Namespace" {
        return vec![of_namespace(object)];
    }
    let finalizers: Vec<&str> = object.items(&["metadata", "finalizers"]).iter().filter_map(Value::as_str).collect();
    let (namespace, name) = (object.text(&["metadata", "namespace"]), object.text(&["metadata", "name"]));
    let finding = match finalizers.as_slice() {
        ["kubernetes.io/pvc-protection"] => {
            let users = claims::users(evidence, namespace, name);
            let observed = match users.as_slice() {
                [] => "no pod uses it any more".to_owned(),
                users => format!("it is used by {}", users.join(", ")),
            };
            Finding::new(
                "it is deleted when no pod uses it any more",
                vec![observed],
                "if these pods are not needed, delete them",
            )
        }
        ["kubernetes.io/pv-protection"] => {
            let claim = object.at(&["spec", "claimRef"]);
            let observed = format!("it is bound to the claim {}/{}", claim.text(&["namespace"]), claim.text(&["name"]));
            Finding::new(
                "it is deleted when its claim is deleted",
                vec![observed],
                "delete the claim if its data is no longer needed",
            )
        }
        ["foregroundDeletion"] => Finding::new(
            "it is deleted when its dependents are deleted",
            vec!["metadata.finalizers has foregroundDeletion".to_owned()],
            "see which dependents are left, such as its pods; `knarr why` explains each",
        ),
        [] => Finding::new("it is about to be deleted", vec!["it has no finalizers".to_owned()], "check again"),
        remaining => has_finalizers(remaining),
    };
    vec![finding]
}

fn of_namespace(namespace: &Value) -> Finding {
    const CONDITIONS: [&str; 5] = [
        "NamespaceFinalizersRemaining",
        "NamespaceContentRemaining",
        "NamespaceDeletionContentFailure",
        "NamespaceDeletionDiscoveryFailure",
        "NamespaceDeletionGroupVersionParsingFailure",
    ];
    let conditions = CONDITIONS.iter().filter_map(|kind| condition(namespace, kind));
    let observed: Vec<String> = conditions
        .filter(|condition| condition.text(&["status"]) == "True")
        .map(|condition| condition.text(&["message"]).to_owned())
        .collect();
    let mentions = |text: &str| observed.iter().any(|line| line.contains(text));
    if mentions("finalizers") {
        return Finding::new(
            "an object in it has a finalizer",
            observed,
            "check that the controllers that set these finalizers run; they remove them when their work is done",
        );
    }
    if mentions("Discovery failed") {
        return Finding::new(
            "not all kinds of the cluster can be listed, so it is unknown whether it is empty",
            observed,
            "see `kubectl get apiservices` and fix the one that is not available; delete it only if its API is no longer needed",
        );
    }
    if observed.is_empty() {
        let finalizers =
            namespace.items(&["spec", "finalizers"]).iter().chain(namespace.items(&["metadata", "finalizers"]));
        let remaining: Vec<&str> = finalizers.filter_map(Value::as_str).collect();
        return match remaining.as_slice() {
            ["kubernetes"] | [] => Finding::new(
                "its contents are being deleted",
                vec!["status.conditions list nothing that is left".to_owned()],
                "wait a moment, and check again",
            ),
            remaining => has_finalizers(remaining),
        };
    }
    Finding::new(
        "not all of its contents are deleted yet",
        observed,
        "wait; pods have a grace period. `knarr why` explains each object that stays",
    )
}

fn has_finalizers(finalizers: &[&str]) -> Finding {
    Finding::new(
        format!("it waits for the finalizer {}", finalizers.join(", ")),
        vec![format!("metadata.finalizers has {}", finalizers.join(", "))],
        "the controller that set the finalizer removes it when its work is done; check that it runs. Removing it by hand skips that work",
    )
}

/// Diagnoses a pod that is being deleted.
pub fn explain(evidence: &Evidence, pod: &Value) -> Vec<Finding> {
    let finding = by_finalizer(pod)
        .or_else(|| by_node(evidence, pod))
        .or_else(|| by_grace(evidence, pod))
        .unwrap_or_else(|| overdue(pod));
    vec![finding]
}

fn by_finalizer(pod: &Value) -> Option<Finding> {
    let finalizers: Vec<&str> = pod.items(&["metadata", "finalizers"]).iter().filter_map(Value::as_str).collect();
    let terminated =
        pod.text(&["spec", "nodeName"]).is_empty() || matches!(pod.text(&["status", "phase"]), "Succeeded" | "Failed");
    (!finalizers.is_empty() && (terminated || pod.integer(&["metadata", "deletionGracePeriodSeconds"]) == Some(0)))
        .then(|| has_finalizers(&finalizers))
}

fn by_node(evidence: &Evidence, pod: &Value) -> Option<Finding> {
    let name = pod.text(&["spec", "nodeName"]);
    if name.is_empty() || !evidence.lists.contains_key("nodes") {
        return None;
    }
    let observed = match evidence.find("nodes", "", name) {
        None => format!("no Node {name}"),
        Some(node) => {
            let ready = condition(node, "Ready")?;
            if ready.text(&["status"]) == "True" {
                return None;
            }
            format!("node {name} is not ready: {}", ready.text(&["message"]))
        }
    };
    Some(Finding::new(
        format!("its node {name} does not respond, so it is unknown whether it still runs"),
        vec![observed],
        format!(
            "bring {name} back. Only if it is shut down for good: `kubectl delete pod -n {} {} --force`; otherwise the pod may still run there",
            pod.text(&["metadata", "namespace"]),
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
    let mut observed = vec![format!("its grace period is {grace} s, {} s are left", left.as_secs())];
    observed.extend(hook.map(|container| format!("container {} has a preStop hook", container.text(&["name"]))));
    Some(Finding::new(
        "it is still within its grace period",
        observed,
        "wait; a program that exits on SIGTERM is gone sooner, and terminationGracePeriodSeconds is the maximum",
    ))
}

fn overdue(pod: &Value) -> Finding {
    let running: Vec<&str> = pod
        .items(&["status", "containerStatuses"])
        .iter()
        .filter(|status| status.has(&["state", "running"]))
        .map(|status| status.text(&["name"]))
        .collect();
    let observed = if running.is_empty() {
        "its grace period is over, and no container runs".to_owned()
    } else {
        format!("its grace period is over, and {} still runs", running.join(", "))
    };
    Finding::new(
        "its node has not finished stopping it",
        vec![observed],
        "see the node's log: probably a volume cannot be unmounted, or the runtime does not respond",
    )
}
