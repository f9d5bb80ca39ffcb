//! The cells of a node in a table.

use std::collections::BTreeSet;

use jiff::Timestamp;
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::columns;

pub(super) fn cells(node: &Value, now: Timestamp) -> Vec<Value> {
    let info = |field: &str| node.text(&["status", "nodeInfo", field]);
    let or_unknown = |text: &str| if text.is_empty() { "<unknown>".to_owned() } else { text.to_owned() };
    let mut kernel = or_unknown(info("kernelVersion"));
    if !info("architecture").is_empty() {
        kernel = format!("{kernel} ({})", info("architecture"));
    }
    vec![
        columns::name(node),
        readiness(node).into(),
        roles(node).into(),
        columns::age(node, now),
        info("kubeletVersion").into(),
        address(node, "InternalIP").into(),
        address(node, "ExternalIP").into(),
        or_unknown(info("osImage")).into(),
        kernel.into(),
        or_unknown(info("containerRuntimeVersion")).into(),
    ]
}

fn readiness(node: &Value) -> String {
    let conditions = node.items(&["status", "conditions"]);
    let ready = conditions.iter().rev().find(|condition| condition.text(&["type"]) == "Ready");
    let status = match ready.map(|condition| condition.text(&["status"])) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    if node.flag(&["spec", "unschedulable"]) == Some(true) {
        format!("{status},SchedulingDisabled")
    } else {
        status.to_owned()
    }
}

pub(super) fn roles(node: &Value) -> String {
    let roles: BTreeSet<&str> = node
        .fields(&["metadata", "labels"])
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => value.as_str(),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    if roles.is_empty() { "<none>".to_owned() } else { roles.into_iter().collect::<Vec<_>>().join(",") }
}

pub(super) fn address<'a>(node: &'a Value, kind: &str) -> &'a str {
    let list = node.items(&["status", "addresses"]);
    list.iter().find(|address| address.text(&["type"]) == kind).map_or("<none>", |address| address.text(&["address"]))
}
