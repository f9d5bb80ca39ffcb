//! PriorityClass: maps a name to a pod priority.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::value::{Read, Write};
use serde_json::Value;

use crate::common::checks;
use crate::common::columns::{self, AGE, NAME, field};
use crate::kind::{Column, Context, KindRules};

const HIGHEST_OF_USERS: i64 = 1_000_000_000;
const SYSTEM_PREFIX: &str = "system-";
const SYSTEM_CLASSES: [(&str, i64); 2] =
    [("system-node-critical", 2 * HIGHEST_OF_USERS + 1000), ("system-cluster-critical", 2 * HIGHEST_OF_USERS)];
const TYPE: &str = "io.k8s.api.scheduling.v1.PriorityClass";

/// The rules of PriorityClass.
pub struct PriorityClass;

impl KindRules for PriorityClass {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        object.set_default(&["preemptionPolicy"], "PreemptLowerPriority");
    }

    fn validate(&self, object: &Value, old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if old.is_some() {
            return errors;
        }
        let name = object.text(&["metadata", "name"]);
        let value = object.integer(&["value"]).unwrap_or(0);
        if name.starts_with(SYSTEM_PREFIX) {
            if let Some(wrong) = system_class_error(name, value, object.flag(&["globalDefault"]).unwrap_or(false)) {
                let reserved = "priority class names with 'system-' prefix are reserved for system use only. error: ";
                errors.forbidden(&Path::root("metadata").child("name"), format!("{reserved}{wrong}"));
            }
        } else if value > HIGHEST_OF_USERS {
            let most = format!("maximum allowed value of a user defined priority is {HIGHEST_OF_USERS}");
            errors.forbidden(&Path::root("value"), most);
        }
        if let Some(policy) = object["preemptionPolicy"].as_str() {
            let path = Path::root("preemptionPolicy");
            match policy {
                "" => errors.required(&path, ""),
                policy => checks::one_of(&mut errors, &path, policy, &["PreemptLowerPriority", "Never"]),
            }
        }
        errors
    }

    fn validate_update(&self, object: &Value, old: &Value, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if object.integer(&["value"]).unwrap_or(0) != old.integer(&["value"]).unwrap_or(0) {
            errors.forbidden(&Path::root("value"), "may not be changed in an update.");
        }
        let policy = Path::root("preemptionPolicy");
        checks::immutable(&mut errors, &policy, &object["preemptionPolicy"], &old["preemptionPolicy"]);
        errors
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn increments_generation(&self, _object: &Value, _old: &Value) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                NAME,
                field("Value", "integer", TYPE, "value"),
                field("Global-Default", "boolean", TYPE, "globalDefault"),
                AGE,
                field("PreemptionPolicy", "string", TYPE, "preemptionPolicy"),
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            columns::name(object),
            columns::count(object, &["value"]),
            object.flag(&["globalDefault"]).unwrap_or(false).into(),
            columns::age(object, now),
            object.text(&["preemptionPolicy"]).into(),
        ]
    }
}

/// Returns why a class with the reserved prefix `system-` is not one of the predefined ones.
fn system_class_error(name: &str, value: i64, global_default: bool) -> Option<String> {
    let Some((_, known)) = SYSTEM_CLASSES.iter().find(|(known, _)| *known == name) else {
        return Some(format!("{name} is not a known system priority class"));
    };
    if *known != value {
        return Some(format!("value of {name} PriorityClass must be {known}"));
    }
    global_default.then(|| format!("globalDefault of {name} PriorityClass must be false"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{defaulted, messages};
    use serde_json::json;

    #[test]
    fn names_and_values_have_bounds() {
        let class = |name: &str, value: i64| json!({"metadata": {"name": name}, "value": value});
        for (object, wrong) in [
            (class("high", 1_000_000_000), vec![]),
            (
                class("high", 1_000_000_001),
                vec!["value: Forbidden: maximum allowed value of a user defined priority is 1000000000"],
            ),
            (class("system-node-critical", 2_000_001_000), vec![]),
            (
                class("system-node-critical", 1),
                vec![
                    "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use \
                     only. error: value of system-node-critical PriorityClass must be 2000001000",
                ],
            ),
            (
                class("system-x", 1),
                vec![
                    "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use \
                     only. error: system-x is not a known system priority class",
                ],
            ),
        ] {
            assert_eq!(messages(&PriorityClass, &object, None), wrong);
        }
        assert_eq!(defaulted(&PriorityClass, json!({})), json!({"preemptionPolicy": "PreemptLowerPriority"}));
    }

    #[test]
    fn value_and_policy_stay() {
        let old = json!({"value": 1, "preemptionPolicy": "Never"});
        assert_eq!(
            messages(&PriorityClass, &json!({"value": 2, "preemptionPolicy": "PreemptLowerPriority"}), Some(&old)),
            [
                "value: Forbidden: may not be changed in an update.",
                "preemptionPolicy: Invalid value: \"PreemptLowerPriority\": field is immutable",
            ]
        );
    }
}
