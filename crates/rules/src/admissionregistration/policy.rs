//! Rules that both kinds of admission policies share.

use knarr_api::cel::RESERVED_WORDS;
use knarr_api::field::{Errors, Path};
use knarr_api::value::{Read, Write};
use serde_json::Value;

use super::expressions::Scope;
use super::matching;
use crate::common::checks;

/// Sets the defaults of a policy.
pub fn set_defaults(object: &mut Value) {
    object.set_default(&["spec", "failurePolicy"], "Fail");
    if let Some(resources) = object.find(&["spec", "matchConstraints"]).filter(|value| value.is_object()) {
        matching::set_resource_defaults(resources);
    }
}

/// Validates the fields that both kinds of policies share. Returns the scope of the remaining expressions.
pub fn validate_matching(errors: &mut Errors, spec: &Value, old: Option<&Value>, mutating: bool) -> Scope {
    let path = Path::root("spec");
    match spec["failurePolicy"].as_str() {
        None => errors.required(&path.child("failurePolicy"), ""),
        Some(policy) => checks::one_of(errors, &path.child("failurePolicy"), policy, &["Fail", "Ignore"]),
    }
    if spec.has(&["paramKind"]) {
        matching::validate_parameter_kind(errors, &path.child("paramKind"), &spec["paramKind"]);
    }
    let at = path.child("matchConstraints");
    let constraints = &spec["matchConstraints"];
    if constraints.is_null() {
        errors.required(&at, "");
    } else {
        matching::validate_resources(errors, &at, constraints);
        if constraints.items(&["resourceRules"]).is_empty() {
            errors.required(&at.child("resourceRules"), "");
        }
        if mutating {
            matching::validate_mutating_operations(errors, &at, constraints);
        }
    }
    let same = |field: &str| old.is_some_and(|old| old[field] == spec[field]);
    if !(same("paramKind") && same("matchConditions")) {
        let conditions = spec.items(&["matchConditions"]);
        matching::validate_conditions(errors, &path.child("matchConditions"), conditions, spec.has(&["paramKind"]));
    }
    let mut scope = Scope::new(spec.has(&["paramKind"]));
    if !spec.items(&["variables"]).is_empty() {
        scope = scope.composing();
    }
    for (index, variable) in spec.items(&["variables"]).iter().enumerate() {
        validate_variable(errors, &path.item("variables", index), variable, &mut scope);
    }
    scope
}

fn validate_variable(errors: &mut Errors, path: &Path<'_>, variable: &Value, scope: &mut Scope) {
    let name = variable.text(&["name"]);
    if name.trim().is_empty() {
        errors.required(&path.child("name"), "name is not specified");
    } else if !is_identifier(name) {
        errors.invalid(&path.child("name"), name, "must be a valid CEL identifier");
    }
    let expression = variable.text(&["expression"]);
    if expression.trim().is_empty() {
        errors.required(&path.child("expression"), "expression is not specified");
    } else {
        scope.define(errors, &path.child("expression"), name, expression);
    }
}

fn is_identifier(name: &str) -> bool {
    let starts = name.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic());
    starts && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric()) && !RESERVED_WORDS.contains(&name)
}
