//! Validation of the pod failure policy and the success policy of a Job.

use std::collections::BTreeSet;

use knarr_api::field::{Error, ErrorType, Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use super::super::indexes;
use crate::common::checks;

const MAX_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;
const MAX_CONDITIONS: usize = 20;
const MAX_INDEX_BYTES: usize = 64 * 1024;
const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];
const STATUSES: [&str; 3] = ["False", "True", "Unknown"];
const OPERATORS: [&str; 2] = ["In", "NotIn"];

/// Validates the pod failure policy.
pub fn validate_failure_policy(errors: &mut Errors, path: &Path<'_>, spec: &Value) {
    let rules = spec.items(&["podFailurePolicy", "rules"]);
    if rules.len() > MAX_RULES {
        errors.too_many(&path.child("rules"), rules.len(), MAX_RULES);
    }
    let mut containers = BTreeSet::new();
    for list in ["containers", "initContainers"] {
        let items = spec.items(&["template", "spec", list]);
        containers.extend(items.iter().map(|container| container.text(&["name"])));
    }
    for (index, rule) in rules.iter().enumerate() {
        let per_index = spec.has(&["backoffLimitPerIndex"]);
        validate_failure_rule(errors, &path.item("rules", index), rule, per_index, &containers);
    }
}

fn validate_failure_rule(
    errors: &mut Errors,
    path: &Path<'_>,
    rule: &Value,
    per_index: bool,
    containers: &BTreeSet<&str>,
) {
    let action = path.child("action");
    match rule.text(&["action"]) {
        "" => errors.required(&action, valid_values(&ACTIONS)),
        "FailIndex" if !per_index => {
            errors.invalid(&action, "FailIndex", "requires the backoffLimitPerIndex to be set");
        }
        value => checks::one_of(errors, &action, value, &ACTIONS),
    }
    let by_code = rule.has(&["onExitCodes"]);
    let conditions = rule.items(&["onPodConditions"]);
    if by_code {
        validate_exit_codes(errors, &path.child("onExitCodes"), &rule["onExitCodes"], containers);
    }
    if !conditions.is_empty() {
        validate_conditions(errors, &path.child("onPodConditions"), conditions);
    }
    match (by_code, !conditions.is_empty()) {
        (true, true) => {
            invalid_without_value(errors, path, "specifying both OnExitCodes and OnPodConditions is not supported");
        }
        (false, false) => {
            invalid_without_value(errors, path, "specifying one of OnExitCodes and OnPodConditions is required");
        }
        _ => {}
    }
}

fn validate_exit_codes(errors: &mut Errors, path: &Path<'_>, requirement: &Value, containers: &BTreeSet<&str>) {
    let operator = requirement.text(&["operator"]);
    match operator {
        "" => errors.required(&path.child("operator"), valid_values(&OPERATORS)),
        value => checks::one_of(errors, &path.child("operator"), value, &OPERATORS),
    }
    if let Some(name) = requirement["containerName"].as_str().filter(|name| !containers.contains(name)) {
        let detail = "must be one of the container or initContainer names in the pod template";
        errors.invalid(&path.child("containerName"), name, detail);
    }
    let values = requirement.items(&["values"]);
    let at = path.child("values");
    if values.is_empty() {
        errors.invalid(&at, requirement["values"].clone(), "at least one value is required");
    } else if values.len() > MAX_EXIT_CODES {
        errors.too_many(&at, values.len(), MAX_EXIT_CODES);
    }
    let codes: Vec<i64> = values.iter().map(|value| value.as_i64().unwrap_or(0)).collect();
    let mut seen = BTreeSet::new();
    for (index, code) in codes.iter().enumerate() {
        if operator == "In" && *code == 0 {
            errors.invalid(&at.index(index), *code, "must not be 0 for the In operator");
        }
        if !seen.insert(code) {
            errors.duplicate(&at.index(index), *code);
        }
    }
    if !codes.is_sorted() {
        errors.invalid(&at, requirement["values"].clone(), "must be ordered");
    }
}

fn validate_conditions(errors: &mut Errors, path: &Path<'_>, patterns: &[Value]) {
    if patterns.len() > MAX_CONDITIONS {
        errors.too_many(path, patterns.len(), MAX_CONDITIONS);
    }
    for (index, pattern) in patterns.iter().enumerate() {
        let path = path.index(index);
        names::check(errors, &path.child("type"), pattern.text(&["type"]), names::qualified_name);
        match pattern.text(&["status"]) {
            "" => errors.required(&path.child("status"), valid_values(&STATUSES)),
            status => checks::one_of(errors, &path.child("status"), status, &STATUSES),
        }
    }
}

/// Validates the success policy.
pub fn validate_success_policy(errors: &mut Errors, path: &Path<'_>, spec: &Value) {
    let rules = spec.items(&["successPolicy", "rules"]);
    let at = path.child("rules");
    if rules.is_empty() {
        errors.required(&at, "at least one rules must be specified when the successPolicy is specified");
    }
    if rules.len() > MAX_RULES {
        errors.too_many(&at, rules.len(), MAX_RULES);
    }
    let completions = spec.integer(&["completions"]).unwrap_or(0);
    for (index, rule) in rules.iter().enumerate() {
        validate_success_rule(errors, &at.index(index), rule, completions);
    }
}

fn validate_success_rule(errors: &mut Errors, path: &Path<'_>, rule: &Value, completions: i64) {
    let (count, listed) = (rule.integer(&["succeededCount"]), rule["succeededIndexes"].as_str());
    if count.is_none() && listed.is_none() {
        errors.required(path, "at least one of succeededCount or succeededIndexes must be specified");
    }
    let mut total = 0;
    if let Some(listed) = listed {
        let at = path.child("succeededIndexes");
        if listed.len() > MAX_INDEX_BYTES {
            errors.too_long(&at, MAX_INDEX_BYTES);
        }
        match indexes::count(listed, completions) {
            Ok(number) => total = number,
            Err(wrong) => errors.invalid(&at, listed, format!("error parsing succeededIndexes: {wrong}")),
        }
    }
    let Some(count) = count else { return };
    let at = path.child("succeededCount");
    checks::non_negative(errors, &at, Some(count));
    if count > completions {
        let detail = format!("must be less than or equal to {completions} (the number of specified completions)");
        errors.invalid(&at, count, detail);
    }
    if listed.is_some() && count > total {
        let of = "the number of indexes in the specified succeededIndexes field";
        errors.invalid(&at, count, format!("must be less than or equal to {total} ({of})"));
    }
}

/// Reports an invalid value without rendering it.
pub fn invalid_without_value(errors: &mut Errors, path: &Path<'_>, detail: &str) {
    errors.push(Error {
        field: path.to_string(),
        error_type: ErrorType::Invalid,
        bad_value: None,
        detail: detail.to_owned(),
    });
}

fn valid_values(values: &[&str]) -> String {
    let quoted: Vec<String> = values.iter().map(|value| format!("{value:?}")).collect();
    format!("valid values: [{}]", quoted.join(" "))
}
