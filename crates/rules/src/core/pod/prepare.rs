//! Preparation of pods before validation: fields that the server sets or that a write may not change.

use std::collections::{BTreeMap, VecDeque};

use knarr_api::time;
use knarr_api::value::{Read, Write};
use serde_json::{Map, Value, json};

use super::qos;
use crate::common::equality::same;
use crate::kind::{Context, keep_field};

/// Prepares a new pod: sets its phase and its QoS class, and discards the status of the client.
pub fn create(pod: &mut Value, context: &Context<'_>) {
    let spec = pod.at(&["spec"]);
    let mut status = json!({"phase": "Pending", "qosClass": qos::class(spec)});
    if !spec.items(&["schedulingGates"]).is_empty() {
        status["conditions"] = json!([{
            "type": "PodScheduled",
            "status": "False",
            "lastProbeTime": null,
            "lastTransitionTime": time::seconds(context.now),
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }]);
    }
    pod.set(&["status"], status);
    merge_label_keys(pod, context.features.is_on("MatchLabelKeysInPodTopologySpreadSelectorMerge"));
    app_armor_from_annotations(pod);
}

/// Prepares an update of the pod itself.
pub fn update(pod: &mut Value, old: &Value) {
    keep_field(pod, old, "status");
}

/// Prepares a status update.
pub fn update_status(pod: &mut Value, old: &Value) {
    keep_field(pod, old, "spec");
    keep_metadata(pod, old, &["deletionTimestamp", "ownerReferences"]);
    let status = pod.object(&["status"]);
    if status.get("qosClass").and_then(Value::as_str).unwrap_or_default().is_empty() {
        match old.at(&["status", "qosClass"]) {
            Value::Null => {}
            class => {
                status.insert("qosClass".to_owned(), class.clone());
            }
        }
    }
    keep_observed_generations(status, old.at(&["status"]));
}

/// Keeps observed generations that the client omits because it does not know them.
fn keep_observed_generations(status: &mut Map<String, Value>, old: &Value) {
    let is_unset = |value: &Value| value.integer(&["observedGeneration"]).unwrap_or_default() == 0;
    if status.get("observedGeneration").and_then(Value::as_i64).unwrap_or_default() == 0
        && let Some(generation) = old.integer(&["observedGeneration"])
    {
        status.insert("observedGeneration".to_owned(), generation.into());
    }
    let mut before: BTreeMap<&str, VecDeque<&Value>> = BTreeMap::new();
    for condition in old.items(&["conditions"]) {
        before.entry(condition.text(&["type"])).or_default().push_back(condition);
    }
    for condition in status.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
        let same_type = before.get_mut(condition.text(&["type"])).and_then(VecDeque::pop_front);
        let Some(same_type) = same_type else { continue };
        if is_unset(condition) && !is_unset(same_type) {
            condition.set(&["observedGeneration"], same_type.at(&["observedGeneration"]).clone());
        }
    }
}

/// Prepares a write to `ephemeralcontainers`, which changes only these.
pub fn update_ephemeral_containers(pod: &mut Value, old: &Value) {
    let containers = pod.at(&["spec", "ephemeralContainers"]).clone();
    keep_field(pod, old, "spec");
    keep_field(pod, old, "status");
    keep_whole_metadata(pod, old);
    match containers {
        Value::Null => {
            pod.remove(&["spec", "ephemeralContainers"]);
        }
        containers => pod.set(&["spec", "ephemeralContainers"], containers),
    }
}

/// Prepares a write to `resize`, which changes only resources and resize policies.
pub fn resize(pod: &mut Value, old: &Value) {
    let lists = ["containers", "initContainers"];
    let is_same_shape = lists.iter().all(|list| pod.items(&["spec", list]).len() == old.items(&["spec", list]).len());
    if !is_same_shape {
        return;
    }
    let resources = pod.at(&["spec", "resources"]).clone();
    let merged: Vec<Value> =
        lists.iter().map(|list| resized(pod.at(&["spec", list]), old.at(&["spec", list]))).collect();
    keep_field(pod, old, "spec");
    keep_field(pod, old, "status");
    keep_whole_metadata(pod, old);
    for (list, containers) in lists.iter().zip(merged) {
        if !containers.is_null() {
            pod.set(&["spec", list], containers);
        }
    }
    match resources {
        Value::Null => {
            pod.remove(&["spec", "resources"]);
        }
        resources => pod.set(&["spec", "resources"], resources),
    }
}

fn resized(new: &Value, old: &Value) -> Value {
    let (Some(new_list), Some(old_list)) = (new.as_array(), old.as_array()) else { return new.clone() };
    if new_list.iter().zip(old_list).any(|(new, old)| new.text(&["name"]) != old.text(&["name"])) {
        return new.clone();
    }
    let merged = new_list.iter().zip(old_list).map(|(new, old)| {
        let mut container = old.clone();
        for field in ["resources", "resizePolicy"] {
            keep_field(&mut container, new, field);
        }
        container
    });
    Value::Array(merged.collect())
}

fn keep_whole_metadata(pod: &mut Value, old: &Value) {
    keep_metadata(pod, old, &["deletionTimestamp", "labels", "annotations", "finalizers", "ownerReferences"]);
}

fn keep_metadata(pod: &mut Value, old: &Value, fields: &[&str]) {
    if let Some(metadata) = pod.get_mut("metadata") {
        for field in fields {
            keep_field(metadata, old.at(&["metadata"]), field);
        }
    }
}

/// Merges `matchLabelKeys` and `mismatchLabelKeys`, with the values of the pod's labels, into their selectors.
fn merge_label_keys(pod: &mut Value, also_of_spread: bool) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    if !pod.has(&["spec", "affinity"]) && !pod.has(&["spec", "topologySpreadConstraints"]) {
        return;
    }
    let labels = pod.at(&["metadata", "labels"]).clone();
    for kind in ["podAffinity", "podAntiAffinity"] {
        for term in pod.items_mut(&["spec", "affinity", kind, PREFERRED]) {
            if let Some(term) = term.get_mut("podAffinityTerm") {
                merge_keys(term, &labels);
            }
        }
        for term in pod.items_mut(&["spec", "affinity", kind, REQUIRED]) {
            merge_keys(term, &labels);
        }
    }
    if also_of_spread {
        for constraint in pod.items_mut(&["spec", "topologySpreadConstraints"]) {
            merge_keys(constraint, &labels);
        }
    }
}

fn merge_keys(holder: &mut Value, labels: &Value) {
    if !holder.has(&["labelSelector"]) {
        return;
    }
    let mut added = Vec::new();
    for (field, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        for key in holder.items(&[field]).iter().filter_map(Value::as_str) {
            if let Some(value) = labels.get(key) {
                added.push(json!({"key": key, "operator": operator, "values": [value]}));
            }
        }
    }
    if added.is_empty() {
        return;
    }
    let selector = holder.object(&["labelSelector"]);
    match selector.get_mut("matchExpressions").and_then(Value::as_array_mut) {
        Some(expressions) => expressions.extend(added),
        None => {
            selector.insert("matchExpressions".to_owned(), Value::Array(added));
        }
    }
}

/// Copies AppArmor profiles from the deprecated annotations to fields.
fn app_armor_from_annotations(pod: &mut Value) {
    const PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";
    let Some(annotations) = pod.fields(&["metadata", "annotations"]) else { return };
    let annotated: BTreeMap<String, String> = annotations
        .iter()
        .filter_map(|(key, value)| {
            Some((key.strip_prefix(PREFIX)?.to_owned(), value.as_str().unwrap_or_default().to_owned()))
        })
        .collect();
    if annotated.is_empty() || pod.text(&["spec", "os", "name"]) == "windows" {
        return;
    }
    let of_pod = pod.at(&["spec", "securityContext", "appArmorProfile"]).clone();
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in pod.items_mut(&["spec", list]) {
            let name = container.text(&["name"]);
            let Some(annotation) = annotated.get(name) else { continue };
            if container.has(&["securityContext", "appArmorProfile"]) {
                continue;
            }
            let profile = match annotation.as_str() {
                "unconfined" => json!({"type": "Unconfined"}),
                "runtime/default" => json!({"type": "RuntimeDefault"}),
                other => match other.strip_prefix("localhost/").filter(|local| !local.is_empty()) {
                    Some(local) if local.trim() == local => json!({"type": "Localhost", "localhostProfile": local}),
                    _ => continue,
                },
            };
            if !same(&profile, &of_pod) {
                container.set(&["securityContext", "appArmorProfile"], profile);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::context;

    #[test]
    fn new_pods_wait() {
        let mut pod = json!({"spec": {"containers": [{"name": "c"}], "schedulingGates": [{"name": "a/b"}]}, "status": {"phase": "Running"}});
        create(&mut pod, &context("v1"));
        assert_eq!(pod["status"]["phase"], "Pending");
        assert_eq!(pod["status"]["qosClass"], "BestEffort");
        assert_eq!(pod["status"]["conditions"][0]["reason"], "SchedulingGated");
    }

    #[test]
    fn label_keys_are_merged_into_selectors() {
        let mut pod = json!({
            "metadata": {"labels": {"hash": "1"}},
            "spec": {"topologySpreadConstraints": [{"matchLabelKeys": ["hash", "none"], "labelSelector": {"matchLabels": {"a": "b"}}}]},
        });
        create(&mut pod, &context("v1"));
        assert_eq!(
            pod["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchExpressions"],
            json!([{"key": "hash", "operator": "In", "values": ["1"]}])
        );
    }

    #[test]
    fn resize_changes_only_resources() {
        let old = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x", "resources": {}}]}});
        let mut new = json!({"metadata": {}, "spec": {"containers": [{"name": "c", "image": "y", "resources": {"limits": {"cpu": "1"}}}]}});
        resize(&mut new, &old);
        assert_eq!(
            new,
            json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x", "resources": {"limits": {"cpu": "1"}}}]}})
        );
    }
}
