//! Validation of the spec of a claim, in a ResourceClaim or in a template.

use std::collections::{BTreeMap, BTreeSet};

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::{Read, Write};
use serde_json::Value;

use super::{configuration, naming, taints, v1beta1};
use crate::common::checks;

const MAX_REQUESTS: usize = 32;
const MAX_CONSTRAINTS: usize = 32;
const MAX_CONFIGURATIONS: usize = 32;
const MAX_ALTERNATIVES: usize = 8;
const NOT_A_REQUEST: &str =
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";

/// Sets the defaults of a spec.
pub fn set_defaults(spec: &mut Value, version: &str) {
    for request in spec.items_mut(&["devices", "requests"]) {
        if version == v1beta1::VERSION && !request.text(&["deviceClassName"]).is_empty() {
            set_request_defaults(request);
        }
        if request.has(&["exactly"])
            && let Some(exactly) = request.find(&["exactly"])
        {
            set_request_defaults(exactly);
        }
        for alternative in request.items_mut(&["firstAvailable"]) {
            set_request_defaults(alternative);
        }
    }
}

fn set_request_defaults(request: &mut Value) {
    if request.text(&["allocationMode"]).is_empty() {
        request.set(&["allocationMode"], "ExactCount");
    }
    if request.text(&["allocationMode"]) == "ExactCount" && request.integer(&["count"]).unwrap_or(0) == 0 {
        request.set(&["count"], 1);
    }
    for toleration in request.items_mut(&["tolerations"]) {
        if toleration.text(&["operator"]).is_empty() {
            toleration.set(&["operator"], "Equal");
        }
    }
}

/// The names of the requests of a claim, each with the names of its subrequests.
pub struct RequestNames<'a>(BTreeMap<&'a str, BTreeSet<&'a str>>);

impl<'a> RequestNames<'a> {
    /// Collects the names of the requests of a spec.
    pub fn of(spec: &'a Value) -> Self {
        let requests = spec.items(&["devices", "requests"]).iter();
        RequestNames(
            requests
                .map(|request| {
                    let alternatives = request.items(&["firstAvailable"]).iter().map(|sub| sub.text(&["name"]));
                    (request.text(&["name"]), alternatives.collect())
                })
                .collect(),
        )
    }

    fn has(&self, reference: &str) -> bool {
        match reference.split('/').collect::<Vec<_>>()[..] {
            [name] => self.0.contains_key(name),
            [name, sub] => self.0.get(name).is_some_and(|subs| subs.contains(sub)),
            _ => false,
        }
    }

    /// Validates a list of references to requests.
    pub fn validate_list(&self, errors: &mut Errors, path: &Path<'_>, references: &[Value]) {
        if !naming::within(errors, path, references.len(), MAX_REQUESTS) {
            return;
        }
        for (index, reference) in references.iter().enumerate() {
            self.validate(errors, &path.index(index), reference.as_str().unwrap_or_default());
        }
        naming::validate_distinct(errors, path, references);
    }

    /// Validates a reference to a request.
    pub fn validate(&self, errors: &mut Errors, path: &Path<'_>, reference: &str) {
        let parts: Vec<&str> = reference.split('/').collect();
        if parts.len() > 2 {
            errors.invalid(path, reference, NOT_A_REQUEST);
            return;
        }
        for part in parts {
            names::check(errors, path, part, names::dns_label);
        }
        if !self.has(reference) {
            errors.invalid(path, reference, NOT_A_REQUEST);
        }
    }
}

/// Validates a spec.
pub fn validate(errors: &mut Errors, path: &Path<'_>, spec: &Value) {
    let path = path.child("devices");
    let known = RequestNames::of(spec);
    let devices = &spec["devices"];
    let requests = devices.items(&["requests"]);
    let at = path.child("requests");
    if naming::within(errors, &at, requests.len(), MAX_REQUESTS) {
        for (index, request) in requests.iter().enumerate() {
            validate_request(errors, &at.index(index), request);
        }
        naming::validate_distinct(errors, &at, &names_of(requests));
    }
    let constraints = devices.items(&["constraints"]);
    let at = path.child("constraints");
    if naming::within(errors, &at, constraints.len(), MAX_CONSTRAINTS) {
        for (index, constraint) in constraints.iter().enumerate() {
            validate_constraint(errors, &at.index(index), constraint, &known);
        }
    }
    let configurations = devices.items(&["config"]);
    let at = path.child("config");
    if naming::within(errors, &at, configurations.len(), MAX_CONFIGURATIONS) {
        for (index, config) in configurations.iter().enumerate() {
            let path = at.index(index);
            known.validate_list(errors, &path.child("requests"), config.items(&["requests"]));
            configuration::validate(errors, &path, config, false);
        }
    }
}

fn names_of(requests: &[Value]) -> Vec<Value> {
    requests.iter().map(|request| request.text(&["name"]).into()).collect()
}

fn validate_request(errors: &mut Errors, path: &Path<'_>, request: &Value) {
    names::check(errors, &path.child("name"), request.text(&["name"]), names::dns_label);
    let alternatives = request.items(&["firstAvailable"]);
    match (request.has(&["exactly"]), !alternatives.is_empty()) {
        (false, false) => errors.required(path, "exactly one of `exactly` or `firstAvailable` is required"),
        (true, true) => {
            let detail = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
            errors.invalid(path, Value::Null, detail);
        }
        (true, false) => validate_devices(errors, &path.child("exactly"), &request["exactly"]),
        (false, true) => {
            let at = path.child("firstAvailable");
            if naming::within(errors, &at, alternatives.len(), MAX_ALTERNATIVES) {
                for (index, alternative) in alternatives.iter().enumerate() {
                    let path = at.index(index);
                    names::check(errors, &path.child("name"), alternative.text(&["name"]), names::dns_label);
                    validate_devices(errors, &path, alternative);
                }
                naming::validate_distinct(errors, &at, &names_of(alternatives));
            }
        }
    }
}

fn validate_devices(errors: &mut Errors, path: &Path<'_>, request: &Value) {
    let class = request.text(&["deviceClassName"]);
    checks::required_name(errors, &path.child("deviceClassName"), class, names::dns_subdomain);
    configuration::validate_selectors(errors, &path.child("selectors"), request.items(&["selectors"]));
    let count = request.integer(&["count"]).unwrap_or(0);
    match request.text(&["allocationMode"]) {
        "All" => {
            if count != 0 {
                errors.invalid(&path.child("count"), count, "must not be specified when allocationMode is 'All'");
            }
        }
        "ExactCount" => {
            if count <= 0 {
                errors.invalid(&path.child("count"), count, "must be greater than zero");
            }
        }
        mode => errors.not_supported(&path.child("allocationMode"), mode, &["All", "ExactCount"]),
    }
    for (index, toleration) in request.items(&["tolerations"]).iter().enumerate() {
        taints::validate_toleration(errors, &path.item("tolerations", index), toleration);
    }
}

fn validate_constraint(errors: &mut Errors, path: &Path<'_>, constraint: &Value, known: &RequestNames<'_>) {
    known.validate_list(errors, &path.child("requests"), constraint.items(&["requests"]));
    if let Some(attribute) = constraint["matchAttribute"].as_str() {
        naming::validate_fully_qualified(errors, &path.child("matchAttribute"), attribute);
    } else if let Some(attribute) = constraint["distinctAttribute"].as_str() {
        naming::validate_fully_qualified(errors, &path.child("distinctAttribute"), attribute);
    } else {
        let detail =
            "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set";
        errors.required(path, detail);
    }
}
