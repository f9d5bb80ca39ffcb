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

/// Many objects are diagnosed at once, and tenants write the text of most: a diagnosis is short whatever they say.
const MAX_TEXT_BYTES: usize = 1024;
const MAX_LINES: usize = 12;
const MAX_FINDINGS: usize = 20;

impl Finding {
    fn new(cause: impl Into<String>, mut evidence: Vec<String>, fix: impl Into<String>) -> Finding {
        let more = evidence.len().saturating_sub(MAX_LINES);
        evidence.truncate(MAX_LINES);
        let more = (more > 0).then(|| format!("and {more} more"));
        let evidence = evidence.into_iter().map(shortened).chain(more).collect();
        Finding { cause: shortened(cause.into()), evidence, fix: shortened(fix.into()) }
    }
}

fn shortened(mut text: String) -> String {
    if text.len() > MAX_TEXT_BYTES {
        text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
        text.push('…');
        text.shrink_to_fit();
    }
    text
}

/// Diagnoses the evidence's object. Returns no findings for a healthy object.
pub fn explain(evidence: &Evidence) -> Vec<Finding> {
    let object = &evidence.object;
    let mut findings = match evidence.kind() {
        "Pod" => pod(evidence, object),
        _ if object.has(&["metadata", "deletionTimestamp"]) => terminating::of_any(evidence),
        "Service" => services::explain(evidence, object),
        "PersistentVolumeClaim" => claims::of_claim(evidence),
        "Node" => node_status::explain(evidence),
        "Ingress" => ingresses::explain(evidence),
        _ => owners::explain(evidence),
    };
    findings.truncate(MAX_FINDINGS);
    findings
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn diagnosed(object: Value, lists: BTreeMap<String, Vec<Value>>) -> Vec<Finding> {
        let (incomplete, logs) = Default::default();
        explain(&Evidence { object, now: jiff::Timestamp::UNIX_EPOCH, lists, incomplete, logs })
    }

    #[test]
    fn a_pod_s_terms_are_not_repeated_for_each_node() {
        let value = "v".repeat(1000);
        let terms: Vec<Value> = (0..1000)
            .map(|_| json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": [value]}]}))
            .collect();
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        let pod = json!({"kind": "Pod", "metadata": {"name": "p", "namespace": "n"},
            "spec": {"affinity": {"nodeAffinity": {required: {"nodeSelectorTerms": terms}}}}});
        let nodes = (0..50).map(|number| json!({"metadata": {"name": format!("node-{number}")}})).collect();
        let findings = diagnosed(pod, BTreeMap::from([("nodes".to_owned(), nodes)]));
        assert_eq!(findings.len(), 1);
        let bytes: usize = findings[0].evidence.iter().map(String::len).sum();
        assert!(findings[0].evidence.len() == 11 && bytes < 16 << 10, "{bytes}");
    }

    /// Comparing all of their names would take minutes.
    #[test]
    fn thousands_of_similar_names_do_not_hold_up_a_diagnosis() {
        let name = |number: usize| format!("{}{number:04}", "claim-".repeat(12));
        let volumes: Vec<Value> =
            (0..1000).map(|number| json!({"persistentVolumeClaim": {"claimName": name(number)}})).collect();
        let pod = json!({"kind": "Pod", "metadata": {"name": "p", "namespace": "n"}, "spec": {"volumes": volumes}});
        let claims = (5000..7000).map(|number| json!({"metadata": {"name": name(number), "namespace": "n"}})).collect();
        let findings = diagnosed(pod, BTreeMap::from([("persistentvolumeclaims".to_owned(), claims)]));
        assert_eq!(findings.len(), MAX_FINDINGS);
    }

    #[test]
    fn what_is_wrong_with_a_service_is_found_without_a_copy_of_the_cluster() {
        let paths: Vec<Value> =
            (0..1000).map(|_| json!({"backend": {"service": {"name": "s", "port": {"number": 80}}}})).collect();
        let ingress = json!({"kind": "Ingress", "metadata": {"name": "i", "namespace": "n"},
            "spec": {"ingressClassName": "c", "rules": [{"http": {"paths": paths}}]}});
        let service = json!({"metadata": {"name": "s", "namespace": "n"},
            "spec": {"selector": {"app": "a"}, "ports": [{"port": 80}]}});
        let pods: Vec<Value> = (0..5000)
            .map(|number| json!({"metadata": {"name": format!("p{number}"), "namespace": "n", "labels": {"app": "b"}}}))
            .collect();
        let lists = BTreeMap::from([
            ("ingressclasses".to_owned(), vec![json!({"metadata": {"name": "c"}})]),
            ("services".to_owned(), vec![service]),
            ("pods".to_owned(), pods),
        ]);
        let findings = diagnosed(ingress, lists);
        assert_eq!(findings.len(), 1, "equal findings are one");
        assert!(findings[0].cause.contains("its selector matches no pod"), "{findings:?}");
    }
}
