//! Rules that Deployments, ReplicaSets, StatefulSets and DaemonSets share.

use knarr_api::field::{Errors, Path};
use knarr_api::selector::LabelSelector;
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::go_json::struct_json;
use crate::common::{checks, label_selector};
use crate::core::pod::warnings;
use crate::core::pod_template;
use crate::kind::{Context, KindRules};

const DOES_NOT_MATCH: &str = "`selector` does not match template `labels`";

/// Validates the selector and the template of a Deployment or ReplicaSet.
pub fn validate_selector_and_template(errors: &mut Errors, path: &Path<'_>, spec: &Value, old: Option<&Value>) {
    let selector = &spec["selector"];
    let at = path.child("selector");
    validate_selector(errors, &at, selector, "empty selector is invalid for deployment");
    let Ok(read) = LabelSelector::from_object(selector) else {
        label_selector::invalid(errors, &at, selector, "invalid label selector");
        return;
    };
    let template = &spec["template"];
    let at = path.child("template");
    validate_template_labels(errors, &at, template, &read);
    pod_template::validate(errors, template, old.map(|old| &old["template"]), &at);
    validate_runs_forever(errors, &at, template, "ReplicaSet");
}

/// Validates a required selector, which must not be empty.
pub fn validate_selector(errors: &mut Errors, path: &Path<'_>, selector: &Value, when_empty: &str) {
    if selector.is_null() {
        errors.required(path, "");
        return;
    }
    label_selector::validate(errors, path, selector, false);
    if label_selector::is_empty(selector) {
        label_selector::invalid(errors, path, selector, when_empty);
    }
}

/// Requires that the selector matches the labels of the template.
pub fn validate_template_labels(errors: &mut Errors, path: &Path<'_>, template: &Value, selector: &LabelSelector) {
    let labels = template.at(&["metadata", "labels"]);
    if !selector.is_everything() && !selector.matches(labels.as_object()) {
        errors.invalid(&path.child("metadata.labels"), labels.clone(), DOES_NOT_MATCH);
    }
}

/// Requires that pods of the template are always restarted and have no deadline.
pub fn validate_runs_forever(errors: &mut Errors, path: &Path<'_>, template: &Value, kind: &str) {
    let policy = template.text(&["spec", "restartPolicy"]);
    checks::one_of(errors, &path.child("spec.restartPolicy"), policy, &["Always"]);
    if template.has(&["spec", "activeDeadlineSeconds"]) {
        let detail = format!("activeDeadlineSeconds in {kind} is not Supported");
        errors.forbidden(&path.child("spec.activeDeadlineSeconds"), detail);
    }
}

/// Validates the counters of a status, in this order.
pub fn validate_counters(errors: &mut Errors, status: &Value, counters: &[&str]) {
    for counter in counters {
        checks::non_negative(errors, &Path::root("status").child(counter), status.integer(&[counter]));
    }
}

/// Reports counters that are greater than the counter `max`.
pub fn validate_at_most(errors: &mut Errors, status: &Value, counters: &[&str], max: &str, detail: &str) {
    let max = status.integer(&[max]).unwrap_or(0);
    for counter in counters {
        let number = status.integer(&[counter]).unwrap_or(0);
        if number > max {
            errors.invalid(&Path::root("status").child(counter), number, detail);
        }
    }
}

/// Requires that the count of hash collisions does not decrease.
pub fn validate_collisions(errors: &mut Errors, status: &Value, old: &Value) {
    let count = status.integer(&["collisionCount"]);
    if old.integer(&["collisionCount"]).is_some_and(|old| count.is_none_or(|count| count < old)) {
        errors.invalid(&Path::root("status.collisionCount"), count.unwrap_or(0), "cannot be decremented");
    }
}

/// Renders a strategy with the field names of the internal type.
pub fn strategy_json(strategy: &Value, settings: &[(&str, &str, Value)]) -> String {
    let rolling = &strategy["rollingUpdate"];
    let rolling = if rolling.is_null() {
        "null".to_owned()
    } else {
        let fields: Vec<(&str, Value)> = settings
            .iter()
            .map(|(rendered, name, zero)| (*rendered, rolling.get(name).unwrap_or(zero).clone()))
            .collect();
        struct_json(&fields)
    };
    format!("{{\"Type\":{},\"RollingUpdate\":{rolling}}}", Value::from(strategy.text(&["type"])))
}

/// Returns warnings about a new object, or about one whose spec changed.
pub fn spec_warnings(kind: &dyn KindRules, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    if context.subresource == "status" || old.is_some_and(|old| !kind.increments_generation(object, old)) {
        return warnings;
    }
    if old.is_none() {
        warnings.extend(pod_template::name_warning(object));
    }
    warnings.extend(template_warnings(object));
    warnings
}

/// Returns warnings about the pod template of an object.
pub fn template_warnings(object: &Value) -> Vec<String> {
    warnings::of_template(object.at(&["spec", "template"]), &Path::root("spec.template"))
}
