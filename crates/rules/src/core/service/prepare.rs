//! Preparation of services before validation: the fields that the server allocates.

use std::collections::{BTreeMap, BTreeSet};

use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use super::{accessible, needs_health_check};
use crate::kind::keep_field;

/// Sets `clusterIPs` for clients that know only `clusterIP`.
pub fn create(service: &mut Value) {
    let ip = service.text(&["spec", "clusterIP"]).to_owned();
    if !ip.is_empty() && service.items(&["spec", "clusterIPs"]).is_empty() {
        service.set(&["spec", "clusterIPs"], json!([ip]));
    }
}

/// Prepares an update of a service.
pub fn update(service: &mut Value, old: &Value) {
    keep_allocated_values(service, old);
    sync_cluster_ips(service, old);
    drop_unsupported_fields(service, old);
}

/// Keeps allocated addresses and ports that the client omits.
fn keep_allocated_values(service: &mut Value, old: &Value) {
    if needs_cluster_ip(service) && needs_cluster_ip(old) {
        if service.text(&["spec", "clusterIP"]).is_empty() {
            keep_in_spec(service, old, "clusterIP");
        }
        if service.items(&["spec", "clusterIPs"]).is_empty() && !old.items(&["spec", "clusterIPs"]).is_empty() {
            keep_in_spec(service, old, "clusterIPs");
        }
    }
    if needs_node_port(service) && needs_node_port(old) {
        let new_ports = node_ports(service);
        let used: BTreeSet<i64> = node_ports(old).intersection(&new_ports).copied().collect();
        let old_ports = old.items(&["spec", "ports"]).iter();
        let by_name: BTreeMap<&str, Option<i64>> =
            old_ports.map(|port| (port.text(&["name"]), port.integer(&["nodePort"]))).collect();
        for port in service.items_mut(&["spec", "ports"]) {
            if port.integer(&["nodePort"]).unwrap_or_default() != 0 {
                continue;
            }
            let given = by_name.get(port.text(&["name"])).copied().flatten();
            if let Some(given) = given.filter(|given| *given != 0 && !used.contains(given)) {
                port.set(&["nodePort"], given);
            }
        }
    }
    if needs_health_check(service)
        && needs_health_check(old)
        && service.integer(&["spec", "healthCheckNodePort"]).unwrap_or_default() == 0
    {
        keep_in_spec(service, old, "healthCheckNodePort");
    }
}

/// Synchronizes `clusterIP` with `clusterIPs`, because clients may know only one of them.
fn sync_cluster_ips(service: &mut Value, old: &Value) {
    let (one, before) = (service.text(&["spec", "clusterIP"]).to_owned(), old.text(&["spec", "clusterIP"]));
    if !old.items(&["spec", "clusterIPs"]).is_empty()
        && service.items(&["spec", "clusterIPs"]).is_empty()
        && one == before
    {
        keep_in_spec(service, old, "clusterIPs");
    }
    if one != before && service.items(&["spec", "clusterIPs"]) == old.items(&["spec", "clusterIPs"]) {
        if one.is_empty() {
            service.remove(&["spec", "clusterIPs"]);
        } else {
            service.set(&["spec", "clusterIPs"], json!([one]));
        }
    }
}

/// Drops fields of the old type when the type changes, unless the client changed them.
fn drop_unsupported_fields(service: &mut Value, old: &Value) {
    let same = |service: &Value, field: &str| service.at(&["spec", field]) == old.at(&["spec", field]);
    if needs_cluster_ip(old) && !needs_cluster_ip(service) {
        if same(service, "clusterIP") && same(service, "clusterIPs") {
            service.remove(&["spec", "clusterIP"]);
            service.remove(&["spec", "clusterIPs"]);
        }
        for field in ["ipFamilies", "ipFamilyPolicy"] {
            if same(service, field) {
                service.remove(&["spec", field]);
            }
        }
    }
    if needs_node_port(old) && !needs_node_port(service) && node_ports(old).is_superset(&node_ports(service)) {
        for port in service.items_mut(&["spec", "ports"]) {
            port.remove(&["nodePort"]);
        }
    }
    if needs_health_check(old) && !needs_health_check(service) && same(service, "healthCheckNodePort") {
        service.remove(&["spec", "healthCheckNodePort"]);
    }
    let (is_balanced, was_balanced) = (is_balanced(service), is_balanced(old));
    if was_balanced && !is_balanced {
        for field in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
            if same(service, field) {
                service.remove(&["spec", field]);
            }
        }
    }
    if accessible(old) && !accessible(service) && same(service, "externalTrafficPolicy") {
        service.remove(&["spec", "externalTrafficPolicy"]);
    }
    if !is_balanced {
        service.set(&["status", "loadBalancer"], json!({}));
    }
}

fn keep_in_spec(service: &mut Value, old: &Value, field: &str) {
    if let Some(spec) = service.get_mut("spec") {
        keep_field(spec, old.at(&["spec"]), field);
    }
}

fn is_balanced(service: &Value) -> bool {
    service.text(&["spec", "type"]) == "LoadBalancer"
}

fn needs_cluster_ip(service: &Value) -> bool {
    service.text(&["spec", "type"]) != "ExternalName"
}

fn needs_node_port(service: &Value) -> bool {
    matches!(service.text(&["spec", "type"]), "NodePort" | "LoadBalancer")
}

fn node_ports(service: &Value) -> BTreeSet<i64> {
    let ports = service.items(&["spec", "ports"]).iter();
    ports.filter_map(|port| port.integer(&["nodePort"])).filter(|port| *port != 0).collect()
}
