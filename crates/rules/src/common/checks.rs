//! Checks of single fields that many kinds share.

use knarr_api::field::{Error, ErrorType, Errors, Path};
use knarr_api::names::{self, Check};
use serde_json::Value;

use super::internal_types;

/// The message for a negative number.
pub const NEGATIVE: &str = "must be greater than or equal to 0";
/// The message for a number that must be positive.
pub const NOT_POSITIVE: &str = "must be greater than 0";
/// The message for a change of an immutable field.
pub const IMMUTABLE: &str = "field is immutable";

/// Reports a negative number.
pub fn non_negative(errors: &mut Errors, path: &Path, value: Option<i64>) {
    if let Some(value) = value.filter(|value| *value < 0) {
        errors.invalid(path, value, NEGATIVE);
    }
}

/// Reports a change of an immutable field.
pub fn immutable(errors: &mut Errors, path: &Path, new: &Value, old: &Value) {
    if new != old {
        errors.invalid(path, new.clone(), IMMUTABLE);
    }
}

/// Reports a change of an immutable field whose type is in `internal_types.txt`.
pub fn immutable_structure(errors: &mut Errors, path: &Path, type_name: &str, new: &Value, old: &Value) {
    if new != old {
        errors.invalid_verbatim(path, internal_types::to_json(type_name, new), IMMUTABLE);
    }
}

/// Reports a value that is not one of the supported ones.
pub fn one_of(errors: &mut Errors, path: &Path, value: &str, supported: &[&str]) {
    if !supported.contains(&value) {
        errors.not_supported(path, value, supported);
    }
}

/// Reports an unsupported value that is already rendered as JSON.
pub fn not_supported_struct(errors: &mut Errors, path: &Path<'_>, rendered: String, supported: &[&str]) {
    let names: Vec<String> = supported.iter().map(|name| format!("{name:?}")).collect();
    let detail = format!("supported values: {}", names.join(", "));
    errors.push(Error {
        field: path.to_string(),
        error_type: ErrorType::NotSupported,
        bad_value: Some(rendered),
        detail,
    });
}

/// Validates a required name.
pub fn required_name(errors: &mut Errors, path: &Path, name: &str, check: Check) {
    if name.is_empty() {
        errors.required(path, "");
    } else {
        names::check(errors, path, name, check);
    }
}

/// Returns the message for a number outside a range.
pub fn between(low: i64, high: i64) -> String {
    format!("must be between {low} and {high}, inclusive")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_word_their_errors() {
        let mut errors = Errors::new();
        let path = Path::root("spec");
        non_negative(&mut errors, &path.child("a"), Some(-1));
        non_negative(&mut errors, &path.child("a"), Some(0));
        immutable(&mut errors, &path.child("b"), &"x".into(), &"y".into());
        one_of(&mut errors, &path.child("c"), "x", &["y"]);
        required_name(&mut errors, &path.child("d"), "", names::dns_label);
        let read: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
        assert_eq!(
            read,
            [
                "spec.a: Invalid value: -1: must be greater than or equal to 0",
                "spec.b: Invalid value: \"x\": field is immutable",
                "spec.c: Unsupported value: \"x\": supported values: \"y\"",
                "spec.d: Required value",
            ]
        );
    }
}
