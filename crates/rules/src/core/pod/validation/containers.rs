//! Validation of containers, init containers and ephemeral containers.

use std::collections::BTreeSet;

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use super::super::options::Options;
use super::mounts::{self, Volumes};
use super::{env, probes, resources, security};
use crate::common::checks::one_of;
use crate::common::formats;
use crate::common::go_json::struct_json;
use crate::core::volume::sources::pull_policy;

/// The pod, as far as the validation of its containers depends on it.
pub struct Pod<'a> {
    pub spec: &'a Value,
    pub volumes: &'a Volumes<'a>,
    pub claims: &'a BTreeSet<&'a str>,
    pub grace: Option<i64>,
    pub options: &'a Options,
}

impl Pod<'_> {
    fn uses_host_users(&self) -> bool {
        self.spec.flag(&["hostUsers"]) != Some(false)
    }
}

/// Validates the main containers.
pub fn main(errors: &mut Errors, pod: &Pod<'_>, path: &Path<'_>) {
    let containers = pod.spec.items(&["containers"]);
    if containers.is_empty() {
        return errors.required(&path.child("containers"), "");
    }
    let mut seen = BTreeSet::new();
    for (i, container) in containers.iter().enumerate() {
        let path = path.item("containers", i);
        common(errors, container, pod, &path);
        let name = container.text(&["name"]);
        if !seen.insert(name) {
            errors.duplicate(&path.child("name"), name);
        }
        if container.has(&["lifecycle"]) {
            probes::lifecycle(errors, container, pod.grace, &path);
        }
        probes::probes(errors, container, pod.grace, &path);
        restart_policy(errors, container, &path);
    }
    let mut ports = BTreeSet::new();
    let list = path.child("containers");
    for (i, container) in containers.iter().enumerate() {
        host_ports(errors, container, &mut ports, &list.index(i));
    }
}

/// Validates the init containers.
pub fn init(errors: &mut Errors, pod: &Pod<'_>, path: &Path<'_>) {
    const DETAIL: &str = "may not be set for init containers without restartPolicy=Always";
    let mut seen: BTreeSet<&str> = pod.spec.items(&["containers"]).iter().map(|c| c.text(&["name"])).collect();
    let list = path.child("initContainers");
    for (i, container) in pod.spec.items(&["initContainers"]).iter().enumerate() {
        let path = list.index(i);
        common(errors, container, pod, &path);
        init_restart_policy(errors, container, &path);
        let name = container.text(&["name"]);
        if seen.contains(name) {
            errors.duplicate(&path.child("name"), name);
        } else if !name.is_empty() {
            seen.insert(name);
        }
        // Upstream validates the ports of each init container separately, as the first of a list.
        host_ports(errors, container, &mut BTreeSet::new(), &list.index(0));
        let restarts = container.text(&["restartPolicy"]) == "Always";
        if restarts {
            if container.has(&["lifecycle"]) {
                probes::lifecycle(errors, container, pod.grace, &path);
            }
            probes::probes(errors, container, pod.grace, &path);
            continue;
        }
        for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
            if container.has(&[field]) {
                errors.forbidden(&path.child(field), DETAIL);
            }
        }
        if !pod.options.restarting_init_containers {
            for (j, policy) in container.items(&["resizePolicy"]).iter().enumerate() {
                let restart = policy.text(&["restartPolicy"]);
                if restart == "RestartContainer" {
                    let detail = "must not be set to 'RestartContainer' for non-sidecar initContainers";
                    errors.invalid(&path.item("resizePolicy", j).child("restartPolicy"), restart, detail);
                }
            }
        }
    }
}

/// Validates the ephemeral containers.
pub fn ephemeral(errors: &mut Errors, pod: &Pod<'_>, path: &Path<'_>) {
    const DETAIL: &str = "cannot be set for an Ephemeral Container";
    let others: BTreeSet<&str> = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| pod.spec.items(&[list]))
        .map(|container| container.text(&["name"]))
        .collect();
    let mut seen = others.clone();
    for (i, container) in pod.spec.items(&["ephemeralContainers"]).iter().enumerate() {
        let path = path.item("ephemeralContainers", i);
        common(errors, container, pod, &path);
        untrimmed_image(errors, container, &path);
        let name = container.text(&["name"]);
        if !seen.insert(name) {
            errors.duplicate(&path.child("name"), name);
        }
        let target = container.text(&["targetContainerName"]);
        if !target.is_empty() && !others.contains(target) {
            errors.not_found(&path.child("targetContainerName"), target);
        }
        let is_set = |field: &str| match container.at(&[field]) {
            Value::Null => false,
            Value::Object(fields) => field != "resources" || !fields.is_empty(),
            Value::Array(items) => !items.is_empty(),
            _ => true,
        };
        for field in [
            "ports",
            "resources",
            "resizePolicy",
            "restartPolicy",
            "restartPolicyRules",
            "livenessProbe",
            "readinessProbe",
            "startupProbe",
            "lifecycle",
        ] {
            if is_set(field) {
                errors.forbidden(&path.child(field), DETAIL);
            }
        }
        for (j, mount) in container.items(&["volumeMounts"]).iter().enumerate() {
            for field in ["subPath", "subPathExpr"] {
                if !mount.text(&[field]).is_empty() {
                    errors.forbidden(&path.item("volumeMounts", j).child(field), DETAIL);
                }
            }
        }
    }
}

/// Rejects whitespace around the image in pods; templates may have it.
pub fn untrimmed_image(errors: &mut Errors, container: &Value, path: &Path<'_>) {
    let image = container.text(&["image"]);
    if image.trim().len() != image.len() {
        errors.invalid(&path.child("image"), image, "must not have leading or trailing whitespace");
    }
}

fn common(errors: &mut Errors, container: &Value, pod: &Pod<'_>, path: &Path<'_>) {
    let name = container.text(&["name"]);
    if name.is_empty() {
        errors.required(&path.child("name"), "");
    } else {
        names::check(errors, &path.child("name"), name, names::dns_label);
    }
    if container.text(&["image"]).is_empty() {
        errors.required(&path.child("image"), "");
    }
    match container.text(&["terminationMessagePolicy"]) {
        "File" | "FallbackToLogsOnError" => {}
        "" => errors.required(&path.child("terminationMessagePolicy"), ""),
        other => {
            errors.not_supported(&path.child("terminationMessagePolicy"), other, &["File", "FallbackToLogsOnError"]);
        }
    }
    ports(errors, container, path);
    env::variables(errors, container, path);
    env::sources(errors, container, path);
    mounts::mounts(errors, container, pod.volumes, path);
    mounts::devices(errors, container, pod.volumes, path);
    pull_policy(errors, container.text(&["imagePullPolicy"]), &path.child("imagePullPolicy"));
    resources::of_container(errors, container.at(&["resources"]), pod.claims, &path.child("resources"), pod.options);
    resize_policy(errors, container, pod, &path.child("resizePolicy"));
    security::of_container(errors, container, pod.uses_host_users(), path);
}

fn ports(errors: &mut Errors, container: &Value, path: &Path<'_>) {
    let mut seen = BTreeSet::new();
    let list = path.child("ports");
    for (i, port) in container.items(&["ports"]).iter().enumerate() {
        let path = list.index(i);
        let name = port.text(&["name"]);
        if !name.is_empty() {
            let wrong = formats::port_name(name);
            if wrong.is_empty() {
                if !seen.insert(name) {
                    errors.duplicate(&path.child("name"), name);
                }
            } else {
                for text in wrong {
                    errors.invalid(&path.child("name"), name, text);
                }
            }
        }
        match port.integer(&["containerPort"]).unwrap_or_default() {
            0 => errors.required(&path.child("containerPort"), ""),
            number => formats::port_number(errors, &path.child("containerPort"), number),
        }
        let host_port = port.integer(&["hostPort"]).unwrap_or_default();
        if host_port != 0 {
            formats::port_number(errors, &path.child("hostPort"), host_port);
        }
        match port.text(&["protocol"]) {
            "" => errors.required(&path.child("protocol"), ""),
            protocol => one_of(errors, &path.child("protocol"), protocol, &["SCTP", "TCP", "UDP"]),
        }
    }
}

fn host_ports(errors: &mut Errors, container: &Value, used: &mut BTreeSet<String>, path: &Path<'_>) {
    for (i, port) in container.items(&["ports"]).iter().enumerate() {
        let number = port.integer(&["hostPort"]).unwrap_or_default();
        if number == 0 {
            continue;
        }
        let rendered = format!("{}/{}/{number}", port.text(&["protocol"]), port.text(&["hostIP"]));
        if used.contains(&rendered) {
            errors.duplicate(&path.item("ports", i).child("hostPort"), rendered);
        } else {
            used.insert(rendered);
        }
    }
}

fn resize_policy(errors: &mut Errors, container: &Value, pod: &Pod<'_>, path: &Path<'_>) {
    let mut seen = BTreeSet::new();
    for (i, policy) in container.items(&["resizePolicy"]).iter().enumerate() {
        let (resource, restart) = (policy.text(&["resourceName"]), policy.text(&["restartPolicy"]));
        if !seen.insert(resource) {
            errors.duplicate(&path.index(i), resource);
        }
        match resource {
            "" => errors.required(path, ""),
            _ => one_of(errors, path, resource, &["cpu", "memory"]),
        }
        match restart {
            "" => errors.required(path, ""),
            _ => one_of(errors, path, restart, &["NotRequired", "RestartContainer"]),
        }
        if pod.spec.text(&["restartPolicy"]) == "Never" && restart != "NotRequired" {
            errors.invalid(path, restart, "must be 'NotRequired' when pod `restartPolicy` is 'Never'");
        }
    }
}

fn init_restart_policy(errors: &mut Errors, container: &Value, path: &Path<'_>) {
    if container.has(&["restartPolicy"]) || !container.items(&["restartPolicyRules"]).is_empty() {
        if !container.has(&["restartPolicy"]) {
            let detail = "must specify restartPolicy when restart rules are used";
            return errors.required(&path.child("restartPolicy"), detail);
        }
        restart_policy(errors, container, path);
    }
}

fn restart_policy(errors: &mut Errors, container: &Value, path: &Path<'_>) {
    let rules = container.items(&["restartPolicyRules"]);
    match container.at(&["restartPolicy"]).as_str() {
        None if rules.is_empty() => return,
        None => {
            let detail = "must specify restartPolicy when restart rules are used";
            errors.required(&path.child("restartPolicy"), detail);
        }
        Some(policy) => one_of(errors, &path.child("restartPolicy"), policy, &["Always", "Never", "OnFailure"]),
    }
    if rules.len() > 20 {
        errors.too_many(&path.child("restartPolicyRules"), rules.len(), 20);
    }
    for (i, rule) in rules.iter().enumerate() {
        let path = path.item("restartPolicyRules", i);
        one_of(errors, &path.child("action"), rule.text(&["action"]), &["Restart", "RestartAllContainers"]);
        let codes = rule.at(&["exitCodes"]);
        let path = path.child("exitCodes");
        if codes.is_null() {
            errors.required(&path, "must be specified");
            continue;
        }
        one_of(errors, &path.child("operator"), codes.text(&["operator"]), &["In", "NotIn"]);
        let count = codes.items(&["values"]).len();
        if count > 255 {
            errors.too_many(&path.child("values"), count, 255);
        }
    }
}

/// Validates the resource claims of a pod.
pub fn claims(errors: &mut Errors, spec: &Value, metadata: Option<&Value>, path: &Path<'_>) {
    let mut seen = BTreeSet::new();
    for (i, claim) in spec.items(&["resourceClaims"]).iter().enumerate() {
        if metadata.is_some_and(|metadata| metadata.has(&["annotations", "kubernetes.io/config.mirror"])) {
            errors.forbidden(&Path::root("[]"), "static pods do not support resource claims");
            continue;
        }
        let path = path.item("resourceClaims", i);
        let name = claim.text(&["name"]);
        if name.is_empty() {
            errors.required(&path.child("name"), "");
        } else if seen.contains(name) {
            errors.duplicate(&path.child("name"), name);
        } else {
            names::check(errors, &path.child("name"), name, names::dns_label);
            seen.insert(name);
        }
        let (direct, template) = (claim.at(&["resourceClaimName"]), claim.at(&["resourceClaimTemplateName"]));
        let rendered = || {
            struct_json(&[
                ("Name", name.into()),
                ("ResourceClaimName", direct.clone()),
                ("ResourceClaimTemplateName", template.clone()),
            ])
        };
        match (direct.is_null(), template.is_null()) {
            (false, false) => {
                let detail = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified";
                errors.invalid_verbatim(&path, rendered(), detail);
            }
            (true, true) => {
                let detail = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`";
                errors.invalid_verbatim(&path, rendered(), detail);
            }
            _ => {}
        }
        for (field, value) in [("resourceClaimName", direct), ("resourceClaimTemplateName", template)] {
            if let Some(name) = value.as_str() {
                names::check(errors, &path.child(field), name, names::dns_subdomain);
            }
        }
    }
}
