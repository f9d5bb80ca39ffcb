//! Validation of annotations of pods that Kubernetes interprets.

use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

use super::options::{Options, containers};
use super::validation::scheduling;
use crate::common::formats;

/// The annotation of mirror pods, which represent static pods.
pub const MIRROR: &str = "kubernetes.io/config.mirror";
const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Validates the annotations of a pod or template.
pub fn validate(errors: &mut Errors, annotations: &Value, spec: &Value, path: &Path<'_>, options: &Options) {
    let Some(all) = annotations.as_object().filter(|all| !all.is_empty()) else { return };
    let text = |key: &str| all.get(key).and_then(Value::as_str);
    if let Some(value) = text(MIRROR)
        && spec.text(&["nodeName"]).is_empty()
    {
        errors.invalid(&path.key(MIRROR), value, "must set spec.nodeName if mirror pod annotation is set");
    }
    if let Some(listed) = text(TOLERATIONS).filter(|listed| !listed.is_empty()) {
        match serde_json::from_str::<Vec<Value>>(listed) {
            Ok(list) => scheduling::tolerations(errors, &list, &path.child(TOLERATIONS), options),
            Err(error) => errors.invalid(path, TOLERATIONS, error.to_string()),
        }
    }
    if !options.invalid_deletion_cost && !is_deletion_cost(annotations) {
        let cost = text(DELETION_COST).unwrap_or_default();
        errors.invalid(&path.key(DELETION_COST), cost, "must be a 32bit integer");
    }
    if let Some(profile) = text(SECCOMP_POD) {
        seccomp(errors, profile, &path.child(SECCOMP_POD));
    }
    for (key, value) in all.iter().filter(|(key, _)| key.starts_with(SECCOMP_CONTAINER)) {
        seccomp(errors, value.as_str().unwrap_or_default(), &path.child(key));
    }
    for (key, value) in all {
        let Some(container) = key.strip_prefix(APP_ARMOR) else { continue };
        if !containers(spec).any(|other| other.text(&["name"]) == container) {
            errors.invalid(&path.key(key), container, "container not found");
        }
        let profile = value.as_str().unwrap_or_default();
        let is_known = matches!(profile, "" | "runtime/default" | "unconfined") || profile.starts_with("localhost/");
        if !is_known {
            let detail = format!("invalid AppArmor profile name: {}", knarr_api::field::quoted(profile));
            errors.invalid(&path.key(key), profile, detail);
        }
    }
}

/// Returns whether the deletion cost of a pod is absent or a number that controllers accept.
pub fn is_deletion_cost(annotations: &Value) -> bool {
    let Some(cost) = annotations.get(DELETION_COST).and_then(Value::as_str) else { return true };
    let digits = cost.strip_prefix('-').unwrap_or(cost);
    let canonical = digits == "0" && cost == "0" || !digits.starts_with('0');
    canonical && !cost.starts_with('+') && cost.parse::<i32>().is_ok()
}

fn seccomp(errors: &mut Errors, profile: &str, path: &Path<'_>) {
    match profile {
        "runtime/default" | "docker/default" | "unconfined" => {}
        _ => match profile.strip_prefix("localhost/") {
            Some(local) => formats::local_descending_path(errors, path, local),
            None => errors.invalid(path, profile, "must be a valid seccomp profile"),
        },
    }
}

/// Validates an update of annotations.
pub fn validate_update(errors: &mut Errors, pod: &Value, old: &Value, path: &Path<'_>, options: &Options) {
    let (new, before) = (pod.at(&["metadata", "annotations"]), old.at(&["metadata", "annotations"]));
    for (key, value) in before.as_object().into_iter().flatten() {
        if new.get(key) == Some(value) {
            continue;
        }
        if key.starts_with(APP_ARMOR) {
            errors.forbidden(&path.key(key), "may not remove or update AppArmor annotations");
        }
        if key == MIRROR {
            errors.forbidden(&path.key(key), "may not remove or update mirror pod annotation");
        }
    }
    for key in new.as_object().into_iter().flatten().map(|(key, _)| key) {
        if before.get(key).is_some() {
            continue;
        }
        if key.starts_with(APP_ARMOR) {
            errors.forbidden(&path.key(key), "may not add AppArmor annotations");
        }
        if key == MIRROR {
            errors.forbidden(&path.key(key), "may not add mirror pod annotation");
        }
    }
    validate(errors, new, pod.at(&["spec"]), path, options);
}

/// Requires that profiles in annotations and in fields agree.
pub fn agree_with_fields(errors: &mut Errors, metadata: &Value, spec: &Value, path: &Path<'_>) {
    let Some(annotations) = metadata.fields(&["annotations"]).filter(|all| !all.is_empty()) else { return };
    let text = |key: &str| annotations.get(key).and_then(Value::as_str);
    let profile = spec.at(&["securityContext", "seccompProfile"]);
    if let Some(annotation) = text(SECCOMP_POD) {
        agree(errors, annotation, profile, "seccomp", &path.child("securityContext.seccompProfile"));
    }
    for (list, i, container) in placed_containers(spec) {
        let profile = container.at(&["securityContext", "seccompProfile"]);
        if let Some(annotation) = text(&format!("{SECCOMP_CONTAINER}{}", container.text(&["name"]))) {
            let path = path.item(list, i);
            agree(errors, annotation, profile, "seccomp", &path.child("securityContext.seccompProfile"));
        }
    }
    if spec.text(&["os", "name"]) == "windows" {
        return;
    }
    for (list, i, container) in placed_containers(spec) {
        let own = container.at(&["securityContext", "appArmorProfile"]);
        let profile = if own.is_null() { spec.at(&["securityContext", "appArmorProfile"]) } else { own };
        if let Some(annotation) = text(&format!("{APP_ARMOR}{}", container.text(&["name"]))) {
            let path = path.item(list, i);
            agree(errors, annotation, profile, "apparmor", &path.child("securityContext.appArmorProfile"));
        }
    }
}

fn placed_containers(spec: &Value) -> impl Iterator<Item = (&'static str, usize, &Value)> {
    ["initContainers", "containers", "ephemeralContainers"]
        .into_iter()
        .flat_map(|list| spec.items(&[list]).iter().enumerate().map(move |(i, container)| (list, i, container)))
}

fn agree(errors: &mut Errors, annotation: &str, profile: &Value, what: &str, path: &Path<'_>) {
    if profile.is_null() {
        return;
    }
    let differs = match profile.text(&["type"]) {
        "Unconfined" => annotation != "unconfined",
        "RuntimeDefault" => annotation != "runtime/default" && (what != "seccomp" || annotation != "docker/default"),
        "Localhost" => match annotation.strip_prefix("localhost/") {
            None => true,
            Some(local) => {
                if profile.at(&["localhostProfile"]).as_str() != Some(local) {
                    let detail = format!("{what} profile in annotation and field must match");
                    errors.forbidden(&path.child("localhostProfile"), detail);
                }
                false
            }
        },
        _ => false,
    };
    if differs {
        errors.forbidden(&path.child("type"), format!("{what} type in annotation and field must match"));
    }
}
