//! Token requests of nodes: only for the service accounts of their own pods and the audiences that these pods name.

use knarr_api::status::{GroupResource, Status};
use knarr_api::value::Read;
use serde_json::Value;

use super::bound_to;
use crate::admit::{Operation, Write};
use crate::authorize::{Authorizer, Decision};
use crate::object_reader::ObjectReader;
use crate::request::Target;

pub fn check(
    write: &Write<'_>,
    authorizer: &dyn Authorizer,
    objects: &dyn ObjectReader,
    node: &str,
) -> Result<(), Status> {
    if write.operation != Operation::Create {
        return Ok(());
    }
    let reference = write.object.at(&["spec", "boundObjectRef"]);
    let name = reference.text(&["name"]);
    if reference.text(&["apiVersion"]) != "v1" || reference.text(&["kind"]) != "Pod" || name.is_empty() {
        return Err(write.forbidden("node requested token not bound to a pod"));
    }
    let uid = reference.text(&["uid"]);
    if uid.is_empty() {
        return Err(write.forbidden("node requested token with a pod binding without a uid"));
    }
    let Some(pod) = objects.read("", "pods", write.namespace, name)? else {
        return Err(Status::not_found(GroupResource { group: "", name: "pods" }, name));
    };
    if pod.text(&["metadata", "uid"]) != uid {
        return Err(write.forbidden(format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been \
             deleted and then recreated"
        )));
    }
    if bound_to(&pod) != node {
        return Err(write.forbidden("node requested token bound to a pod scheduled on a different node"));
    }
    check_audience(write, authorizer, objects, &pod)
}

/// A node may request only audiences that its pod's volumes name or that RBAC allows.
fn check_audience(
    write: &Write<'_>,
    authorizer: &dyn Authorizer,
    objects: &dyn ObjectReader,
    pod: &Value,
) -> Result<(), Status> {
    let audience = match write.object.items(&["spec", "audiences"]) {
        [] => "",
        [one] => one.as_str().unwrap_or_default(),
        _ => return Err(write.forbidden("node may only request 0 or 1 audiences")),
    };
    match names_audience(pod, audience, objects) {
        Ok(true) => return Ok(()),
        Ok(false) => {}
        Err(why) => return Err(write.forbidden(format!("error validating audience {audience:?}: {why}"))),
    }
    let target = Target {
        verb: "request-serviceaccounts-token-audience".into(),
        version: "v1".into(),
        resource: audience.into(),
        namespace: write.namespace.into(),
        name: write.name.into(),
        ..Target::default()
    };
    if matches!(authorizer.decide(write.user, &target), Decision::Allow(_)) {
        return Ok(());
    }
    Err(write.forbidden(format!(
        "audience {audience:?} not found in pod spec volume, {} is not authorized to request tokens for this audience",
        write.user.name
    )))
}

/// Whether a volume of the pod names the audience, itself or by its CSI driver. Fails if none does and one could not be
/// read.
fn names_audience(pod: &Value, audience: &str, objects: &dyn ObjectReader) -> Result<bool, String> {
    let mut errors = Vec::new();
    for volume in pod.items(&["spec", "volumes"]) {
        let projected = volume.items(&["projected", "sources"]).iter().any(|source| {
            source.has(&["serviceAccountToken"]) && source.text(&["serviceAccountToken", "audience"]) == audience
        });
        if projected {
            return Ok(true);
        }
        match driver_asks(pod, volume, audience, objects) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(why) => errors.push(why),
        }
    }
    match errors.len() {
        0 => Ok(false),
        1 => Err(errors.remove(0)),
        _ => Err(format!("[{}]", errors.join(", "))),
    }
}

fn driver_asks(pod: &Value, volume: &Value, audience: &str, objects: &dyn ObjectReader) -> Result<bool, String> {
    let namespace = pod.text(&["metadata", "namespace"]);
    let claim =
        match (volume.has(&["ephemeral", "volumeClaimTemplate"]), volume.text(&["persistentVolumeClaim", "claimName"]))
        {
            (true, _) => format!("{}-{}", pod.text(&["metadata", "name"]), volume.text(&["name"])),
            (false, claim) => claim.to_owned(),
        };
    let driver = match claim.as_str() {
        "" => volume.text(&["csi", "driver"]).to_owned(),
        claim => driver_of_claim(namespace, claim, objects)?,
    };
    if driver.is_empty() {
        return Ok(false);
    }
    let found = find(objects, ("storage.k8s.io", "csidrivers"), "csidriver.storage.k8s.io", "", &driver)?;
    Ok(found.items(&["spec", "tokenRequests"]).iter().any(|own| own.text(&["audience"]) == audience))
}

fn driver_of_claim(namespace: &str, claim: &str, objects: &dyn ObjectReader) -> Result<String, String> {
    let claim = find(objects, ("", "persistentvolumeclaims"), "persistentvolumeclaim", namespace, claim)?;
    let volume = claim.text(&["spec", "volumeName"]);
    let volume = find(objects, ("", "persistentvolumes"), "persistentvolume", "", volume)?;
    Ok(volume.text(&["spec", "csi", "driver"]).to_owned())
}

fn find(
    objects: &dyn ObjectReader,
    (group, resource): (&str, &str),
    display_name: &str,
    namespace: &str,
    name: &str,
) -> Result<std::sync::Arc<Value>, String> {
    let found = objects.read(group, resource, namespace, name).map_err(|status| status.message)?;
    found.ok_or_else(|| format!("{display_name} {name:?} not found"))
}
