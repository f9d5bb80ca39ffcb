//! Pods that run but are not ready: failing probes and closed readiness gates.

use knarr_api::value::{Read, condition, has_condition};
use serde_json::Value;

use crate::Finding;
use crate::evidence::{Evidence, quote};
use crate::starting::statuses;

/// Diagnoses a running pod that is not ready.
pub fn explain(evidence: &Evidence, pod: &Value) -> Vec<Finding> {
    if has_condition(pod, "Ready") {
        return Vec::new();
    }
    let mut findings: Vec<Finding> =
        statuses(pod).filter_map(|(container, status)| probe(evidence, pod, container, status)).collect();
    if findings.is_empty() {
        findings.extend(gate(pod));
    }
    findings
}

fn probe(evidence: &Evidence, pod: &Value, container: &Value, status: &Value) -> Option<Finding> {
    if status.flag(&["ready"]) != Some(false) || !status.has(&["state", "running"]) {
        return None;
    }
    let name = container.text(&["name"]);
    let started = status.flag(&["started"]) != Some(false);
    let kind = if started { "readiness" } else { "startup" };
    let probe = container.at(&[if started { "readinessProbe" } else { "startupProbe" }]);
    if probe.is_null() {
        return None;
    }
    let event = evidence
        .events(pod, &["Unhealthy"])
        .into_iter()
        .rev()
        .find(|event| event.text(&["message"]).to_lowercase().starts_with(kind));
    let mut observed = vec![format!("container {name} runs and is not ready; its probe is {}", method(probe))];
    observed.extend(event.map(quote));
    let (cause, fix) = match event {
        Some(event) if event.text(&["message"]).contains("connection refused") => (
            format!("nothing in {name} listens where its {kind} probe connects"),
            "check the probe's port, and that the program listens on all addresses and not on 127.0.0.1 only",
        ),
        Some(event) if event.text(&["message"]).contains("statuscode") => (
            format!("{name} responds to its {kind} probe with an error"),
            "check the probe's path and the program's log",
        ),
        Some(event)
            if event.text(&["message"]).contains("deadline exceeded")
                || event.text(&["message"]).contains("timed out") =>
        {
            (
                format!("{name} responds to its {kind} probe too late"),
                "raise timeoutSeconds, or find out why the program is slow",
            )
        }
        Some(_) => (format!("the {kind} probe of {name} fails"), "see the probe's output above"),
        None => (
            format!("the {kind} probe of {name} has not passed yet"),
            "wait; initialDelaySeconds, periodSeconds and successThreshold decide how long it takes",
        ),
    };
    Some(Finding::new(cause, observed, fix))
}

fn method(probe: &Value) -> String {
    let port =
        |at: &Value| at.as_i64().map_or_else(|| at.as_str().unwrap_or_default().to_owned(), |port| port.to_string());
    if probe.has(&["httpGet"]) {
        return format!("HTTP at port {}{}", port(probe.at(&["httpGet", "port"])), probe.text(&["httpGet", "path"]));
    }
    if probe.has(&["tcpSocket"]) {
        return format!("a connection to port {}", port(probe.at(&["tcpSocket", "port"])));
    }
    if probe.has(&["grpc"]) {
        return format!("gRPC at port {}", port(probe.at(&["grpc", "port"])));
    }
    let command: Vec<&str> = probe.items(&["exec", "command"]).iter().filter_map(Value::as_str).collect();
    format!("the command {}", command.join(" "))
}

fn gate(pod: &Value) -> Option<Finding> {
    let gates = pod.items(&["spec", "readinessGates"]).iter().map(|gate| gate.text(&["conditionType"]));
    let closed = gates
        .into_iter()
        .find(|kind| condition(pod, kind).is_none_or(|condition| condition.text(&["status"]) != "True"))?;
    Some(Finding::new(
        format!("its readiness gate {closed} is not met"),
        vec![format!("spec.readinessGates requires the condition {closed}, which is not True")],
        "check that the controller that sets this condition runs",
    ))
}
