//! Fields that a pod may not set because of its operating system.

use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

/// Rejects fields that the operating system of a pod excludes.
pub fn operating_system(errors: &mut Errors, spec: &Value, path: &Path<'_>) {
    let os = spec.at(&["os"]);
    if os.is_null() {
        return;
    }
    match os.text(&["name"]) {
        "" => errors.required(&path.child("os.name"), ""),
        "linux" => linux(errors, spec, path),
        "windows" => windows(errors, spec, path),
        other => errors.not_supported(&path.child("os"), other, &["linux", "windows"]),
    }
}

fn linux(errors: &mut Errors, spec: &Value, path: &Path<'_>) {
    const DETAIL: &str = "windows options cannot be set for a linux pod";
    if spec.has(&["securityContext", "windowsOptions"]) {
        errors.forbidden(&path.child("securityContext.windowsOptions"), DETAIL);
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for (i, container) in spec.items(&[list]).iter().enumerate() {
            if container.has(&["securityContext", "windowsOptions"]) {
                errors.forbidden(&path.item(list, i).child("securityContext.windowsOptions"), DETAIL);
            }
        }
    }
}

pub(super) fn windows(errors: &mut Errors, spec: &Value, path: &Path<'_>) {
    const DETAIL: &str = "cannot be set for a windows pod";
    // In the order of upstream's messages, where fields of the spec are between those of the context.
    const OF_POD: &[(&str, &str)] = &[
        ("securityContext", "appArmorProfile"),
        ("securityContext", "seLinuxOptions"),
        ("", "hostUsers"),
        ("", "hostPID"),
        ("", "hostIPC"),
        ("securityContext", "seccompProfile"),
        ("securityContext", "fsGroup"),
        ("securityContext", "fsGroupChangePolicy"),
        ("securityContext", "sysctls"),
        ("", "shareProcessNamespace"),
        ("securityContext", "runAsUser"),
        ("securityContext", "runAsGroup"),
        ("securityContext", "supplementalGroups"),
        ("securityContext", "supplementalGroupsPolicy"),
        ("securityContext", "seLinuxChangePolicy"),
    ];
    const OF_CONTAINER: &[&str] = &[
        "appArmorProfile",
        "seLinuxOptions",
        "seccompProfile",
        "capabilities",
        "readOnlyRootFilesystem",
        "privileged",
        "allowPrivilegeEscalation",
        "procMount",
        "runAsUser",
        "runAsGroup",
    ];
    for (holder, field) in OF_POD {
        let given = if holder.is_empty() { spec.at(&[field]) } else { spec.at(&[holder, field]) };
        let is_off_switch = matches!(*field, "hostPID" | "hostIPC") && given.as_bool() == Some(false);
        if !given.is_null() && !is_off_switch {
            errors.forbidden(&path.child(holder).child(field), DETAIL);
        }
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for (i, container) in spec.items(&[list]).iter().enumerate() {
            let path = path.item(list, i);
            let path = path.child("securityContext");
            for field in OF_CONTAINER {
                if container.has(&["securityContext", field]) {
                    errors.forbidden(&path.child(field), DETAIL);
                }
            }
        }
    }
}
