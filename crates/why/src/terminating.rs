//! Pods that are to go and are still there.

use jiff::{SignedDuration, Timestamp};
use knarr_api::value::Read;
use serde_json::Value;

use crate::evidence::Evidence;
use crate::{Finding, claims};

/// Why an object that is no pod is still there.
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
            let told = match users.as_slice() {
                [] => "no pod uses it any more".to_owned(),
                users => format!("it is used by {}", users.join(", ")),
            };
            Finding::new("it goes when no pod uses it any more", vec![told], "delete the pods that use it")
        }
        ["kubernetes.io/pv-protection"] => {
            let claim = object.at(&["spec", "claimRef"]);
            let told = format!("it is bound to the claim {}/{}", claim.text(&["namespace"]), claim.text(&["name"]));
            Finding::new("it goes when its claim has gone", vec![told], "delete the claim")
        }
        ["foregroundDeletion"] => Finding::new(
            "it goes when what it made has gone",
            vec!["metadata.finalizers holds foregroundDeletion".to_owned()],
            "see what is left of it, such as its pods: `knarr why` tells of each",
        ),
        [] => Finding::new("it is about to go", vec!["no finalizer holds it".to_owned()], "look again"),
        held => kept(held),
    };
    vec![finding]
}

fn of_namespace(namespace: &Value) -> Finding {
    const TELLING: [&str; 5] = [
        "NamespaceFinalizersRemaining",
        "NamespaceContentRemaining",
        "NamespaceDeletionContentFailure",
        "NamespaceDeletionDiscoveryFailure",
        "NamespaceDeletionGroupVersionParsingFailure",
    ];
    let conditions = TELLING.iter().filter_map(|kind| crate::condition(namespace, kind));
    let told: Vec<String> = conditions
        .filter(|condition| condition.text(&["status"]) == "True")
        .map(|condition| condition.text(&["message"]).to_owned())
        .collect();
    let says = |word: &str| told.iter().any(|line| line.contains(word));
    if says("finalizers") {
        return Finding::new(
            "something in it is kept by a finalizer",
            told,
            "see that the controllers that set these finalizers run; they take them away when their work is done",
        );
    }
    if says("Discovery failed") {
        return Finding::new(
            "not all kinds of the cluster can be listed, so nobody knows whether it is empty",
            told,
            "see `kubectl get apiservices`: one that is not available must be mended or deleted",
        );
    }
    if told.is_empty() {
        let finalizers =
            namespace.items(&["spec", "finalizers"]).iter().chain(namespace.items(&["metadata", "finalizers"]));
        let held: Vec<&str> = finalizers.filter_map(Value::as_str).collect();
        return match held.as_slice() {
            ["kubernetes"] | [] => Finding::new(
                "it is being emptied",
                vec!["status.conditions name nothing that is left".to_owned()],
                "wait a moment, and look again",
            ),
            held => kept(held),
        };
    }
    Finding::new(
        "not everything in it has gone yet",
        told,
        "wait; pods have their grace period. `knarr why` tells of each that stays",
    )
}

fn kept(finalizers: &[&str]) -> Finding {
    Finding::new(
        format!("it is kept by the finalizer {}", finalizers.join(", ")),
        vec![format!("metadata.finalizers holds {}", finalizers.join(", "))],
        "the controller that set the finalizer takes it away when its work is done; see that it runs. Removing it by hand skips that work",
    )
}

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
    (!finalizers.is_empty() && (ended || pod.integer(&["metadata", "deletionGracePeriodSeconds"]) == Some(0)))
        .then(|| kept(&finalizers))
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
