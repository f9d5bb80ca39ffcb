//! Validation of the CEL rules in a schema (`x-kubernetes-validations`).

use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

use crate::apiextensions::{field_path, structural};
use crate::common::checks;

const REASONS: [&str; 4] = ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

pub(super) fn validate_rules(errors: &mut Errors, path: &Path<'_>, schema: &Value) {
    for (index, rule) in schema.items(&["x-kubernetes-validations"]).iter().enumerate() {
        validate_rule(errors, &path.item("x-kubernetes-validations", index), schema, rule);
    }
}

fn validate_rule(errors: &mut Errors, path: &Path<'_>, schema: &Value, rule: &Value) {
    let has_line_break = |text: &str| text.contains(['\n', '\r']);
    let (text, message) = (rule.text(&["rule"]).trim(), rule.text(&["message"]));
    let at = path.child("message");
    if text.is_empty() {
        errors.required(&path.child("rule"), "rule is not specified");
    } else if !message.is_empty() && message.trim().is_empty() {
        errors.invalid(&at, message, "must be non-empty if specified");
    } else if has_line_break(message.trim()) {
        errors.invalid(&at, message, "must not contain line breaks");
    } else if has_line_break(text) && message.trim().is_empty() {
        errors.required(&at, "message must be specified if rule contains line breaks");
    }
    let expression = rule.text(&["messageExpression"]);
    if !expression.is_empty() && expression.trim().is_empty() {
        errors.required(&path.child("messageExpression"), "messageExpression must be non-empty if specified");
    }
    if let Some(reason) = rule["reason"].as_str() {
        checks::one_of(errors, &path.child("reason"), reason, &REASONS);
    }
    let field = rule.text(&["fieldPath"]);
    let at = path.child("fieldPath");
    if !field.is_empty() && field.trim().is_empty() {
        errors.invalid(&at, field, "must be non-empty if specified");
    }
    if has_line_break(field) {
        errors.invalid(&at, field, "must not contain line breaks");
    }
    if !field.is_empty()
        && structural::unsupported(schema).is_none()
        && field_path::resolve(field, schema, true).is_err()
    {
        errors.invalid(&at, field, "must be a valid path");
    }
}
