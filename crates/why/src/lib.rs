//! Why an object is not as it should be, in plain words.
//!
//! In: [`Evidence`], the objects an expert would look at, as the API shows them. Out: [`Finding`]s, the most telling
//! first, each with its cause, what proves it, and what to do. Nothing here asks anybody anything.

mod claims;
mod crashing;
mod ended;
mod evidence;
mod ingresses;
mod machines;
mod nearest;
mod nodes;
mod owners;
mod pending;
mod readiness;
mod services;
mod starting;
mod terminating;
mod traffic;

pub use evidence::Evidence;
pub use nearest::nearest;

use knarr_api::value::Read;
use serde::Serialize;
use serde_json::Value;

/// One cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub cause: String,
    /// What was seen that says so.
    pub evidence: Vec<String>,
    pub fix: String,
}

impl Finding {
    fn new(cause: impl Into<String>, evidence: Vec<String>, fix: impl Into<String>) -> Finding {
        Finding { cause: cause.into(), evidence, fix: fix.into() }
    }
}

/// Why the object the evidence is about is not as it should be. Nothing is found where nothing is wrong.
pub fn explain(evidence: &Evidence) -> Vec<Finding> {
    let object = &evidence.object;
    match evidence.kind() {
        "Pod" => pod(evidence, object),
        _ if object.has(&["metadata", "deletionTimestamp"]) => terminating::of_any(evidence),
        "Service" => services::explain(evidence),
        "PersistentVolumeClaim" => claims::of_claim(evidence),
        "Node" => machines::explain(evidence),
        "Ingress" => ingresses::explain(evidence),
        _ => owners::explain(evidence),
    }
}

/// The containers that ended, whose last words may tell why: namespace, pod and container, and whether it runs again.
pub fn worth_reading(evidence: &Evidence) -> Vec<(String, String, String, bool)> {
    let pods = match evidence.kind() {
        "Pod" => vec![&evidence.object],
        _ => owners::pods(evidence),
    };
    pods.into_iter().flat_map(crashing::ended).collect()
}

/// Why a pod is as it is. The first state that applies is the one that matters.
fn pod(evidence: &Evidence, pod: &Value) -> Vec<Finding> {
    if pod.has(&["metadata", "deletionTimestamp"]) {
        return terminating::explain(evidence, pod);
    }
    match pod.text(&["status", "phase"]) {
        "Failed" => return ended::explain(evidence, pod),
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
    if findings.is_empty() && is_ready(pod) {
        findings = traffic::explain(evidence, pod);
    }
    findings
}

fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready").is_some_and(|condition| condition.text(&["status"]) == "True")
}

fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object.items(&["status", "conditions"]).iter().find(|condition| condition.text(&["type"]) == kind)
}

/// The name of the object whose name is most like the given one, if one is.
fn near_name<'a>(name: &str, objects: impl Iterator<Item = &'a Value>) -> Option<&'a str> {
    nearest(name, objects.map(|object| object.text(&["metadata", "name"])))
}

/// `default/web`.
fn full_name(object: &Value) -> String {
    format!("{}/{}", object.text(&["metadata", "namespace"]), object.text(&["metadata", "name"]))
}
