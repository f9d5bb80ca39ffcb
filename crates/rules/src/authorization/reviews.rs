//! SubjectAccessReview, SelfSubjectAccessReview and LocalSubjectAccessReview.

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::go_json::struct_json;
use crate::kind::{Context, KindRules};

/// The rules of SubjectAccessReview.
pub struct SubjectAccessReview;
/// The rules of SelfSubjectAccessReview.
pub struct SelfSubjectAccessReview;
/// The rules of LocalSubjectAccessReview.
pub struct LocalSubjectAccessReview;

impl KindRules for SubjectAccessReview {
    fn validate(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        validate_spec(&mut errors, &object["spec"], true);
        validate_metadata(&mut errors, &object["metadata"], &[], "must be empty");
        errors
    }
}

impl KindRules for SelfSubjectAccessReview {
    fn validate(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        validate_spec(&mut errors, &object["spec"], false);
        validate_metadata(&mut errors, &object["metadata"], &[], "must be empty");
        errors
    }
}

impl KindRules for LocalSubjectAccessReview {
    fn validate(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let spec = &object["spec"];
        validate_spec(&mut errors, spec, true);
        validate_metadata(&mut errors, &object["metadata"], &["namespace"], "must be empty except for namespace");
        let namespace = spec.text(&["resourceAttributes", "namespace"]);
        if spec.has(&["resourceAttributes"]) && namespace != object.text(&["metadata", "namespace"]) {
            let path = Path::root("spec.resourceAttributes.namespace");
            errors.invalid(&path, namespace, "must match metadata.namespace");
        }
        if spec.has(&["nonResourceAttributes"]) {
            let path = Path::root("spec.nonResourceAttributes");
            errors.invalid_verbatim(&path, url_attributes_json(spec), "disallowed on this kind of request");
        }
        errors
    }
}

fn url_attributes_json(spec: &Value) -> String {
    let attributes = &spec["nonResourceAttributes"];
    if attributes.is_null() {
        return "null".to_owned();
    }
    let part = |field: &str| Value::from(attributes.text(&[field]));
    struct_json(&[("Path", part("path")), ("Verb", part("verb"))])
}

fn validate_spec(errors: &mut Errors, spec: &Value, of_someone: bool) {
    let path = Path::root("spec");
    match (spec.has(&["resourceAttributes"]), spec.has(&["nonResourceAttributes"])) {
        (true, true) => {
            let detail = "cannot be specified in combination with resourceAttributes";
            errors.invalid_verbatim(&path.child("nonResourceAttributes"), url_attributes_json(spec), detail);
        }
        (false, false) => {
            let detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            errors.invalid(&path.child("resourceAttributes"), Value::Null, detail);
        }
        _ => {}
    }
    if of_someone && spec.text(&["user"]).is_empty() && spec.items(&["groups"]).is_empty() {
        errors.invalid(&path.child("user"), "", "at least one of user or group must be specified");
    }
    let attributes = path.child("resourceAttributes");
    for (field, of_labels) in [("fieldSelector", false), ("labelSelector", true)] {
        let selector = spec.at(&["resourceAttributes", field]);
        if !selector.is_null() {
            validate_selector(errors, &attributes.child(field), selector, of_labels);
        }
    }
}

fn validate_selector(errors: &mut Errors, path: &Path<'_>, selector: &Value, of_labels: bool) {
    let raw = selector.text(&["rawSelector"]);
    let requirements = selector.items(&["requirements"]);
    if !raw.is_empty() && !requirements.is_empty() {
        errors.invalid(&path.child("rawSelector"), raw, "may not specified at the same time as requirements");
    }
    if raw.is_empty() && requirements.is_empty() {
        let detail = format!("when {path} is specified, requirements or rawSelector is required");
        errors.required(&path.child("requirements"), detail);
    }
    for (index, requirement) in requirements.iter().enumerate() {
        validate_requirement(errors, &path.item("requirements", index), requirement, of_labels);
    }
}

/// Validates selector requirements. Unknown operators are accepted because an authorizer may support them.
fn validate_requirement(errors: &mut Errors, path: &Path<'_>, requirement: &Value, of_labels: bool) {
    let values = requirement.items(&["values"]);
    let at = path.child("values");
    let key = requirement.text(&["key"]);
    if !of_labels && key.is_empty() {
        errors.required(&path.child("key"), "must be specified");
    }
    match requirement.text(&["operator"]) {
        "In" | "NotIn" if values.is_empty() => {
            errors.required(&at, "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            errors.forbidden(&at, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
        }
        _ => {}
    }
    if of_labels {
        names::check(errors, &path.child("key"), key, names::qualified_name);
        for (index, value) in values.iter().enumerate() {
            names::check(errors, &path.item("values", index), value.as_str().unwrap_or_default(), names::label_value);
        }
    }
}

fn validate_metadata(errors: &mut Errors, metadata: &Value, allowed: &[&str], detail: &str) {
    let fields = metadata.as_object().into_iter().flatten();
    let specified = |(field, value): (&String, &Value)| {
        field != "managedFields" && !allowed.contains(&field.as_str()) && !value.is_null()
    };
    if fields.into_iter().any(specified) {
        errors.invalid(&Path::root("metadata"), metadata.clone(), detail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::messages;
    use serde_json::json;

    #[test]
    fn questions_must_be_whole() {
        for (rules, object, wrong) in [
            (
                &SelfSubjectAccessReview as &dyn KindRules,
                json!({"spec": {"resourceAttributes": {"verb": "get"}}}),
                vec![],
            ),
            (
                &SelfSubjectAccessReview,
                json!({"spec": {}}),
                vec![
                    "spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes \
                     must be specified",
                ],
            ),
            (
                &SubjectAccessReview,
                json!({"metadata": {"name": "x"}, "spec": {"resourceAttributes": {}, "nonResourceAttributes": {"path": "/"}}}),
                vec![
                    "spec.nonResourceAttributes: Invalid value: {\"Path\":\"/\",\"Verb\":\"\"}: cannot be specified in \
                     combination with resourceAttributes",
                    "spec.user: Invalid value: \"\": at least one of user or group must be specified",
                    "metadata: Invalid value: {\"name\":\"x\"}: must be empty",
                ],
            ),
            (
                &LocalSubjectAccessReview,
                json!({"metadata": {"namespace": "a"}, "spec": {"user": "u", "resourceAttributes": {"namespace": "b"}}}),
                vec!["spec.resourceAttributes.namespace: Invalid value: \"b\": must match metadata.namespace"],
            ),
        ] {
            assert_eq!(messages(rules, &object, None), wrong);
        }
    }
}
