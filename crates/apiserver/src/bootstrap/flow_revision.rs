//! How existing FlowSchemas and PriorityLevelConfigurations are brought up to the built-in ones: the annotation decides.

use knarr_api::value::{Read, Write as _};
use serde_json::Value;

use super::DesiredObject;

/// The level that is never limited.
pub const EXEMPT: &str = "exempt";
/// The level of requests that match nothing else.
pub const CATCH_ALL: &str = "catch-all";
pub const ANNOTATION: &str = "apf.kubernetes.io/autoupdate-spec";

/// Whether classification needs the object of this name. Users cannot change these objects.
pub fn is_mandatory(name: &str) -> bool {
    name == EXEMPT || name == CATCH_ALL
}

/// The updated object; `None` if it is up to date.
pub fn revise(current: &Value, desired: &DesiredObject) -> Option<Value> {
    let updates = is_mandatory(desired.name()) || updates_spec(current);
    let mut revised = current.clone();
    if updates {
        let mut spec = desired.object.at(&["spec"]).clone();
        if desired.resource == "prioritylevelconfigurations"
            && desired.name() == EXEMPT
            && current.has(&["spec", "exempt"])
        {
            // The administrator chooses the shares of the exempt level.
            for field in ["nominalConcurrencyShares", "lendablePercent"] {
                spec.set(&["exempt", field], current.at(&["spec", "exempt", field]).clone());
            }
        }
        revised.set(&["spec"], spec);
    }
    if autoupdates(current) != Some(updates) {
        revised.set(&["metadata", "annotations", ANNOTATION], if updates { "true" } else { "false" });
    }
    (revised != *current).then_some(revised)
}

/// Without the annotation, an object that was never changed is kept up to date.
fn updates_spec(current: &Value) -> bool {
    autoupdates(current).unwrap_or_else(|| current.integer(&["metadata", "generation"]) == Some(1))
}

/// What the annotation says about updates; `None` without one.
pub fn autoupdates(object: &Value) -> Option<bool> {
    match object.text(&["metadata", "annotations", ANNOTATION]) {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}
