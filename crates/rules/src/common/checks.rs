//! Small checks that many kinds make of a field.

use knarr_api::field::{Error, Errors, ErrorType, Path};
use knarr_api::names::{self, Check};
use serde_json::Value;

use super::internal_types;

pub const NEGATIVE: &str = "must be greater than or equal to 0";
pub const NOT_POSITIVE: &str = "must be greater than 0";
pub const IMMUTABLE: &str = "field is immutable";

pub fn non_negative(errors: &mut Errors, path: &Path, value: Option<i64>) {
    if let Some(value) = value.filter(|value| *value < 0) {
        errors.invalid(path, value, NEGATIVE);
    }
}

/// Says that a field may not change; the new value is shown as JSON.
pub fn immutable(errors: &mut Errors, path: &Path, new: &Value, old: &Value) {
    if new != old {
        errors.invalid(path, new.clone(), IMMUTABLE);
    }
}

/// A structure that must stay as it was, shown as Kubernetes shows those of the type.
pub fn immutable_structure(errors: &mut Errors, path: &Path, type_name: &str, new: &Value, old: &Value) {
    if new != old {
        errors.invalid_verbatim(path, internal_types::to_json(type_name, new), IMMUTABLE);
    }
}

/// A value that must be one of a few.
pub fn one_of(errors: &mut Errors, path: &Path, value: &str, supported: &[&str]) {
    if !supported.contains(&value) {
        errors.not_supported(path, value, supported);
    }
}

/// An unsupported value that is shown just as given, for structures.
pub fn not_supported_struct(errors: &mut Errors, path: &Path<'_>, rendered: String, supported: &[&str]) {
    let names: Vec<String> = supported.iter().map(|name| format!("{name:?}")).collect();
    let detail = format!("supported values: {}", names.join(", "));
    errors.push(Error { field: path.to_string(), error_type: ErrorType::NotSupported, bad_value: Some(rendered), detail });
}

/// A required name of a certain form.
pub fn required_name(errors: &mut Errors, path: &Path, name: &str, check: Check) {
    if name.is_empty() {
        errors.required(path, "");
    } else {
        names::check(errors, path, name, check);
    }
}

/// The message for a number outside a range.
pub fn between(low: i64, high: i64) -> String {
    format!("must be between {low} and {high}, inclusive")
}

/// JSON text as Kubernetes writes it: with the marks of HTML escaped.
pub fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            '<' => out.push_str("\\u003c"),
            '>' => out.push_str("\\u003e"),
            '&' => out.push_str("\\u0026"),
            '\u{2028}' => out.push_str("\\u2028"),
            '\u{2029}' => out.push_str("\\u2029"),
            plain => out.push(plain),
        }
    }
    out
}

/// Structures that Kubernetes shows in an error by its internal field names, all of them, in their order.
pub fn struct_json(fields: &[(&str, Value)]) -> String {
    let parts: Vec<String> = fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    escaped(&format!("{{{}}}", parts.join(",")))
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
        assert_eq!(struct_json(&[("Kind", "Role".into()), ("N", 1.into())]), r#"{"Kind":"Role","N":1}"#);
    }
}
