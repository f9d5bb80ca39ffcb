//! The binding subresource: assigns a pod to a node.

use bytes::Bytes;
use http::Response;
use knarr_api::field::{Errors, Path};
use knarr_api::status::{GroupResource, Status};
use knarr_api::time;
use knarr_api::value::{Read, Write as _};
use knarr_rules::common::conditions::set_condition;
use knarr_store::Entry;
use serde_json::{Value, json};

use super::{admit, change_entry, changed, decode_created, success};
use crate::authorized_request::AuthorizedRequest;
use crate::kinds::Resource;
use crate::persist::raw_json;
use crate::persist::strategy::Phase;
use crate::persist::trim;
use crate::resource_request::ResourceRequest;
use crate::response::Body;
use crate::route::accept::Format;
use crate::route::accept::Trim;

const BINDING: GroupResource<'static> = GroupResource { group: "", name: "pods/binding" };

/// Handles a binding.
pub async fn serve(
    call: &ResourceRequest<'_>,
    request: &AuthorizedRequest<'_>,
    name: &str,
    format: &Format,
) -> Result<Response<Body>, Status> {
    let (mut binding, options) = decode_created(call, request).await?;
    if binding.text(&["metadata", "name"]) != name {
        return Err(Status::bad_request("name in URL does not match name in Binding object"));
    }
    check(&binding)?;
    let kind = knarr_api::catalogue::GroupVersionKind::new("v1", "Binding");
    admit(call, &kind, Phase::Validate, &mut binding, options.dry_run).await?;
    let kinds = call.backend.kinds.load();
    let pods = kinds.resource("", "v1", "pods").ok_or_else(Status::no_such_resource)?;
    let missing = || Status::not_found(pods.named(), name);
    let now = time::seconds(call.now);
    let key = pods.key(&call.target.namespace, name);
    change_entry(call, pods, &key, missing, options.dry_run, |current| bind(pods, current, &key, &binding, &now))
        .await?;
    Ok(success(201, format))
}

fn check(binding: &Value) -> Result<(), Status> {
    let mut errors = Errors::new();
    let target = Path::root("target");
    let kind = binding.text(&["target", "kind"]);
    if !kind.is_empty() && kind != "Node" {
        errors.not_supported(&target.child("kind"), kind, &["Node", "<empty>"]);
    }
    if binding.text(&["target", "name"]).is_empty() {
        errors.required(&target.child("name"), "");
    }
    match errors.0.as_slice() {
        [] => Ok(()),
        [one] => Err(Status::new(500, "", one.to_string())),
        many => {
            let list: Vec<String> = many.iter().map(ToString::to_string).collect();
            Err(Status::new(500, "", format!("[{}]", list.join(", "))))
        }
    }
}

/// The bytes of a stored pod with its node, and the part of the pod that journey events need.
fn bind(pods: &Resource, current: &Entry, key: &str, binding: &Value, now: &str) -> Result<(Bytes, Value), Status> {
    let Some(mut pod) = unbound(pods, current) else {
        return changed(pods, current, |pod| assign(pod, key, binding, now));
    };
    assign(&mut pod, key, binding, now)?;
    match splice(pods, current, &pod, binding) {
        Some(bytes) => Ok((bytes, pod)),
        None => changed(pods, current, |pod| assign(pod, key, binding, now)),
    }
}

/// The metadata and status of a pod that was never assigned and never ran. A binding needs no more of it, and to parse and
/// encode the rest would be most of its cost.
fn unbound(pods: &Resource, current: &Entry) -> Option<Value> {
    let mut pod = trim::read(pods, current, Trim { metadata_only: Some("v1"), without_managed_fields: true })?;
    let bytes = &current.value();
    let (mut spec, mut status) = (None, None);
    raw_json::fields(bytes, 1, |field| match field.name {
        "spec" => spec = Some(field.value),
        "status" => status = Some(field.value),
        _ => {}
    })?;
    let (spec, status) = (spec?, status?);
    let mut has_scheduling_fields = false;
    raw_json::fields(bytes, spec.start + 1, |field| {
        has_scheduling_fields |= matches!(field.name, "nodeName" | "schedulingGates");
    })?;
    pod.set(&["status"], serde_json::from_slice::<Value>(&bytes[status]).ok()?);
    let ran = pod.has(&["status", "containerStatuses"]) || pod.has(&["status", "initContainerStatuses"]);
    (!has_scheduling_fields && !ran).then_some(pod)
}

/// The stored bytes of the pod with the changes of the binding.
fn splice(pods: &Resource, current: &Entry, pod: &Value, binding: &Value) -> Option<Bytes> {
    let mut status = json!({"status": pod["status"]});
    knarr_api::decode::normalize(&mut status, pods.schema()?);
    let node = &pod["spec"]["nodeName"];
    let mut bytes = raw_json::put(&current.value(), 1, "status", status["status"].to_string().as_bytes())?;
    let spec = raw_json::value(&bytes, 1, "spec")?;
    bytes = raw_json::put(&bytes, spec.start + 1, "nodeName", node.to_string().as_bytes())?;
    for field in ["annotations", "labels"] {
        if binding.has(&["metadata", field]) {
            bytes = raw_json::put(&bytes, pods.head().len(), field, pod["metadata"][field].to_string().as_bytes())?;
        }
    }
    Some(bytes.into())
}

/// Assigns the node to the pod, which must not have one yet.
fn assign(pod: &mut Value, key: &str, binding: &Value, now: &str) -> Result<(), Status> {
    let name = pod.text(&["metadata", "name"]).to_owned();
    let refuse = |why: String| Err(Status::conflict(BINDING, &name, &why));
    for (field, what) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
        let (given, own) = (binding.text(&["metadata", field]), pod.text(&["metadata", field]));
        if !given.is_empty() && given != own {
            let why = format!(
                "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition \
                 failed: {what} in precondition: {given}, {what} in object meta: {own}"
            );
            return Err(Status::conflict(GroupResource { group: "", name: "pods" }, &name, &why));
        }
    }
    if pod.has(&["metadata", "deletionTimestamp"]) {
        return refuse(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    let node = pod.text(&["spec", "nodeName"]);
    if !node.is_empty() {
        return refuse(format!("pod {name} is already assigned to node {node:?}"));
    }
    if !pod.items(&["spec", "schedulingGates"]).is_empty() {
        return refuse(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    pod.set(&["spec", "nodeName"], binding.text(&["target", "name"]));
    pod.remove(&["status", "nominatedNodeName"]);
    for field in ["annotations", "labels"] {
        for (key, value) in binding.fields(&["metadata", field]).into_iter().flatten() {
            pod.object(&["metadata", field]).insert(key.clone(), value.clone());
        }
    }
    set_condition(pod, json!({"type": "PodScheduled", "status": "True"}), now);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use knarr_api::catalogue::Catalogue;

    use super::*;
    use crate::kinds::{Kinds, no_descriptions};
    use crate::stored;

    #[test]
    fn a_pod_is_assigned_once() {
        let binding = json!({"metadata": {"name": "p", "annotations": {"a": "b"}}, "target": {"name": "n1"}});
        let mut pod = json!({"metadata": {"name": "p", "uid": "1"}, "spec": {}, "status": {"phase": "Pending"}});
        assign(&mut pod, "/registry/pods/n/p", &binding, "now").unwrap();
        assert_eq!(pod["spec"]["nodeName"], "n1");
        assert_eq!(pod["metadata"]["annotations"], json!({"a": "b"}));
        assert_eq!(
            pod["status"]["conditions"],
            json!([{"type": "PodScheduled", "status": "True", "lastTransitionTime": "now"}])
        );
        let again = assign(&mut pod, "/registry/pods/n/p", &binding, "later").unwrap_err();
        assert_eq!(
            again.message,
            "Operation cannot be fulfilled on pods/binding \"p\": pod p is already assigned to node \"n1\""
        );
    }

    /// A pod as it is stored, with more in its spec and status.
    fn stored_pod(pods: &Resource, spec: Value, status: Value) -> Entry {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "n", "uid": "1", "labels": {"nodeName": "}"},
                "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {"f:nodeName": {}}}}]},
            "spec": {"containers": [{"name": "c", "image": "i", "args": ["\"status\":{}"]}]},
            "status": {"phase": "Pending", "qosClass": "BestEffort"},
        });
        for (part, more) in [("spec", spec), ("status", status)] {
            pod[part].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        }
        knarr_api::decode::normalize(&mut pod, pods.schema().unwrap());
        Entry::new(Arc::from("/registry/pods/n/p"), stored::encode(pods, &pod), 7, 8)
    }

    #[test]
    fn splicing_the_bytes_equals_changing_the_object() {
        let kinds = Kinds::new(Catalogue::built_in(), &HashMap::new(), no_descriptions());
        let pods = kinds.resource("", "v1", "pods").unwrap();
        let failed =
            json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 \"\\n"});
        let binding = |metadata: Value| json!({"metadata": metadata, "target": {"name": "node-1"}});
        let plain = binding(json!({"name": "p", "uid": "1"}));
        let (bytes, whole) = (true, false);
        let marked = json!({"name": "p", "annotations": {"x": "y"}, "labels": {"zone": "\"z\"", "nodeName": "new"}});
        for (spec, status, binding, how) in [
            (json!({}), json!({}), &plain, bytes),
            (json!({"nodeSelector": {"a": "b"}, "volumes": []}), json!({}), &plain, bytes),
            (json!({"restartPolicy": "Always"}), json!({"nominatedNodeName": "other"}), &plain, bytes),
            (json!({}), json!({"conditions": [failed]}), &plain, bytes),
            (json!({}), json!({}), &binding(marked), bytes),
            (json!({}), json!({}), &binding(json!({"name": "p", "uid": "2"})), bytes),
            (json!({}), json!({}), &binding(json!({"name": "p", "resourceVersion": "3"})), bytes),
            (json!({"schedulingGates": [{"name": "g"}]}), json!({}), &plain, whole),
            (json!({"nodeName": "taken"}), json!({}), &plain, whole),
            (json!({}), json!({"containerStatuses": [{"name": "c"}]}), &plain, whole),
        ] {
            let entry = stored_pod(pods, spec, status);
            assert_eq!(unbound(pods, &entry).is_some(), how, "{}", String::from_utf8_lossy(&entry.value()));
            let quick = bind(pods, &entry, "k", binding, "2026-01-01T00:00:00Z");
            let slow = changed(pods, &entry, |pod| assign(pod, "k", binding, "2026-01-01T00:00:00Z"));
            match (quick, slow) {
                (Ok((quick, partial)), Ok((slow, pod))) => {
                    assert!(
                        !how || splice(pods, &entry, &partial, binding).as_ref() == Some(&quick),
                        "the bytes were not spliced"
                    );
                    assert_eq!(String::from_utf8_lossy(&quick), String::from_utf8_lossy(&slow));
                    assert_eq!(partial["status"]["phase"], pod["status"]["phase"]);
                    assert_eq!(partial["metadata"]["name"], pod["metadata"]["name"]);
                }
                (Err(quick), Err(slow)) => assert_eq!(quick.message, slow.message),
                (quick, slow) => panic!("{quick:?}, but {slow:?}"),
            }
        }
    }
}
