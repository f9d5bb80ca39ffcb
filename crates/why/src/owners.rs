//! Workloads that own pods, such as Deployments and Jobs: why they create none, or why their pods are unhealthy.

use knarr_api::selector::LabelSelector;
use knarr_api::value::{Read, has_condition};
use serde_json::Value;

use crate::Finding;
use crate::evidence::{Evidence, quote};

/// How many pods are examined. Replicas have the same problems.
const MAX_PODS: usize = 50;

/// Diagnoses a workload.
pub fn explain(evidence: &Evidence) -> Vec<Finding> {
    let object = &evidence.object;
    if let Some(finding) = paused(object) {
        return vec![finding];
    }
    let mut findings: Vec<Finding> =
        creators(evidence).into_iter().filter_map(|creator| creation_failed(evidence, creator)).collect();
    if findings.is_empty() {
        let (ready, unready): (Vec<&Value>, Vec<&Value>) =
            pods(evidence).into_iter().partition(|pod| has_condition(pod, "Ready"));
        let examined = unready.into_iter().chain(ready).take(MAX_PODS);
        findings = examined.flat_map(|pod| crate::pod(evidence, pod)).collect();
        // Replicas have the same problems: each is reported once.
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

/// Whether its own spec keeps it from creating pods.
fn paused(object: &Value) -> Option<Finding> {
    let (namespace, name) = (object.text(&["metadata", "namespace"]), object.text(&["metadata", "name"]));
    let kind = object.text(&["kind"]);
    let scaled = matches!(kind, "Deployment" | "ReplicaSet" | "StatefulSet" | "ReplicationController");
    if scaled && object.integer(&["spec", "replicas"]) == Some(0) {
        return Some(Finding::new(
            "it is scaled to zero",
            vec!["spec.replicas is 0".to_owned()],
            format!("if it should run: `kubectl scale -n {namespace} {}/{name} --replicas=1`", kind.to_lowercase()),
        ));
    }
    if kind == "Deployment" && object.flag(&["spec", "paused"]) == Some(true) {
        return Some(Finding::new(
            "it is paused: changes to its template are not rolled out",
            vec!["spec.paused is true".to_owned()],
            format!("when all changes are in: `kubectl rollout resume -n {namespace} deployment/{name}`"),
        ));
    }
    let suspended = matches!(kind, "Job" | "CronJob") && object.flag(&["spec", "suspend"]) == Some(true);
    suspended.then(|| {
        Finding::new(
            "it is suspended",
            vec!["spec.suspend is true".to_owned()],
            "if it should run, set spec.suspend to false",
        )
    })
}

/// The object, and the ReplicaSets and Jobs through which it creates pods.
fn creators(evidence: &Evidence) -> Vec<&Value> {
    let uid = evidence.object.text(&["metadata", "uid"]);
    let owned = |object: &&Value| {
        object.items(&["metadata", "ownerReferences"]).iter().any(|owner| owner.text(&["uid"]) == uid)
    };
    let owned_creators = evidence.all("replicasets").iter().chain(evidence.all("jobs")).filter(owned);
    std::iter::once(&evidence.object).chain(owned_creators).collect()
}

/// Why the API server refused its pods.
fn creation_failed(evidence: &Evidence, creator: &Value) -> Option<Finding> {
    let event = evidence.event(creator, &["FailedCreate"])?;
    let message = event.text(&["message"]);
    let observed = vec![quote(event)];
    let (cause, fix) = if message.contains("exceeded quota") {
        (
            "a quota of its namespace is used up",
            "raise the ResourceQuota, or lower the requests; `kubectl describe quota` shows the usage",
        )
    } else if message.contains("failed quota") || message.contains("must specify") {
        (
            "a quota of its namespace requires every pod to set its resources",
            "set resources.requests and limits in the pod template, or create a LimitRange with defaults",
        )
    } else if message.contains("violates PodSecurity") {
        (
            "its pods require more privileges than their namespace allows",
            "fix what the message names in the template's securityContext; relax the namespace's pod-security label only if its pods need these privileges",
        )
    } else if message.contains("serviceaccount") && message.contains("not found") {
        (
            "its pods use a service account that does not exist",
            "create the service account, or fix spec.template.spec.serviceAccountName",
        )
    } else if message.contains("maximum") || message.contains("minimum") || message.contains("limit range") {
        (
            "the LimitRange of their namespace does not allow its pods' resources",
            "keep resources within the LimitRange: `kubectl describe limitrange`",
        )
    } else if message.contains("no PriorityClass") {
        ("its pods name a priority class that does not exist", "create the PriorityClass, or fix priorityClassName")
    } else if message.contains("admission webhook") {
        (
            "an admission webhook refuses its pods",
            "fix what the webhook's message names; if the webhook itself fails, see its Service",
        )
    } else if message.contains("RuntimeClass") {
        ("its pods name a runtime class that does not exist", "create the RuntimeClass, or fix runtimeClassName")
    } else {
        ("its pods cannot be created", "fix what the message names")
    };
    Some(Finding::new(cause, observed, fix))
}

/// The pods that an object's selector matches.
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

/// What its own conditions report.
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
            "see the logs of its pods and fix the cause; then delete the job and create it with the fix",
        ),
        "DeadlineExceeded" => (
            "it ran longer than activeDeadlineSeconds allows",
            "raise activeDeadlineSeconds, or make the program faster",
        ),
        "ProgressDeadlineExceeded" => (
            "its rollout made no progress for longer than progressDeadlineSeconds",
            "see why its newest pods are not ready: `knarr why pod/NAME`",
        ),
        "MinimumReplicasUnavailable" => {
            ("its pods are not all ready yet", "wait, or see `knarr why pod/NAME` of those that are not")
        }
        _ if bad.text(&["status"]) == "False" => ("its status reports a problem", "fix what the message names"),
        _ => ("it failed", "fix what the message names"),
    };
    let observed = format!("condition {}: {}: {}", bad.text(&["type"]), bad.text(&["reason"]), bad.text(&["message"]));
    Some(Finding::new(cause, vec![observed], fix))
}
