//! Validation of the security contexts of pods and containers.

mod operating_system;
mod sysctls;
mod windows;

pub use operating_system::operating_system;
pub use sysctls::has_host_sysctls;
pub use windows::host_processes;

use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

use super::super::options::Options;
use crate::common::checks::one_of;
use crate::common::{formats, internal_types};
use sysctls::sysctls;
use windows::windows_options;

/// Validates the security context of a pod, and the fields of the spec that internally belong to it.
pub fn of_pod(errors: &mut Errors, spec: &Value, path: &Path<'_>, options: &Options) {
    let context = spec.at(&["securityContext"]);
    let is_empty = context.as_object().is_none_or(serde_json::Map::is_empty);
    if is_empty && spec.flag(&["shareProcessNamespace"]) != Some(true) {
        return;
    }
    let path = path.child("securityContext");
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        formats::user_number(errors, &path.child(field), context.integer(&[field]));
    }
    for (i, group) in context.items(&["supplementalGroups"]).iter().enumerate() {
        formats::user_number(errors, &path.item("supplementalGroups", i), group.as_i64());
    }
    if spec.flag(&["shareProcessNamespace"]) == Some(true) && spec.flag(&["hostPID"]) == Some(true) {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.invalid(&path.child("shareProcessNamespace"), true, detail);
    }
    sysctls(errors, spec, &path.child("sysctls"), options);
    if let Some(policy) = context.at(&["fsGroupChangePolicy"]).as_str() {
        one_of(errors, &path.child("fsGroupChangePolicy"), policy, &["Always", "OnRootMismatch"]);
    }
    seccomp(errors, context.at(&["seccompProfile"]), &path.child("seccompProfile"));
    windows_options(errors, context.at(&["windowsOptions"]), &path.child("windowsOptions"));
    app_armor(errors, context.at(&["appArmorProfile"]), &path.child("appArmorProfile"));
    if let Some(policy) = context.at(&["supplementalGroupsPolicy"]).as_str() {
        one_of(errors, &path.child("supplementalGroupsPolicy"), policy, &["Merge", "Strict"]);
    }
    if let Some(policy) = context.at(&["seLinuxChangePolicy"]).as_str() {
        // This policy belongs to a disabled feature gate.
        let known: &[&str] =
            if options.any_se_linux_change_policy { &["MountOption", "Recursive"] } else { &["Recursive"] };
        one_of(errors, &path.child("seLinuxChangePolicy"), policy, known);
    }
}

/// Validates the security context of a container.
pub fn of_container(errors: &mut Errors, container: &Value, uses_host_users: bool, path: &Path<'_>) {
    let context = container.at(&["securityContext"]);
    if context.is_null() {
        return;
    }
    let path = path.child("securityContext");
    for field in ["runAsUser", "runAsGroup"] {
        formats::user_number(errors, &path.child(field), context.integer(&[field]));
    }
    if let Some(mount) = context.at(&["procMount"]).as_str() {
        one_of(errors, &path.child("procMount"), mount, &["Default", "Unmasked"]);
        if uses_host_users && mount == "Unmasked" {
            errors.invalid(&path.child("procMount"), mount, "`hostUsers` must be false to use `Unmasked`");
        }
    }
    seccomp(errors, context.at(&["seccompProfile"]), &path.child("seccompProfile"));
    if context.flag(&["allowPrivilegeEscalation"]) == Some(false) {
        if context.flag(&["privileged"]) == Some(true) {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.invalid_verbatim(&path, internal_types::to_json("SecurityContext", context), detail);
        }
        for capability in context.items(&["capabilities", "add"]) {
            if capability.as_str() == Some("CAP_SYS_ADMIN") {
                let detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
                errors.invalid_verbatim(&path, internal_types::to_json("SecurityContext", context), detail);
            }
        }
    }
    windows_options(errors, context.at(&["windowsOptions"]), &path.child("windowsOptions"));
    app_armor(errors, context.at(&["appArmorProfile"]), &path.child("appArmorProfile"));
}

fn seccomp(errors: &mut Errors, profile: &Value, path: &Path<'_>) {
    if profile.is_null() {
        return;
    }
    let kind = profile.text(&["type"]);
    match kind {
        "Localhost" | "RuntimeDefault" | "Unconfined" => {}
        "" => errors.required(&path.child("type"), "type is required when seccompProfile is set"),
        _ => errors.not_supported(&path.child("type"), kind, &["Localhost", "RuntimeDefault", "Unconfined"]),
    }
    let local = profile.at(&["localhostProfile"]).as_str();
    match (kind, local) {
        ("Localhost", None) => {
            errors.required(&path.child("localhostProfile"), "must be set when seccomp type is Localhost");
        }
        ("Localhost", Some(local)) => {
            formats::local_descending_path(errors, &path.child("localhostProfile"), local);
        }
        (_, Some(_)) => {
            let rendered = internal_types::to_json("SeccompProfile", profile);
            let detail = "can only be set when seccomp type is Localhost";
            errors.invalid_verbatim(&path.child("localhostProfile"), rendered, detail);
        }
        (_, None) => {}
    }
}

fn app_armor(errors: &mut Errors, profile: &Value, path: &Path<'_>) {
    const NEEDED: &str = "must be set when AppArmor type is Localhost";
    if profile.is_null() {
        return;
    }
    let kind = profile.text(&["type"]);
    let local = profile.at(&["localhostProfile"]).as_str();
    match (kind, local) {
        ("Localhost", None) => errors.required(&path.child("localhostProfile"), NEEDED),
        ("Localhost", Some(local)) => {
            if local.trim() != local {
                errors.invalid(&path.child("localhostProfile"), local, "must not be padded with whitespace");
            } else if local.is_empty() {
                errors.required(&path.child("localhostProfile"), NEEDED);
            }
            if local.len() > 4095 {
                errors.too_long(&path.child("localhostProfile"), 4095);
            }
        }
        ("RuntimeDefault" | "Unconfined", Some(local)) => {
            errors.invalid(&path.child("localhostProfile"), local, "can only be set when AppArmor type is Localhost");
        }
        ("RuntimeDefault" | "Unconfined", None) => {}
        ("", _) => errors.required(&path.child("type"), "type is required when appArmorProfile is set"),
        _ => errors.not_supported(&path.child("type"), kind, &["Localhost", "RuntimeDefault", "Unconfined"]),
    }
}

/// Rejects fields that share a namespace with the host, for a pod with its own user namespace.
pub fn user_namespace(errors: &mut Errors, spec: &Value, path: &Path<'_>, options: &Options) {
    const DETAIL: &str = "when `hostUsers` is false";
    if spec.flag(&["hostUsers"]) != Some(false) {
        return;
    }
    if !options.user_namespaces_with_host_network && spec.flag(&["hostNetwork"]) == Some(true) {
        errors.forbidden(&path.child("hostNetwork"), DETAIL);
    }
    for (field, rendered) in [("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        if spec.flag(&[field]) == Some(true) {
            errors.forbidden(&path.child(rendered), DETAIL);
        }
    }
    if options.user_namespaces_with_devices {
        return;
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for (i, container) in spec.items(&[list]).iter().enumerate() {
            if !container.items(&["volumeDevices"]).is_empty() {
                errors.forbidden(&path.item(list, i).child("volumeDevices"), DETAIL);
            }
        }
    }
}
