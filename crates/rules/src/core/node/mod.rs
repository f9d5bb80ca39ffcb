//! Node: a host that runs pods.

mod cells;
mod config_source;

use std::collections::BTreeSet;

use jiff::Timestamp;
use knarr_api::cidr::parse_network_sloppy;
use knarr_api::field::{Error, ErrorType, Errors, Path, quoted};
use knarr_api::names;
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use super::pod::validation::resources::quantity;
use super::pod::validation::scheduling::taint_effect;
use crate::common::columns::{self, field, text, wide};
use crate::common::{addresses, internal_types, resources};
use crate::kind::{Column, Context, KindRules, MetadataPasses, keep_field};
use cells::cells;
use config_source::config_sources;

const STATUS: &str = "io.k8s.api.core.v1.NodeStatus";
const INFO: &str = "io.k8s.api.core.v1.NodeSystemInfo";

const COLUMNS: &[Column] = &[
    columns::NAME,
    text("Status", "string", "The status of the node"),
    text("Roles", "string", "The roles of the node"),
    columns::AGE,
    field("Version", "string", INFO, "kubeletVersion"),
    wide(field("Internal-IP", "string", STATUS, "addresses")),
    wide(field("External-IP", "string", STATUS, "addresses")),
    wide(field("OS-Image", "string", INFO, "osImage")),
    wide(field("Kernel-Version", "string", INFO, "kernelVersion")),
    wide(field("Container-Runtime", "string", INFO, "containerRuntimeVersion")),
];

/// The rules of Node.
pub struct Node;

impl KindRules for Node {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        sync_pod_cidrs(object);
        let Some(status) = object.get_mut("status") else { return };
        if status.has(&["capacity"]) && !status.has(&["allocatable"]) {
            let capacity = status.at(&["capacity"]).clone();
            status.set(&["allocatable"], capacity);
        }
        for list in ["capacity", "allocatable"] {
            resources::round_to_milli(status.get_mut(list));
        }
    }

    /// Keeps the status, with which the kubelet registers its node.
    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        object.remove(&["spec", "configSource"]);
        object.remove(&["status", "config"]);
    }

    fn prepare_update(&self, object: &mut Value, old: &Value, context: &Context<'_>) {
        if context.subresource == "status" {
            keep_field(object, old, "spec");
            if !old.has(&["status", "config"]) {
                object.remove(&["status", "config"]);
            }
        } else {
            keep_field(object, old, "status");
            if !old.has(&["spec", "configSource"]) {
                object.remove(&["spec", "configSource"]);
            }
        }
    }

    fn validate(&self, object: &Value, _old: Option<&Value>, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if context.subresource == "status" {
            return errors;
        }
        annotations(&mut errors, object);
        taints(&mut errors, object);
        amounts(&mut errors, object);
        if let Some(capacity) = object.integer(&["status", "nodeInfo", "swap", "capacity"]).filter(|c| *c <= 0) {
            let path = Path::root("metadata");
            errors.invalid(&path.child("nodeSwapStatus.capacity"), capacity, "must be greater than zero");
        }
        declared_features(&mut errors, object);
        pod_ranges(&mut errors, object);
        errors
    }

    fn validate_update(&self, object: &Value, old: &Value, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        annotations(&mut errors, object);
        amounts(&mut errors, object);
        declared_features(&mut errors, object);
        repeated_addresses(&mut errors, object);
        kept_fields(&mut errors, object, old);
        config_sources(&mut errors, object);
        taints(&mut errors, object);
        if object.text(&["spec", "externalID"]) != old.text(&["spec", "externalID"]) {
            errors.forbidden(&Path::root("spec").child("externalID"), "may not be updated");
        }
        errors
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>, context: &Context<'_>) -> Vec<String> {
        let mut warnings = Vec::new();
        if context.subresource == "status" {
            return warnings;
        }
        if object.has(&["spec", "configSource"]) {
            warnings.push("spec.configSource: the feature is removed".to_owned());
        }
        if !object.text(&["spec", "externalID"]).is_empty() {
            warnings.push("spec.externalID: this field is deprecated, and is unused by Kubernetes".to_owned());
        }
        let spec = Path::root("spec");
        for (i, range) in object.items(&["spec", "podCIDRs"]).iter().enumerate() {
            warnings.extend(addresses::range_warnings(&spec.item("podCIDRs", i), range.as_str().unwrap_or_default()));
        }
        warnings
    }

    fn has_status(&self) -> bool {
        true
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 1, as_create: 1 }
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        cells(object, now)
    }
}

/// Synchronizes `podCIDR` with `podCIDRs`; the former takes precedence if they differ.
fn sync_pod_cidrs(node: &mut Value) {
    let one = node.text(&["spec", "podCIDR"]);
    let first = node.items(&["spec", "podCIDRs"]).first().and_then(Value::as_str);
    match (one, first) {
        ("", Some(first)) => {
            let first = first.to_owned();
            node.set(&["spec", "podCIDR"], first);
        }
        ("", None) => {}
        (one, first) if first != Some(one) => {
            let one = json!([one]);
            node.set(&["spec", "podCIDRs"], one);
        }
        _ => {}
    }
}

fn annotations(errors: &mut Errors, node: &Value) {
    const TAINTS: &str = "scheduler.alpha.kubernetes.io/taints";
    let listed = node.text(&["metadata", "annotations", TAINTS]);
    if listed.is_empty() {
        return;
    }
    let metadata = Path::root("metadata");
    let path = metadata.child("annotations");
    match serde_json::from_str::<Vec<Value>>(listed) {
        Ok(list) => taint_list(errors, &list, &path.child(TAINTS)),
        Err(error) => errors.invalid(&path, TAINTS, error.to_string()),
    }
}

fn taints(errors: &mut Errors, node: &Value) {
    taint_list(errors, node.items(&["spec", "taints"]), &Path::root("metadata").child("taints"));
}

fn taint_list(errors: &mut Errors, taints: &[Value], path: &Path<'_>) {
    let mut seen = BTreeSet::new();
    for (i, taint) in taints.iter().enumerate() {
        let path = path.index(i);
        let (key, value, effect) = (taint.text(&["key"]), taint.text(&["value"]), taint.text(&["effect"]));
        names::check(errors, &path.child("key"), key, names::qualified_name);
        let wrong = names::label_value(value);
        if !wrong.is_empty() {
            errors.invalid(&path.child("value"), value, wrong.join(";"));
        }
        match effect {
            "" => errors.required(&path.child("effect"), ""),
            _ => taint_effect(errors, effect, &path.child("effect")),
        }
        if !seen.insert((key, effect)) {
            duplicate(
                errors,
                &path,
                internal_types::to_json("Taint", taint),
                "taints must be unique by key and effect pair",
            );
        }
    }
}

fn duplicate(errors: &mut Errors, path: &Path<'_>, rendered: String, detail: &str) {
    errors.push(Error {
        field: path.to_string(),
        error_type: ErrorType::Duplicate,
        bad_value: Some(rendered),
        detail: detail.to_owned(),
    });
}

fn amounts(errors: &mut Errors, node: &Value) {
    let status = Path::root("status");
    for list in ["capacity", "allocatable"] {
        let path = status.child(list);
        for (name, amount) in node.fields(&["status", list]).into_iter().flatten() {
            quantity(errors, name, &resources::quantity(amount), &path.child(name));
        }
    }
}

fn declared_features(errors: &mut Errors, node: &Value) {
    let status = Path::root("status");
    let features: Vec<&str> = node.items(&["status", "declaredFeatures"]).iter().filter_map(Value::as_str).collect();
    for (i, feature) in features.iter().enumerate() {
        if feature.len() > 253 {
            let detail = format!("invalid feature name {}: must be no more than 253 characters", quoted(feature));
            errors.invalid(&status.item("declaredFeatures", i), *feature, detail);
        } else if !is_feature(feature) {
            let detail = format!(
                "invalid feature name {}: must start with an UpperCamelCase segment, with subsequent segments separated \
                 by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes",
                quoted(feature)
            );
            errors.invalid(&status.item("declaredFeatures", i), *feature, detail);
        }
        let Some(next) = features.get(i + 1) else { continue };
        let path = status.item("declaredFeatures", i + 1);
        match feature.cmp(next) {
            std::cmp::Ordering::Equal => errors.duplicate(&path, *next),
            std::cmp::Ordering::Greater => errors.invalid(&path, *next, "list must be sorted alphabetically"),
            std::cmp::Ordering::Less => {}
        }
    }
}

fn is_feature(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.split('/').all(|part| {
            part.starts_with(|c: char| c.is_ascii_alphabetic()) && part.bytes().all(|byte| byte.is_ascii_alphanumeric())
        })
}

fn pod_ranges(errors: &mut Errors, node: &Value) {
    let ranges: Vec<&str> = node.items(&["spec", "podCIDRs"]).iter().filter_map(Value::as_str).collect();
    let spec = Path::root("spec");
    for (i, range) in ranges.iter().enumerate() {
        addresses::legacy_range(errors, &spec.item("podCIDRs", i), range, &[]);
    }
    let ips: Vec<&str> = ranges.iter().map(|range| range.split('/').next().unwrap_or_default()).collect();
    let unreadable = ranges.iter().position(|range| parse_network_sloppy(range).is_none());
    if let Some(i) = unreadable.filter(|_| ranges.len() > 1) {
        let detail = format!(
            "invalid PodCIDRs. failed to check with dual stack with error:invalid CIDR[{i}]: <nil> (invalid CIDR \
             address: {})",
            ranges[i]
        );
        errors.internal(&spec.child("podCIDRs"), detail);
    }
    if ranges.len() > 1 && (!addresses::is_dual_stack(&ips) || ranges.len() > 2) {
        let detail = "may specify no more than one CIDR for each IP family";
        errors.invalid(&spec.child("podCIDRs"), node.at(&["spec", "podCIDRs"]).clone(), detail);
    }
}

fn repeated_addresses(errors: &mut Errors, node: &Value) {
    let status = Path::root("status");
    let mut seen = BTreeSet::new();
    for (i, address) in node.items(&["status", "addresses"]).iter().enumerate() {
        if !seen.insert((address.text(&["type"]), address.text(&["address"]))) {
            duplicate(errors, &status.item("addresses", i), internal_types::to_json("NodeAddress", address), "");
        }
    }
}

fn kept_fields(errors: &mut Errors, node: &Value, old: &Value) {
    const RANGES: &str = "node updates may not change podCIDR except from \"\" to valid";
    let spec = Path::root("spec");
    let (new, before) = (node.items(&["spec", "podCIDRs"]), old.items(&["spec", "podCIDRs"]));
    if !before.is_empty() {
        if new.len() != before.len() {
            errors.forbidden(&spec.child("podCIDRs"), RANGES);
        } else {
            for _ in new.iter().zip(before).filter(|(new, before)| new != before) {
                errors.forbidden(&spec.child("podCIDRs"), RANGES);
            }
        }
    }
    let before = old.text(&["spec", "providerID"]);
    if !before.is_empty() && before != node.text(&["spec", "providerID"]) {
        let detail = "node updates may not change providerID except from \"\" to valid";
        errors.forbidden(&spec.child("providerID"), detail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{defaulted, messages};

    #[test]
    fn nodes_are_filled_in_and_checked() {
        let node = defaulted(&Node, json!({"spec": {"podCIDR": "10.0.0.0/24"}, "status": {"capacity": {"cpu": "4"}}}));
        assert_eq!(node["spec"]["podCIDRs"], json!(["10.0.0.0/24"]));
        assert_eq!(node["status"]["allocatable"], json!({"cpu": "4"}));
        for (node, expected) in [
            (json!({}), vec![]),
            (
                json!({"spec": {"taints": [{"key": "a", "effect": "X"}]}}),
                vec![
                    "metadata.taints[0].effect: Unsupported value: \"X\": supported values: \"NoSchedule\", \
                 \"PreferNoSchedule\", \"NoExecute\"",
                ],
            ),
            (
                json!({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}, {"key": "a", "effect": "NoExecute"}]}}),
                vec![
                    "metadata.taints[1]: Duplicate value: {\"Key\":\"a\",\"Value\":\"\",\"Effect\":\"NoExecute\",\
                 \"TimeAdded\":null}: taints must be unique by key and effect pair",
                ],
            ),
            (
                json!({"status": {"capacity": {"cpu": "-1"}}}),
                vec!["status.capacity.cpu: Invalid value: \"-1\": must be greater than or equal to 0"],
            ),
        ] {
            assert_eq!(messages(&Node, &node, None), expected);
        }
    }

    #[test]
    fn rows_show_readiness_and_roles() {
        let node = json!({
            "metadata": {"name": "n", "labels": {"node-role.kubernetes.io/control-plane": ""}},
            "spec": {"unschedulable": true},
            "status": {"conditions": [{"type": "Ready", "status": "False"}], "nodeInfo": {"kubeletVersion": "v1.36.4"}},
        });
        let cells = cells(&node, Timestamp::UNIX_EPOCH);
        assert_eq!(cells[1..3], [json!("NotReady,SchedulingDisabled"), json!("control-plane")]);
        assert_eq!(cells.len(), COLUMNS.len());
    }
}
