//! The trail that a write leaves for those who ask later how an object came to be: who asked, what each stage took, and
//! what was stored. It is written with `tracing` under the target `journey`; where nobody listens it costs nothing.

use std::time::Instant;

use http::header::USER_AGENT;
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
        owner = if verb == "create" { owner(namespace, object) } else { String::new() },
        state = if plural == "pods" { state(object) } else { String::new() },
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

/// The object that controls this one. Its kind is written as resources are named: in lower case and in the plural.
fn owner(namespace: &str, object: &Value) -> String {
    let owners = object.items(&["metadata", "ownerReferences"]).iter();
    let controller = owners.into_iter().find(|owner| owner.flag(&["controller"]) == Some(true));
    let Some(controller) = controller else { return String::new() };
    let kind = controller.text(&["kind"]).to_lowercase();
    let plural = match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None if kind.ends_with('s') => format!("{kind}es"),
        None => format!("{kind}s"),
    };
    // Nodes own their mirror pods, and have no namespace.
    let namespace = if kind == "node" { "" } else { namespace };
    path(&plural, namespace, controller.text(&["name"]))
}

/// A pod's phase, and whether it is ready.
fn state(pod: &Value) -> String {
    let phase = pod.text(&["status", "phase"]);
    let conditions = pod.items(&["status", "conditions"]).iter();
    let ready = conditions
        .into_iter()
        .any(|condition| condition.text(&["type"]) == "Ready" && condition.text(&["status"]) == "True");
    if ready { format!("{phase}, ready") } else { phase.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn owners_are_named_as_resources_are() {
        for (kind, name, expected) in [
            ("ReplicaSet", "web-1", "replicasets/a/web-1"),
            ("NetworkPolicy", "p", "networkpolicies/a/p"),
            ("Ingress", "i", "ingresses/a/i"),
            ("Node", "n", "nodes/n"),
        ] {
            let reference = json!({"kind": kind, "name": name, "controller": true});
            assert_eq!(owner("a", &json!({"metadata": {"ownerReferences": [reference]}})), expected);
        }
        assert_eq!(owner("a", &json!({"metadata": {"ownerReferences": [{"kind": "Node", "name": "n"}]}})), "");
    }

    #[test]
    fn a_pod_says_how_it_is() {
        let pod = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        assert_eq!(state(&pod), "Running, ready");
        assert_eq!(state(&json!({"status": {"phase": "Pending"}})), "Pending");
    }
}
