//! Validation of load balancers: class, source ranges, status.

use knarr_api::cidr::parse_sloppy;
use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::addresses;
use crate::common::checks::one_of;

const ONLY_BALANCED: &str = "may only be used when `type` is 'LoadBalancer'";

pub(super) fn source_ranges(errors: &mut Errors, service: &Value, old: Option<&Value>, path: &Path<'_>) {
    const ANNOTATION: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
    let spec = service.at(&["spec"]);
    let is_balanced = spec.text(&["type"]) == "LoadBalancer";
    let ranges = spec.items(&["loadBalancerSourceRanges"]);
    let annotation = |service: &Value| {
        service.at(&["metadata", "annotations"]).get(ANNOTATION).and_then(Value::as_str).map(str::to_owned)
    };
    if !ranges.is_empty() {
        let path = path.child("LoadBalancerSourceRanges");
        if !is_balanced {
            errors.forbidden(&path, ONLY_BALANCED);
        }
        let known: Vec<&str> = old
            .map_or(&[][..], |old| old.items(&["spec", "loadBalancerSourceRanges"]))
            .iter()
            .filter_map(Value::as_str)
            .map(str::trim)
            .collect();
        for (i, range) in ranges.iter().filter_map(Value::as_str).enumerate() {
            addresses::legacy_range(errors, &path.index(i), range.trim(), &known);
        }
    } else if let Some(listed) = annotation(service) {
        let metadata = Path::root("metadata");
        let annotations = metadata.child("annotations");
        let path = annotations.key(ANNOTATION);
        if !is_balanced {
            errors.forbidden(&path, ONLY_BALANCED);
        }
        let is_unchanged = old.and_then(annotation).as_ref() == Some(&listed);
        if !is_unchanged && !listed.trim().is_empty() {
            for range in listed.trim().split(',') {
                addresses::legacy_range(errors, &path, range.trim(), &[]);
            }
        }
    }
}

pub(super) fn balancer(errors: &mut Errors, spec: &Value, path: &Path<'_>) {
    let is_balanced = spec.text(&["type"]) == "LoadBalancer";
    let allocates = spec.has(&["allocateLoadBalancerNodePorts"]);
    if allocates && !is_balanced {
        errors.forbidden(&path.child("allocateLoadBalancerNodePorts"), ONLY_BALANCED);
    }
    if !allocates && is_balanced {
        errors.required(&Path::root("allocateLoadBalancerNodePorts"), "");
    }
    balancer_class(errors, spec, path);
}

/// Validates the class of the load balancer.
pub fn balancer_class(errors: &mut Errors, spec: &Value, path: &Path<'_>) {
    let Some(class) = spec.at(&["loadBalancerClass"]).as_str() else { return };
    let path = path.child("loadBalancerClass");
    if spec.text(&["type"]) == "LoadBalancer" {
        names::check(errors, &path, class, names::qualified_name);
    } else {
        errors.forbidden(&path, ONLY_BALANCED);
    }
}

/// Validates the status of a load balancer.
pub fn status(errors: &mut Errors, service: &Value, old: &Value) {
    let path = Path::root("status");
    let path = path.child("loadBalancer");
    let list = service.items(&["status", "loadBalancer", "ingress"]);
    if service.text(&["spec", "type"]) != "LoadBalancer" && !list.is_empty() {
        return errors.forbidden(&path.child("ingress"), "may only be used when `spec.type` is 'LoadBalancer'");
    }
    let known: Vec<&str> = old
        .items(&["status", "loadBalancer", "ingress"])
        .iter()
        .map(|ingress| ingress.text(&["ip"]))
        .filter(|ip| !ip.is_empty())
        .collect();
    for (i, ingress) in list.iter().enumerate() {
        let path = path.item("ingress", i);
        let (ip, host) = (ingress.text(&["ip"]), ingress.text(&["hostname"]));
        if !ip.is_empty() {
            addresses::legacy_address(errors, &path.child("ip"), ip, &known);
        }
        match ingress.at(&["ipMode"]).as_str() {
            None if !ip.is_empty() => errors.required(&path.child("ipMode"), "must be specified when `ip` is set"),
            None => {}
            Some(_) if ip.is_empty() => {
                errors.forbidden(&path.child("ipMode"), "may not be specified when `ip` is not set");
            }
            Some(mode) => one_of(errors, &path.child("ipMode"), mode, &["Proxy", "VIP"]),
        }
        if !host.is_empty() {
            names::check(errors, &path.child("hostname"), host, names::dns_subdomain);
            if parse_sloppy(host).is_some() {
                errors.invalid(&path.child("hostname"), host, "must be a DNS name, not an IP address");
            }
        }
    }
}
