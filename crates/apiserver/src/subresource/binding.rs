//! Giving a pod its node.

use http::Response;
use knarr_api::field::{Errors, Path};
use knarr_api::status::{Named, Status};
use knarr_api::time;
use knarr_api::value::{Read, Write as _};
use serde_json::{Value, json};

use super::{admit, change_stored, created, success};
use crate::answer::Body;
use crate::persist::Call;
use crate::persist::pipeline::Phase;
use crate::route::accept::Format;
use crate::server::Admitted;

const BINDING: Named<'static> = Named { group: "", name: "pods/binding" };

pub async fn serve(
    call: &Call<'_>,
    request: &Admitted<'_>,
    name: &str,
    format: &Format,
) -> Result<Response<Body>, Status> {
    let (mut binding, options) = created(call, request).await?;
    if binding.text(&["metadata", "name"]) != name {
        return Err(Status::bad_request("name in URL does not match name in Binding object"));
    }
    check(&binding)?;
    let kind = knarr_api::catalogue::GroupVersionKind::new("v1", "Binding");
    admit(call, &kind, Phase::Validate, &mut binding, options.dry_run).await?;
    let kinds = call.server.kinds.load();
    let pods = kinds.resource("", "v1", "pods").ok_or_else(Status::no_such_resource)?;
    let missing = || Status::not_found(pods.named(), name);
    let now = time::seconds(call.now);
    let key = pods.key(&call.target.namespace, name);
    change_stored(call, pods, &key, missing, options.dry_run, |pod| assign(pod, &key, &binding, &now)).await?;
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

/// Puts the node into the pod, which must not have one yet.
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
            return Err(Status::conflict(Named { group: "", name: "pods" }, &name, &why));
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
    for part in ["annotations", "labels"] {
        for (key, value) in binding.fields(&["metadata", part]).into_iter().flatten() {
            pod.object(&["metadata", part]).insert(key.clone(), value.clone());
        }
    }
    set_condition(pod, json!({"type": "PodScheduled", "status": "True"}), now);
    Ok(())
}

/// Sets one of a pod's conditions; its time changes only when its status does.
pub fn set_condition(pod: &mut Value, mut condition: Value, now: &str) {
    let conditions = pod.object(&["status"]).entry("conditions").or_insert_with(|| json!([]));
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(conditions) = conditions.as_array_mut() else { return };
    match conditions.iter_mut().find(|own| own["type"] == condition["type"]) {
        Some(own) => {
            if own["status"] == condition["status"] && own.has(&["lastTransitionTime"]) {
                condition["lastTransitionTime"] = own["lastTransitionTime"].clone();
            } else {
                condition["lastTransitionTime"] = now.into();
            }
            *own = condition;
        }
        None => {
            condition["lastTransitionTime"] = now.into();
            conditions.push(condition);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_gets_one_node() {
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
}
