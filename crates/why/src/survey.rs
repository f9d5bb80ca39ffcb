//! Which objects of a cluster are worth a diagnosis: those that are not as they should be, workloads rather than each of
//! their pods.

use std::collections::{BTreeMap, HashSet};

use knarr_api::value::{Read, condition, has_condition};
use serde_json::{Value, json};

/// The examined kinds: plural name, API version, kind, and whether an object needs a diagnosis.
const EXAMINED: &[(&str, &str, &str, fn(&Value) -> bool)] = &[
    ("nodes", "v1", "Node", is_unready_node),
    ("persistentvolumeclaims", "v1", "PersistentVolumeClaim", is_unbound),
    ("deployments", "apps/v1", "Deployment", lacks_replicas),
    ("statefulsets", "apps/v1", "StatefulSet", lacks_replicas),
    ("daemonsets", "apps/v1", "DaemonSet", lacks_daemons),
    ("jobs", "batch/v1", "Job", is_unfinished_job),
    ("pods", "v1", "Pod", is_troubled_pod),
    ("services", "v1", "Service", has_selector),
    ("ingresses", "networking.k8s.io/v1", "Ingress", always),
];

/// The kinds that only a survey lists, with the path that lists them in all namespaces.
pub const WORKLOADS: &[(&str, &str)] = &[
    ("deployments", "/apis/apps/v1/deployments"),
    ("statefulsets", "/apis/apps/v1/statefulsets"),
    ("daemonsets", "/apis/apps/v1/daemonsets"),
    ("ingresses", "/apis/networking.k8s.io/v1/ingresses"),
];

/// The objects to diagnose, at most `limit`, whether there are more, and how many were examined. `namespace` may be empty
/// for all; objects without a namespace are examined only then.
pub fn candidates(lists: &BTreeMap<String, Vec<Value>>, namespace: &str, limit: usize) -> (Vec<Value>, bool, usize) {
    let served = served_services(lists);
    let owners: HashSet<&str> = ["deployments", "statefulsets", "daemonsets", "jobs", "replicasets"]
        .into_iter()
        .flat_map(|plural| lists.get(plural).into_iter().flatten())
        .map(|owner| owner.text(&["metadata", "uid"]))
        .collect();
    let mut found = Vec::new();
    let (mut has_more, mut examined) = (false, 0);
    for (plural, version, kind, is_wrong) in EXAMINED {
        for object in lists.get(*plural).into_iter().flatten() {
            if !namespace.is_empty() && object.text(&["metadata", "namespace"]) != namespace {
                continue;
            }
            examined += 1;
            let reported_by_owner = controller(object).is_some_and(|owner| owners.contains(owner));
            let is_served = *plural == "services" && served.contains(&key(object));
            if reported_by_owner || is_served || !(is_stuck(object) || is_wrong(object)) {
                continue;
            }
            // Thousands may be in trouble at once, and each candidate is a copy.
            if found.len() < limit {
                found.push(typed(object, version, kind));
            } else {
                has_more = true;
            }
        }
    }
    (found, has_more, examined)
}

/// Whether objects of a kind, by its plural name, are examined.
pub fn is_examined(plural: &str) -> bool {
    EXAMINED.iter().any(|(examined, ..)| *examined == plural)
}

/// Whether something is wrong with an object of a kind, as far as the object itself says.
pub fn needs_diagnosis(plural: &str, object: &Value) -> bool {
    let kind = EXAMINED.iter().find(|(examined, ..)| *examined == plural);
    kind.is_some_and(|(.., is_wrong)| is_stuck(object) || is_wrong(object))
}

/// An object of a list with its kind, which items of lists leave out.
pub fn typed(object: &Value, version: &str, kind: &str) -> Value {
    let mut typed = object.clone();
    if let Value::Object(fields) = &mut typed {
        fields.insert("apiVersion".to_owned(), json!(version));
        fields.insert("kind".to_owned(), json!(kind));
    }
    typed
}

/// The plural name and API version of an examined kind.
pub fn find_kind(kind: &str) -> Option<(&'static str, &'static str)> {
    EXAMINED.iter().find(|(_, _, name, _)| *name == kind).map(|(plural, version, ..)| (*plural, *version))
}

fn key(object: &Value) -> (&str, &str) {
    (object.text(&["metadata", "namespace"]), object.text(&["metadata", "name"]))
}

/// The Services with at least one ready endpoint.
fn served_services(lists: &BTreeMap<String, Vec<Value>>) -> HashSet<(&str, &str)> {
    let slices = lists.get("endpointslices").into_iter().flatten();
    slices
        .filter(|slice| slice.items(&["endpoints"]).iter().any(|one| one.flag(&["conditions", "ready"]) != Some(false)))
        .map(|slice| {
            let service = slice.text(&["metadata", "labels", "kubernetes.io/service-name"]);
            (slice.text(&["metadata", "namespace"]), service)
        })
        .collect()
}

fn controller(object: &Value) -> Option<&str> {
    let owners = object.items(&["metadata", "ownerReferences"]);
    owners.iter().find(|owner| owner.flag(&["controller"]) == Some(true)).map(|owner| owner.text(&["uid"]))
}

fn is_stuck(object: &Value) -> bool {
    object.has(&["metadata", "deletionTimestamp"])
}

fn is_unready_node(node: &Value) -> bool {
    node.flag(&["spec", "unschedulable"]) == Some(true)
        || condition(node, "Ready").is_none_or(|ready| ready.text(&["status"]) != "True")
        || node
            .items(&["status", "conditions"])
            .iter()
            .any(|condition| condition.text(&["type"]).ends_with("Pressure") && condition.text(&["status"]) == "True")
}

fn is_unbound(claim: &Value) -> bool {
    claim.text(&["status", "phase"]) != "Bound"
}

fn lacks_replicas(workload: &Value) -> bool {
    let desired = workload.integer(&["spec", "replicas"]).unwrap_or(1);
    let count = |field| workload.integer(&["status", field]).unwrap_or(0);
    // A rollout that is stuck has enough old replicas, and new ones that are not available.
    count("readyReplicas") < desired || count("unavailableReplicas") > 0
}

fn lacks_daemons(set: &Value) -> bool {
    let count = |field| set.integer(&["status", field]).unwrap_or(0);
    count("numberReady") < count("desiredNumberScheduled")
}

fn is_unfinished_job(job: &Value) -> bool {
    let failed = condition(job, "Failed").is_some_and(|failed| failed.text(&["status"]) == "True");
    failed || (condition(job, "Complete").is_none() && job.integer(&["status", "failed"]).unwrap_or(0) > 0)
}

fn is_troubled_pod(pod: &Value) -> bool {
    match pod.text(&["status", "phase"]) {
        "Succeeded" => false,
        "Running" => !has_condition(pod, "Ready"),
        _ => true,
    }
}

fn has_selector(service: &Value) -> bool {
    service.fields(&["spec", "selector"]).is_some_and(|selector| !selector.is_empty())
}

fn always(_: &Value) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(text: &str) -> BTreeMap<String, Vec<Value>> {
        serde_yaml_ng::from_str(text).unwrap()
    }

    fn names(lists: &BTreeMap<String, Vec<Value>>, namespace: &str) -> Vec<String> {
        let (found, has_more, _) = candidates(lists, namespace, 100);
        assert!(!has_more);
        found
            .iter()
            .map(|object| format!("{}/{}", object.text(&["kind"]), object.text(&["metadata", "name"])))
            .collect()
    }

    #[test]
    fn a_workload_is_reported_rather_than_its_pods() {
        let all = lists(
            "
deployments:
- {metadata: {name: web, namespace: a, uid: d}, spec: {replicas: 2}, status: {readyReplicas: 1}}
- {metadata: {name: stuck, namespace: c, uid: s}, spec: {replicas: 1}, status: {readyReplicas: 1, unavailableReplicas: 1}}
- {metadata: {name: fine, namespace: a, uid: f}, spec: {replicas: 1}, status: {readyReplicas: 1}}
replicasets:
- {metadata: {name: web-1, namespace: a, uid: r}}
pods:
- {metadata: {name: web-1-x, namespace: a, ownerReferences: [{uid: r, controller: true}]}, status: {phase: Pending}}
- {metadata: {name: bare, namespace: b}, status: {phase: Pending}}
- {metadata: {name: done, namespace: b}, status: {phase: Succeeded}}
- {metadata: {name: ready, namespace: b}, status: {phase: Running, conditions: [{type: Ready, status: 'True'}]}}
",
        );
        assert_eq!(names(&all, ""), ["Deployment/web", "Deployment/stuck", "Pod/bare"]);
        assert_eq!(names(&all, "b"), ["Pod/bare"]);
        let (found, has_more, examined) = candidates(&all, "", 1);
        assert_eq!((found.len(), has_more, examined), (1, true, 7));
    }

    #[test]
    fn services_with_endpoints_and_healthy_nodes_are_left_out() {
        let all = lists(
            "
nodes:
- {metadata: {name: good}, status: {conditions: [{type: Ready, status: 'True'}]}}
- {metadata: {name: full}, status: {conditions: [{type: Ready, status: 'True'}, {type: DiskPressure, status: 'True'}]}}
- {metadata: {name: gone}, status: {conditions: [{type: Ready, status: Unknown}]}}
services:
- {metadata: {name: up, namespace: a}, spec: {selector: {app: up}}}
- {metadata: {name: down, namespace: a}, spec: {selector: {app: down}}}
- {metadata: {name: manual, namespace: a}, spec: {}}
endpointslices:
- {metadata: {name: up-1, namespace: a, labels: {kubernetes.io/service-name: up}}, endpoints: [{conditions: {ready: true}}]}
- {metadata: {name: down-1, namespace: a, labels: {kubernetes.io/service-name: down}}, endpoints: [{conditions: {ready: false}}]}
persistentvolumeclaims:
- {metadata: {name: data, namespace: a}, status: {phase: Pending}}
",
        );
        assert_eq!(names(&all, ""), ["Node/full", "Node/gone", "PersistentVolumeClaim/data", "Service/down"]);
        assert_eq!(names(&all, "a"), ["PersistentVolumeClaim/data", "Service/down"]);
    }
}
