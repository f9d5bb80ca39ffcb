//! Service: a stable address for a set of pods.

mod columns;
mod load_balancer;
mod prepare;
mod update;
mod validation;

pub use validation::{cluster_ips as validate_cluster_ips, protocol};

use jiff::Timestamp;
use knarr_api::field::{Errors, Path, quoted};
use knarr_api::names::{self, Check};
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use crate::common::addresses;
use crate::common::defaults as set;
use crate::kind::{Column, Context, KindRules, keep_field};

const AFFINITY_SECONDS: i64 = 10_800;

/// The API server allocates cluster IPs, IP families and node ports between `prepare_…` and `validate`.
pub struct Service;

impl KindRules for Service {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        set_defaults(object);
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        object.set(&["status"], json!({"loadBalancer": {}}));
        prepare::create(object);
    }

    fn prepare_update(&self, object: &mut Value, old: &Value, context: &Context<'_>) {
        if context.subresource == "status" {
            keep_field(object, old, "spec");
        } else {
            keep_field(object, old, "status");
            prepare::update(object, old);
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        // On update, errors about immutable fields precede those of the object; see `validate_update`.
        if old.is_none() {
            validation::service(&mut errors, object, None);
        }
        errors
    }

    fn validate_update(&self, object: &Value, old: &Value, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if context.subresource == "status" {
            validation::status(&mut errors, object, old);
        } else {
            update::service(&mut errors, object, old);
            validation::service(&mut errors, object, Some(old));
        }
        errors
    }

    fn warnings(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Vec<String> {
        if old.is_some() && context.subresource == "status" { status_warnings(object) } else { warnings(object) }
    }

    fn name_check(&self) -> Check {
        names::dns_label
    }

    fn has_status(&self) -> bool {
        true
    }

    fn allows_create_on_update(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        columns::COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        columns::cells(object, now)
    }
}

fn set_defaults(service: &mut Value) {
    let Some(service) = service.as_object_mut() else { return };
    let spec = set::object_or_new(service, "spec");
    set::text(spec, "sessionAffinity", "None");
    match spec.get("sessionAffinity").and_then(Value::as_str) {
        Some("None") => {
            spec.remove("sessionAffinityConfig");
        }
        Some("ClientIP") => {
            let timeout = spec.get("sessionAffinityConfig").map(|config| config.at(&["clientIP", "timeoutSeconds"]));
            if timeout.is_none_or(Value::is_null) {
                let config = json!({"clientIP": {"timeoutSeconds": AFFINITY_SECONDS}});
                spec.insert("sessionAffinityConfig".to_owned(), config);
            }
        }
        _ => {}
    }
    set::text(spec, "type", "ClusterIP");
    for port in set::objects(spec, "ports") {
        set::text(port, "protocol", "TCP");
        let is_unset = match port.get("targetPort") {
            None | Some(Value::Null) => true,
            Some(Value::String(name)) => name.is_empty(),
            Some(number) => number.as_i64() == Some(0),
        };
        if is_unset {
            let own = port.get("port").cloned().unwrap_or_else(|| 0.into());
            port.insert("targetPort".to_owned(), own);
        }
    }
    let kind = spec.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let has_external_ips = spec.get("externalIPs").and_then(Value::as_array).is_some_and(|ips| !ips.is_empty());
    if is_externally_accessible(&kind, has_external_ips) {
        set::text(spec, "externalTrafficPolicy", "Cluster");
    }
    match kind.as_str() {
        "NodePort" | "ClusterIP" => set::value(spec, "internalTrafficPolicy", "Cluster"),
        "LoadBalancer" => {
            set::value(spec, "internalTrafficPolicy", "Cluster");
            set::value(spec, "allocateLoadBalancerNodePorts", true);
            if let Some(balancer) =
                set::object(service, "status").and_then(|status| set::object(status, "loadBalancer"))
            {
                for ingress in set::objects(balancer, "ingress") {
                    if ingress.get("ip").and_then(Value::as_str).is_some_and(|ip| !ip.is_empty()) {
                        set::value(ingress, "ipMode", "VIP");
                    }
                }
            }
        }
        // The service proxy never handles traffic to external names. An invalid value is kept so that it is reported.
        "ExternalName" => {
            if matches!(spec.get("internalTrafficPolicy").and_then(Value::as_str), Some("Cluster" | "Local")) {
                spec.remove("internalTrafficPolicy");
            }
        }
        _ => {}
    }
}

fn is_externally_accessible(kind: &str, has_external_ips: bool) -> bool {
    matches!(kind, "LoadBalancer" | "NodePort") || (kind == "ClusterIP" && has_external_ips)
}

fn accessible(service: &Value) -> bool {
    is_externally_accessible(service.text(&["spec", "type"]), !service.items(&["spec", "externalIPs"]).is_empty())
}

/// Returns whether the load balancer uses health check node ports.
fn needs_health_check(service: &Value) -> bool {
    service.text(&["spec", "type"]) == "LoadBalancer" && service.text(&["spec", "externalTrafficPolicy"]) == "Local"
}

fn is_headless(service: &Value) -> bool {
    matches!(service.items(&["spec", "clusterIPs"]), [only] if only.as_str() == Some("None"))
}

fn warnings(service: &Value) -> Vec<String> {
    const OLD_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
    let spec = service.at(&["spec"]);
    let path = Path::root("spec");
    let mut warnings = Vec::new();
    if service.at(&["metadata", "annotations"]).get(OLD_HINTS).is_some() {
        warnings.push(format!(
            "annotation {OLD_HINTS} is deprecated, please use service.kubernetes.io/topology-mode instead"
        ));
    }
    if !matches!(spec.text(&["clusterIP"]), "" | "None") {
        list_warnings(&mut warnings, spec, "clusterIPs", &path);
    }
    let kind = spec.text(&["type"]);
    let headless = kind == "ClusterIP" && spec.text(&["clusterIP"]) == "None";
    let has_external_ips = !spec.items(&["externalIPs"]).is_empty();
    if headless {
        for (is_set, field) in [
            (!spec.text(&["loadBalancerIP"]).is_empty(), "loadBalancerIP"),
            (has_external_ips, "externalIPs"),
            (spec.text(&["sessionAffinity"]) != "None", "SessionAffinity"),
        ] {
            if is_set {
                warnings.push(format!("spec.{field} is ignored for headless services"));
            }
        }
    }
    list_warnings(&mut warnings, spec, "externalIPs", &path);
    if has_external_ips && !headless && kind != "ExternalName" {
        let text = "spec.externalIPs is deprecated and may no longer be implemented in some clusters";
        warnings.push(text.to_owned());
    }
    if !spec.text(&["loadBalancerIP"]).is_empty() {
        warnings.extend(addresses::address_warnings(&path.child("loadBalancerIP"), spec.text(&["loadBalancerIP"])));
    }
    for (i, range) in spec.items(&["loadBalancerSourceRanges"]).iter().enumerate() {
        let path = path.item("loadBalancerSourceRanges", i);
        warnings.extend(addresses::range_warnings(&path, range.as_str().unwrap_or_default()));
    }
    if kind == "ExternalName" && has_external_ips {
        warnings.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_owned());
    }
    if kind != "ExternalName" && !spec.text(&["externalName"]).is_empty() {
        warnings.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".to_owned());
    }
    if spec.text(&["trafficDistribution"]) == "PreferClose" {
        let (old, new) = (quoted("PreferClose"), quoted("PreferSameZone"));
        warnings.push(format!("spec.trafficDistribution: {old} is deprecated; use {new}"));
    }
    warnings
}

fn list_warnings(warnings: &mut Vec<String>, spec: &Value, field: &str, path: &Path<'_>) {
    for (i, address) in spec.items(&[field]).iter().enumerate() {
        warnings.extend(addresses::address_warnings(&path.item(field, i), address.as_str().unwrap_or_default()));
    }
}

fn status_warnings(service: &Value) -> Vec<String> {
    let path = Path::root("status");
    let mut warnings = Vec::new();
    for (i, ingress) in service.items(&["status", "loadBalancer", "ingress"]).iter().enumerate() {
        let ip = ingress.text(&["ip"]);
        if !ip.is_empty() {
            warnings.extend(addresses::address_warnings(&path.item("loadBalancer.ingress", i), ip));
        }
    }
    warnings
}

#[cfg(test)]
mod tests;
