//! PersistentVolumes that a node's driver created, and the claims that they are for.

use knarr_api::value::Read;
use serde_json::Value;

use super::{Change, Checked, LOCAL_DRIVER, annotation, ensure, ensure_metadata, ensure_own_node, ensure_served};
use super::{ensure_update, same_spec};
use crate::object_reader::ObjectReader;
use crate::request::Operation;

/// The key in the node affinity of a local volume; its value is the node that has the volume.
const LOCAL_TOPOLOGY: &str = "topology.local.knarr.io/node";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const SOURCE_NODE: &str = "csi.knarr.io/source-node";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const CLAIM_FINALIZER: &str = "csi.knarr.io/provisioning";
/// The finalizers of volumes, those of provisioners and attachers, start with it.
const VOLUME_FINALIZERS: &str = "external-";

/// What the spec of a volume of a driver consists of: no other kind of source.
const FIELDS: [&str; 10] = [
    "accessModes",
    "capacity",
    "claimRef",
    "csi",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];

/// The references to Secrets that nodes read, with the parameters of a class that name them.
const NODE_SECRETS: [(&str, &str); 3] = [
    ("nodePublishSecretRef", "csi.storage.k8s.io/node-publish-secret-"),
    ("nodeStageSecretRef", "csi.storage.k8s.io/node-stage-secret-"),
    ("nodeExpandSecretRef", "csi.storage.k8s.io/node-expand-secret-"),
];
const CONTROLLER_SECRETS: [&str; 2] = ["controllerPublishSecretRef", "controllerExpandSecretRef"];

pub(super) fn check(change: &Change<'_>) -> Checked {
    if change.operation == Operation::Create {
        return check_created(change);
    }
    ensure_own(change, change.old)?;
    if change.operation == Operation::Delete {
        return Ok(());
    }
    ensure(same_spec(change, &["capacity", "volumeAttributesClassName"]), "change the size and class of volumes")?;
    ensure_metadata(change, &[], |finalizer| finalizer.starts_with(VOLUME_FINALIZERS))
}

fn driver_of(volume: &Value) -> &str {
    volume.text(&["spec", "csi", "driver"])
}

/// Refuses volumes of other drivers, and local ones of other nodes.
fn ensure_own(change: &Change<'_>, volume: &Value) -> Checked {
    ensure_served(change.objects, driver_of(volume))?;
    ensure(driver_of(volume) != LOCAL_DRIVER || is_on(volume, change.node), "write local volumes of its own")
}

fn is_on(volume: &Value, node: &str) -> bool {
    let terms = volume.items(&["spec", "nodeAffinity", "required", "nodeSelectorTerms"]);
    let names_node = |term: &Value| {
        term.items(&["matchExpressions"]).iter().any(|one| {
            let values = one.items(&["values"]);
            one.text(&["key"]) == LOCAL_TOPOLOGY
                && one.text(&["operator"]) == "In"
                && matches!(values, [only] if only == node)
        })
    };
    !terms.is_empty() && terms.iter().all(names_node)
}

/// A volume is created for a claim that waits for it, by the rules of the claim's class.
fn check_created(change: &Change<'_>) -> Checked {
    let (volume, objects) = (change.new, change.objects);
    ensure_own(change, volume)?;
    let spec = volume.at(&["spec"]);
    let fields = spec.as_object().into_iter().flatten();
    ensure(fields.into_iter().all(|(field, _)| FIELDS.contains(&field.as_str())), "create volumes of drivers")?;
    let target = spec.at(&["claimRef"]);
    let claim = objects.read("", "persistentvolumeclaims", target.text(&["namespace"]), target.text(&["name"]))?;
    let class = objects.read("storage.k8s.io", "storageclasses", "", spec.text(&["storageClassName"]))?;
    let (Some(claim), Some(class)) = (claim, class) else { return ensure(false, "create volumes for claims") };
    let uid = claim.text(&["metadata", "uid"]);
    let is_wanted = uid == target.text(&["uid"])
        && change.name == format!("pvc-{uid}")
        && claim.text(&["spec", "storageClassName"]) == class.text(&["metadata", "name"])
        && class.text(&["provisioner"]) == driver_of(volume)
        && class.items(&["mountOptions"]) == spec.items(&["mountOptions"]);
    ensure(is_wanted, "create volumes as claims and their classes ask for")?;
    ensure(names_secrets_of(&class, &claim, change), "name Secrets that the class of a volume names")?;
    // Otherwise the claim would get what another claim's volume holds.
    let is_same = |other: &Value| {
        let id =
            |volume: &Value| (driver_of(volume).to_owned(), volume.text(&["spec", "csi", "volumeHandle"]).to_owned());
        other.text(&["metadata", "name"]) != change.name && id(other) == id(volume)
    };
    let others = objects.read_all("", "persistentvolumes", "")?;
    ensure(!others.iter().any(|other| is_same(other)), "create volumes that are no other's")
}

/// Whether a volume names no Secrets but those that its class names for it.
fn names_secrets_of(class: &Value, claim: &Value, change: &Change<'_>) -> bool {
    let named = |prefix: &str, what: &str| {
        let template = class.text(&["parameters", &format!("{prefix}{what}")]);
        let text = template.replace("${pvc.name}", claim.text(&["metadata", "name"]));
        let text = text.replace("${pvc.namespace}", claim.text(&["metadata", "namespace"]));
        text.replace("${pv.name}", change.name)
    };
    let source = change.new.at(&["spec", "csi"]);
    let is_named = |(field, prefix): &(&str, &str)| {
        let reference = source.at(&[field]);
        reference.is_null()
            || reference.text(&["name"]) == named(prefix, "name")
                && reference.text(&["namespace"]) == named(prefix, "namespace")
    };
    NODE_SECRETS.iter().all(is_named) && CONTROLLER_SECRETS.iter().all(|field| !source.has(&[field]))
}

/// The controllers mark claims while they create volumes, and report sizes and classes.
pub(super) fn check_claim(change: &Change<'_>) -> Checked {
    ensure_update(change)?;
    match volume_of(change.old, change.objects)? {
        Some(volume) => ensure_own(change, &volume)?,
        None => ensure_served(change.objects, &provisioner_of(change.old, change.objects)?)?,
    }
    ensure(same_spec(change, &[]), "leave the spec of a claim as it is")?;
    if change.subresource == "status" {
        return ensure_metadata(change, &[], |_| false);
    }
    ensure_own_node(change, SELECTED_NODE)?;
    ensure_own_node(change, SOURCE_NODE)?;
    ensure_metadata(change, &[SELECTED_NODE, SOURCE_NODE], |finalizer| finalizer == CLAIM_FINALIZER)
}

/// The volume that a claim is bound to, if it is of a driver.
pub(super) fn volume_of(
    claim: &Value,
    objects: &dyn ObjectReader,
) -> Result<Option<std::sync::Arc<Value>>, knarr_api::status::Status> {
    let name = claim.text(&["spec", "volumeName"]);
    let volume = if name.is_empty() { None } else { objects.read("", "persistentvolumes", "", name)? };
    let uid = claim.text(&["metadata", "uid"]);
    Ok(volume.filter(|volume| volume.text(&["spec", "claimRef", "uid"]) == uid))
}

/// The driver that creates the volume of a claim. Its class may be gone: then the claim says who it was.
fn provisioner_of(claim: &Value, objects: &dyn ObjectReader) -> Result<String, knarr_api::status::Status> {
    let class = claim.text(&["spec", "storageClassName"]);
    let class = if class.is_empty() { None } else { objects.read("storage.k8s.io", "storageclasses", "", class)? };
    Ok(class.map_or(annotation(claim, PROVISIONER).to_owned(), |class| class.text(&["provisioner"]).to_owned()))
}
