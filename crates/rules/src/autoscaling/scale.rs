//! Scale: the subresource with the number of replicas of a workload.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::checks;
use crate::common::columns::{self, AGE, field};
use crate::kind::{Column, Context, KindRules, OBJECT_META};

/// The rules of Scale.
pub struct Scale;

impl KindRules for Scale {
    fn validate(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        checks::non_negative(&mut errors, &Path::root("spec.replicas"), object.integer(&["spec", "replicas"]));
        errors
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                field("Name", "string", OBJECT_META, "name"),
                field("Desired", "integer", "io.k8s.api.autoscaling.v1.ScaleSpec", "replicas"),
                field("Available", "integer", "io.k8s.api.autoscaling.v1.ScaleStatus", "replicas"),
                AGE,
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            columns::name(object),
            columns::count(object, &["spec", "replicas"]),
            columns::count(object, &["status", "replicas"]),
            columns::age(object, now),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::messages;
    use serde_json::json;

    #[test]
    fn replicas_are_not_negative() {
        assert_eq!(
            messages(&Scale, &json!({"spec": {"replicas": -1}}), None),
            ["spec.replicas: Invalid value: -1: must be greater than or equal to 0"]
        );
    }
}
