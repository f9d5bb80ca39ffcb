//! Mirror pods, the only pods that a node may create. They refer to no API object but the node itself.

use knarr_api::status::{GroupResource, Status};
use knarr_api::value::Read;
use knarr_rules::core::pod::references::api_reference;

use super::bound_to;
use crate::admit::Write;
use crate::object_reader::ObjectReader;

const MIRROR: &str = "kubernetes.io/config.mirror";

pub fn check(write: &Write<'_>, objects: &dyn ObjectReader, node: &str) -> Result<(), Status> {
    let pod = &*write.object;
    if pod.at(&["metadata", "annotations"]).get(MIRROR).is_none() {
        let why = format!("pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods");
        return Err(write.forbidden(why));
    }
    if bound_to(pod) != node {
        return Err(write.forbidden(format!("node {node:?} can only create pods with spec.nodeName set to itself")));
    }
    check_owner(write, objects, node)?;
    match api_reference(pod) {
        Ok(None) => Ok(()),
        Ok(Some(kind)) => Err(write.forbidden(format!("node {node:?} can not create pods that reference {kind}"))),
        Err(why) => Err(write.forbidden(format!("error checking mirror pod for API references: {why}"))),
    }
}

/// The node must be the pod's only owner, so that the pod is deleted with it.
fn check_owner(write: &Write<'_>, objects: &dyn ObjectReader, node: &str) -> Result<(), Status> {
    let refuse = |why: &str| Err(write.forbidden(format!("node {node:?} {why}")));
    let owner = match write.object.items(&["metadata", "ownerReferences"]) {
        [owner] => owner,
        [] => return refuse("can only create pods with an owner reference set to itself"),
        _ => return refuse("can only create pods with a single owner reference set to itself"),
    };
    let is_self =
        owner.text(&["apiVersion"]) == "v1" && owner.text(&["kind"]) == "Node" && owner.text(&["name"]) == node;
    if !is_self {
        return refuse("can only create pods with an owner reference set to itself");
    }
    if owner.flag(&["controller"]) != Some(true) {
        return refuse("can only create pods with a controller owner reference set to itself");
    }
    if owner.flag(&["blockOwnerDeletion"]) == Some(true) {
        return refuse("must not set blockOwnerDeletion on an owner reference");
    }
    let Some(found) = objects.read("", "nodes", "", node)? else {
        return Err(Status::not_found(GroupResource { group: "", name: "nodes" }, node));
    };
    let (given, known) = (owner.text(&["uid"]), found.text(&["metadata", "uid"]));
    if given != known {
        return Err(write.forbidden(format!("node {node} UID mismatch: expected {given} got {known}")));
    }
    Ok(())
}
