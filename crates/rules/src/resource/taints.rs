//! Validation of taints of devices, and of tolerations.

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::checks;

const EFFECTS: [&str; 3] = ["NoExecute", "NoSchedule", "None"];

/// Validates a taint.
pub fn validate(errors: &mut Errors, path: &Path<'_>, taint: &Value) {
    names::check(errors, &path.child("key"), taint.text(&["key"]), names::qualified_name);
    names::check(errors, &path.child("value"), taint.text(&["value"]), names::label_value);
    match taint.text(&["effect"]) {
        "" => errors.required(&path.child("effect"), ""),
        effect => checks::one_of(errors, &path.child("effect"), effect, &EFFECTS),
    }
}

/// Validates a toleration.
pub fn validate_toleration(errors: &mut Errors, path: &Path<'_>, toleration: &Value) {
    let (key, value) = (toleration.text(&["key"]), toleration.text(&["value"]));
    if !key.is_empty() {
        names::check(errors, &path.child("key"), key, names::qualified_name);
    }
    match toleration.text(&["operator"]) {
        "Exists" => {
            if !value.is_empty() {
                errors.invalid(&path.child("value"), value, "must be empty for operator `Exists`");
            }
        }
        "Equal" => names::check(errors, &path.child("value"), value, names::label_value),
        "" => errors.required(&path.child("operator"), ""),
        operator => errors.not_supported(&path.child("operator"), operator, &["Equal", "Exists"]),
    }
    let effect = toleration.text(&["effect"]);
    if !effect.is_empty() {
        checks::one_of(errors, &path.child("effect"), effect, &EFFECTS);
    }
}
