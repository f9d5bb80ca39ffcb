//! Validation of updates of a pod's status.

use std::collections::{BTreeMap, BTreeSet};

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use super::annotations;
use super::options::Options;
use crate::common::checks::{IMMUTABLE, one_of};
use crate::common::{addresses, formats};

/// Validates a status update.
pub fn validate(errors: &mut Errors, pod: &Value, old: &Value, options: &Options) {
    let metadata = Path::root("metadata");
    annotations::validate_update(errors, pod, old, &metadata.child("annotations"), options);
    let path = Path::root("status");
    let (status, before) = (pod.at(&["status"]), old.at(&["status"]));
    conditions(errors, status, &path);
    nominated_node(errors, status, old, &path.child("nominatedNodeName"));
    if let Some(generation) = status.integer(&["observedGeneration"]).filter(|generation| *generation < 0) {
        errors.invalid(&path.child("observedGeneration"), generation, "must be a non-negative integer");
    }
    if status.text(&["qosClass"]) != before.text(&["qosClass"]) {
        errors.invalid(&path.child("qosClass"), status.text(&["qosClass"]), IMMUTABLE);
    }
    restarts(errors, status, old, &path);
    claim_statuses(errors, pod, &path);
    extended_claim(errors, pod, &path.child("extendedResourceClaimStatus"));
    let known: Vec<&str> = before.items(&["podIPs"]).iter().map(|ip| ip.text(&["ip"])).collect();
    ip_list(errors, status, "podIPs", &known, &path.child("podIPs"));
    host_ips(errors, status, before, &path.child("hostIPs"));
    users_and_devices(errors, pod, &path);
}

fn conditions(errors: &mut Errors, status: &Value, path: &Path<'_>) {
    for (i, condition) in status.items(&["conditions"]).iter().enumerate() {
        let path = path.item("conditions", i);
        if let Some(generation) = condition.integer(&["observedGeneration"]).filter(|generation| *generation < 0) {
            errors.invalid(&path.child("observedGeneration"), generation, "must be a non-negative integer");
        }
        let kind = condition.text(&["type"]);
        if !matches!(kind, "PodScheduled" | "Ready" | "Initialized") {
            names::check(errors, &path.child("Type"), kind, names::qualified_name);
        }
    }
}

fn nominated_node(errors: &mut Errors, status: &Value, old: &Value, path: &Path<'_>) {
    let (new, before) = (status.text(&["nominatedNodeName"]), old.text(&["status", "nominatedNodeName"]));
    if new == before || new.is_empty() {
        return;
    }
    names::check(errors, path, new, names::dns_subdomain);
    if !old.text(&["spec", "nodeName"]).is_empty() {
        errors.forbidden(path, "may not be set on pods that are already bound to a node");
    }
}

/// Requires that a terminated container stays terminated unless its restart policy allows a restart.
fn restarts(errors: &mut Errors, status: &Value, old: &Value, path: &Path<'_>) {
    const DETAIL: &str = "may not be transitioned to non-terminated state";
    let spec = old.at(&["spec"]);
    let all_could_restart = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| spec.items(&[list]))
        .any(|c| c.items(&["restartPolicyRules"]).iter().any(|rule| rule.text(&["action"]) == "RestartAllContainers"));
    for (statuses, list) in [
        ("containerStatuses", "containers"),
        ("initContainerStatuses", "initContainers"),
        ("ephemeralContainerStatuses", ""),
    ] {
        if all_could_restart && !list.is_empty() {
            continue;
        }
        let (now_by_name, containers) = (by_name(status.items(&[statuses])), by_name(spec.items(&[list])));
        for (i, before) in old.items(&["status", statuses]).iter().enumerate() {
            let terminated = before.at(&["state", "terminated"]);
            let name = before.text(&["name"]);
            let now = now_by_name.get(name);
            if terminated.is_null() || now.is_none_or(|now| now.has(&["state", "terminated"])) {
                continue;
            }
            let container = containers.get(name);
            let code = terminated.integer(&["exitCode"]).unwrap_or_default();
            if !container.is_some_and(|container| should_restart(container, spec, code)) {
                errors.forbidden(&path.item(statuses, i).child("state"), DETAIL);
            }
        }
    }
}

/// The items of a list by their names; the first of each.
fn by_name(list: &[Value]) -> BTreeMap<&str, &Value> {
    list.iter().rev().map(|item| (item.text(&["name"]), item)).collect()
}

fn should_restart(container: &Value, spec: &Value, exit_code: i64) -> bool {
    if let Some(policy) = container.at(&["restartPolicy"]).as_str() {
        let matches_rule = container.items(&["restartPolicyRules"]).iter().any(|rule| {
            let listed = rule.items(&["exitCodes", "values"]).iter().any(|value| value.as_i64() == Some(exit_code));
            match rule.text(&["exitCodes", "operator"]) {
                "In" => listed,
                "NotIn" => !listed,
                _ => false,
            }
        });
        return matches_rule || policy == "Always" || (policy == "OnFailure" && exit_code != 0);
    }
    match spec.text(&["restartPolicy"]) {
        "Always" => true,
        "OnFailure" => exit_code != 0,
        _ => false,
    }
}

fn claim_statuses(errors: &mut Errors, pod: &Value, path: &Path<'_>) {
    let claims = by_name(pod.items(&["spec", "resourceClaims"]));
    let mut seen = BTreeSet::new();
    for (i, status) in pod.items(&["status", "resourceClaimStatuses"]).iter().enumerate() {
        let path = path.item("resourceClaimStatuses", i);
        let name = status.text(&["name"]);
        if !claims.contains_key(name) {
            let detail = "must match the name of an entry in `spec.resourceClaims`";
            errors.invalid(&path.child("name"), name, detail);
        }
        if !seen.insert(name) {
            errors.duplicate(&path.child("name"), name);
        }
        if let Some(claim) = status.at(&["resourceClaimName"]).as_str() {
            names::check(errors, &path.child("resourceClaimName"), claim, names::dns_subdomain);
        }
    }
}

fn extended_claim(errors: &mut Errors, pod: &Value, path: &Path<'_>) {
    let status = pod.at(&["status", "extendedResourceClaimStatus"]);
    if status.is_null() {
        return;
    }
    let mappings = status.items(&["requestMappings"]);
    if mappings.is_empty() {
        errors.required(&path.child("requestMappings"), "at least one request mapping is required");
    }
    let (containers, init) =
        (by_name(pod.items(&["spec", "containers"])), by_name(pod.items(&["spec", "initContainers"])));
    let find = |name: &str| containers.get(name).or_else(|| init.get(name)).copied();
    let mut seen = BTreeSet::new();
    for (i, mapping) in mappings.iter().enumerate() {
        let item = path.item("requestMappings", i);
        let (container, resource) = (mapping.text(&["containerName"]), mapping.text(&["resourceName"]));
        let request = mapping.text(&["requestName"]);
        match find(container) {
            Some(found) if found.at(&["resources", "requests"]).get(resource).is_none() => {
                let detail = "must match the extended resource name of an entry in \
                              spec.initContainers.resources.requests or spec.containers.resources.requests";
                errors.invalid(&item.child("resourceName"), resource, detail);
            }
            Some(_) => {}
            None => {
                let detail = "must match the name of an entry in spec.initContainers.name or spec.containers.name";
                errors.invalid(&item.child("containerName"), container, detail);
            }
        }
        names::check(errors, &path.child("requestName"), request, names::dns_label);
        if !seen.insert((container, resource, request)) {
            errors.duplicate(&item.child("containerName"), container);
            errors.duplicate(&item.child("resourceName"), resource);
            errors.duplicate(&item.child("requestName"), request);
        }
    }
    let claim = status.text(&["resourceClaimName"]);
    if claim.is_empty() {
        errors.required(&path.child("resourceClaimName"), "");
    } else {
        names::check(errors, &path.child("resourceClaimName"), claim, names::dns_subdomain);
    }
}

fn host_ips(errors: &mut Errors, status: &Value, before: &Value, path: &Path<'_>) {
    let list = status.items(&["hostIPs"]);
    let Some(first) = list.first() else { return };
    if status.text(&["hostIP"]) != first.text(&["ip"]) {
        errors.invalid(&path.index(0).child("ip"), first.text(&["ip"]), "must be equal to `hostIP`");
    }
    let known: Vec<&str> = before.items(&["hostIPs"]).iter().map(|ip| ip.text(&["ip"])).collect();
    ip_list(errors, status, "hostIPs", &known, path);
}

/// Requires at most one address of each IP family.
fn ip_list(errors: &mut Errors, status: &Value, field: &str, known: &[&str], path: &Path<'_>) {
    let list: Vec<&str> = status.items(&[field]).iter().map(|ip| ip.text(&["ip"])).collect();
    for (i, ip) in list.iter().enumerate() {
        addresses::legacy_address(errors, &path.index(i), ip, known);
    }
    if list.len() > 1 && (!addresses::is_dual_stack(&list) || list.len() > 2) {
        let parts: Vec<String> = list.iter().map(|ip| format!("{{\"IP\":{}}}", Value::from(*ip))).collect();
        let rendered = format!("[{}]", parts.join(","));
        errors.invalid_verbatim(path, rendered, "may specify no more than one IP for each IP family");
    }
}

fn users_and_devices(errors: &mut Errors, pod: &Value, path: &Path<'_>) {
    const LISTS: [&str; 3] = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
    let is_windows = pod.text(&["spec", "os", "name"]) == "windows";
    for list in LISTS {
        for (i, status) in pod.items(&["status", list]).iter().enumerate() {
            let user = status.at(&["user", "linux"]);
            if user.is_null() {
                continue;
            }
            let path = path.item(list, i);
            let path = path.child("user.linux");
            if is_windows {
                errors.forbidden(&path, "cannot be set for a windows pod");
                continue;
            }
            for field in ["uid", "gid"] {
                formats::user_number(errors, &path.child(field), user.integer(&[field]));
            }
            for (j, group) in user.items(&["supplementalGroups"]).iter().enumerate() {
                formats::user_number(errors, &path.item("supplementalGroups", j), group.as_i64());
            }
        }
    }
    for (list, containers) in [("containerStatuses", "containers"), ("initContainerStatuses", "initContainers")] {
        for (i, status) in pod.items(&["status", list]).iter().enumerate() {
            let container = pod
                .items(&["spec", containers])
                .iter()
                .find(|container| container.text(&["name"]) == status.text(&["name"]));
            devices(errors, status, container, &path.item(list, i));
        }
    }
    for (i, status) in pod.items(&["status", LISTS[2]]).iter().enumerate() {
        if !status.items(&["allocatedResourcesStatus"]).is_empty() {
            let path = path.item(LISTS[2], i);
            errors.forbidden(&path.child("allocatedResourcesStatus"), "must not be specified in container status");
        }
    }
}

fn devices(errors: &mut Errors, status: &Value, container: Option<&Value>, path: &Path<'_>) {
    for (i, allocated) in status.items(&["allocatedResourcesStatus"]).iter().enumerate() {
        let path = path.item("allocatedResourcesStatus", i);
        let name = allocated.text(&["name"]);
        if let Some(container) = container {
            let (found, detail) = if name.starts_with("claim:") {
                let is_named = |claim: &Value| match claim.text(&["request"]) {
                    "" => name == format!("claim:{}", claim.text(&["name"])),
                    request => name == format!("claim:{}/{request}", claim.text(&["name"])),
                };
                (
                    container.items(&["resources", "claims"]).iter().any(is_named),
                    "must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or \
                     'claim:<claimName>' if request is empty",
                )
            } else {
                let requested = container.at(&["resources", "requests"]).get(name).is_some();
                (requested, "must match one of the container's resource requests")
            };
            if !found {
                errors.invalid(&path.child("name"), name, detail);
            }
        }
        let mut seen = BTreeSet::new();
        for (j, resource) in allocated.items(&["resources"]).iter().enumerate() {
            let path = path.item("resources", j);
            let health = resource.text(&["health"]);
            one_of(errors, &path.child("health"), health, &["Healthy", "Unhealthy", "Unknown"]);
            match resource.at(&["message"]).as_str() {
                Some("") => errors.required(&path.child("message"), "must be non-empty if specified"),
                Some(message) if message.len() > 1024 => errors.too_long(&path.child("message"), 1024),
                _ => {}
            }
            let identity = resource.text(&["resourceID"]);
            if !seen.insert(identity) {
                errors.duplicate(&path.child("resourceID"), identity);
            }
        }
    }
}
