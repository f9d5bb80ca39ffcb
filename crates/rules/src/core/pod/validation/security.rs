//! Security contexts of pods and containers.

use std::sync::LazyLock;

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use regex::Regex;
use serde_json::Value;

use super::super::options::Options;
use crate::common::checks::one_of;
use crate::common::{formats, internal_types};

/// The pod's own security context, and the fields of the spec that belong to it.
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
        // Mounting with the label is a feature that is off.
        let known: &[&str] =
            if options.any_se_linux_change_policy { &["MountOption", "Recursive"] } else { &["Recursive"] };
        one_of(errors, &path.child("seLinuxChangePolicy"), policy, known);
    }
}

/// A container's security context.
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

fn sysctls(errors: &mut Errors, spec: &Value, path: &Path<'_>, options: &Options) {
    const SEGMENT: &str = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?";
    let list = spec.items(&["securityContext", "sysctls"]);
    for (i, sysctl) in list.iter().enumerate() {
        let name = sysctl.text(&["name"]);
        let path = path.index(i);
        let path = path.child("name");
        if name.is_empty() {
            errors.required(&path, "");
        } else if !is_sysctl(name) {
            let detail = format!("must have at most 253 characters and match regex ^({SEGMENT}[\\./])*{SEGMENT}$");
            errors.invalid(&path, name, detail);
        } else if list[..i].iter().any(|other| other.text(&["name"]) == name) {
            errors.duplicate(&path, name);
        }
        if !options.host_sysctls
            && let Some(detail) = host_sysctl(name, spec)
        {
            errors.invalid(&path, name, detail);
        }
    }
}

fn is_sysctl(name: &str) -> bool {
    let is_segment = |segment: &str| {
        let ends = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let bytes = segment.as_bytes();
        bytes.first().is_some_and(ends)
            && bytes.last().is_some_and(ends)
            && bytes.iter().all(|byte| ends(byte) || matches!(byte, b'-' | b'_'))
    };
    name.len() <= 253 && name.split(['.', '/']).all(is_segment)
}

/// Why a sysctl of a namespace that the pod shares with its host cannot be set.
fn host_sysctl(name: &str, spec: &Value) -> Option<&'static str> {
    let name = normalized(name);
    let name = name.split('*').next().unwrap_or_default();
    let is_ipc = name.starts_with("fs.mqueue.")
        || matches!(
            name,
            "kernel.sem"
                | "kernel.shmall"
                | "kernel.shmmax"
                | "kernel.shmmni"
                | "kernel.shm_rmid_forced"
                | "kernel.shm"
                | "kernel.msgmax"
                | "kernel.msgmnb"
                | "kernel.msgmni"
                | "kernel.msg"
        );
    if spec.flag(&["hostNetwork"]) == Some(true) && name.starts_with("net.") {
        return Some("may not be specified when 'hostNetwork' is true");
    }
    (spec.flag(&["hostIPC"]) == Some(true) && is_ipc).then_some("may not be specified when 'hostIPC' is true")
}

/// A sysctl may be written with slashes, and then its dots are part of names.
fn normalized(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(first) if name.as_bytes()[first] == b'/' => name
            .chars()
            .map(|c| {
                if c == '/' {
                    '.'
                } else if c == '.' {
                    '/'
                } else {
                    c
                }
            })
            .collect(),
        _ => name.to_owned(),
    }
}

pub fn has_host_sysctls(spec: &Value) -> bool {
    spec.items(&["securityContext", "sysctls"]).iter().any(|sysctl| host_sysctl(sysctl.text(&["name"]), spec).is_some())
}

static NET_BIOS: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r#"^[^\\/:\*\?"<>|\.][^\\/:\*\?"<>|]{0,14}$"#).expect("the pattern is well formed"));
static DOMAIN: LazyLock<Regex> = LazyLock::new(|| {
    let label = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";
    Regex::new(&format!(r"^{label}(?:\.{label})*$")).expect("the pattern is well formed")
});

fn windows_options(errors: &mut Errors, options: &Value, path: &Path<'_>) {
    if options.is_null() {
        return;
    }
    if let Some(name) = options.at(&["gmsaCredentialSpecName"]).as_str() {
        names::check(errors, &path.child("gmsaCredentialSpecName"), name, names::dns_subdomain);
    }
    if let Some(spec) = options.at(&["gmsaCredentialSpec"]).as_str() {
        if spec.is_empty() {
            errors.invalid(&path.child("gmsaCredentialSpec"), spec, "gmsaCredentialSpec cannot be an empty string");
        } else if spec.len() > 64 * 1024 {
            errors.invalid(&path.child("gmsaCredentialSpec"), spec, "gmsaCredentialSpec size must be under 64 KiB");
        }
    }
    if let Some(user) = options.at(&["runAsUserName"]).as_str() {
        for detail in windows_user(user) {
            errors.invalid(&path.child("runAsUserName"), user, detail);
        }
    }
}

fn windows_user(name: &str) -> Vec<&'static str> {
    if name.is_empty() {
        return vec!["runAsUserName cannot be an empty string"];
    }
    if name.chars().any(|character| character.is_ascii_control()) {
        return vec!["runAsUserName cannot contain control characters"];
    }
    let parts: Vec<&str> = name.split('\\').collect();
    let (domain, user) = match parts.as_slice() {
        [user] => (None, *user),
        [domain, user] => (Some(*domain), *user),
        _ => return vec!["runAsUserName cannot contain more than one backslash"],
    };
    let mut wrong = Vec::new();
    if domain.is_some_and(|domain| domain.len() >= 256) {
        wrong.push("runAsUserName's Domain length must be under 256 characters");
    }
    if domain.is_some_and(|domain| !NET_BIOS.is_match(domain) && !DOMAIN.is_match(domain)) {
        wrong.push("runAsUserName's Domain doesn't match the NetBios nor the DNS format");
    }
    if user.is_empty() {
        wrong.push("runAsUserName's User cannot be empty");
    } else if user.len() > 104 {
        wrong.push("runAsUserName's User length must not be longer than 104 characters");
    }
    if !user.is_empty() && user.chars().all(|character| matches!(character, '.' | ' ')) {
        wrong.push("runAsUserName's User cannot contain only periods or spaces");
    }
    if user.contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']']) {
        wrong.push("runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]");
    }
    wrong
}

/// Pods whose containers run as processes of a Windows host.
pub fn host_processes(errors: &mut Errors, spec: &Value, path: &Path<'_>) {
    let process = ["securityContext", "windowsOptions", "hostProcess"];
    let of_pod = spec.flag(&process);
    let (mut all, mut on_host) = (0, 0);
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for (i, container) in spec.items(&[list]).iter().enumerate() {
            all += 1;
            let of_container = container.flag(&process);
            if let (Some(pod), Some(own)) = (of_pod, of_container)
                && pod != own
            {
                let container = path.item(list, i);
                let detail = format!("pod hostProcess value must be identical if both are specified, was {pod}");
                errors.invalid(&container.child("securityContext.windowsOptions.hostProcess"), own, detail);
            }
            if of_container.or(of_pod) == Some(true) {
                on_host += 1;
            }
        }
    }
    if on_host == 0 {
        return;
    }
    if on_host != all {
        let detail = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        errors.invalid(path, "", detail);
    }
    if spec.flag(&["hostNetwork"]) != Some(true) {
        let detail = "hostNetwork must be true if pod contains any hostProcess containers";
        errors.invalid(&path.child("hostNetwork"), false, detail);
    }
}

/// What a pod in its own user namespace cannot share with its host.
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

/// What the operating system of a pod rules out.
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

fn windows(errors: &mut Errors, spec: &Value, path: &Path<'_>) {
    const DETAIL: &str = "cannot be set for a windows pod";
    // The order in which they are told; those of the spec stand between those of the context.
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
