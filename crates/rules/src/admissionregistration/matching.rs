//! Validation of match constraints, match conditions and parameters of policies and webhooks.

use std::collections::BTreeSet;

use knarr_api::cel::Type;
use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use super::expressions::Scope;
use super::rule;
use crate::common::{checks, label_selector};

const MAX_CONDITIONS: usize = 64;
const RULES: [&str; 2] = ["resourceRules", "excludeResourceRules"];
const MUTATING_OPERATIONS: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];

/// Sets the defaults of match constraints.
pub fn set_resource_defaults(resources: &mut Value) {
    resources.set_default(&["matchPolicy"], "Equivalent");
    for selector in ["namespaceSelector", "objectSelector"] {
        resources.set_default(&[selector], json!({}));
    }
    for list in RULES {
        for item in resources.items_mut(&[list]) {
            rule::set_defaults(item);
        }
    }
}

/// Validates match constraints.
pub fn validate_resources(errors: &mut Errors, path: &Path<'_>, resources: &Value) {
    match resources["matchPolicy"].as_str() {
        None => errors.required(&path.child("matchPolicy"), ""),
        Some(policy) => checks::one_of(errors, &path.child("matchPolicy"), policy, &["Equivalent", "Exact"]),
    }
    for selector in ["namespaceSelector", "objectSelector"] {
        match &resources[selector] {
            Value::Null => errors.required(&path.child(selector), ""),
            value => label_selector::validate(errors, &path.child(selector), value, false),
        }
    }
    for list in RULES {
        for (index, item) in resources.items(&[list]).iter().enumerate() {
            rule::validate_named(errors, &path.item(list, index), item);
        }
    }
}

/// Rejects DELETE and CONNECT in rules of mutating policies.
pub fn validate_mutating_operations(errors: &mut Errors, path: &Path<'_>, resources: &Value) {
    let at = path.child("resourceRules.operations");
    for operation in resources.items(&["resourceRules"]).iter().flat_map(|rule| rule.items(&["operations"])) {
        checks::one_of(errors, &at, operation.as_str().unwrap_or_default(), &MUTATING_OPERATIONS);
    }
}

/// Validates match conditions.
pub fn validate_conditions(errors: &mut Errors, path: &Path<'_>, conditions: &[Value], has_parameters: bool) {
    let scope = Scope::new(has_parameters);
    if conditions.len() > MAX_CONDITIONS {
        errors.too_many(path, conditions.len(), MAX_CONDITIONS);
    }
    let mut seen = BTreeSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        let path = path.index(index);
        match condition.text(&["expression"]).trim() {
            "" => errors.required(&path.child("expression"), ""),
            expression => {
                scope.validate(errors, &path.child("expression"), expression, &[Type::Bool]);
            }
        }
        let name = condition.text(&["name"]);
        checks::required_name(errors, &path.child("name"), name, names::qualified_name);
        if !name.is_empty() && !seen.insert(name) {
            errors.duplicate(&path.child("name"), name);
        }
    }
}

/// Validates the kind of parameters.
pub fn validate_parameter_kind(errors: &mut Errors, path: &Path<'_>, kind: &Value) {
    let version = kind.text(&["apiVersion"]);
    let at = path.child("apiVersion");
    match version.matches('/').count() {
        _ if version.is_empty() => errors.required(&at, ""),
        0 | 1 => {
            let (group, number) = version.split_once('/').unwrap_or(("", version));
            let detail = |wrong: Vec<String>| (!wrong.is_empty()).then(|| wrong.join(","));
            if let Some(wrong) = detail(names::dns_subdomain(group)).filter(|_| !group.is_empty()) {
                errors.invalid(&at, group, wrong);
            }
            if number.is_empty() {
                errors.invalid(&at, version, "version must be specified");
            } else if let Some(wrong) = detail(names::dns_1035_label(number)) {
                errors.invalid(&at, number, wrong);
            }
        }
        _ => errors.invalid(&at, version, format!("unexpected GroupVersion string: {version}")),
    }
    let name = kind.text(&["kind"]);
    let wrong = names::dns_1035_label(&name.to_lowercase());
    if name.is_empty() {
        errors.required(&path.child("kind"), "");
    } else if !wrong.is_empty() {
        let detail = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
        errors.invalid(&path.child("kind"), name, detail);
    }
}

/// Validates a reference to parameters.
pub fn validate_parameter_reference(errors: &mut Errors, path: &Path<'_>, reference: &Value) {
    const EXCLUSIVE: &str = "name and selector are mutually exclusive";
    let name = reference.text(&["name"]);
    let selector = &reference["selector"];
    if !name.is_empty() {
        names::check(errors, &path.child("name"), name, names::path_segment);
        if !selector.is_null() {
            errors.forbidden(&path.child("name"), EXCLUSIVE);
        }
    }
    if !selector.is_null() {
        label_selector::validate(errors, &path.child("selector"), selector, false);
        if !name.is_empty() {
            errors.forbidden(&path.child("selector"), EXCLUSIVE);
        }
    }
    if name.is_empty() && selector.is_null() {
        errors.required(path, "one of name or selector must be specified");
    }
    let at = path.child("parameterNotFoundAction");
    match reference.text(&["parameterNotFoundAction"]) {
        "" => errors.required(&at, ""),
        action => checks::one_of(errors, &at, action, &["Deny", "Allow"]),
    }
}

/// Renders the parameter kind for tables.
pub fn display_parameter_kind(spec: &Value) -> String {
    match &spec["paramKind"] {
        Value::Null => "<unset>".to_owned(),
        kind => format!("{}/{}", kind.text(&["apiVersion"]), kind.text(&["kind"])),
    }
}
