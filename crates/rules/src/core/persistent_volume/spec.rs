//! Validation of the spec of a volume.

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::{Map, Value};

use crate::common::checks::one_of;
use crate::common::resources;
use crate::core::persistent_volume_claim::{VOLUME_MODES, access_modes};
use crate::core::pod::validation::scheduling;
use crate::core::volume::{self, VolumeContext, sources};

pub(super) const MOUNT_ANNOTATION: &str = "volume.beta.kubernetes.io/mount-options";

const NOT_INLINE: &str = "may not be specified in the context of inline volumes";

/// Validates the spec of a volume; `inline` specs are part of a VolumeAttachment.
pub fn validate_spec(
    errors: &mut Errors,
    spec: &Value,
    name: &str,
    path: &Path<'_>,
    inline: bool,
    lax_node_affinity: bool,
) {
    if inline {
        for field in ["claimRef", "capacity"] {
            if spec.has(&[field]) {
                errors.forbidden(&path.child(field), NOT_INLINE);
            }
        }
        if !spec.has(&["csi"]) {
            errors.required(&path.child("csi"), "has to be specified in the context of inline volumes");
        }
    }
    let modes = spec.items(&["accessModes"]);
    if modes.is_empty() {
        errors.required(&path.child("accessModes"), "");
    }
    access_modes(errors, modes, &path.child("accessModes"));
    if !inline {
        capacity(errors, spec, path);
    }
    reclaim_policy(errors, spec, path, inline);
    let has_node_affinity = spec.has(&["nodeAffinity"]);
    if has_node_affinity && inline {
        errors.forbidden(&path.child("nodeAffinity"), NOT_INLINE);
    } else if has_node_affinity {
        node_affinity(errors, spec.at(&["nodeAffinity"]), lax_node_affinity, &path.child("nodeAffinity"));
    }
    let volume_context =
        VolumeContext { pod_name: name, has_node_affinity: has_node_affinity && !inline, ..VolumeContext::default() };
    volume::validate_source(errors, spec, sources::OF_PERSISTENT_VOLUMES, path, &volume_context);
    let recycles = spec.text(&["persistentVolumeReclaimPolicy"]) == "Recycle";
    if recycles && is_root(spec.text(&["hostPath", "path"])) {
        let detail = "may not be 'recycle' for a hostPath mount of '/'";
        errors.forbidden(&path.child("persistentVolumeReclaimPolicy"), detail);
    }
    classes_and_mode(errors, spec, path, inline);
}

fn node_affinity(errors: &mut Errors, affinity: &Value, lax_values: bool, path: &Path<'_>) {
    if affinity.has(&["required"]) {
        scheduling::node_selector(errors, affinity.at(&["required"]), lax_values, &path.child("required"));
    } else {
        errors.required(&path.child("required"), "must specify required node constraints");
    }
}

fn classes_and_mode(errors: &mut Errors, spec: &Value, path: &Path<'_>, inline: bool) {
    let class = spec.text(&["storageClassName"]);
    if !class.is_empty() {
        if inline {
            errors.forbidden(&path.child("storageClassName"), NOT_INLINE);
        } else {
            names::check(errors, &path.child("storageClassName"), class, names::dns_subdomain);
        }
    }
    match spec.at(&["volumeMode"]).as_str() {
        None => {}
        Some(mode) if inline && mode != "Filesystem" => {
            let detail = "may not specify volumeMode other than Filesystem in the context of inline volumes";
            errors.forbidden(&path.child("volumeMode"), detail);
        }
        Some(_) if inline => {}
        Some(mode) => one_of(errors, &path.child("volumeMode"), mode, VOLUME_MODES),
    }
    if let Some(class) = spec.at(&["volumeAttributesClassName"]).as_str() {
        let class_path = path.child("volumeAttributesClassName");
        if class.is_empty() {
            errors.required(&class_path, "an empty string is disallowed");
        } else {
            names::check(errors, &class_path, class, names::dns_subdomain);
        }
        if !spec.has(&["csi"]) {
            errors.required(&path.child("csi"), "has to be specified when using volumeAttributesClassName");
        }
    }
}

/// Returns whether a path is the root directory once it is cleaned.
fn is_root(path: &str) -> bool {
    path.starts_with('/') && path.split('/').all(|part| matches!(part, "" | "." | ".."))
}

pub(super) fn capacity(errors: &mut Errors, spec: &Value, path: &Path<'_>) {
    let path = path.child("capacity");
    let empty = Map::new();
    let capacity = spec.fields(&["capacity"]).unwrap_or(&empty);
    if capacity.is_empty() {
        errors.required(&path, "");
    }
    if !capacity.contains_key("storage") || capacity.len() > 1 {
        let rendered = if capacity.is_empty() { Value::Null } else { Value::Object(capacity.clone()) };
        errors.not_supported(&path, rendered, &["storage"]);
    }
    for (name, amount) in capacity {
        let amount = resources::quantity(amount);
        let path = path.key(name);
        if amount.value() < 0 {
            errors.invalid(&path, amount.value(), "must be a valid resource quantity");
        }
        if amount.signum() <= 0 {
            errors.invalid(&path, amount.to_string(), "must be greater than zero");
        }
    }
}

fn reclaim_policy(errors: &mut Errors, spec: &Value, path: &Path<'_>, inline: bool) {
    let policy = spec.text(&["persistentVolumeReclaimPolicy"]);
    let path = path.child("persistentVolumeReclaimPolicy");
    match (policy, inline) {
        ("", _) | ("Retain", true) => {}
        (_, true) => errors.forbidden(&path, "may only be Retain in the context of inline volumes"),
        (_, false) => one_of(errors, &path, policy, &["Delete", "Recycle", "Retain"]),
    }
}

/// Rejects mount options in the annotation for sources that are not mounted.
pub(super) fn mount_options(errors: &mut Errors, volume: &Value) {
    const MOUNTED: &[&str] = &[
        "gcePersistentDisk",
        "awsElasticBlockStore",
        "glusterfs",
        "nfs",
        "rbd",
        "quobyte",
        "iscsi",
        "cinder",
        "cephfs",
        "azureFile",
        "vsphereVolume",
        "azureDisk",
        "photonPersistentDisk",
    ];
    let is_mounted = MOUNTED.iter().any(|source| volume.has(&["spec", source]));
    if !is_mounted && volume.has(&["metadata", "annotations", MOUNT_ANNOTATION]) {
        let metadata = Path::root("metadata");
        let annotations = metadata.child("annotations");
        errors.forbidden(&annotations.child(MOUNT_ANNOTATION), "may not specify mount options for this volume type");
    }
}
