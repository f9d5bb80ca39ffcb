//! Broken manifests, as a cluster returns them some seconds after they were applied, and the expected diagnosis.

use jiff::Timestamp;
use knarr_why::{Evidence, explain};
use serde_json::{Map, Value, json};

const CASES: &str = include_str!("diagnoses.yaml");

/// Adds the fields that every object of a kind has; the table omits them.
fn complete(kind: &str, object: &Value) -> Value {
    let mut whole = object.clone();
    whole["kind"] = kind.into();
    let metadata = &mut whole["metadata"];
    if metadata.is_null() {
        *metadata = json!({});
    }
    for (field, default) in [("name", "web"), ("namespace", "default")] {
        if metadata[field].is_null() && !(field == "namespace" && is_cluster_wide(kind)) {
            metadata[field] = default.into();
        }
    }
    if metadata["uid"].is_null() {
        metadata["uid"] = format!("uid-{}", metadata["name"].as_str().unwrap()).into();
    }
    whole
}

fn is_cluster_wide(kind: &str) -> bool {
    matches!(
        kind,
        "Node" | "PersistentVolume" | "StorageClass" | "CSIDriver" | "CSINode" | "IngressClass" | "Namespace"
    )
}

fn kind_of(plural: &str) -> &'static str {
    match plural {
        "pods" => "Pod",
        "nodes" => "Node",
        "events" => "Event",
        "services" => "Service",
        "configmaps" => "ConfigMap",
        "secrets" => "Secret",
        "persistentvolumeclaims" => "PersistentVolumeClaim",
        "persistentvolumes" => "PersistentVolume",
        "storageclasses" => "StorageClass",
        "csidrivers" => "CSIDriver",
        "csinodes" => "CSINode",
        "csistoragecapacities" => "CSIStorageCapacity",
        "replicasets" => "ReplicaSet",
        "jobs" => "Job",
        "endpointslices" => "EndpointSlice",
        "networkpolicies" => "NetworkPolicy",
        "ingressclasses" => "IngressClass",
        other => panic!("{other} is not in the table of kinds"),
    }
}

fn evidence(case: &Value) -> Evidence {
    let (kind, object) = case["given"].as_object().unwrap().iter().next().unwrap();
    let object = complete(kind, object);
    // A cluster with one good node and nothing else, unless the case says otherwise.
    let mut lists = Map::new();
    for (plural, _) in Evidence::needed() {
        lists.insert((*plural).to_owned(), json!([]));
    }
    let ready = json!({"type": "Ready", "status": "True"});
    let room = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
    lists["nodes"] = json!([{
        "metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "n1"}},
        "status": {"allocatable": room, "conditions": [ready]},
    }]);
    for (plural, items) in case["with"].as_object().into_iter().flatten() {
        lists.insert(plural.clone(), items.clone());
    }
    if let Some(own) = ["Pod", "Service", "PersistentVolumeClaim"].iter().find(|one| *one == kind) {
        lists[&format!("{}s", own.to_lowercase())].as_array_mut().unwrap().push(object.clone());
    }
    let about = object["metadata"].clone();
    let lists = lists.into_iter().map(|(plural, items)| {
        let kind = if plural == "serviceaccounts" || plural == "resourcequotas" { "Other" } else { kind_of(&plural) };
        let items = items.as_array().unwrap().iter().enumerate().map(|(number, item)| {
            let mut item = complete(kind, item);
            if kind == "Event" && item["involvedObject"].is_null() {
                item["involvedObject"] = json!({"name": about["name"], "uid": about["uid"]});
            }
            if kind == "Event" {
                item["lastTimestamp"] = format!("2026-01-01T00:00:{number:02}Z").into();
            }
            item
        });
        (plural, items.collect())
    });
    let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
    let logs = case["logs"].as_object().into_iter().flatten().map(|(container, lines)| {
        let lines = lines.as_array().unwrap().iter().map(|line| line.as_str().unwrap().to_owned()).collect();
        (("default".to_owned(), "web".to_owned(), container.clone()), lines)
    });
    Evidence { object, now, lists: lists.collect(), incomplete: Default::default(), logs: logs.collect() }
}

#[test]
fn diagnoses_match_the_table() {
    let cases: Vec<Value> = serde_yaml_ng::from_str(CASES).unwrap();
    assert!(cases.len() >= 40, "{} cases", cases.len());
    let mut wrong = Vec::new();
    for case in &cases {
        let name = case["name"].as_str().unwrap();
        let findings = explain(&evidence(case));
        let Some(cause) = case["cause"].as_str() else {
            if !findings.is_empty() {
                wrong.push(format!("{name}: nothing is wrong, but: {findings:#?}"));
            }
            continue;
        };
        let Some(first) = findings.first().filter(|first| first.cause == cause) else {
            wrong.push(format!("{name}: expected {cause:?}, found {findings:#?}"));
            continue;
        };
        let (seen, fix) = (case["seen"].as_str().unwrap_or_default(), case["do"].as_str().unwrap_or_default());
        if !first.evidence.iter().any(|line| line.contains(seen)) || !first.fix.contains(fix) {
            wrong.push(format!("{name}: expected {seen:?} and {fix:?} in {first:#?}"));
        }
        if let Some(never) = case["never"].as_str()
            && first.fix.contains(never)
        {
            wrong.push(format!("{name}: {never:?} must not be advised in {first:#?}"));
        }
        if first.evidence.is_empty() || first.fix.is_empty() {
            wrong.push(format!("{name}: a finding without evidence or fix"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
