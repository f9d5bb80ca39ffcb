//! The checks that the restricted level adds.

use std::collections::BTreeSet;

use knarr_api::value::Read;
use serde_json::Value;

use super::baseline::{SECCOMP, added, any_proc_mount, explicit_seccomp};
use super::{Pod, Violation, containers, plural, quote, setters, violation};
use crate::admit::pod_security::level::LevelVersion;

pub fn privilege_escalation(pod: &Pod<'_>, level: LevelVersion) -> Option<Violation> {
    if level.is_at_least(25) && pod.is_windows() {
        return None;
    }
    let names = pod.named(|container| container.flag(&["securityContext", "allowPrivilegeEscalation"]) != Some(false));
    if names.is_empty() {
        return None;
    }
    let detail = format!("{} must set securityContext.allowPrivilegeEscalation=false", containers(&names));
    violation("allowPrivilegeEscalation != false", detail)
}

pub fn capabilities_restricted(pod: &Pod<'_>, level: LevelVersion) -> Option<Violation> {
    if !level.is_at_least(22) || (level.is_at_least(25) && pod.is_windows()) {
        return None;
    }
    let keeps = pod.named(|container| {
        !container.items(&["securityContext", "capabilities", "drop"]).iter().any(|name| name == "ALL")
    });
    let adds = pod.named(|container| added(container).any(|name| name != "NET_BIND_SERVICE"));
    let all = pod.containers.iter().flat_map(|container| added(container));
    let values: BTreeSet<String> = all.filter(|name| *name != "NET_BIND_SERVICE").map(str::to_owned).collect();
    let mut details = Vec::new();
    if !keeps.is_empty() {
        details.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", containers(&keeps)));
    }
    if !adds.is_empty() {
        let list = quote(&values);
        details.push(format!("{} must not include {list} in securityContext.capabilities.add", containers(&adds)));
    }
    if details.is_empty() { None } else { violation("unrestricted capabilities", details.join("; ")) }
}

pub fn proc_mount_restricted(pod: &Pod<'_>, level: LevelVersion) -> Option<Violation> {
    if level.is_at_least(35) { any_proc_mount(pod) } else { None }
}

pub fn restricted_volumes(pod: &Pod<'_>, _: LevelVersion) -> Option<Violation> {
    const ALLOWED: [&str; 9] = [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ];
    let mut names = Vec::new();
    let mut kinds = BTreeSet::new();
    for volume in pod.spec.items(&["volumes"]) {
        if ALLOWED.iter().any(|kind| volume.has(&[kind])) {
            continue;
        }
        names.push(volume.text(&["name"]).to_owned());
        let kind = volume.as_object().and_then(|fields| fields.keys().find(|key| *key != "name"));
        kinds.insert(kind.map_or("unknown", String::as_str).to_owned());
    }
    if names.is_empty() {
        return None;
    }
    let detail = format!(
        "{} {} {} {} {}",
        plural("volume", "volumes", names.len()),
        quote(&names),
        plural("uses", "use", names.len()),
        plural("restricted volume type", "restricted volume types", kinds.len()),
        quote(&kinds)
    );
    violation("restricted volume types", detail)
}

pub fn run_as_non_root(pod: &Pod<'_>, level: LevelVersion) -> Option<Violation> {
    if level.is_at_least(35) && pod.has_own_users() {
        return None;
    }
    let path = ["securityContext", "runAsNonRoot"];
    let explicit = pod.named(|container| container.flag(&path) == Some(false));
    let of_pod = pod.spec.flag(&path);
    if let Some(who) = setters(of_pod == Some(false), &explicit) {
        return violation("runAsNonRoot != true", format!("{who} must not set securityContext.runAsNonRoot=false"));
    }
    if of_pod == Some(true) {
        return None;
    }
    let implicit = pod.named(|container| container.flag(&path).is_none());
    if implicit.is_empty() {
        return None;
    }
    let detail = format!("pod or {} must set securityContext.runAsNonRoot=true", containers(&implicit));
    violation("runAsNonRoot != true", detail)
}

pub fn run_as_user(pod: &Pod<'_>, level: LevelVersion) -> Option<Violation> {
    if !level.is_at_least(23) || (level.is_at_least(35) && pod.has_own_users()) {
        return None;
    }
    let bad = |object: &Value| object.integer(&["securityContext", "runAsUser"]) == Some(0);
    let who = setters(bad(pod.spec), &pod.named(bad))?;
    violation("runAsUser=0", format!("{who} must not set runAsUser=0"))
}

pub fn seccomp_restricted(pod: &Pod<'_>, level: LevelVersion) -> Option<Violation> {
    if !level.is_at_least(19) || (level.is_at_least(25) && pod.is_windows()) {
        return None;
    }
    if let Some(found) = explicit_seccomp(pod) {
        return Some(found);
    }
    if pod.spec.has(&SECCOMP[..2]) {
        return None;
    }
    let names = pod.named(|container| !container.has(&SECCOMP[..2]));
    if names.is_empty() {
        return None;
    }
    let detail = format!(
        "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
        containers(&names)
    );
    violation("seccompProfile", detail)
}
