//! Journey events of writes: who sent the request, how long each stage took, and what was stored.
//!
//! They are `tracing` events with the target `journey`, which `knarr journey` shows. Without a subscriber they cost
//! nothing.

use std::time::Instant;

use http::header::USER_AGENT;
use jiff::Timestamp;
use knarr_api::catalogue::Catalogue;
use knarr_api::value::{Read, has_condition};
use serde_json::Value;

use crate::kinds::Resource;
use crate::resource_request::ResourceRequest;

/// A write that the store has committed.
pub struct WriteEvent<'a> {
    /// `create`, `update`, `patch`, `delete`, or `removed` for what left the store.
    pub verb: &'a str,
    pub resource: &'a Resource,
    pub object: &'a Value,
    pub revision: u64,
    /// When the write to the store started.
    pub storing: Instant,
}

/// Records a write as a journey event.
pub fn record_write(call: &ResourceRequest<'_>, written: &WriteEvent<'_>) {
    if is_quiet(written.resource) || !tracing::enabled!(target: "journey", tracing::Level::INFO) {
        return;
    }
    let WriteEvent { verb, resource, object, revision, storing } = *written;
    let stage_times = call.stage_times;
    let namespace = object.text(&["metadata", "namespace"]);
    let plural = resource.kind.plural.as_str();
    let owner = if verb == "create" { owner(&call.backend.kinds.load().catalogue, namespace, object) } else { None };
    tracing::info!(
        target: "journey",
        step = "request",
        object = path(plural, namespace, object.text(&["metadata", "name"])),
        took_us = micros(stage_times.started, Instant::now()),
        verb,
        subresource = call.target.subresource,
        user = call.user.name,
        agent = agent(call),
        authenticated_us = micros(stage_times.started, stage_times.authenticated),
        authorized_us = micros(stage_times.authenticated, stage_times.authorized),
        admitted_us = micros(stage_times.authorized, storing),
        stored_us = micros(storing, Instant::now()),
        revision,
        owner = owner.unwrap_or_default(),
        state = state(resource, object, call.now),
        held = held(object),
    );
}

/// Kinds that report on other objects, and heartbeats, have no journey of their own.
fn is_quiet(resource: &Resource) -> bool {
    matches!(resource.kind.plural.as_str(), "events" | "leases" | "tokenreviews")
}

fn micros(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_micros()).unwrap_or(u64::MAX)
}

fn path(plural: &str, namespace: &str, name: &str) -> String {
    if namespace.is_empty() { format!("{plural}/{name}") } else { format!("{plural}/{namespace}/{name}") }
}

/// The client program, without its version.
fn agent<'a>(call: &'a ResourceRequest<'_>) -> &'a str {
    let whole = call.headers.get(USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    whole.split(['/', ' ']).next().unwrap_or_default()
}

/// The object that controls this one, as the catalogue names its kind. None for a kind that is not served.
fn owner(catalogue: &Catalogue, namespace: &str, object: &Value) -> Option<String> {
    let mut owners = object.items(&["metadata", "ownerReferences"]).iter();
    let controller = owners.find(|owner| owner.flag(&["controller"]) == Some(true))?;
    let (group, version) = match controller.text(&["apiVersion"]) {
        core if !core.contains('/') => ("", core),
        full => full.split_once('/')?,
    };
    let kind = catalogue.kind(group, version, controller.text(&["kind"]))?;
    let namespace = if kind.namespaced { namespace } else { "" };
    Some(path(&kind.plural, namespace, controller.text(&["name"])))
}

/// The state of an object as its table shows it: its status, or how much of it is ready.
fn state(resource: &Resource, object: &Value, now: Timestamp) -> String {
    if resource.custom.is_some() {
        return String::new();
    }
    let columns = resource.rules.columns();
    let find = |name: &str| columns.iter().position(|column| column.name == name);
    let (status, ready) = (find("Status"), find("Ready"));
    if status.is_none() && ready.is_none() {
        return String::new();
    }
    let cells = resource.rules.cells(object, now);
    let cell = |place: Option<usize>| match place.and_then(|place| cells.get(place)) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    match (cell(status), cell(ready)) {
        (Some(status), _) if has_condition(object, "Ready") => format!("{status}, ready"),
        (Some(status), _) => status,
        (None, Some(ready)) => match cell(find("Desired")) {
            Some(desired) => format!("{ready}/{desired} ready"),
            None => format!("{ready} ready"),
        },
        (None, None) => String::new(),
    }
}

/// The finalizers that hold back the deletion of an object.
fn held(object: &Value) -> String {
    if !object.has(&["metadata", "deletionTimestamp"]) {
        return String::new();
    }
    let finalizers: Vec<&str> = object.items(&["metadata", "finalizers"]).iter().filter_map(Value::as_str).collect();
    finalizers.join(", ")
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde_json::json;

    use super::*;
    use crate::kinds::{Kinds, no_descriptions};

    #[test]
    fn owners_are_named_as_the_catalogue_does() {
        let catalogue = Catalogue::built_in();
        let named = |version: &str, kind: &str, controls: bool| {
            let reference = json!({"apiVersion": version, "kind": kind, "name": "x", "controller": controls});
            owner(&catalogue, "a", &json!({"metadata": {"ownerReferences": [reference]}}))
        };
        for (version, kind, expected) in [
            ("apps/v1", "ReplicaSet", "replicasets/a/x"),
            ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies/a/x"),
            ("v1", "Endpoints", "endpoints/a/x"),
            ("v1", "Node", "nodes/x"),
        ] {
            assert_eq!(named(version, kind, true).as_deref(), Some(expected));
        }
        assert_eq!(named("v1", "Node", false), None);
        assert_eq!(named("example.com/v1", "Unknown", true), None);
    }

    #[test]
    fn state_is_taken_from_the_table() {
        let kinds = Kinds::new(Catalogue::built_in(), &HashMap::new(), no_descriptions());
        let ready = json!([{"type": "Ready", "status": "True"}]);
        for (group, plural, object, expected) in [
            ("", "pods", json!({"status": {"phase": "Running", "conditions": ready}}), "Running, ready"),
            ("", "pods", json!({"status": {"phase": "Pending"}}), "Pending"),
            ("apps", "deployments", json!({"spec": {"replicas": 3}, "status": {"readyReplicas": 1}}), "1/3 ready"),
            ("apps", "replicasets", json!({"spec": {"replicas": 3}, "status": {"readyReplicas": 1}}), "1/3 ready"),
            ("", "configmaps", json!({}), ""),
        ] {
            let resource = kinds.resource(group, "v1", plural).unwrap();
            assert_eq!(state(resource, &object, Timestamp::UNIX_EPOCH), expected, "{plural}");
        }
    }

    #[test]
    fn finalizers_are_reported_once_an_object_is_being_deleted() {
        let kept = json!({"metadata": {"finalizers": ["a/b", "c"]}});
        assert_eq!(held(&kept), "");
        let going = json!({"metadata": {"finalizers": ["a/b", "c"], "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        assert_eq!(held(&going), "a/b, c");
    }
}
