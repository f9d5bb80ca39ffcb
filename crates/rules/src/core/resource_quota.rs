//! ResourceQuota: limits the total resources of a namespace.

use std::collections::BTreeSet;

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

use super::pod::validation::resources::{any_name, quantity};
use crate::common::checks::IMMUTABLE;
use crate::common::columns::{self, text};
use crate::common::{internal_types, resources};
use crate::kind::{Column, Context, KindRules};

const COLUMNS: &[Column] = &[
    columns::NAME,
    text("Request", "string", "Request represents a minimum amount of cpu/memory that a container may consume."),
    text(
        "Limit",
        "string",
        "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the node.",
    ),
    columns::AGE,
];

/// The rules of ResourceQuota.
pub struct ResourceQuota;

impl KindRules for ResourceQuota {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        for (part, list) in [("spec", "hard"), ("status", "hard"), ("status", "used")] {
            resources::round_to_milli(object.get_mut(part).and_then(|part| part.get_mut(list)));
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if context.subresource == "status" {
            return errors;
        }
        let path = Path::root("spec");
        amounts(&mut errors, object, "spec", "hard", &path);
        scopes(&mut errors, object, &path);
        scope_selector(&mut errors, object, &path.child("scopeSelector"));
        if old.is_none() {
            status_amounts(&mut errors, object);
        }
        errors
    }

    fn validate_update(&self, object: &Value, old: &Value, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if context.subresource == "status" {
            status_amounts(&mut errors, object);
            return errors;
        }
        let set = |quota: &Value| -> BTreeSet<String> {
            quota.items(&["spec", "scopes"]).iter().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        if set(object) != set(old) {
            let path = Path::root("spec");
            errors.invalid(&path.child("scopes"), object.at(&["spec", "scopes"]).clone(), IMMUTABLE);
        }
        errors
    }

    fn has_status(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let (mut requests, mut limits) = (Vec::new(), Vec::new());
        for (name, hard) in object.fields(&["status", "hard"]).into_iter().flatten() {
            let used = object.at(&["status", "used"]).get(name).and_then(Value::as_str).unwrap_or("0");
            let column = if name.starts_with("limits.") { &mut limits } else { &mut requests };
            column.push(format!("{name}: {used}/{}", hard.as_str().unwrap_or("0")));
        }
        vec![columns::name(object), requests.join(", ").into(), limits.join(", ").into(), columns::age(object, now)]
    }
}

fn status_amounts(errors: &mut Errors, quota: &Value) {
    let path = Path::root("status");
    for list in ["hard", "used"] {
        amounts(errors, quota, "status", list, &path);
    }
}

fn amounts(errors: &mut Errors, quota: &Value, part: &str, list: &str, path: &Path<'_>) {
    let path = path.child(list);
    for (name, amount) in quota.fields(&[part, list]).into_iter().flatten() {
        let path = path.key(name);
        any_name(errors, name, &path);
        if !name.contains('/') && !resources::is_quota_resource(name) {
            errors.invalid(&path, name.as_str(), "must be a standard resource for quota");
        }
        quantity(errors, name, &resources::quantity(amount), &path);
    }
}

fn is_scope(scope: &str) -> bool {
    matches!(
        scope,
        "Terminating"
            | "NotTerminating"
            | "BestEffort"
            | "NotBestEffort"
            | "PriorityClass"
            | "VolumeAttributesClass"
            | "CrossNamespacePodAffinity"
    )
}

/// Returns whether a resource can be used by objects in the scope.
fn scope_fits(scope: &str, resource: &str) -> bool {
    let computes =
        matches!(resource, "cpu" | "memory" | "limits.cpu" | "limits.memory" | "requests.cpu" | "requests.memory");
    match scope {
        "Terminating" | "NotTerminating" | "NotBestEffort" | "PriorityClass" | "CrossNamespacePodAffinity" => {
            resource == "pods" || computes
        }
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => matches!(resource, "persistentvolumeclaims" | "requests.storage"),
        _ => true,
    }
}

fn unfit_resources<'a>(quota: &'a Value, scope: &str) -> impl Iterator<Item = &'a String> {
    let names = quota.fields(&["spec", "hard"]).into_iter().flat_map(|hard| hard.keys());
    names.filter(move |name| resources::is_quota_resource(name) && !scope_fits(scope, name))
}

fn scopes(errors: &mut Errors, quota: &Value, path: &Path<'_>) {
    let path = path.child("scopes");
    let all = quota.at(&["spec", "scopes"]);
    let scopes: Vec<&str> = quota.items(&["spec", "scopes"]).iter().filter_map(Value::as_str).collect();
    for scope in &scopes {
        if !is_scope(scope) {
            errors.invalid(&path, all.clone(), "unsupported scope");
        }
        for _ in unfit_resources(quota, scope) {
            errors.invalid(&path, all.clone(), "unsupported scope applied to resource");
        }
    }
    conflicting(errors, &scopes, all, &path);
}

fn conflicting(errors: &mut Errors, scopes: &[&str], rendered: &Value, path: &Path<'_>) {
    for (one, other) in [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")] {
        if scopes.contains(&one) && scopes.contains(&other) {
            errors.invalid(path, rendered.clone(), "conflicting scopes");
        }
    }
}

fn scope_selector(errors: &mut Errors, quota: &Value, path: &Path<'_>) {
    let selector = quota.at(&["spec", "scopeSelector"]);
    let path = path.child("matchExpressions");
    let mut scopes = Vec::new();
    for requirement in selector.items(&["matchExpressions"]) {
        let (scope, operator) = (requirement.text(&["scopeName"]), requirement.text(&["operator"]));
        let values = requirement.items(&["values"]);
        if !is_scope(scope) {
            errors.invalid(&path.child("scopeName"), scope, "unsupported scope");
        }
        for _ in unfit_resources(quota, scope) {
            let rendered = internal_types::to_json("ScopeSelector", selector);
            errors.invalid_verbatim(&path, rendered, "unsupported scope applied to resource");
        }
        let only_exists = matches!(
            scope,
            "BestEffort" | "NotBestEffort" | "Terminating" | "NotTerminating" | "CrossNamespacePodAffinity"
        );
        if only_exists && operator != "Exists" {
            let detail = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, \
                          ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, \
                          ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            errors.invalid(&path.child("operator"), operator, detail);
        }
        match operator {
            "In" | "NotIn" if values.is_empty() => {
                let detail = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                errors.required(&path.child("values"), detail);
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let detail = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                errors.invalid(&path.child("values"), values.to_vec(), detail);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => errors.invalid(&path.child("operator"), operator, "not a valid selector operator"),
        }
        scopes.push(scope);
    }
    conflicting(errors, &scopes, quota.at(&["spec", "scopes"]), &path);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::messages;
    use serde_json::json;

    #[test]
    fn quotas_are_checked() {
        for (spec, expected) in [
            (json!({"hard": {"pods": "10", "requests.cpu": "1", "count/deployments.apps": "3"}}), vec![]),
            (
                json!({"hard": {"ships": "1"}}),
                vec![
                    "spec.hard[ships]: Invalid value: \"ships\": must be a standard resource type or fully qualified",
                    "spec.hard[ships]: Invalid value: \"ships\": must be a standard resource for quota",
                ],
            ),
            (json!({"hard": {"pods": "1500m"}}), vec!["spec.hard[pods]: Invalid value: \"1500m\": must be an integer"]),
            (
                json!({"hard": {"pods": "1"}, "scopes": ["BestEffort", "NotBestEffort"]}),
                vec!["spec.scopes: Invalid value: [\"BestEffort\",\"NotBestEffort\"]: conflicting scopes"],
            ),
            (
                json!({"hard": {"secrets": "1"}, "scopes": ["BestEffort"]}),
                vec!["spec.scopes: Invalid value: [\"BestEffort\"]: unsupported scope applied to resource"],
            ),
            (
                json!({"hard": {"pods": "1"}, "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In"}]}}),
                vec![
                    "spec.scopeSelector.matchExpressions.values: Required value: must be at least one value when `operator` \
                     is 'In' or 'NotIn' for scope selector",
                ],
            ),
        ] {
            assert_eq!(messages(&ResourceQuota, &json!({"spec": spec}), None), expected);
        }
    }

    #[test]
    fn rows_part_requests_and_limits() {
        let quota = json!({"status": {"hard": {"limits.cpu": "2", "pods": "10"}, "used": {"pods": "3"}}});
        let cells = ResourceQuota.cells(&quota, Timestamp::UNIX_EPOCH);
        assert_eq!(cells[1..3], [json!("pods: 3/10"), json!("limits.cpu: 0/2")]);
    }
}
