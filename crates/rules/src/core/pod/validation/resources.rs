//! Validation of the resource requirements of containers and pods.

use std::collections::{BTreeMap, BTreeSet};

use knarr_api::field::{Error, ErrorType, Errors, Path, quoted};
use knarr_api::names;
use knarr_api::quantity::Quantity;
use knarr_api::value::Read;
use serde_json::Value;

use super::super::options::{Options, containers};
use crate::common::checks::NEGATIVE;
use crate::common::resources::{self, Side};

type NameCheck = fn(&mut Errors, &str, &Path<'_>);

/// Validates the requirements of a container.
pub fn of_container(
    errors: &mut Errors,
    requirements: &Value,
    claims: &BTreeSet<&str>,
    path: &Path<'_>,
    options: &Options,
) {
    if requirements.as_object().is_some_and(|fields| !fields.is_empty()) {
        self::requirements(errors, requirements, container_name, claims, path, options);
    }
}

/// Validates the requirements of a pod as a whole.
pub fn of_pod(errors: &mut Errors, spec: &Value, claims: &BTreeSet<&str>, path: &Path<'_>, options: &Options) {
    let level = spec.at(&["resources"]);
    if level.is_null() {
        return;
    }
    let path = path.child("resources");
    if spec.text(&["os", "name"]) == "windows" {
        return errors.forbidden(&path, "may not be set for a windows pod");
    }
    if level.has(&["claims"]) {
        errors.forbidden(&path.child("claims"), "claims may not be set for Resources at pod-level");
    }
    requirements(errors, level, pod_name, claims, &path, options);
    consistent_with_containers(errors, spec, level, &path);
}

/// Validates the overhead of a pod.
pub fn overhead(errors: &mut Errors, overhead: &Value, path: &Path<'_>, options: &Options) {
    let limits = serde_json::json!({"limits": overhead});
    requirements(errors, &limits, container_name, &BTreeSet::new(), path, options);
}

fn requirements(
    errors: &mut Errors,
    requirements: &Value,
    name_check: NameCheck,
    claims: &BTreeSet<&str>,
    path: &Path<'_>,
    options: &Options,
) {
    let (limits_path, requests_path) = (path.child("limits"), path.child("requests"));
    let (mut computes, mut huge) = (false, false);
    let limits = requirements.fields(&["limits"]);
    for (name, value) in limits.into_iter().flatten() {
        let path = limits_path.key(name);
        let amount = resources::quantity(value);
        name_check(errors, name, &path);
        quantity(errors, name, &amount, &path);
        huge_pages(errors, name, &amount, &path, options);
        huge |= resources::is_huge_page(name);
        computes |= matches!(name.as_str(), "cpu" | "memory");
    }
    for (name, value) in requirements.fields(&["requests"]).into_iter().flatten() {
        let path = requests_path.key(name);
        let amount = resources::quantity(value);
        name_check(errors, name, &path);
        quantity(errors, name, &amount, &path);
        match limits.and_then(|limits| limits.get(name)).map(resources::quantity) {
            Some(limit) if amount != limit && !resources::allows_overcommit(name) => {
                let detail = format!("must be equal to {name} limit of {limit}");
                errors.invalid(&requests_path, amount.to_string(), detail);
            }
            Some(limit) if amount > limit => {
                let detail = format!("must be less than or equal to {name} limit of {limit}");
                errors.invalid(&requests_path, amount.to_string(), detail);
            }
            None if !resources::allows_overcommit(name) => {
                errors.required(&limits_path, "Limit must be set for non overcommitable resources");
            }
            _ => {}
        }
        huge_pages(errors, name, &amount, &path, options);
        huge |= resources::is_huge_page(name);
        computes |= matches!(name.as_str(), "cpu" | "memory");
    }
    if huge && !computes {
        errors.forbidden(path, "HugePages require cpu or memory");
    }
    claim_names(errors, requirements, claims, path);
}

/// Validates the quantity of a resource: not negative, and integral if the resource is countable.
pub fn quantity(errors: &mut Errors, name: &str, amount: &Quantity, path: &Path<'_>) {
    if amount.is_negative() {
        errors.invalid(path, amount.to_string(), NEGATIVE);
    }
    if is_counted(name) && amount.milli_value() % 1000 != 0 {
        errors.invalid(path, amount.to_string(), "must be an integer");
    }
}

fn is_counted(name: &str) -> bool {
    matches!(
        name,
        "pods"
            | "resourcequotas"
            | "services"
            | "replicationcontrollers"
            | "secrets"
            | "configmaps"
            | "persistentvolumeclaims"
            | "services.nodeports"
            | "services.loadbalancers"
    ) || resources::is_extended(name)
}

fn huge_pages(errors: &mut Errors, name: &str, amount: &Quantity, path: &Path<'_>, options: &Options) {
    if resources::is_huge_page(name) && !options.indivisible_huge_pages && !is_divisible(name, amount) {
        let detail = format!("{amount} is not positive integer multiple of {name}");
        errors.invalid(path, amount.to_string(), detail);
    }
}

/// Returns whether a quantity is a multiple of the huge page size.
fn is_divisible(name: &str, amount: &Quantity) -> bool {
    let size = name.strip_prefix("hugepages-").and_then(|size| Quantity::parse(size).ok());
    size.is_some_and(|size| {
        size.signum() > 0 && size.milli_value() % 1000 == 0 && size.value() != 0 && amount.value() % size.value() == 0
    })
}

/// Returns whether a spec has quantities that are not multiples of the huge page size.
pub fn has_indivisible_huge_pages(spec: &Value) -> bool {
    let lists = || containers(spec).map(|container| container.at(&["resources"])).chain([spec.at(&["resources"])]);
    lists().any(|requirements| {
        [Side::Limits, Side::Requests].iter().any(|side| {
            let list = requirements.fields(&[side.field()]).into_iter().flatten();
            list.into_iter()
                .any(|(name, value)| resources::is_huge_page(name) && !is_divisible(name, &resources::quantity(value)))
        })
    })
}

/// Validates a resource name: qualified, and one that Kubernetes defines if it has no domain.
pub fn any_name(errors: &mut Errors, name: &str, path: &Path<'_>) -> bool {
    let wrong = names::qualified_name(name);
    let qualified = wrong.is_empty();
    for text in wrong {
        errors.invalid(path, name, text);
    }
    if qualified && !name.contains('/') && !is_standard(name) {
        errors.invalid(path, name, "must be a standard resource type or fully qualified");
        return false;
    }
    qualified
}

/// Validates the name of a resource that containers may request.
pub fn container_name(errors: &mut Errors, name: &str, path: &Path<'_>) {
    if matches!(name, "cpu" | "memory") {
        return;
    }
    any_name(errors, name, path);
    if !name.contains('/') {
        if name != "ephemeral-storage" && !resources::is_huge_page(name) {
            errors.invalid(path, name, "must be a standard resource for containers");
        }
    } else if !resources::is_native(name) && !resources::is_extended(name) {
        errors.invalid(path, name, "doesn't follow extended resource name standard");
    }
}

fn pod_name(errors: &mut Errors, name: &str, path: &Path<'_>) {
    if any_name(errors, name, path) && !resources::is_pod_level(name) {
        errors.not_supported(path, name, &["cpu", "hugepages-", "memory"]);
    }
}

fn is_standard(name: &str) -> bool {
    name == "storage" || resources::is_quota_resource(name)
}

fn claim_names(errors: &mut Errors, requirements: &Value, claims: &BTreeSet<&str>, path: &Path<'_>) {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    // How many requests of each claim were seen.
    let mut requests: BTreeMap<String, usize> = BTreeMap::new();
    for (i, claim) in requirements.items(&["claims"]).iter().enumerate() {
        let path = path.item("claims", i);
        let (name, request) = (claim.text(&["name"]), claim.text(&["request"]));
        if name.is_empty() {
            errors.required(&path, "");
            continue;
        }
        if seen.contains(name) {
            errors.duplicate(&path, name);
        } else {
            let mut key = name.to_owned();
            if !request.is_empty() {
                names::check(errors, &path.child("request"), request, names::dns_label);
                key = format!("{name}/{request}");
            }
            if seen.contains(&key) {
                errors.duplicate(&path, key.as_str());
            } else if request.is_empty() {
                for _ in 0..requests.get(name).copied().unwrap_or_default() {
                    errors.duplicate(&path, name);
                }
            }
            if let Some((claim, _)) = key.split_once('/').filter(|_| !seen.contains(&key)) {
                *requests.entry(claim.to_owned()).or_default() += 1;
            }
            seen.insert(key);
        }
        if !claims.contains(name) && !errors.is_full() {
            let known: Vec<&str> = claims.iter().copied().collect();
            let known = if known.is_empty() { " which is empty".to_owned() } else { format!(": {}", known.join(", ")) };
            errors.push(Error {
                field: path.to_string(),
                error_type: ErrorType::NotFound,
                bad_value: Some(quoted(name)),
                detail: format!("must be one of the names in pod.spec.resourceClaims{known}"),
            });
        }
    }
}

/// Requires that the resources of the pod are at least the sum of those of its containers.
fn consistent_with_containers(errors: &mut Errors, spec: &Value, level: &Value, path: &Path<'_>) {
    let (requests, limits) = (level.at(&["requests"]), level.at(&["limits"]));
    for (name, needed) in resources::of_containers(spec, Side::Requests) {
        if let Some(given) = requests.get(&name).map(resources::quantity).filter(|given| needed > *given) {
            let detail = format!("must be greater than or equal to aggregate container requests of {needed}");
            errors.invalid(&path.child("requests").key(&name), given.to_string(), detail);
        }
    }
    for (name, needed) in resources::of_containers(spec, Side::Limits) {
        let given = limits.get(&name).map(resources::quantity);
        if let Some(given) = given.filter(|given| resources::is_huge_page(&name) && needed > *given) {
            let detail = format!("must be greater than or equal to aggregate container limits of {needed}");
            errors.invalid(&path.child("limits").key(&name), given.to_string(), detail);
        }
    }
    for (i, container) in spec.items(&["containers"]).iter().enumerate() {
        for (name, limit) in container.fields(&["resources", "limits"]).into_iter().flatten() {
            let limit = resources::quantity(limit);
            if let Some(given) = limits.get(name).map(resources::quantity).filter(|given| limit > *given) {
                let detail = format!("must be less than or equal to pod limits of {given}");
                let container = path.item("containers", i);
                errors.invalid(&container.key(name).child("limits"), limit.to_string(), detail);
            }
        }
    }
}
