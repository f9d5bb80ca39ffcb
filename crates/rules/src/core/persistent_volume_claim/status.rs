//! Validation of the status of a claim.

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::resources;
use crate::core::pod::validation::resources::quantity;

pub(super) fn status(errors: &mut Errors, claim: &Value) {
    const STATES: &[&str] = &[
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
        "NodeResizePending",
    ];
    if claim.items(&["spec", "accessModes"]).is_empty() {
        errors.required(&Path::root("Spec").child("accessModes"), "");
    }
    let path = Path::root("status");
    let capacity = path.child("capacity");
    for (name, amount) in claim.fields(&["status", "capacity"]).into_iter().flatten() {
        valid_amount(errors, amount, &capacity.key(name));
    }
    let states = path.child("allocatedResourceStatuses");
    for (name, state) in claim.fields(&["status", "allocatedResourceStatuses"]).into_iter().flatten() {
        resource_key(errors, name, &states);
        if !STATES.contains(&state.as_str().unwrap_or_default()) {
            errors.not_supported(&states, name.as_str(), STATES);
        }
    }
    let allocated = path.child("allocatedResources");
    for (name, amount) in claim.fields(&["status", "allocatedResources"]).into_iter().flatten() {
        if resource_key(errors, name, &allocated) && valid_amount(errors, amount, &allocated.key(name)) {
            quantity(errors, "storage", &resources::quantity(amount), &allocated.key(name));
        }
    }
}

fn valid_amount(errors: &mut Errors, amount: &Value, path: &Path<'_>) -> bool {
    let value = resources::quantity(amount).value();
    if value < 0 {
        errors.invalid(path, value, "must be a valid resource quantity");
    }
    value >= 0
}

fn resource_key(errors: &mut Errors, name: &str, path: &Path<'_>) -> bool {
    let wrong = names::qualified_name(name);
    let is_other = wrong.is_empty() && resources::is_native(name) && name != "storage";
    if is_other {
        errors.not_supported(path, name, &["storage"]);
    }
    for text in &wrong {
        errors.invalid(path, name, text.as_str());
    }
    wrong.is_empty() && !is_other
}
