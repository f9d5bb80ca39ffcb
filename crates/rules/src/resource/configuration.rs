//! Validation of opaque driver parameters and of device selectors.

use knarr_api::cel::DeviceSelector;
use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

use super::naming;

const MAX_PARAMETERS_LENGTH: usize = 10 * 1024;
const MAX_EXPRESSION_LENGTH: usize = 10 * 1024;
const MAX_SELECTORS: usize = 32;

/// Parameters that are already `stored` may exceed the limit.
pub fn validate(errors: &mut Errors, path: &Path<'_>, config: &Value, stored: bool) {
    let at = path.child("opaque");
    let opaque = &config["opaque"];
    if opaque.is_null() {
        errors.required(&at, "");
        return;
    }
    naming::validate_driver(errors, &at.child("driver"), opaque.text(&["driver"]));
    validate_raw(errors, &at.child("parameters"), &opaque["parameters"], stored, MAX_PARAMETERS_LENGTH);
}

/// Validates an object whose schema is unknown.
pub fn validate_raw(errors: &mut Errors, path: &Path<'_>, raw: &Value, stored: bool, max_length: usize) {
    match raw {
        Value::Null => errors.required(path, ""),
        raw if !stored && raw.to_string().len() > max_length => errors.too_long(path, max_length),
        Value::Object(_) => {}
        _ => errors.invalid(path, "<value omitted>", "must be a valid JSON object"),
    }
}

/// Validates device selectors.
pub fn validate_selectors(errors: &mut Errors, path: &Path<'_>, selectors: &[Value]) {
    if !naming::within(errors, path, selectors.len(), MAX_SELECTORS) {
        return;
    }
    for (index, selector) in selectors.iter().enumerate() {
        let path = path.index(index);
        let at = path.child("cel");
        if selector["cel"].is_null() {
            errors.required(&at, "");
        } else if selector.text(&["cel", "expression"]).len() > MAX_EXPRESSION_LENGTH {
            errors.too_long(&at.child("expression"), MAX_EXPRESSION_LENGTH);
        } else {
            validate_expression(errors, &at.child("expression"), selector.text(&["cel", "expression"]));
        }
    }
}

/// Validates a CEL expression over a device, which must evaluate to a bool.
fn validate_expression(errors: &mut Errors, path: &Path<'_>, expression: &str) {
    if let Err(wrong) = DeviceSelector::compile(expression) {
        errors.invalid(path, expression, wrong.to_string());
    }
}
