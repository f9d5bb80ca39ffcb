//! Defaults and validation of the spec of a Job, in a Job or in the template of a CronJob.

use knarr_api::field::{Errors, Path};
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use super::policies;
use crate::common::{checks, domain_path, go_json};
use crate::core::pod::warnings;
use crate::core::pod_template;

const MAX_PARALLEL: i64 = 100_000;
const MAX_FAILED: i64 = 100_000;
/// The number of completions above which the limits for a backoff limit per index are lower.
const MANY_COMPLETIONS: i64 = 100_000;
const MAX_PARALLEL_OF_MANY: i64 = 10_000;
const MAX_FAILED_OF_MANY: i64 = 10_000;
const MAX_MANAGER_LENGTH: usize = 63;

/// Sets the defaults of the pod template and the policies, also in the template of a CronJob.
pub fn set_template_defaults(spec: &mut Value) {
    pod_template::set_defaults(spec.object(&[]).entry("template").or_insert_with(|| json!({})));
    for rule in spec.items_mut(&["podFailurePolicy", "rules"]) {
        for pattern in rule.items_mut(&["onPodConditions"]) {
            if pattern.text(&["status"]).is_empty() {
                pattern.set(&["status"], "True");
            }
        }
    }
}

/// Validates the spec of a Job.
pub fn validate(errors: &mut Errors, path: &Path<'_>, spec: &Value, old: Option<&Value>) {
    for field in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        checks::non_negative(errors, &path.child(field), spec.integer(&[field]));
    }
    let per_index = spec.has(&["backoffLimitPerIndex"]);
    if spec.has(&["maxFailedIndexes"]) && !per_index {
        errors.required(&path.child("backoffLimitPerIndex"), "when maxFailedIndexes is specified");
    }
    if let Some(manager) = spec["managedBy"].as_str() {
        validate_manager(errors, &path.child("managedBy"), manager);
    }
    validate_completion_mode(errors, path, spec);
    if spec.has(&["podFailurePolicy"]) {
        policies::validate_failure_policy(errors, &path.child("podFailurePolicy"), spec);
    }
    if spec.has(&["successPolicy"]) {
        let path = path.child("successPolicy");
        if is_indexed(spec) {
            policies::validate_success_policy(errors, &path, spec);
        } else {
            errors.invalid_verbatim(
                &path,
                success_policy_json(&spec["successPolicy"]),
                "requires indexed completion mode",
            );
        }
    }
    validate_replacement_policy(errors, &path.child("podReplacementPolicy"), spec);
    pod_template::validate(errors, &spec["template"], old.map(|old| &old["template"]), &path.child("template"));
    validate_restart_policy(errors, &path.child("template.spec.restartPolicy"), spec);
}

/// Returns whether the completion mode is Indexed.
pub fn is_indexed(spec: &Value) -> bool {
    spec.text(&["completionMode"]) == "Indexed"
}

fn validate_manager(errors: &mut Errors, path: &Path<'_>, manager: &str) {
    domain_path::validate(errors, path, manager);
    if manager.len() > MAX_MANAGER_LENGTH {
        errors.too_long(path, MAX_MANAGER_LENGTH);
    }
}

fn validate_completion_mode(errors: &mut Errors, path: &Path<'_>, spec: &Value) {
    if let Some(mode) = spec["completionMode"].as_str() {
        checks::one_of(errors, &path.child("completionMode"), mode, &["NonIndexed", "Indexed"]);
    }
    if is_indexed(spec) {
        validate_indexed(errors, path, spec);
    } else if spec.text(&["completionMode"]) == "NonIndexed" || !spec.has(&["completionMode"]) {
        for field in ["backoffLimitPerIndex", "maxFailedIndexes"] {
            if let Some(number) = spec.integer(&[field]) {
                errors.invalid(&path.child(field), number, "requires indexed completion mode");
            }
        }
    }
}

fn validate_indexed(errors: &mut Errors, path: &Path<'_>, spec: &Value) {
    let completions = spec.integer(&["completions"]);
    let parallelism = spec.integer(&["parallelism"]);
    let failed = spec.integer(&["maxFailedIndexes"]);
    if completions.is_none() {
        errors.required(&path.child("completions"), "when completion mode is Indexed");
    }
    let at_most = |errors: &mut Errors, field: &str, number: Option<i64>, max: i64, when: &str| {
        if let Some(number) = number.filter(|number| *number > max) {
            errors.invalid(&path.child(field), number, format!("must be less than or equal to {max}{when}"));
        }
    };
    at_most(errors, "parallelism", parallelism, MAX_PARALLEL, " when completion mode is Indexed");
    if let (Some(failed), Some(completions)) = (failed, completions)
        && failed > completions
    {
        errors.invalid(&path.child("maxFailedIndexes"), failed, "must be less than or equal to completions");
    }
    at_most(errors, "maxFailedIndexes", failed, MAX_FAILED, "");
    if completions.is_some_and(|number| number > MANY_COMPLETIONS) && spec.has(&["backoffLimitPerIndex"]) {
        if failed.is_none() {
            let detail = format!("must be specified when completions is above {MANY_COMPLETIONS}");
            errors.required(&path.child("maxFailedIndexes"), detail);
        }
        let when = format!(" when completions are above {MANY_COMPLETIONS} and used with backoff limit per index");
        at_most(errors, "parallelism", parallelism, MAX_PARALLEL_OF_MANY, &when);
        at_most(errors, "maxFailedIndexes", failed, MAX_FAILED_OF_MANY, &when);
    }
}

fn validate_replacement_policy(errors: &mut Errors, path: &Path<'_>, spec: &Value) {
    let Some(policy) = spec["podReplacementPolicy"].as_str() else { return };
    let supported: &[&str] =
        if spec.has(&["podFailurePolicy"]) { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
    checks::one_of(errors, path, policy, supported);
}

fn validate_restart_policy(errors: &mut Errors, path: &Path<'_>, spec: &Value) {
    match spec.text(&["template", "spec", "restartPolicy"]) {
        "" | "Always" => errors.required(path, "valid values: \"OnFailure\", \"Never\""),
        "OnFailure" if spec.has(&["podFailurePolicy"]) => {
            errors.invalid(path, "OnFailure", "only \"Never\" is supported when podFailurePolicy is specified");
        }
        policy => checks::one_of(errors, path, policy, &["OnFailure", "Never"]),
    }
}

/// Renders a success policy with the field names of the internal type.
pub fn success_policy_json(policy: &Value) -> String {
    if policy.is_null() {
        return "null".to_owned();
    }
    if !policy.has(&["rules"]) {
        return "{\"Rules\":null}".to_owned();
    }
    let rules: Vec<String> = policy
        .items(&["rules"])
        .iter()
        .map(|rule| {
            let fields = [
                ("SucceededIndexes", rule["succeededIndexes"].clone()),
                ("SucceededCount", rule["succeededCount"].clone()),
            ];
            go_json::struct_json(&fields)
        })
        .collect();
    format!("{{\"Rules\":[{}]}}", rules.join(","))
}

/// Renders a failure policy with the field names of the internal type.
pub fn failure_policy_json(policy: &Value) -> String {
    if policy.is_null() {
        return "null".to_owned();
    }
    if !policy.has(&["rules"]) {
        return "{\"Rules\":null}".to_owned();
    }
    let rules: Vec<String> = policy.items(&["rules"]).iter().map(failure_rule_json).collect();
    format!("{{\"Rules\":[{}]}}", rules.join(","))
}

fn failure_rule_json(rule: &Value) -> String {
    let codes = &rule["onExitCodes"];
    let codes = if codes.is_null() {
        "null".to_owned()
    } else {
        go_json::struct_json(&[
            ("ContainerName", codes["containerName"].clone()),
            ("Operator", codes.text(&["operator"]).into()),
            ("Values", codes["values"].clone()),
        ])
    };
    let conditions = if rule.has(&["onPodConditions"]) {
        let rendered: Vec<String> = rule
            .items(&["onPodConditions"])
            .iter()
            .map(|pattern| {
                let part = |field: &str| Value::from(pattern.text(&[field]));
                go_json::struct_json(&[("Type", part("type")), ("Status", part("status"))])
            })
            .collect();
        format!("[{}]", rendered.join(","))
    } else {
        "null".to_owned()
    };
    let action = Value::from(rule.text(&["action"]));
    format!("{{\"Action\":{action},\"OnExitCodes\":{codes},\"OnPodConditions\":{conditions}}}")
}

/// Returns warnings about the spec of a Job.
pub fn warnings(spec: &Value, path: &Path<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    let many = spec.integer(&["completions"]).unwrap_or(0) > MANY_COMPLETIONS;
    if is_indexed(spec) && many && spec.integer(&["parallelism"]).unwrap_or(0) > MAX_PARALLEL_OF_MANY {
        warnings.push(format!(
            "{path}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, \
             Kubernetes might not be able to track completedIndexes when a big number of indexes fail"
        ));
    }
    warnings.extend(warnings::of_template(&spec["template"], &path.child("template")));
    warnings
}
