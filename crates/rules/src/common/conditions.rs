//! Conditions of type `metav1.Condition`: setting and validating them.

use std::collections::BTreeSet;

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::{Read, Write as _};
use serde_json::{Value, json};

use super::checks;

const MAX_REASON_LENGTH: usize = 1024;
const MAX_MESSAGE_LENGTH: usize = 32 * 1024;

/// Validates a list of conditions.
pub fn validate(errors: &mut Errors, path: &Path<'_>, conditions: &[Value]) {
    let mut seen = BTreeSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        let path = path.index(index);
        let kind = condition.text(&["type"]);
        if !seen.insert(kind) {
            errors.duplicate(&path.child("type"), kind);
        }
        names::check(errors, &path.child("type"), kind, names::qualified_name);
        let status = condition.text(&["status"]);
        checks::one_of(errors, &path.child("status"), status, &["False", "True", "Unknown"]);
        if let Some(number) = condition.integer(&["observedGeneration"]).filter(|number| *number < 0) {
            errors.invalid(&path.child("observedGeneration"), number, "must be greater than or equal to zero");
        }
        if !condition.has(&["lastTransitionTime"]) {
            errors.required(&path.child("lastTransitionTime"), "");
        }
        validate_reason(errors, &path.child("reason"), condition.text(&["reason"]));
        if condition.text(&["message"]).len() > MAX_MESSAGE_LENGTH {
            errors.too_long(&path.child("message"), MAX_MESSAGE_LENGTH);
        }
    }
}

/// Sets a condition; its transition time changes only with its status.
pub fn set_condition(object: &mut Value, mut condition: Value, now: &str) {
    let conditions = object.object(&["status"]).entry("conditions").or_insert_with(|| json!([]));
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(conditions) = conditions.as_array_mut() else { return };
    match conditions.iter_mut().find(|own| own["type"] == condition["type"]) {
        Some(own) => {
            if own["status"] == condition["status"] && own.has(&["lastTransitionTime"]) {
                condition["lastTransitionTime"] = own["lastTransitionTime"].clone();
            } else {
                condition["lastTransitionTime"] = now.into();
            }
            *own = condition;
        }
        None => {
            condition["lastTransitionTime"] = now.into();
            conditions.push(condition);
        }
    }
}

fn validate_reason(errors: &mut Errors, path: &Path<'_>, reason: &str) {
    if reason.is_empty() {
        errors.required(path, "");
        return;
    }
    let bytes = reason.as_bytes();
    let last = bytes[bytes.len() - 1];
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b',' | b':');
    let ends_well = bytes.len() == 1 || last.is_ascii_alphanumeric() || last == b'_';
    if !bytes[0].is_ascii_alphabetic() || !bytes.iter().all(inner) || !ends_well {
        let detail = "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric \
                    characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or \
                    'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is \
                    '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')";
        errors.invalid(path, reason, detail);
    }
    if reason.len() > MAX_REASON_LENGTH {
        errors.too_long(path, MAX_REASON_LENGTH);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn conditions_are_checked() {
        let good =
            json!({"type": "Ready", "status": "True", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let mut errors = Errors::new();
        validate(&mut errors, &Path::root("c"), std::slice::from_ref(&good));
        assert!(errors.is_empty());
        validate(
            &mut errors,
            &Path::root("c"),
            &[good.clone(), good, json!({"type": "A", "status": "x", "reason": "1"})],
        );
        let fields: Vec<&str> = errors.0.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(fields, ["c[1].type", "c[2].status", "c[2].lastTransitionTime", "c[2].reason"]);
    }
}
