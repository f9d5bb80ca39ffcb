//! PodDisruptionBudget: limits the voluntary disruptions of an application.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::names::{self, Check};
use knarr_api::value::Read;
use serde_json::{Value, json};

use crate::common::columns::{self, AGE, NAME, text};
use crate::common::{checks, conditions, int_or_percent, label_selector};
use crate::kind::{Column, Context, KindRules, MetadataPasses};

const COUNTERS: [&str; 4] = ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"];

/// The rules of PodDisruptionBudget.
pub struct PodDisruptionBudget;

impl KindRules for PodDisruptionBudget {
    fn requires_known_finalizers(&self) -> bool {
        false
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 0, as_create: 1 }
    }

    fn validate(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if context.subresource == "status" {
            let status = &object["status"];
            conditions::validate(&mut errors, &Path::root("status.conditions"), status.items(&["conditions"]));
            for counter in COUNTERS {
                checks::non_negative(&mut errors, &Path::root("status").child(counter), status.integer(&[counter]));
            }
        } else {
            let lax = old.is_some_and(|old| label_selector::is_invalid(old.at(&["spec", "selector"])));
            validate_spec(&mut errors, &object["spec"], lax);
        }
        errors
    }

    fn name_check(&self) -> Check {
        names::path_segment
    }

    fn has_status(&self) -> bool {
        true
    }

    fn empty_status(&self) -> Value {
        json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0})
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn allows_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                NAME,
                text("Min Available", "string", "The minimum number of pods that must be available."),
                text("Max Unavailable", "string", "The maximum number of pods that may be unavailable."),
                text("Allowed Disruptions", "integer", "Calculated number of pods that may be disrupted at this time."),
                AGE,
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let limit = |field: &str| match object.at(&["spec", field]) {
            Value::Null => Value::from("N/A"),
            value => int_or_percent::display(value).into(),
        };
        vec![
            columns::name(object),
            limit("minAvailable"),
            limit("maxUnavailable"),
            columns::count(object, &["status", "disruptionsAllowed"]),
            columns::age(object, now),
        ]
    }
}

fn validate_spec(errors: &mut Errors, spec: &Value, lax_selector: bool) {
    let path = Path::root("spec");
    if spec.has(&["minAvailable"]) && spec.has(&["maxUnavailable"]) {
        let rendered = format!(
            "{{\"MinAvailable\":{},\"Selector\":{},\"MaxUnavailable\":{},\"UnhealthyPodEvictionPolicy\":{}}}",
            spec["minAvailable"],
            label_selector::to_json(&spec["selector"]),
            spec["maxUnavailable"],
            spec["unhealthyPodEvictionPolicy"]
        );
        errors.invalid_verbatim(&path, rendered, "minAvailable and maxUnavailable cannot be both set");
    }
    for field in ["minAvailable", "maxUnavailable"] {
        if spec.has(&[field]) {
            int_or_percent::validate(errors, &path.child(field), &spec[field]);
            int_or_percent::at_most_all(errors, &path.child(field), &spec[field]);
        }
    }
    label_selector::validate(errors, &path.child("selector"), &spec["selector"], lax_selector);
    if let Some(policy) = spec["unhealthyPodEvictionPolicy"].as_str() {
        let at = path.child("unhealthyPodEvictionPolicy");
        checks::one_of(errors, &at, policy, &["AlwaysAllow", "IfHealthyBudget"]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::messages;

    #[test]
    fn budgets_are_checked() {
        for (spec, wrong) in [
            (json!({"minAvailable": "50%"}), vec![]),
            (
                json!({"minAvailable": 1, "maxUnavailable": "120%", "selector": {"matchLabels": {"a": "b"}}}),
                vec![
                    "spec: Invalid value: {\"MinAvailable\":1,\"Selector\":{\"matchLabels\":{\"a\":\"b\"}},\
                     \"MaxUnavailable\":\"120%\",\"UnhealthyPodEvictionPolicy\":null}: minAvailable and maxUnavailable cannot \
                     be both set",
                    "spec.maxUnavailable: Invalid value: \"120%\": must not be greater than 100%",
                ],
            ),
            (
                json!({"unhealthyPodEvictionPolicy": "x"}),
                vec![
                    "spec.unhealthyPodEvictionPolicy: Unsupported value: \"x\": supported values: \"AlwaysAllow\", \
                     \"IfHealthyBudget\"",
                ],
            ),
        ] {
            assert_eq!(messages(&PodDisruptionBudget, &json!({"spec": spec}), None), wrong);
        }
    }
}
