//! CSI volumes.

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use super::{VolumeContext, require};

/// Validates the name of a CSI driver.
pub fn driver_name(errors: &mut Errors, name: &str, path: &Path<'_>) {
    if name.is_empty() {
        return errors.required(path, "");
    }
    if name.len() > 63 {
        errors.too_long(path, 63);
    }
    for wrong in names::dns_subdomain(&name.to_lowercase()) {
        errors.invalid(path, name, wrong);
    }
}

pub(super) fn csi(errors: &mut Errors, value: &Value, path: &Path<'_>, _: &VolumeContext<'_>) {
    driver_name(errors, value.text(&["driver"]), &path.child("driver"));
    let reference = value.at(&["nodePublishSecretRef"]);
    if !reference.is_null() {
        let name = reference.text(&["name"]);
        if name.is_empty() {
            errors.required(&path.child("nodePublishSecretRef.name"), "");
        } else {
            names::check(errors, &path.child("name"), name, names::dns_subdomain);
        }
    }
}

pub(super) fn persistent_csi(errors: &mut Errors, value: &Value, path: &Path<'_>, _: &VolumeContext<'_>) {
    driver_name(errors, value.text(&["driver"]), &path.child("driver"));
    require(errors, value, path, &["volumeHandle"]);
    for field in
        ["controllerPublishSecretRef", "controllerExpandSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef"]
    {
        let reference = value.at(&[field]);
        if reference.is_null() {
            continue;
        }
        let path = path.child(field);
        let (name, namespace) = (reference.text(&["name"]), reference.text(&["namespace"]));
        if name.is_empty() {
            errors.required(&path.child("name"), "");
        } else {
            names::check(errors, &path.child("name"), name, names::dns_subdomain);
        }
        if namespace.is_empty() {
            errors.required(&path.child("namespace"), "");
        } else {
            names::check(errors, &path.child("namespace"), namespace, names::dns_label);
        }
    }
}
