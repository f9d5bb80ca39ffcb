//! The cells of a service in a table.

use std::collections::BTreeSet;

use jiff::Timestamp;
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::columns::{self, field, wide};
use crate::common::labels;
use crate::kind::Column;

const SPEC: &str = "io.k8s.api.core.v1.ServiceSpec";

/// The columns of services.
pub const COLUMNS: &[Column] = &[
    columns::NAME,
    field("Type", "string", SPEC, "type"),
    field("Cluster-IP", "string", SPEC, "clusterIP"),
    field("External-IP", "string", SPEC, "externalIPs"),
    field("Port(s)", "string", SPEC, "ports"),
    columns::AGE,
    wide(field("Selector", "string", SPEC, "selector")),
];

/// Returns the cells of a service.
pub fn cells(service: &Value, now: Timestamp) -> Vec<Value> {
    let spec = service.at(&["spec"]);
    let cluster_ip = spec.items(&["clusterIPs"]).first().and_then(Value::as_str).unwrap_or("<none>");
    vec![
        columns::name(service),
        spec.text(&["type"]).into(),
        cluster_ip.into(),
        external_ip(service).into(),
        ports(spec).into(),
        columns::age(service, now),
        labels::display(spec.at(&["selector"])).into(),
    ]
}

fn external_ip(service: &Value) -> String {
    let spec = service.at(&["spec"]);
    let external: Vec<&str> = spec.items(&["externalIPs"]).iter().filter_map(Value::as_str).collect();
    let joined = |list: Vec<&str>, empty: &str| if list.is_empty() { empty.to_owned() } else { list.join(",") };
    match spec.text(&["type"]) {
        "ClusterIP" | "NodePort" => joined(external, "<none>"),
        "LoadBalancer" => {
            let balancers: BTreeSet<&str> = service
                .items(&["status", "loadBalancer", "ingress"])
                .iter()
                .map(|ingress| match ingress.text(&["ip"]) {
                    "" => ingress.text(&["hostname"]),
                    ip => ip,
                })
                .filter(|address| !address.is_empty())
                .collect();
            joined(balancers.into_iter().chain(external).collect(), "<pending>")
        }
        "ExternalName" => spec.text(&["externalName"]).to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

fn ports(spec: &Value) -> String {
    let parts: Vec<String> = spec
        .items(&["ports"])
        .iter()
        .map(|port| {
            let number = port.integer(&["port"]).unwrap_or_default();
            let protocol = port.text(&["protocol"]);
            match port.integer(&["nodePort"]) {
                Some(node) if node > 0 => format!("{number}:{node}/{protocol}"),
                _ => format!("{number}/{protocol}"),
            }
        })
        .collect();
    if parts.is_empty() { "<none>".to_owned() } else { parts.join(",") }
}
