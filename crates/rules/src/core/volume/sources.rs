//! Validation of volume sources: the tables of sources, and the check of each.

pub use super::csi::driver_name;
pub use super::iscsi::iscsi_names_length;

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use super::csi::{csi, persistent_csi};
use super::iscsi::{iscsi, persistent_iscsi};
use super::{Source, VolumeContext, projected, require};
use crate::common::checks::between;
use crate::common::formats;
use crate::common::resources;
use crate::core::persistent_volume_claim;

/// The sources of volumes in pods, in the order of validation.
pub const OF_PODS: &[Source] = &[
    Source::new("emptyDir", empty_dir),
    Source::new("hostPath", host_path),
    Source::new("gitRepo", git_repo),
    Source::new("gcePersistentDisk", gce_disk).named("gcePersistentDisk", "persistentDisk"),
    Source::new("awsElasticBlockStore", aws_disk),
    Source::new("secret", secret),
    Source::new("nfs", nfs),
    Source::new("iscsi", iscsi),
    Source::new("glusterfs", |errors, value, path, _| require(errors, value, path, &["endpoints", "path"])),
    Source::new("flocker", flocker),
    Source::new("persistentVolumeClaim", |errors, value, path, _| require(errors, value, path, &["claimName"])),
    Source::new("rbd", |errors, value, path, _| require(errors, value, path, &["monitors", "image"])),
    Source::new("cinder", cinder),
    Source::new("cephfs", |errors, value, path, _| require(errors, value, path, &["monitors"]))
        .named("cephFS", "cephfs"),
    Source::new("quobyte", quobyte),
    Source::new("downwardAPI", projected::downward).named("downwarAPI", "downwardAPI"),
    Source::new("fc", fibre_channel),
    Source::new("flexVolume", flex),
    Source::new("configMap", config_map),
    Source::new("azureFile", |errors, value, path, _| require(errors, value, path, &["secretName", "shareName"])),
    Source::new("vsphereVolume", |errors, value, path, _| require(errors, value, path, &["volumePath"])),
    Source::new("photonPersistentDisk", |errors, value, path, _| require(errors, value, path, &["pdID"])),
    Source::new("portworxVolume", |errors, value, path, _| require(errors, value, path, &["volumeID"])),
    Source::new("azureDisk", azure_disk),
    Source::new("storageos", storage_os),
    Source::new("projected", projected::projected),
    Source::new("scaleIO", |errors, value, path, _| require(errors, value, path, &["gateway", "system", "volumeName"])),
    Source::new("csi", csi),
    Source::new("ephemeral", ephemeral),
    Source::new("image", image),
];

/// The sources of PersistentVolumes, in the order of validation.
pub const OF_PERSISTENT_VOLUMES: &[Source] = &[
    Source::new("hostPath", host_path),
    Source::new("gcePersistentDisk", gce_disk).named("gcePersistentDisk", "persistentDisk"),
    Source::new("awsElasticBlockStore", aws_disk),
    Source::new("glusterfs", persistent_glusterfs),
    Source::new("flocker", flocker),
    Source::new("nfs", nfs),
    Source::new("rbd", |errors, value, path, _| require(errors, value, path, &["monitors", "image"])),
    Source::new("quobyte", quobyte),
    Source::new("cephfs", |errors, value, path, _| require(errors, value, path, &["monitors"]))
        .named("cephFS", "cephfs"),
    Source::new("iscsi", persistent_iscsi),
    Source::new("cinder", persistent_cinder),
    Source::new("fc", fibre_channel),
    Source::new("flexVolume", flex),
    Source::new("azureFile", persistent_azure_file),
    Source::new("vsphereVolume", |errors, value, path, _| require(errors, value, path, &["volumePath"])),
    Source::new("photonPersistentDisk", |errors, value, path, _| require(errors, value, path, &["pdID"])),
    Source::new("portworxVolume", |errors, value, path, _| require(errors, value, path, &["volumeID"])),
    Source::new("azureDisk", azure_disk),
    Source::new("scaleIO", |errors, value, path, _| require(errors, value, path, &["gateway", "system", "volumeName"])),
    Source::new("local", local),
    Source::new("storageos", persistent_storage_os),
    Source::new("csi", persistent_csi),
];

fn empty_dir(errors: &mut Errors, value: &Value, path: &Path<'_>, _: &VolumeContext<'_>) {
    if value.has(&["sizeLimit"]) && resources::quantity(value.at(&["sizeLimit"])).is_negative() {
        errors.forbidden(&path.child("sizeLimit"), "SizeLimit field must be a valid resource quantity");
    }
}

fn host_path(errors: &mut Errors, value: &Value, path: &Path<'_>, _: &VolumeContext<'_>) {
    const TYPES: &[&str] =
        &["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
    let target = value.text(&["path"]);
    if target.is_empty() {
        return errors.required(&path.child("path"), "");
    }
    formats::reject_parent_references(errors, &path.child("path"), target);
    let kind = value.text(&["type"]);
    if !TYPES.contains(&kind) {
        errors.not_supported(&path.child("type"), kind, TYPES);
    }
}

fn git_repo(errors: &mut Errors, value: &Value, path: &Path<'_>, _: &VolumeContext<'_>) {
    require(errors, value, path, &["repository"]);
    formats::local_descending_path(errors, &path.child("directory"), value.text(&["directory"]));
}

fn gce_disk(errors: &mut Errors, value: &Value, path: &Path<'_>, _: &VolumeContext<'_>) {
    require(errors, value, path, &["pdName"]);
    partition(errors, value, path);
}

fn aws_disk(errors: &mut Errors, value: &Value, path: &Path<'_>, _: &VolumeContext<'_>) {
    require(errors, value, path, &["volumeID"]);
    partition(errors, value, path);
}

fn partition(errors: &mut Errors, value: &Value, path: &Path<'_>) {
    if let Some(partition) = value.integer(&["partition"]).filter(|partition| !(0..=255).contains(partition)) {
        errors.invalid(&path.child("partition"), partition, between(1, 255));
    }
}

pub(super) fn secret(errors: &mut Errors, value: &Value, path: &Path<'_>, _: &VolumeContext<'_>) {
    require(errors, value, path, &["secretName"]);
    mode_and_items(errors, value, path);
}

fn config_map(errors: &mut Errors, value: &Value, path: &Path<'_>, _: &VolumeContext<'_>) {
    require(errors, value, path, &["name"]);
    mode_and_items(errors, value, path);
}

fn mode_and_items(errors: &mut Errors, value: &Value, path: &Path<'_>) {
    formats::file_mode(errors, &path.child("defaultMode"), value.integer(&["defaultMode"]));
    for (i, item) in value.items(&["items"]).iter().enumerate() {
        key_to_path(errors, item, &path.item("items", i));
    }
}

/// Validates the mapping of a key in a ConfigMap or Secret to a file.
pub fn key_to_path(errors: &mut Errors, item: &Value, path: &Path<'_>) {
    require(errors, item, path, &["key", "path"]);
    formats::local_non_reserved_path(errors, &path.child("path"), item.text(&["path"]));
    formats::file_mode(errors, &path.child("mode"), item.integer(&["mode"]));
}

fn nfs(errors: &mut Errors, value: &Value, path: &Path<'_>, _: &VolumeContext<'_>) {
    require(errors, value, path, &["server", "path"]);
    let target = value.text(&["path"]);
    if !target.starts_with('/') {
        errors.invalid(&path.child("path"), target, "must be an absolute path");
    }
}

fn persistent_glusterfs(errors: &mut Errors, value: &Value, path: &Path<'_>, _: &VolumeContext<'_>) {
    require(errors, value, path, &["endpoints", "path"]);
    if let Some(namespace) = value.at(&["endpointsNamespace"]).as_str() {
        if namespace.is_empty() {
            let detail = "if the endpointnamespace is set, it must be a valid namespace name";
            errors.invalid(&path.child("endpointsNamespace"), namespace, detail);
        } else {
            names::check(errors, &path.child("endpointsNamespace"), namespace, names::dns_label);
        }
    }
}

fn flocker(errors: &mut Errors, value: &Value, path: &Path<'_>, _: &VolumeContext<'_>) {
    let (name, uuid) = (value.text(&["datasetName"]), value.text(&["datasetUUID"]));
    if name.is_empty() && uuid.is_empty() {
        errors.required(path, "one of datasetName and datasetUUID is required");
    }
    if !name.is_empty() && !uuid.is_empty() {
        errors.invalid(path, "resource", "datasetName and datasetUUID can not be specified simultaneously");
    }
    if name.contains('/') {
        errors.invalid(&path.child("datasetName"), name, "must not contain '/'");
    }
}

fn cinder(errors: &mut Errors, value: &Value, path: &Path<'_>, _: &VolumeContext<'_>) {
    require(errors, value, path, &["volumeID"]);
    secret_reference(errors, value, path, &["name"]);
}

fn persistent_cinder(errors: &mut Errors, value: &Value, path: &Path<'_>, _: &VolumeContext<'_>) {
    require(errors, value, path, &["volumeID"]);
    secret_reference(errors, value, path, &["name", "namespace"]);
}

fn secret_reference(errors: &mut Errors, value: &Value, path: &Path<'_>, fields: &[&str]) {
    if value.has(&["secretRef"]) {
        require(errors, value.at(&["secretRef"]), &path.child("secretRef"), fields);
    }
}

fn quobyte(errors: &mut Errors, value: &Value, path: &Path<'_>, _: &VolumeContext<'_>) {
    const FORM: &str = "must be a host:port pair or multiple pairs separated by commas";
    let registry = value.text(&["registry"]);
    if registry.is_empty() {
        errors.required(&path.child("registry"), FORM);
    } else if value.text(&["tenant"]).len() >= 65 {
        errors.required(&path.child("tenant"), "must be a UUID and may not exceed a length of 64 characters");
    } else {
        for pair in registry.split(',') {
            if !is_host_and_port(pair) {
                errors.invalid(&path.child("registry"), registry, FORM);
            }
        }
    }
    require(errors, value, path, &["volume"]);
}

fn is_host_and_port(pair: &str) -> bool {
    match pair.rsplit_once(':') {
        Some((host, port)) if host.starts_with('[') => host.ends_with(']') && !port.contains([']', '[']),
        Some((host, port)) => !host.contains([':', '[', ']']) && !port.contains(['[', ']']),
        None => false,
    }
}

fn fibre_channel(errors: &mut Errors, value: &Value, path: &Path<'_>, _: &VolumeContext<'_>) {
    let targets = value.items(&["targetWWNs"]);
    let identities = value.items(&["wwids"]);
    if targets.is_empty() && identities.is_empty() {
        let detail = "must specify either targetWWNs or wwids, but not both";
        errors.required(&path.child("targetWWNs"), detail);
    }
    if !targets.is_empty() && !identities.is_empty() {
        let detail = "targetWWNs and wwids can not be specified simultaneously";
        errors.invalid(&path.child("targetWWNs"), targets.to_vec(), detail);
    }
    if targets.is_empty() {
        return;
    }
    match value.integer(&["lun"]) {
        None => errors.required(&path.child("lun"), "lun is required if targetWWNs is specified"),
        Some(unit) if !(0..=255).contains(&unit) => errors.invalid(&path.child("lun"), unit, between(0, 255)),
        Some(_) => {}
    }
}

fn flex(errors: &mut Errors, value: &Value, path: &Path<'_>, _: &VolumeContext<'_>) {
    require(errors, value, path, &["driver"]);
    for key in value.fields(&["options"]).into_iter().flat_map(|options| options.keys()) {
        let domain = format!(".{}", key.split('/').next().unwrap_or_default().to_lowercase());
        if domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io") {
            let detail = "kubernetes.io and k8s.io namespaces are reserved";
            errors.invalid(&path.child("options").key(key), key.as_str(), detail);
        }
    }
}

fn persistent_azure_file(errors: &mut Errors, value: &Value, path: &Path<'_>, _: &VolumeContext<'_>) {
    require(errors, value, path, &["secretName", "shareName"]);
    if value.at(&["secretNamespace"]).as_str() == Some("") {
        errors.required(&path.child("secretNamespace"), "");
    }
}

fn azure_disk(errors: &mut Errors, value: &Value, path: &Path<'_>, _: &VolumeContext<'_>) {
    const CACHING: &[&str] = &["None", "ReadOnly", "ReadWrite"];
    const KINDS: &[&str] = &["Dedicated", "Managed", "Shared"];
    const MANAGED: &str =
        "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}";
    const BLOB: &str = "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd";
    require(errors, value, path, &["diskName", "diskURI"]);
    let (caching, kind, disk) = (value.text(&["cachingMode"]), value.text(&["kind"]), value.text(&["diskURI"]));
    if value.has(&["cachingMode"]) && !CACHING.contains(&caching) {
        errors.not_supported(&path.child("cachingMode"), caching, CACHING);
    }
    if !value.has(&["kind"]) {
        return;
    }
    if !KINDS.contains(&kind) {
        errors.not_supported(&path.child("kind"), kind, KINDS);
    }
    if kind == "Managed" && !disk.starts_with("/subscriptions/") {
        errors.not_supported(&path.child("diskURI"), disk, &[MANAGED]);
    }
    if kind != "Managed" && !disk.starts_with("https://") {
        errors.not_supported(&path.child("diskURI"), disk, &[BLOB]);
    }
}

fn storage_os(errors: &mut Errors, value: &Value, path: &Path<'_>, _: &VolumeContext<'_>) {
    storage_os_names(errors, value, path);
    secret_reference(errors, value, path, &["name"]);
}

fn persistent_storage_os(errors: &mut Errors, value: &Value, path: &Path<'_>, _: &VolumeContext<'_>) {
    storage_os_names(errors, value, path);
    secret_reference(errors, value, path, &["name", "namespace"]);
}

fn storage_os_names(errors: &mut Errors, value: &Value, path: &Path<'_>) {
    let (name, namespace) = (value.text(&["volumeName"]), value.text(&["volumeNamespace"]));
    if name.is_empty() {
        errors.required(&path.child("volumeName"), "");
    } else {
        names::check(errors, &path.child("volumeName"), name, names::dns_label);
    }
    if !namespace.is_empty() {
        names::check(errors, &path.child("volumeNamespace"), namespace, names::dns_label);
    }
}

fn local(errors: &mut Errors, value: &Value, path: &Path<'_>, volume_context: &VolumeContext<'_>) {
    let target = value.text(&["path"]);
    if target.is_empty() {
        errors.required(&path.child("path"), "");
    } else {
        formats::reject_parent_references(errors, &path.child("path"), target);
    }
    if !volume_context.has_node_affinity {
        errors.required(&path.sibling("nodeAffinity"), "Local volume requires node affinity");
    }
}

fn ephemeral(errors: &mut Errors, value: &Value, path: &Path<'_>, volume_context: &VolumeContext<'_>) {
    let template = value.at(&["volumeClaimTemplate"]);
    if template.is_null() {
        errors.required(&path.child("volumeClaimTemplate"), "");
    } else {
        persistent_volume_claim::validate_template(errors, template, &path.child("volumeClaimTemplate"));
    }
    if !volume_context.pod_name.is_empty() && !volume_context.volume_name.is_empty() {
        let claim = format!("{}-{}", volume_context.pod_name, volume_context.volume_name);
        for wrong in names::dns_subdomain(&claim) {
            // The name of the claim is derived from the volume, so the error is about the name of the volume.
            errors.invalid(&path.sibling("name"), volume_context.volume_name, format!("PVC name {claim:?}: {wrong}"));
        }
    }
}

fn image(errors: &mut Errors, value: &Value, path: &Path<'_>, volume_context: &VolumeContext<'_>) {
    if volume_context.is_pod {
        require(errors, value, path, &["reference"]);
    }
    pull_policy(errors, value.text(&["pullPolicy"]), &path.child("pullPolicy"));
}

/// Validates an image pull policy.
pub fn pull_policy(errors: &mut Errors, policy: &str, path: &Path<'_>) {
    match policy {
        "Always" | "IfNotPresent" | "Never" => {}
        "" => errors.required(path, ""),
        _ => errors.not_supported(path, policy, &["Always", "IfNotPresent", "Never"]),
    }
}
