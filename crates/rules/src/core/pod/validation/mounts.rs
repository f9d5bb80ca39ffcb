//! Validation of volume mounts and block devices.

use std::collections::{BTreeMap, BTreeSet};

use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::formats;

/// The valid volumes of a pod by name, which containers may mount.
pub type Volumes<'a> = BTreeMap<&'a str, &'a Value>;

/// Validates the volume mounts of a container.
pub fn mounts(errors: &mut Errors, container: &Value, volumes: &Volumes<'_>, path: &Path<'_>) {
    let list = path.child("volumeMounts");
    let (device_names, device_paths) = names_and_paths(container.items(&["volumeDevices"]), "devicePath");
    let mut points = BTreeSet::new();
    for (i, mount) in container.items(&["volumeMounts"]).iter().enumerate() {
        let path = list.index(i);
        let (name, target) = (mount.text(&["name"]), mount.text(&["mountPath"]));
        if name.is_empty() {
            errors.required(&path.child("name"), "");
        }
        if !volumes.contains_key(name) {
            errors.not_found(&path.child("name"), name);
        }
        if target.is_empty() {
            errors.required(&path.child("mountPath"), "");
        }
        if !points.insert(target) {
            errors.invalid(&path.child("mountPath"), target, "must be unique");
        }
        if device_names.contains(name) {
            errors.invalid(&path.child("name"), name, "must not already exist in volumeDevices");
        }
        if device_paths.contains(target) {
            errors.invalid(&path.child("mountPath"), target, "must not already exist as a path in volumeDevices");
        }
        sub_paths(errors, mount, &path, &list);
        propagation(errors, mount, container, &list.child("mountPropagation"));
        recursive_read_only(errors, mount, &list.child("recursiveReadOnly"));
    }
}

/// The names of the volumes in the other list, and the path of each; the last one if there are several.
fn names_and_paths<'a>(list: &'a [Value], path: &str) -> (BTreeSet<&'a str>, BTreeSet<&'a str>) {
    let paths: BTreeMap<&str, &str> = list.iter().map(|item| (item.text(&["name"]), item.text(&[path]))).collect();
    (paths.keys().copied().collect(), paths.into_values().collect())
}

/// Validates a path inside a volume. Errors are reported for the list of mounts as a whole, as upstream does.
fn sub_paths(errors: &mut Errors, mount: &Value, path: &Path<'_>, list: &Path<'_>) {
    let (plain, expression) = (mount.text(&["subPath"]), mount.text(&["subPathExpr"]));
    if !plain.is_empty() {
        formats::local_descending_path(errors, &list.child("subPath"), plain);
    }
    if !expression.is_empty() {
        if !plain.is_empty() {
            let detail = "subPathExpr and subPath are mutually exclusive";
            errors.invalid(&path.child("subPathExpr"), expression, detail);
        }
        formats::local_descending_path(errors, &list.child("subPathExpr"), expression);
    }
}

fn propagation(errors: &mut Errors, mount: &Value, container: &Value, path: &Path<'_>) {
    const MODES: &[&str] = &["Bidirectional", "HostToContainer", "None"];
    let Some(mode) = mount.at(&["mountPropagation"]).as_str() else { return };
    if !MODES.contains(&mode) {
        errors.not_supported(path, mode, MODES);
    }
    if mode == "Bidirectional" && container.flag(&["securityContext", "privileged"]) != Some(true) {
        errors.forbidden(path, "Bidirectional mount propagation is available only to privileged containers");
    }
}

fn recursive_read_only(errors: &mut Errors, mount: &Value, path: &Path<'_>) {
    match mount.at(&["recursiveReadOnly"]).as_str() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if mount.flag(&["readOnly"]) != Some(true) {
                errors.forbidden(path, "may only be specified when readOnly is true");
            }
            if mount.at(&["mountPropagation"]).as_str().is_some_and(|mode| mode != "None") {
                errors.forbidden(path, "may only be specified when mountPropagation is None or not specified");
            }
        }
        Some(other) => errors.not_supported(path, other, &["Disabled", "Enabled", "IfPossible"]),
    }
}

/// Validates the block devices of a container.
pub fn devices(errors: &mut Errors, container: &Value, volumes: &Volumes<'_>, path: &Path<'_>) {
    let (mount_names, mount_paths) = names_and_paths(container.items(&["volumeMounts"]), "mountPath");
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for (i, device) in container.items(&["volumeDevices"]).iter().enumerate() {
        let path = path.item("volumeDevices", i);
        let (name, target) = (device.text(&["name"]), device.text(&["devicePath"]));
        let volume = volumes.get(name);
        if name.is_empty() {
            errors.required(&path.child("name"), "");
        }
        if names.contains(name) {
            errors.invalid(&path.child("name"), name, "must be unique");
        }
        match volume {
            None => errors.not_found(&path.child("name"), name),
            Some(volume) if !volume.has(&["persistentVolumeClaim"]) && !volume.has(&["ephemeral"]) => {
                let detail = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                errors.invalid(&path.child("name"), name, detail);
            }
            Some(_) => {}
        }
        if target.is_empty() {
            errors.required(&path.child("devicePath"), "");
        }
        if paths.contains(target) {
            errors.invalid(&path.child("devicePath"), target, "must be unique");
        }
        if target.split('/').any(|part| part == "..") {
            errors.invalid(&path.child("devicePath"), target, "can not contain backsteps ('..')");
        } else {
            paths.insert(target);
        }
        if mount_names.contains(name) {
            errors.invalid(&path.child("name"), name, "must not already exist in volumeMounts");
        }
        if mount_paths.contains(target) {
            errors.invalid(&path.child("devicePath"), target, "must not already exist as a path in volumeMounts");
        }
        if !name.is_empty() {
            names.insert(name);
        }
    }
}
