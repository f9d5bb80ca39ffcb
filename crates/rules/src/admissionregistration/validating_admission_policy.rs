//! ValidatingAdmissionPolicy: expressions that objects must satisfy.

use std::collections::BTreeSet;

use jiff::Timestamp;
use knarr_api::cel::Type;
use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use super::expressions::Scope;
use super::{matching, name_warnings, policy};
use crate::common::columns::{self, AGE, NAME, text};
use crate::common::{checks, conditions};
use crate::kind::{Column, Context, KindRules, MetadataPasses};

const MAX_ANNOTATIONS: usize = 20;
const MAX_VALUE_LENGTH: usize = 5 * 1024;

/// The rules of ValidatingAdmissionPolicy.
pub struct ValidatingAdmissionPolicy;

impl KindRules for ValidatingAdmissionPolicy {
    fn requires_known_finalizers(&self) -> bool {
        false
    }

    fn status_update_keeps_metadata(&self) -> bool {
        true
    }

    fn set_defaults(&self, object: &mut Value, _version: &str) {
        policy::set_defaults(object);
    }

    fn validate(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if context.subresource == "status" {
            validate_status(&mut errors, &object["status"]);
            return errors;
        }
        let spec = &object["spec"];
        let scope = policy::validate_matching(&mut errors, spec, old.map(|old| &old["spec"]), false);
        validate_expressions(&mut errors, object.text(&["metadata", "name"]), spec, &scope);
        errors
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Vec<String> {
        name_warnings(object)
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 0, as_create: 2 }
    }

    fn has_status(&self) -> bool {
        true
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn allows_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const VALIDATIONS: &str = "Validations indicates the number of validation rules defined in this configuration";
        const PARAMETERS: &str = "ParamKind specifies the kind of resources used to parameterize this policy";
        const { &[NAME, text("Validations", "integer", VALIDATIONS), text("ParamKind", "string", PARAMETERS), AGE] }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            columns::name(object),
            object.items(&["spec", "validations"]).len().into(),
            matching::display_parameter_kind(&object["spec"]).into(),
            columns::age(object, now),
        ]
    }
}

fn validate_expressions(errors: &mut Errors, name: &str, spec: &Value, scope: &Scope) {
    let path = Path::root("spec");
    let (validations, annotations) = (spec.items(&["validations"]), spec.items(&["auditAnnotations"]));
    if validations.is_empty() && annotations.is_empty() {
        for list in ["validations", "auditAnnotations"] {
            errors.required(&path.child(list), "validations or auditAnnotations must contain at least one item");
        }
        return;
    }
    for (index, validation) in validations.iter().enumerate() {
        validate_validation(errors, &path.item("validations", index), validation, scope);
    }
    if annotations.len() > MAX_ANNOTATIONS {
        let detail = format!("must not have more than {MAX_ANNOTATIONS} auditAnnotations");
        errors.invalid(&path.child("auditAnnotations"), spec["auditAnnotations"].clone(), detail);
    }
    let mut seen = BTreeSet::new();
    for (index, annotation) in annotations.iter().enumerate() {
        let path = path.item("auditAnnotations", index);
        validate_annotation(errors, &path, name, annotation, scope);
        let key = annotation.text(&["key"]);
        if !seen.insert(key) {
            errors.duplicate(&path.child("key"), key);
        }
    }
}

fn validate_validation(errors: &mut Errors, path: &Path<'_>, validation: &Value, scope: &Scope) {
    let expression = validation.text(&["expression"]);
    if expression.trim().is_empty() {
        errors.required(&path.child("expression"), "expression is not specified");
    } else {
        scope.validate(errors, &path.child("expression"), expression, &[Type::Bool]);
    }
    for field in ["messageExpression", "message"] {
        let text = validation.text(&[field]);
        if !text.is_empty() && text.trim().is_empty() {
            errors.invalid(&path.child(field), text, "must be non-empty if specified");
        } else if field == "messageExpression" && !text.is_empty() {
            scope.validate(errors, &path.child(field), text, &[Type::String]);
        } else if field == "message" && text.trim().contains(['\n', '\r']) {
            errors.invalid(&path.child(field), text, "must not contain line breaks");
        }
    }
    if let Some(reason) = validation["reason"].as_str() {
        let known = ["Forbidden", "Invalid", "RequestEntityTooLarge"];
        checks::one_of(errors, &path.child("reason"), reason, &known);
    }
}

fn validate_annotation(errors: &mut Errors, path: &Path<'_>, name: &str, annotation: &Value, scope: &Scope) {
    let key = annotation.text(&["key"]);
    if name.is_empty() {
        errors.invalid(&path.child("key"), key, "requires metadata.name be non-empty");
    } else {
        names::check(errors, &path.child("key"), &format!("{name}/{key}"), names::qualified_name);
    }
    let value = annotation.text(&["valueExpression"]).trim();
    if value.is_empty() {
        errors.required(&path.child("valueExpression"), "valueExpression is not specified");
    } else if value.len() > MAX_VALUE_LENGTH {
        errors.required(&path.child("valueExpression"), format!("must not exceed {MAX_VALUE_LENGTH} bytes in length"));
    } else {
        scope.validate(errors, &path.child("valueExpression"), value, &[Type::String, Type::Null]);
    }
}

fn validate_status(errors: &mut Errors, status: &Value) {
    let path = Path::root("status");
    let checking = path.child("typeChecking");
    for (index, warning) in status.items(&["typeChecking", "expressionWarnings"]).iter().enumerate() {
        let path = checking.item("expressionWarnings", index);
        if warning.text(&["warning"]).is_empty() {
            errors.required(&path.child("warning"), "");
        }
        if warning.text(&["fieldRef"]).trim().is_empty() {
            errors.required(&path.child("fieldRef"), "");
        }
    }
    conditions::validate(errors, &path.child("conditions"), status.items(&["conditions"]));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{defaulted, messages};
    use serde_json::json;

    #[test]
    fn policies_are_checked() {
        let rule = json!({"operations": ["CREATE"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"]});
        let policy = |spec: Value| {
            defaulted(&ValidatingAdmissionPolicy, json!({"metadata": {"name": "p.example.com"}, "spec": spec}))
        };
        let good =
            policy(json!({"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "true"}]}));
        assert_eq!(good["spec"]["matchConstraints"]["matchPolicy"], "Equivalent");
        assert!(messages(&ValidatingAdmissionPolicy, &good, None).is_empty());
        assert_eq!(
            messages(
                &ValidatingAdmissionPolicy,
                &policy(json!({"paramKind": {"apiVersion": "a/b/c"}, "variables": [{"name": "in"}]})),
                None
            ),
            [
                "spec.paramKind.apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c",
                "spec.paramKind.kind: Required value",
                "spec.matchConstraints: Required value",
                "spec.variables[0].name: Invalid value: \"in\": must be a valid CEL identifier",
                "spec.variables[0].expression: Required value: expression is not specified",
                "spec.validations: Required value: validations or auditAnnotations must contain at least one item",
                "spec.auditAnnotations: Required value: validations or auditAnnotations must contain at least one item",
            ]
        );
    }
}
