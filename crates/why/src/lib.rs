//! Diagnoses why an object is not in its desired state.
//!
//! In: [`Evidence`], the object and the objects around it, as the API returns them. Out: [`Finding`]s, the most relevant
//! first, each with its cause, the evidence for it, and a fix. Pure functions: nothing here sends a request.

mod attachments;
mod claims;
mod crashing;
mod evidence;
mod failed;
mod ingresses;
mod nearest;
mod node_fit;
mod node_status;
mod owners;
mod pending;
mod readiness;
mod services;
mod starting;
pub mod survey;
mod terminating;
mod traffic;

pub use evidence::Evidence;
pub use nearest::nearest;

use knarr_api::value::{Read, has_condition};
use serde::Serialize;
use serde_json::Value;

/// One cause of a problem, with a fix that is safe to follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What is wrong.
    pub cause: String,
    /// The observations that prove it.
    pub evidence: Vec<String>,
    /// What to do about it.
    pub fix: String,
}

impl Finding {
    fn new(cause: impl Into<String>, evidence: Vec<String>, fix: impl Into<String>) -> Finding {
        Finding { cause: cause.into(), evidence, fix: fix.into() }
    }
}

/// Diagnoses the evidence's object. Returns no findings for a healthy object.
pub fn explain(evidence: &Evidence) -> Vec<Finding> {
    let object = &evidence.object;
    match evidence.kind() {
        "Pod" => pod(evidence, object),
        _ if object.has(&["metadata", "deletionTimestamp"]) => terminating::of_any(evidence),
        "Service" => services::explain(evidence),
        "PersistentVolumeClaim" => claims::of_claim(evidence),
        "Node" => node_status::explain(evidence),
        "Ingress" => ingresses::explain(evidence),
        _ => owners::explain(evidence),
    }
}

/// The terminated containers whose logs may show the cause: namespace, pod, container, and whether it runs again.
pub fn logs_needed(evidence: &Evidence) -> Vec<(String, String, String, bool)> {
    let pods = match evidence.kind() {
        "Pod" => vec![&evidence.object],
        _ => owners::pods(evidence),
    };
    pods.into_iter().flat_map(crashing::terminated).collect()
}

/// Diagnoses a pod by the first state that applies.
fn pod(evidence: &Evidence, pod: &Value) -> Vec<Finding> {
    if pod.has(&["metadata", "deletionTimestamp"]) {
        return terminating::explain(evidence, pod);
    }
    match pod.text(&["status", "phase"]) {
        "Failed" => return failed::explain(evidence, pod),
        "Succeeded" => return Vec::new(),
        _ => {}
    }
    if pod.text(&["spec", "nodeName"]).is_empty() {
        return pending::explain(evidence, pod);
    }
    let mut findings = starting::explain(evidence, pod);
    findings.extend(crashing::explain(evidence, pod));
    if findings.is_empty() {
        findings = readiness::explain(evidence, pod);
    }
    if findings.is_empty() && has_condition(pod, "Ready") {
        findings = traffic::explain(evidence, pod);
    }
    findings
}

/// The most similar name among the objects, if one is similar enough.
fn near_name<'a>(name: &str, objects: impl Iterator<Item = &'a Value>) -> Option<&'a str> {
    nearest(name, objects.map(|object| object.text(&["metadata", "name"])))
}

/// `default/web`.
fn full_name(object: &Value) -> String {
    format!("{}/{}", object.text(&["metadata", "namespace"]), object.text(&["metadata", "name"]))
}
