//! Sysctls in the security context of a pod.

use std::collections::BTreeSet;

use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

use crate::core::pod::options::Options;

pub(super) fn sysctls(errors: &mut Errors, spec: &Value, path: &Path<'_>, options: &Options) {
    const SEGMENT: &str = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?";
    let mut seen = BTreeSet::new();
    for (i, sysctl) in spec.items(&["securityContext", "sysctls"]).iter().enumerate() {
        let name = sysctl.text(&["name"]);
        let path = path.index(i);
        let path = path.child("name");
        if name.is_empty() {
            errors.required(&path, "");
        } else if !is_sysctl(name) {
            let detail = format!("must have at most 253 characters and match regex ^({SEGMENT}[\\./])*{SEGMENT}$");
            errors.invalid(&path, name, detail);
        } else if !seen.insert(name) {
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

/// Returns why a sysctl cannot be set: the pod shares its namespace with the host.
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

/// Normalizes a sysctl to dots as separators. In the form with slashes, dots are part of names.
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

/// Returns whether a spec sets a sysctl of a namespace that it shares with the host.
pub fn has_host_sysctls(spec: &Value) -> bool {
    spec.items(&["securityContext", "sysctls"]).iter().any(|sysctl| host_sysctl(sysctl.text(&["name"]), spec).is_some())
}
