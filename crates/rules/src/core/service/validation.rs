//! Validation of services.

pub use super::load_balancer::{balancer_class, status};

use std::collections::BTreeSet;
use std::net::IpAddr;

use knarr_api::cidr::parse_sloppy;
use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use super::load_balancer::{balancer, source_ranges};
use super::{accessible, is_headless, needs_health_check};
use crate::common::checks::one_of;
use crate::common::go_json::struct_json;
use crate::common::{addresses, formats, labels};
use crate::core::endpoints::endpoint_ip;

/// Validates a service.
pub fn service(errors: &mut Errors, service: &Value, old: Option<&Value>) {
    topology_annotations(errors, service);
    let path = Path::root("spec");
    let spec = service.at(&["spec"]);
    kind(errors, service, &path);
    ports(errors, service, &path);
    labels::validate_labels(errors, spec.at(&["selector"]), &path.child("selector"));
    session_affinity(errors, spec, &path);
    cluster_ips(errors, service, old, &path);
    external_ips(errors, spec, old, &path);
    match spec.text(&["type"]) {
        "" => errors.required(&path.child("type"), ""),
        kind => one_of(errors, &path.child("type"), kind, &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]),
    }
    repeated_ports(errors, spec, &path);
    source_ranges(errors, service, old, &path);
    balancer(errors, spec, &path);
    traffic(errors, service, &path);
}

fn topology_annotations(errors: &mut Errors, service: &Value) {
    const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
    const MODE: &str = "service.kubernetes.io/topology-mode";
    let annotation = |key: &str| service.at(&["metadata", "annotations"]).get(key).and_then(Value::as_str);
    if let (Some(mode), Some(hints)) = (annotation(MODE), annotation(HINTS))
        && mode != hints
    {
        let detail = format!("must match annotations[{HINTS}] when both are specified");
        let metadata = Path::root("metadata");
        errors.invalid(&metadata.child("annotations").key(MODE), mode, detail);
    }
}

fn kind(errors: &mut Errors, service: &Value, path: &Path<'_>) {
    let spec = service.at(&["spec"]);
    let kind = spec.text(&["type"]);
    if spec.items(&["ports"]).is_empty() && !is_headless(service) && kind != "ExternalName" {
        errors.required(&path.child("ports"), "");
    }
    match kind {
        "LoadBalancer" | "NodePort" if is_headless(service) => {
            let detail = format!("may not be set to 'None' for {kind} services");
            errors.invalid(&path.item("clusterIPs", 0), "None", detail);
        }
        "ExternalName" => {
            for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                if spec.has(&[field]) {
                    errors.forbidden(&path.child(field), "may not be set for ExternalName services");
                }
            }
            let name = spec.text(&["externalName"]);
            match name.strip_suffix('.').unwrap_or(name) {
                "" => errors.required(&path.child("externalName"), ""),
                name => names::check(errors, &path.child("externalName"), name, names::dns_subdomain),
            }
        }
        _ => {}
    }
}

fn ports(errors: &mut Errors, service: &Value, path: &Path<'_>) {
    let ports = service.items(&["spec", "ports"]);
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let path = path.item("ports", i);
        let name = port.text(&["name"]);
        if name.is_empty() {
            if ports.len() > 1 {
                errors.required(&path.child("name"), "");
            }
        } else {
            names::check(errors, &path.child("name"), name, names::dns_label);
            if !seen.insert(name) {
                errors.duplicate(&path.child("name"), name);
            }
        }
        formats::port_number(errors, &path.child("port"), port.integer(&["port"]).unwrap_or_default());
        protocol(errors, port, &path);
        formats::port_number_or_name(errors, &path.child("targetPort"), port.at(&["targetPort"]));
        if let Some(protocol) = port.at(&["appProtocol"]).as_str() {
            names::check(errors, &path.child("appProtocol"), protocol, names::qualified_name);
        }
    }
}

/// Validates the transport protocol of a port.
pub fn protocol(errors: &mut Errors, port: &Value, path: &Path<'_>) {
    match port.text(&["protocol"]) {
        "" => errors.required(&path.child("protocol"), ""),
        protocol => one_of(errors, &path.child("protocol"), protocol, &["SCTP", "TCP", "UDP"]),
    }
}

fn session_affinity(errors: &mut Errors, spec: &Value, path: &Path<'_>) {
    const NEEDED: &str = "when session affinity type is ClientIP";
    let affinity = spec.text(&["sessionAffinity"]);
    let config = spec.at(&["sessionAffinityConfig"]);
    let config_path = path.child("sessionAffinityConfig");
    match affinity {
        "" => errors.required(&path.child("sessionAffinity"), ""),
        _ => one_of(errors, &path.child("sessionAffinity"), affinity, &["ClientIP", "None"]),
    }
    if affinity == "None" && !config.is_null() {
        errors.forbidden(&config_path, "must not be set when session affinity is None");
    }
    if affinity != "ClientIP" {
        return;
    }
    if config.is_null() {
        errors.required(&config_path, NEEDED);
    } else if !config.has(&["clientIP"]) {
        errors.required(&config_path.child("clientIP"), NEEDED);
    } else {
        let path = config_path.child("clientIP.timeoutSeconds");
        match config.integer(&["clientIP", "timeoutSeconds"]) {
            None => errors.required(&path, NEEDED),
            Some(seconds) if !(1..=86_400).contains(&seconds) => {
                errors.invalid(&path, seconds, "must be greater than 0 and less than 86400");
            }
            Some(_) => {}
        }
    }
}

/// Validates cluster IPs, IP families and the family policy. The allocator calls it before it allocates, and stops if
/// there is an error.
pub fn cluster_ips(errors: &mut Errors, service: &Value, old: Option<&Value>, path: &Path<'_>) {
    let spec = service.at(&["spec"]);
    if spec.text(&["type"]) == "ExternalName" {
        return;
    }
    let list = spec.items(&["clusterIPs"]);
    let list_path = path.child("clusterIPs");
    let whole = || Value::Array(list.to_vec());
    first_cluster_ip(errors, spec, &list_path);
    families(errors, spec, path);
    let known: Vec<&str> =
        old.map_or(&[][..], |old| old.items(&["spec", "clusterIPs"])).iter().filter_map(Value::as_str).collect();
    let mut has_invalid = false;
    for (i, ip) in list.iter().filter_map(Value::as_str).enumerate() {
        if i == 0 && ip == "None" {
            if list.len() > 1 {
                has_invalid = true;
                errors.invalid(&list_path, whole(), "'None' must be the first and only value");
            }
            continue;
        }
        let before = errors.0.len();
        addresses::legacy_address(errors, &list_path.index(i), ip, &known);
        has_invalid |= errors.0.len() > before;
    }
    if list.len() > 2 {
        errors.invalid(&list_path, whole(), "may only hold up to 2 values");
    }
    if has_invalid {
        return;
    }
    let texts: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
    if list.len() > 1 && !addresses::is_dual_stack(&texts) {
        errors.invalid(&list_path, whole(), "may specify no more than one IP for each IP family");
    }
    if !is_headless(service) {
        families_of_ips(errors, spec, &texts, &list_path);
    }
}

/// The list of cluster IPs starts with the field that is older than it.
fn first_cluster_ip(errors: &mut Errors, spec: &Value, path: &Path<'_>) {
    let list = spec.items(&["clusterIPs"]);
    let one = spec.text(&["clusterIP"]);
    let detail = match list.first() {
        None if !one.is_empty() => return errors.required(path, ""),
        Some(_) if one.is_empty() => "must be empty when `clusterIP` is not specified",
        Some(first) if first.as_str() != Some(one) => "first value must match `clusterIP`",
        _ => return,
    };
    errors.invalid(path, list.to_vec(), detail);
}

/// Each cluster IP is of the family at its index.
fn families_of_ips(errors: &mut Errors, spec: &Value, texts: &[&str], path: &Path<'_>) {
    for (i, (ip, family)) in texts.iter().zip(spec.items(&["ipFamilies"])).enumerate() {
        let is_ipv6 = matches!(parse_sloppy(ip), Some(IpAddr::V6(_)));
        match family.as_str() {
            Some("IPv4") if is_ipv6 => {
                let detail = format!("expected an IPv4 value as indicated by `ipFamilies[{i}]`");
                errors.invalid(&path.index(i), *ip, detail);
            }
            Some("IPv6") if !is_ipv6 => {
                let detail = format!("expected an IPv6 value as indicated by `ipFamilies[{i}]`");
                errors.invalid(&path.index(i), *ip, detail);
            }
            _ => {}
        }
    }
}

fn families(errors: &mut Errors, spec: &Value, path: &Path<'_>) {
    let mut seen = BTreeSet::new();
    for (i, family) in spec.items(&["ipFamilies"]).iter().filter_map(Value::as_str).enumerate() {
        let path = path.item("ipFamilies", i);
        one_of(errors, &path, family, &["IPv4", "IPv6"]);
        if !seen.insert(family) {
            errors.duplicate(&path, family);
        }
    }
    if let Some(policy) = spec.at(&["ipFamilyPolicy"]).as_str() {
        let known = &["PreferDualStack", "RequireDualStack", "SingleStack"];
        one_of(errors, &path.child("ipFamilyPolicy"), policy, known);
    }
}

fn external_ips(errors: &mut Errors, spec: &Value, old: Option<&Value>, path: &Path<'_>) {
    let known: Vec<&str> =
        old.map_or(&[][..], |old| old.items(&["spec", "externalIPs"])).iter().filter_map(Value::as_str).collect();
    for (i, ip) in spec.items(&["externalIPs"]).iter().filter_map(Value::as_str).enumerate() {
        let path = path.item("externalIPs", i);
        let before = errors.0.len();
        addresses::legacy_address(errors, &path, ip, &known);
        if errors.0.len() == before {
            endpoint_ip(errors, ip, &path);
        }
    }
}

fn repeated_ports(errors: &mut Errors, spec: &Value, path: &Path<'_>) {
    let ports = spec.items(&["ports"]);
    let node_port = |port: &Value| port.integer(&["nodePort"]).unwrap_or_default();
    if spec.text(&["type"]) == "ClusterIP" {
        for (i, _) in ports.iter().enumerate().filter(|(_, port)| node_port(port) != 0) {
            let path = path.item("ports", i);
            errors.forbidden(&path.child("nodePort"), "may not be used when `type` is 'ClusterIP'");
        }
    }
    let mut node_ports = BTreeSet::new();
    for (i, port) in ports.iter().enumerate().filter(|(_, port)| node_port(port) != 0) {
        if !node_ports.insert((port.text(&["protocol"]), node_port(port))) {
            errors.duplicate(&path.item("ports", i).child("nodePort"), node_port(port));
        }
    }
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let number = port.integer(&["port"]).unwrap_or_default();
        if !seen.insert((port.text(&["protocol"]), number)) {
            let rendered = struct_json(&[
                ("Name", "".into()),
                ("Protocol", port.text(&["protocol"]).into()),
                ("AppProtocol", Value::Null),
                ("Port", number.into()),
                ("TargetPort", 0.into()),
                ("NodePort", 0.into()),
            ]);
            errors.push(knarr_api::field::Error {
                field: path.item("ports", i).to_string(),
                error_type: knarr_api::field::ErrorType::Duplicate,
                bad_value: Some(rendered),
                detail: String::new(),
            });
        }
    }
}

fn traffic(errors: &mut Errors, service: &Value, path: &Path<'_>) {
    let spec = service.at(&["spec"]);
    let policy = spec.text(&["externalTrafficPolicy"]);
    let policy_path = path.child("externalTrafficPolicy");
    match (accessible(service), policy) {
        (false, "") => {}
        (false, _) => errors.invalid(&policy_path, policy, "may only be set for externally-accessible services"),
        (true, "") => errors.required(&policy_path, ""),
        (true, _) => one_of(errors, &policy_path, policy, &["Cluster", "Local"]),
    }
    let port = spec.integer(&["healthCheckNodePort"]).unwrap_or_default();
    let port_path = path.child("healthCheckNodePort");
    match (needs_health_check(service), port) {
        (false, 0) => {}
        (false, _) => {
            let detail = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
            errors.invalid(&port_path, port, detail);
        }
        (true, 0) => errors.required(&port_path, ""),
        (true, _) => formats::port_number(errors, &port_path, port),
    }
    match spec.at(&["internalTrafficPolicy"]).as_str() {
        None if matches!(spec.text(&["type"]), "NodePort" | "LoadBalancer" | "ClusterIP") => {
            errors.required(&path.child("internalTrafficPolicy"), "");
        }
        None => {}
        Some(policy) => one_of(errors, &path.child("internalTrafficPolicy"), policy, &["Cluster", "Local"]),
    }
    if let Some(distribution) = spec.at(&["trafficDistribution"]).as_str() {
        let known = &["PreferClose", "PreferSameZone", "PreferSameNode"];
        one_of(errors, &path.child("trafficDistribution"), distribution, known);
    }
}
