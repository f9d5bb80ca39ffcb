//! Validation of the spec of a pod, in a Pod or in a template.

pub mod containers;
mod env;
mod mounts;
mod probes;
pub mod resources;
pub mod scheduling;
pub mod security;

use std::collections::BTreeSet;

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use self::mounts::Volumes;
use super::annotations;
use super::options::Options;
use crate::common::checks::between;
use crate::common::checks::one_of;
use crate::common::formats;
use crate::common::{addresses, labels};
use crate::core::volume::{self, VolumeContext, sources};

/// Validates a pod except for its metadata, which is validated for all kinds alike.
pub fn pod(errors: &mut Errors, pod: &Value, options: &Options) {
    let path = Path::root("spec");
    let (metadata, spec) = (pod.at(&["metadata"]), pod.at(&["spec"]));
    let annotations = Path::root("metadata");
    annotations::validate(errors, metadata.at(&["annotations"]), spec, &annotations.child("annotations"), options);
    self::spec(errors, spec, Some(metadata), &path, options);
    if spec.text(&["serviceAccountName"]).is_empty() {
        no_tokens(errors, spec, &path);
    }
    for list in ["containers", "initContainers"] {
        for (i, container) in spec.items(&[list]).iter().enumerate() {
            containers::untrimmed_image(errors, container, &path.item(list, i));
        }
    }
}

/// Rejects tokens in a pod without a service account.
fn no_tokens(errors: &mut Errors, spec: &Value, path: &Path<'_>) {
    for (i, volume) in spec.items(&["volumes"]).iter().enumerate() {
        for (j, source) in volume.items(&["projected", "sources"]).iter().enumerate() {
            if source.has(&["serviceAccountToken"]) {
                let volume = path.item("volumes", i);
                let source = volume.item("projected.sources", j);
                let detail = "must not be specified when serviceAccountName is not set";
                errors.forbidden(&source.child("serviceAccountToken"), detail);
            }
        }
    }
}

/// Validates the spec of a pod. `metadata` is given for pods, not for templates.
pub fn spec(errors: &mut Errors, spec: &Value, metadata: Option<&Value>, path: &Path<'_>, options: &Options) {
    let grace = spec.integer(&["terminationGracePeriodSeconds"]);
    if grace.is_none() {
        errors.required(&path.child("terminationGracePeriodSeconds"), "");
    }
    let volumes = self::volumes(errors, spec, metadata, path, options);
    let claims: BTreeSet<&str> =
        spec.items(&["resourceClaims"]).iter().map(|claim| claim.text(&["name"])).filter(|n| !n.is_empty()).collect();
    containers::claims(errors, spec, metadata, path);
    let pod = containers::Pod { spec, volumes: &volumes, claims: &claims, grace, options };
    containers::main(errors, &pod, path);
    containers::init(errors, &pod, path);
    containers::ephemeral(errors, &pod, path);
    resources::of_pod(errors, spec, &claims, path, options);
    host_network_ports(errors, spec, path, options);
    policies(errors, spec, path);
    labels::validate_labels(errors, spec.at(&["nodeSelector"]), &path.child("nodeSelector"));
    security::of_pod(errors, spec, path, options);
    scheduling::affinity(errors, spec.at(&["affinity"]), &path.child("affinity"), options);
    dns(errors, spec, &path.child("dnsConfig"));
    gates(errors, spec, path);
    scheduling::spread_constraints(errors, spec, path, options);
    security::host_processes(errors, spec, path);
    security::user_namespace(errors, spec, path, options);
    hostname_override(errors, spec, path);
    names_and_numbers(errors, spec, path, options);
    security::operating_system(errors, spec, path);
    env::file_volumes(errors, spec, path);
}

/// Returns the valid volumes, which containers may use.
fn volumes<'a>(
    errors: &mut Errors,
    spec: &'a Value,
    metadata: Option<&Value>,
    path: &Path<'_>,
    options: &Options,
) -> Volumes<'a> {
    let all = spec.items(&["volumes"]);
    let pod_name = metadata.map(|metadata| metadata.text(&["name"])).unwrap_or_default();
    let ephemeral: BTreeSet<&str> =
        all.iter().filter(|volume| volume.has(&["ephemeral"])).map(|volume| volume.text(&["name"])).collect();
    let mut right = Volumes::new();
    for (i, volume) in all.iter().enumerate() {
        let path = path.item("volumes", i);
        let name = volume.text(&["name"]);
        let before = errors.0.len();
        let volume_context = VolumeContext {
            volume_name: name,
            pod_name,
            is_pod: options.is_pod,
            allow_non_local_token_path: options.non_local_token_paths,
            in_pod_spec: true,
            has_node_affinity: false,
        };
        volume::validate_source(errors, volume, sources::OF_PODS, &path, &volume_context);
        if name.is_empty() {
            errors.required(&path.child("name"), "");
        } else {
            names::check(errors, &path.child("name"), name, names::dns_label);
        }
        if right.contains_key(name) {
            errors.duplicate(&path.child("name"), name);
        }
        if errors.0.len() == before {
            right.entry(name).or_insert(volume);
        }
        let claim = volume.text(&["persistentVolumeClaim", "claimName"]);
        if !pod_name.is_empty() && !claim.is_empty() && is_ephemeral_volume_claim(&ephemeral, pod_name, claim) {
            let detail = "must not reference a PVC that gets created for an ephemeral volume";
            errors.invalid(&path.child("persistentVolumeClaim.claimName"), claim, detail);
        }
    }
    right
}

/// Returns whether a claim is the one that is created for an ephemeral volume of the pod.
fn is_ephemeral_volume_claim(ephemeral: &BTreeSet<&str>, pod_name: &str, claim: &str) -> bool {
    let volume = claim.strip_prefix(pod_name).and_then(|rest| rest.strip_prefix('-'));
    volume.is_some_and(|name| ephemeral.contains(name))
}

/// Requires that container ports equal host ports in the network of the host.
fn host_network_ports(errors: &mut Errors, spec: &Value, path: &Path<'_>, options: &Options) {
    if spec.flag(&["hostNetwork"]) != Some(true) {
        return;
    }
    for (i, container) in spec.items(&["containers"]).iter().enumerate() {
        for (j, port) in container.items(&["ports"]).iter().enumerate() {
            let host = port.integer(&["hostPort"]).unwrap_or_default();
            let inner = port.integer(&["containerPort"]).unwrap_or_default();
            if (options.is_pod || host != 0) && host != inner {
                let container = path.item("containers", i);
                let detail = "must match `containerPort` when `hostNetwork` is true";
                errors.invalid(&container.item("ports", j).child("hostPort"), host, detail);
            }
        }
    }
}

fn policies(errors: &mut Errors, spec: &Value, path: &Path<'_>) {
    match spec.text(&["restartPolicy"]) {
        "" => errors.required(&path.child("restartPolicy"), ""),
        policy => one_of(errors, &path.child("restartPolicy"), policy, &["Always", "OnFailure", "Never"]),
    }
    match spec.text(&["dnsPolicy"]) {
        "" => errors.required(&path.child("dnsPolicy"), ""),
        policy => {
            let known = &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
            one_of(errors, &path.child("dnsPolicy"), policy, known);
        }
    }
}

fn dns(errors: &mut Errors, spec: &Value, path: &Path<'_>) {
    let config = spec.at(&["dnsConfig"]);
    let servers = config.items(&["nameservers"]);
    if spec.text(&["dnsPolicy"]) == "None" {
        if config.is_null() {
            return errors.required(path, "must provide `dnsConfig` when `dnsPolicy` is None");
        }
        if servers.is_empty() {
            let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            return errors.required(&path.child("nameservers"), detail);
        }
    }
    if config.is_null() {
        return;
    }
    if servers.len() > 3 {
        errors.invalid(&path.child("nameservers"), servers.to_vec(), "must not have more than 3 nameservers");
    }
    for (i, server) in servers.iter().enumerate() {
        addresses::legacy_address(errors, &path.item("nameservers", i), server.as_str().unwrap_or_default(), &[]);
    }
    let searches = config.items(&["searches"]);
    if searches.len() > 32 {
        errors.invalid(&path.child("searches"), searches.to_vec(), "must not have more than 32 search paths");
    }
    let texts: Vec<&str> = searches.iter().filter_map(Value::as_str).collect();
    if texts.join(" ").len() > 2048 {
        let detail = "must not have more than 2048 characters (including spaces) in the search list";
        errors.invalid(&path.child("searches"), searches.to_vec(), detail);
    }
    for (i, search) in texts.iter().enumerate().filter(|(_, search)| **search != ".") {
        let search = search.strip_suffix('.').unwrap_or(search);
        names::check(errors, &path.item("searches", i), search, formats::search_domain);
    }
    for (i, option) in config.items(&["options"]).iter().enumerate() {
        if option.text(&["name"]).is_empty() {
            errors.required(&path.item("options", i), "must not be empty");
        }
    }
}

fn gates(errors: &mut Errors, spec: &Value, path: &Path<'_>) {
    for (i, gate) in spec.items(&["readinessGates"]).iter().enumerate() {
        let kind = gate.text(&["conditionType"]);
        names::check(errors, &path.item("readinessGates", i).child("conditionType"), kind, names::qualified_name);
    }
    let mut seen = BTreeSet::new();
    for (i, gate) in spec.items(&["schedulingGates"]).iter().enumerate() {
        let name = gate.text(&["name"]);
        let path = path.item("schedulingGates", i);
        names::check(errors, &path, name, names::qualified_name);
        if !seen.insert(name) {
            errors.duplicate(&path, name);
        }
    }
}

fn hostname_override(errors: &mut Errors, spec: &Value, path: &Path<'_>) {
    let Some(name) = spec.at(&["hostnameOverride"]).as_str() else { return };
    let path = path.child("hostnameOverride");
    if spec.flag(&["setHostnameAsFQDN"]) == Some(true) {
        errors.forbidden(&path, "may not be specified when setHostnameAsFQDN is true");
    }
    if spec.flag(&["hostNetwork"]) == Some(true) {
        errors.forbidden(&path, "may not be specified when hostNetwork is true");
    }
    if name.len() > 64 {
        errors.too_long(&path, 64);
    }
    names::check(errors, &path, name, names::dns_subdomain);
}

fn names_and_numbers(errors: &mut Errors, spec: &Value, path: &Path<'_>, options: &Options) {
    for field in ["serviceAccountName", "nodeName"] {
        optional_name(errors, spec, field, names::dns_subdomain, path);
    }
    let limit = i64::from(i32::MAX);
    if let Some(seconds) = spec.integer(&["activeDeadlineSeconds"]).filter(|s| !(1..=limit).contains(s)) {
        errors.invalid(&path.child("activeDeadlineSeconds"), seconds, between(1, limit));
    }
    for field in ["hostname", "subdomain"] {
        optional_name(errors, spec, field, names::dns_label, path);
    }
    scheduling::tolerations(errors, spec.items(&["tolerations"]), &path.child("tolerations"), options);
    for (i, alias) in spec.items(&["hostAliases"]).iter().enumerate() {
        let path = path.item("hostAliases", i);
        addresses::legacy_address(errors, &path.child("ip"), alias.text(&["ip"]), &[]);
        for (j, name) in alias.items(&["hostnames"]).iter().enumerate() {
            let name = name.as_str().unwrap_or_default();
            names::check(errors, &path.item("hostnames", j), name, names::dns_subdomain);
        }
    }
    optional_name(errors, spec, "priorityClassName", names::dns_subdomain, path);
    if let Some(class) = spec.at(&["runtimeClassName"]).as_str() {
        names::check(errors, &path.child("runtimeClassName"), class, names::dns_subdomain);
    }
    match spec.at(&["preemptionPolicy"]).as_str() {
        None => {}
        Some("") => errors.required(&path.child("preemptionPolicy"), ""),
        Some(policy) => {
            one_of(errors, &path.child("preemptionPolicy"), policy, &["PreemptLowerPriority", "Never"]);
        }
    }
    if spec.has(&["overhead"]) {
        resources::overhead(errors, spec.at(&["overhead"]), &path.child("overhead"), options);
    }
}

fn optional_name(errors: &mut Errors, spec: &Value, field: &str, check: names::Check, path: &Path<'_>) {
    let name = spec.text(&[field]);
    if !name.is_empty() {
        names::check(errors, &path.child(field), name, check);
    }
}

#[cfg(test)]
mod tests;
