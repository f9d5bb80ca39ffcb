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

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_api::status::{GroupResource, Status};

    /// Each selector of a claim may have as many errors as an expression can have, and each error shows the expression.
    #[test]
    fn errors_of_many_selectors_do_not_fill_memory() {
        let mut errors = Errors::default();
        for request in 0..9 {
            let selector = |number: usize| {
                let expression = format!("[{request}{number:02}, {}]", vec!["nobody"; 1270].join(", "));
                serde_json::json!({"cel": {"expression": expression}})
            };
            let selectors: Vec<Value> = (0..MAX_SELECTORS).map(selector).collect();
            validate_selectors(&mut errors, &Path::root("spec"), &selectors);
        }
        let kept: usize = errors.0.iter().map(|error| error.detail.len()).sum();
        assert!((1..8 << 20).contains(&kept), "{kept} bytes of errors");
        let kind = GroupResource { group: "resource.k8s.io", name: "ResourceClaim" };
        let shown = Status::invalid(kind, "a", &errors).to_value().to_string().len();
        assert!((1..24 << 20).contains(&shown), "{shown} bytes of response");
    }
}
