//! The trail that a write leaves for those who ask later how an object came to be: who asked, what each stage took, and
//! what was stored. It is written with `tracing` under the target `journey`; where nobody listens it costs nothing.

use std::time::Instant;

use http::header::USER_AGENT;
use jiff::Timestamp;
use knarr_api::catalogue::Catalogue;
use knarr_api::value::Read;
use serde_json::Value;

use crate::kinds::Resource;
use crate::persist::Call;

/// When a request passed the gates before its resource.
#[derive(Clone, Copy, Debug)]
pub struct Passage {
    pub began: Instant,
    pub identified: Instant,
    pub authorized: Instant,
}

impl Passage {
    pub fn begin() -> Passage {
        let now = Instant::now();
        Passage { began: now, identified: now, authorized: now }
    }
}

/// What a write did.
pub struct Written<'a> {
    /// `create`, `update`, `patch`, `delete`, or `removed` for what left the store.
    pub verb: &'a str,
    pub resource: &'a Resource,
    pub object: &'a Value,
    pub revision: u64,
    /// When the store was asked.
    pub storing: Instant,
}

/// Records a write that the store has taken.
pub fn leave(call: &Call<'_>, written: &Written<'_>) {
    if is_quiet(written.resource) || !tracing::enabled!(target: "journey", tracing::Level::INFO) {
        return;
    }
    let Written { verb, resource, object, revision, storing } = *written;
    let passage = call.passage;
    let namespace = object.text(&["metadata", "namespace"]);
    let plural = resource.kind.plural.as_str();
    let owner = if verb == "create" { owner(&call.server.kinds.load().catalogue, namespace, object) } else { None };
    tracing::info!(
        target: "journey",
        step = "request",
        object = path(plural, namespace, object.text(&["metadata", "name"])),
        took_us = micros(passage.began, Instant::now()),
        verb,
        subresource = call.target.subresource,
        user = call.user.name,
        agent = agent(call),
        authenticated_us = micros(passage.began, passage.identified),
        authorized_us = micros(passage.identified, passage.authorized),
        admitted_us = micros(passage.authorized, storing),
        stored_us = micros(storing, Instant::now()),
        revision,
        owner = owner.unwrap_or_default(),
        state = state(resource, object, call.now),
        held = held(object),
    );
}

/// Kinds that tell of others, or that beat like a heart, have no journey worth telling.
fn is_quiet(resource: &Resource) -> bool {
    matches!(resource.kind.plural.as_str(), "events" | "leases" | "tokenreviews")
}

fn micros(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_micros()).unwrap_or(u64::MAX)
}

fn path(plural: &str, namespace: &str, name: &str) -> String {
    if namespace.is_empty() { format!("{plural}/{name}") } else { format!("{plural}/{namespace}/{name}") }
}

/// The program that asked, without its version.
fn agent<'a>(call: &'a Call<'_>) -> &'a str {
    let whole = call.headers.get(USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    whole.split(['/', ' ']).next().unwrap_or_default()
}

/// The object that controls this one, as the catalogue names its kind. One of a kind that is not served has no story.
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

/// How an object is, in the words of the table that shows it: its status, or how much of it is ready.
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
        (Some(status), _) if is_ready(object) => format!("{status}, ready"),
        (Some(status), _) => status,
        (None, Some(ready)) => match cell(find("Desired")) {
            Some(desired) => format!("{ready}/{desired} ready"),
            None => format!("{ready} ready"),
        },
        (None, None) => String::new(),
    }
}

fn is_ready(object: &Value) -> bool {
    let mut conditions = object.items(&["status", "conditions"]).iter();
    conditions.any(|condition| condition.text(&["type"]) == "Ready" && condition.text(&["status"]) == "True")
}

/// The finalizers that keep an object which is to go.
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
    fn objects_say_how_they_are() {
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
    fn what_keeps_an_object_is_told_once_it_is_to_go() {
        let kept = json!({"metadata": {"finalizers": ["a/b", "c"]}});
        assert_eq!(held(&kept), "");
        let going = json!({"metadata": {"finalizers": ["a/b", "c"], "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        assert_eq!(held(&going), "a/b, c");
    }
}
