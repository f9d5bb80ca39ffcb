//! Validation of updates of allocated addresses.

use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

use super::validation::balancer_class;
use super::{is_headless, needs_health_check};

const SET_ONCE: &str = "may not change once set";

/// Validates an update of a service.
pub fn service(errors: &mut Errors, service: &Value, old: &Value) {
    let path = Path::root("spec");
    let is_external = |service: &Value| service.text(&["spec", "type"]) == "ExternalName";
    if !is_external(service) && !is_external(old) {
        cluster_ips(errors, service, old, &path);
        if !is_headless(service) && !is_headless(old) {
            families(errors, service, old, &path);
        }
    }
    let is_balanced = |service: &Value| service.text(&["spec", "type"]) == "LoadBalancer";
    let (class, class_before) = (service.at(&["spec", "loadBalancerClass"]), old.at(&["spec", "loadBalancerClass"]));
    if is_balanced(service) && is_balanced(old) && class != class_before {
        errors.invalid(&path.child("loadBalancerClass"), class.clone(), SET_ONCE);
    }
    balancer_class(errors, service.at(&["spec"]), &path);
    let port = |service: &Value| service.integer(&["spec", "healthCheckNodePort"]).unwrap_or_default();
    if needs_health_check(service) && needs_health_check(old) && port(service) != port(old) {
        errors.forbidden(&path.child("healthCheckNodePort"), "field is immutable");
    }
}

fn cluster_ips(errors: &mut Errors, service: &Value, old: &Value, path: &Path<'_>) {
    if is_headless(service) && is_headless(old) {
        return;
    }
    let (new, before) = (service.items(&["spec", "clusterIPs"]), old.items(&["spec", "clusterIPs"]));
    let whole = || if new.is_empty() { Value::Null } else { Value::Array(new.to_vec()) };
    let first = path.item("clusterIPs", 0);
    if new.len() == before.len() {
        for (i, _) in new.iter().zip(before).enumerate().filter(|(_, (new, old))| new != old) {
            errors.invalid(&path.item("clusterIPs", i), whole(), SET_ONCE);
        }
        return;
    }
    if new.is_empty() {
        errors.invalid(&first, whole(), "primary clusterIP can not be unset");
    } else if before.first().is_some_and(|before| new[0] != *before) {
        errors.invalid(&first, whole(), SET_ONCE);
    }
    if new.len() < before.len() && new.len() == 1 {
        single_stack(errors, service, path, "must be set to 'SingleStack' when releasing the secondary clusterIP");
    }
}

fn families(errors: &mut Errors, service: &Value, old: &Value, path: &Path<'_>) {
    let (new, before) = (service.items(&["spec", "ipFamilies"]), old.items(&["spec", "ipFamilies"]));
    let ips = service.at(&["spec", "clusterIPs"]);
    let first = path.item("ipFamilies", 0);
    if new.len() == before.len() {
        for _ in new.iter().zip(before).filter(|(new, old)| new != old) {
            errors.invalid(&first, new.to_vec(), SET_ONCE);
        }
        return;
    }
    if new.len() < before.len() && service.items(&["spec", "clusterIPs"]).is_empty() {
        let rendered = if new.is_empty() { Value::Null } else { Value::Array(new.to_vec()) };
        errors.invalid(&first, rendered, "primary ipFamily can not be unset");
    }
    if let (Some(new), Some(before)) = (new.first(), before.first())
        && new != before
    {
        errors.invalid(&first, ips.clone(), SET_ONCE);
    }
    if new.len() < before.len() && new.len() == 1 {
        single_stack(errors, service, path, "must be set to 'SingleStack' when releasing the secondary ipFamily");
    }
}

fn single_stack(errors: &mut Errors, service: &Value, path: &Path<'_>, detail: &str) {
    let policy = service.at(&["spec", "ipFamilyPolicy"]);
    if policy.as_str() != Some("SingleStack") {
        errors.invalid(&path.child("ipFamilyPolicy"), policy.clone(), detail);
    }
}
