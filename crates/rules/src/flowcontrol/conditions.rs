//! Conditions of FlowSchemas and PriorityLevelConfigurations, and what a status update keeps.

use std::collections::BTreeSet;

use knarr_api::field::{Errors, Path};
use knarr_api::value::{Read, Write};
use serde_json::Value;

use crate::kind;

/// Validates the conditions of an object.
pub fn validate(errors: &mut Errors, object: &Value) {
    let path = Path::root("status");
    let mut seen = BTreeSet::new();
    for (index, condition) in object.items(&["status", "conditions"]).iter().enumerate() {
        let path = path.item("conditions", index);
        let kind = condition.text(&["type"]);
        if !seen.insert(kind) {
            errors.duplicate(&path.child("type"), kind);
        }
        if kind.is_empty() {
            errors.required(&path.child("type"), "");
        }
    }
}

/// Prepares a status update, which keeps everything else, including metadata.
pub fn keep_all_but_status(object: &mut Value, old: &Value) {
    kind::keep_all_but_status(object, old);
    let managed = object.at(&["metadata", "managedFields"]).clone();
    kind::keep_field(object, old, "metadata");
    if !managed.is_null() {
        object.set(&["metadata", "managedFields"], managed);
    }
}
