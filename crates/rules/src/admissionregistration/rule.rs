//! Validation of the rules that select requests for a webhook or policy.

use std::collections::BTreeSet;

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::{Read, Write};
use serde_json::Value;

use crate::common::checks;

const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];

/// Sets the defaults of a rule.
pub fn set_defaults(rule: &mut Value) {
    rule.set_default(&["scope"], "*");
}

/// Validates a rule that may be restricted to resource names.
pub fn validate_named(errors: &mut Errors, path: &Path<'_>, rule: &Value) {
    let mut seen = BTreeSet::new();
    for (index, name) in rule.items(&["resourceNames"]).iter().enumerate() {
        let path = path.item("resourceNames", index);
        let name = name.as_str().unwrap_or_default();
        names::check(errors, &path, name, names::path_segment);
        if !seen.insert(name) {
            errors.duplicate(&path, name);
        }
    }
    validate(errors, path, rule);
}

/// Validates a rule.
pub fn validate(errors: &mut Errors, path: &Path<'_>, rule: &Value) {
    validate_list(errors, path, rule, "operations", "operations");
    for (index, operation) in rule.items(&["operations"]).iter().enumerate() {
        let operation = operation.as_str().unwrap_or_default();
        checks::one_of(errors, &path.item("operations", index), operation, &OPERATIONS);
    }
    validate_list(errors, path, rule, "apiGroups", "API groups");
    validate_list(errors, path, rule, "apiVersions", "API versions");
    for (index, version) in rule.items(&["apiVersions"]).iter().enumerate() {
        if version == "" {
            errors.required(&path.item("apiVersions", index), "");
        }
    }
    validate_resources(errors, &path.child("resources"), rule);
    if let Some(scope) = rule["scope"].as_str() {
        checks::one_of(errors, &path.child("scope"), scope, &["*", "Cluster", "Namespaced"]);
    }
}

/// Validates that a list is not empty and has `*` only as the single member.
fn validate_list(errors: &mut Errors, path: &Path<'_>, rule: &Value, field: &str, what: &str) {
    let items = rule.items(&[field]);
    if items.is_empty() {
        errors.required(&path.child(field), "");
    }
    if items.len() > 1 && items.iter().any(|item| item == "*") {
        let detail = format!("if '*' is present, must not specify other {what}");
        errors.invalid(&path.child(field), rule[field].clone(), detail);
    }
}

/// Validates resources and subresources (`pods/status`). A wildcard excludes others that it already matches.
fn validate_resources(errors: &mut Errors, path: &Path<'_>, rule: &Value) {
    let resources: Vec<&str> =
        rule.items(&["resources"]).iter().map(|item| item.as_str().unwrap_or_default()).collect();
    if resources.is_empty() {
        errors.required(path, "");
    }
    let (mut whole, mut of_all) = (BTreeSet::new(), BTreeSet::new());
    let mut plain = false;
    for (index, resource) in resources.iter().enumerate() {
        let path = path.index(index);
        if resource.is_empty() {
            errors.required(&path, "");
            continue;
        }
        let Some((kind, sub)) = resource.split_once('/') else {
            plain = *resource != "*";
            continue;
        };
        if whole.contains(kind) {
            errors.invalid(&path, *resource, format!("if '{kind}/*' is present, must not specify {resource}"));
        }
        if of_all.contains(sub) {
            errors.invalid(&path, *resource, format!("if '*/{sub}' is present, must not specify {resource}"));
        }
        if sub == "*" {
            whole.insert(kind);
        }
        if kind == "*" {
            of_all.insert(sub);
        }
    }
    let rendered = || rule["resources"].clone();
    if resources.len() > 1 && resources.contains(&"*/*") {
        errors.invalid(path, rendered(), "if '*/*' is present, must not specify other resources");
    }
    if resources.contains(&"*") && plain {
        errors.invalid(path, rendered(), "if '*' is present, must not specify other resources without subresources");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rules_are_checked() {
        let rule = |resources: Value| json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": resources});
        for (rule, wrong) in [
            (rule(json!(["pods", "pods/status"])), vec![]),
            (
                json!({}),
                vec![
                    "r.operations: Required value",
                    "r.apiGroups: Required value",
                    "r.apiVersions: Required value",
                    "r.resources: Required value",
                ],
            ),
            (
                rule(json!(["pods/*", "pods/log", "*", "nodes"])),
                vec![
                    "r.resources[1]: Invalid value: \"pods/log\": if 'pods/*' is present, must not specify pods/log",
                    "r.resources: Invalid value: [\"pods/*\",\"pods/log\",\"*\",\"nodes\"]: if '*' is present, must not specify \
                     other resources without subresources",
                ],
            ),
        ] {
            let mut errors = Errors::new();
            validate(&mut errors, &Path::root("r"), &rule);
            let read: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
            assert_eq!(read, wrong);
        }
    }
}
