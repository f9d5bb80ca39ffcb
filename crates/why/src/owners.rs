//! What makes pods: why it makes none, or why those it made are not as they should be.

use knarr_api::selector::LabelSelector;
use knarr_api::value::Read;
use serde_json::Value;

use crate::Finding;
use crate::evidence::{Evidence, quote};

pub fn explain(evidence: &Evidence) -> Vec<Finding> {
    let object = &evidence.object;
    if let Some(finding) = held(object) {
        return vec![finding];
    }
    let mut findings: Vec<Finding> =
        makers(evidence).into_iter().filter_map(|maker| refused(evidence, maker)).collect();
    if findings.is_empty() {
        let pods = pods(evidence);
        findings = pods.into_iter().flat_map(|pod| crate::pod(evidence, pod)).collect();
        // Replicas suffer from the same causes: each is told once.
        let mut causes = Vec::new();
        findings.retain(|finding| {
            let new = !causes.contains(&finding.cause);
            causes.push(finding.cause.clone());
            new
        });
    }
    if findings.is_empty() {
        findings.extend(failed(object));
    }
    findings
}

/// What keeps it from making pods by its own wish.
fn held(object: &Value) -> Option<Finding> {
    let name = object.text(&["metadata", "name"]);
    let kind = object.text(&["kind"]);
    let scaled = matches!(kind, "Deployment" | "ReplicaSet" | "StatefulSet" | "ReplicationController");
    if scaled && object.integer(&["spec", "replicas"]) == Some(0) {
        return Some(Finding::new(
            "it is asked to have no pods",
            vec!["spec.replicas is 0".to_owned()],
            format!("`kubectl scale {}/{name} --replicas=1`", kind.to_lowercase()),
        ));
    }
    if kind == "Deployment" && object.flag(&["spec", "paused"]) == Some(true) {
        return Some(Finding::new(
            "it is paused: changes of its template are not rolled out",
            vec!["spec.paused is true".to_owned()],
            format!("`kubectl rollout resume deployment/{name}`"),
        ));
    }
    let suspended = matches!(kind, "Job" | "CronJob") && object.flag(&["spec", "suspend"]) == Some(true);
    suspended
        .then(|| Finding::new("it is suspended", vec!["spec.suspend is true".to_owned()], "set spec.suspend to false"))
}

/// The object and what it makes pods through.
fn makers(evidence: &Evidence) -> Vec<&Value> {
    let uid = evidence.object.text(&["metadata", "uid"]);
    let owned = |object: &&Value| {
        object.items(&["metadata", "ownerReferences"]).iter().any(|owner| owner.text(&["uid"]) == uid)
    };
    let through = evidence.all("replicasets").iter().chain(evidence.all("jobs")).filter(owned);
    std::iter::once(&evidence.object).chain(through).collect()
}

/// Why pods could not even be made.
fn refused(evidence: &Evidence, maker: &Value) -> Option<Finding> {
    let event = evidence.event(maker, &["FailedCreate"])?;
    let message = event.text(&["message"]);
    let told = vec![quote(event)];
    let (cause, fix) = if message.contains("exceeded quota") {
        (
            "a quota of its namespace is used up",
            "raise the ResourceQuota, or ask for less; `kubectl describe quota` shows what is used",
        )
    } else if message.contains("failed quota") || message.contains("must specify") {
        (
            "a quota of its namespace asks every pod to say what it needs",
            "set resources.requests and limits in the pod template, or make a LimitRange with defaults",
        )
    } else if message.contains("violates PodSecurity") {
        (
            "its pods ask for more rights than their namespace allows",
            "mend what the message names in the template's securityContext, or give the namespace another pod-security label",
        )
    } else if message.contains("serviceaccount") && message.contains("not found") {
        (
            "its pods use a service account that does not exist",
            "make the service account, or mend spec.template.spec.serviceAccountName",
        )
    } else if message.contains("maximum") || message.contains("minimum") || message.contains("limit range") {
        (
            "its pods ask for what the LimitRange of their namespace does not allow",
            "keep resources within the LimitRange: `kubectl describe limitrange`",
        )
    } else if message.contains("no PriorityClass") {
        ("its pods name a priority class that does not exist", "make the PriorityClass, or mend priorityClassName")
    } else if message.contains("admission webhook") {
        (
            "an admission webhook refuses its pods",
            "mend what the webhook names; if the webhook itself fails, see its Service",
        )
    } else if message.contains("RuntimeClass") {
        ("its pods name a runtime class that does not exist", "make the RuntimeClass, or mend runtimeClassName")
    } else {
        ("its pods cannot be made", "mend what the message names")
    };
    Some(Finding::new(cause, told, fix))
}

/// The pods that an object made, or leads to.
pub fn pods(evidence: &Evidence) -> Vec<&Value> {
    let object = &evidence.object;
    let selector = match object.text(&["kind"]) {
        "ReplicationController" | "Service" => {
            let labels = object.fields(&["spec", "selector"]).into_iter().flatten();
            Ok(LabelSelector::from_labels(
                labels.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default())),
            ))
        }
        _ if !object.has(&["spec", "selector"]) => return Vec::new(),
        _ => LabelSelector::from_object(object.at(&["spec", "selector"])),
    };
    let Ok(selector) = selector else { return Vec::new() };
    let within = evidence.within("pods", object.text(&["metadata", "namespace"]));
    within.filter(|pod| selector.matches(pod.fields(&["metadata", "labels"]))).collect()
}

/// What its own conditions say went wrong.
fn failed(object: &Value) -> Option<Finding> {
    let bad = object.items(&["status", "conditions"]).iter().find(|condition| {
        let (kind, status) = (condition.text(&["type"]), condition.text(&["status"]));
        matches!(
            (kind, status),
            ("Failed" | "ReplicaFailure", "True")
                | (
                    "Progressing"
                        | "Ready"
                        | "AbleToScale"
                        | "ScalingActive"
                        | "Established"
                        | "NamesAccepted"
                        | "Available",
                    "False"
                )
        )
    })?;
    let (cause, fix) = match bad.text(&["reason"]) {
        "BackoffLimitExceeded" => (
            "its pods failed more often than backoffLimit allows",
            "see the logs of its pods, mend the cause, and make the job again",
        ),
        "DeadlineExceeded" => {
            ("it ran longer than activeDeadlineSeconds allows", "raise activeDeadlineSeconds, or make it faster")
        }
        "ProgressDeadlineExceeded" => (
            "its rollout made no progress for longer than progressDeadlineSeconds",
            "see why its newest pods are not ready: `knarr why pod/NAME`",
        ),
        _ if bad.text(&["status"]) == "False" => {
            ("it says of itself that it is not as it should be", "mend what the message names")
        }
        _ => ("it failed", "mend what the message names"),
    };
    let told = format!("condition {}: {}: {}", bad.text(&["type"]), bad.text(&["reason"]), bad.text(&["message"]));
    Some(Finding::new(cause, vec![told], fix))
}
