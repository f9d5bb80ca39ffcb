//! Validation of environment variables.

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::formats;
use crate::core::volume::projected::{field_reference, resource_reference};
use crate::core::volume::require;
use crate::metadata::mask_trailing_dash;

const FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// Validates the variables of a container.
pub fn variables(errors: &mut Errors, container: &Value, path: &Path<'_>) {
    for (i, variable) in container.items(&["env"]).iter().enumerate() {
        let path = path.item("env", i);
        let name = variable.text(&["name"]);
        if name.is_empty() {
            errors.required(&path.child("name"), "");
        } else {
            names::check(errors, &path.child("name"), name, formats::variable_name);
        }
        value_source(errors, variable, &path.child("valueFrom"));
    }
}

fn value_source(errors: &mut Errors, variable: &Value, path: &Path<'_>) {
    let source = variable.at(&["valueFrom"]);
    if source.is_null() {
        return;
    }
    let mut count = 0;
    for (name, inner) in source.as_object().into_iter().flatten() {
        if !inner.is_null() && SOURCES.iter().any(|(known, _)| known == name) {
            count += 1;
        }
    }
    for (name, check) in SOURCES {
        let inner = source.at(&[name]);
        if !inner.is_null() {
            check(errors, inner, &path.child(name));
        }
    }
    if count == 0 {
        let detail =
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
        errors.invalid(path, "", detail);
    } else if !variable.text(&["value"]).is_empty() {
        errors.invalid(path, "", "may not be specified when `value` is not empty");
    } else if count > 1 {
        errors.invalid(path, "", "may not have more than one field specified at a time");
    }
}

type Check = fn(&mut Errors, &Value, &Path<'_>);

const SOURCES: &[(&str, Check)] = &[
    ("fieldRef", |errors, value, path| field_reference(errors, value, FIELDS, path)),
    ("resourceFieldRef", |errors, value, path| resource_reference(errors, value, path, false)),
    ("configMapKeyRef", key_reference),
    ("secretKeyRef", key_reference),
    ("fileKeyRef", file_reference),
];

fn key_reference(errors: &mut Errors, reference: &Value, path: &Path<'_>) {
    names::check(errors, &path.child("name"), reference.text(&["name"]), names::dns_subdomain);
    let key = reference.text(&["key"]);
    if key.is_empty() {
        errors.required(&path.child("key"), "");
    } else {
        names::check(errors, &path.child("key"), key, formats::config_key);
    }
}

fn file_reference(errors: &mut Errors, reference: &Value, path: &Path<'_>) {
    let (key, volume, file) = (reference.text(&["key"]), reference.text(&["volumeName"]), reference.text(&["path"]));
    require(errors, reference, path, &["key"]);
    if !key.is_empty() {
        names::check(errors, &path.child("key"), key, formats::variable_name);
    }
    require(errors, reference, path, &["volumeName"]);
    if !volume.is_empty() {
        names::check(errors, &path.child("volumeName"), volume, names::dns_label);
    }
    require(errors, reference, path, &["path"]);
    if !file.is_empty() {
        formats::reject_parent_references(errors, &path.child("path"), file);
    }
}

/// Validates variables from whole ConfigMaps and Secrets.
pub fn sources(errors: &mut Errors, container: &Value, path: &Path<'_>) {
    let list = path.child("envFrom");
    for (i, source) in container.items(&["envFrom"]).iter().enumerate() {
        let path = list.index(i);
        let prefix = source.text(&["prefix"]);
        if !prefix.is_empty() {
            names::check(errors, &path.child("prefix"), prefix, formats::variable_name);
        }
        let mut count = 0;
        for kind in ["configMapRef", "secretRef"] {
            let reference = source.at(&[kind]);
            if reference.is_null() {
                continue;
            }
            count += 1;
            let path = path.child(kind);
            let name = reference.text(&["name"]);
            if name.is_empty() {
                errors.required(&path.child("name"), "");
            } else {
                // Upstream validates these names as prefixes, which may end in a dash.
                for wrong in names::dns_subdomain(&mask_trailing_dash(name)) {
                    errors.invalid(&path.child("name"), name, wrong);
                }
            }
        }
        match count {
            0 => errors.invalid(&list, "", "must specify one of: `configMapRef` or `secretRef`"),
            1 => {}
            _ => errors.invalid(&list, "", "may not have more than one field specified at a time"),
        }
    }
}

/// Requires that variables are read from files in emptyDir volumes of the pod.
pub fn file_volumes(errors: &mut Errors, spec: &Value, path: &Path<'_>) {
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for (i, container) in spec.items(&[list]).iter().enumerate() {
            for (j, variable) in container.items(&["env"]).iter().enumerate() {
                let reference = variable.at(&["valueFrom", "fileKeyRef"]);
                if reference.is_null() {
                    continue;
                }
                let name = reference.text(&["volumeName"]);
                let volume = spec.items(&["volumes"]).iter().rev().find(|volume| volume.text(&["name"]) == name);
                let container = path.item(list, i);
                let variable = container.item("env", j);
                let path = variable.child("valueFrom.fileKeyRef.volumeName");
                match volume {
                    None => errors.not_found(&path, name),
                    Some(volume) if !volume.has(&["emptyDir"]) => {
                        errors.invalid(&path, name, "referenced volume must be of type emptyDir");
                    }
                    Some(_) => {}
                }
            }
        }
    }
}
