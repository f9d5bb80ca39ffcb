//! The description of a write that policies and webhooks receive beside the objects.

use serde_json::{Map, Value, json};

use super::criteria::Matched;
use crate::admit::Write;

/// The `request` of an AdmissionReview and of CEL expressions, without objects and uid.
pub fn describe(write: &Write<'_>, matched: &Matched, options: Value) -> Map<String, Value> {
    let own = match write.call {
        Some(call) => super::criteria::own(write, call),
        None => matched.clone(),
    };
    let kind = |of: &Matched| json!({"group": of.kind.group, "version": of.kind.version, "kind": of.kind.kind});
    let resource = |of: &Matched| json!({"group": of.group, "version": of.version, "resource": of.resource});
    let mut request = Map::new();
    let mut set = |name: &str, value: Value| drop(request.insert(name.to_owned(), value));
    set("kind", kind(matched));
    set("resource", resource(matched));
    if !write.subresource.is_empty() {
        set("subResource", write.subresource.into());
    }
    set("requestKind", kind(&own));
    set("requestResource", resource(&own));
    if !write.subresource.is_empty() {
        set("requestSubResource", write.subresource.into());
    }
    let name = write.known_name();
    if !name.is_empty() {
        set("name", name.into());
    }
    if !write.namespace.is_empty() {
        set("namespace", write.namespace.into());
    }
    set("operation", write.operation.name().into());
    set("userInfo", write.user.info());
    set("dryRun", write.dry_run.into());
    set("options", options);
    request
}
