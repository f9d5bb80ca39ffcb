//! ReplicaSet: a number of replicas of a pod.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use super::workload;
use crate::common::columns::{self, AGE, CONTAINERS, IMAGES, NAME, field, wide};
use crate::common::{checks, label_selector};
use crate::core::pod_template;
use crate::kind::{self, Column, Context, KindRules};

const SPEC: &str = "io.k8s.api.apps.v1.ReplicaSetSpec";
const STATUS: &str = "io.k8s.api.apps.v1.ReplicaSetStatus";

/// The rules of ReplicaSet.
pub struct ReplicaSet;

impl KindRules for ReplicaSet {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        pod_template::set_defaults(object.object(&["spec"]).entry("template").or_insert_with(|| json!({})));
        object.set_default(&["spec", "replicas"], 1);
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        object.set(&["status"], self.empty_status());
    }

    fn prepare_update(&self, object: &mut Value, old: &Value, context: &Context<'_>) {
        if context.subresource == "status" {
            kind::keep_all_but_status(object, old);
        } else {
            kind::keep_field(object, old, "status");
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if context.subresource == "status" {
            validate_status(&mut errors, &object["status"]);
            return errors;
        }
        let (path, spec) = (Path::root("spec"), &object["spec"]);
        for field in ["replicas", "minReadySeconds"] {
            checks::non_negative(&mut errors, &path.child(field), spec.integer(&[field]));
        }
        workload::validate_selector_and_template(&mut errors, &path, spec, old.map(|old| &old["spec"]));
        if let Some(old) = old {
            let old = old.at(&["spec", "selector"]);
            label_selector::immutable(&mut errors, &path.child("selector"), &spec["selector"], old);
        }
        errors
    }

    fn warnings(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Vec<String> {
        workload::spec_warnings(self, object, old, context)
    }

    fn has_status(&self) -> bool {
        true
    }

    fn empty_status(&self) -> Value {
        json!({"replicas": 0})
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                NAME,
                field("Desired", "integer", SPEC, "replicas"),
                field("Current", "integer", STATUS, "replicas"),
                field("Ready", "integer", STATUS, "readyReplicas"),
                AGE,
                CONTAINERS,
                IMAGES,
                wide(field("Selector", "string", SPEC, "selector")),
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let [containers, images] = columns::containers_and_images(object.at(&["spec", "template"]));
        vec![
            columns::name(object),
            columns::count(object, &["spec", "replicas"]),
            columns::count(object, &["status", "replicas"]),
            columns::count(object, &["status", "readyReplicas"]),
            columns::age(object, now),
            containers,
            images,
            label_selector::display(object.at(&["spec", "selector"])).into(),
        ]
    }
}

fn validate_status(errors: &mut Errors, status: &Value) {
    let counters = [
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "observedGeneration",
        "terminatingReplicas",
    ];
    workload::validate_counters(errors, status, &counters);
    let within = ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
    workload::validate_at_most(errors, status, &within, "replicas", "cannot be greater than status.replicas");
    let ready = "cannot be greater than readyReplicas";
    workload::validate_at_most(errors, status, &["availableReplicas"], "readyReplicas", ready);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{defaulted, messages, messages_of};

    fn replica_set(replicas: i64) -> Value {
        defaulted(
            &ReplicaSet,
            json!({"spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "a"}}, "template": {
                "metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "nginx"}]}}}}),
        )
    }

    #[test]
    fn specs_and_statuses_are_checked() {
        assert!(messages(&ReplicaSet, &replica_set(3), None).is_empty());
        assert_eq!(
            messages(&ReplicaSet, &replica_set(-3), None),
            ["spec.replicas: Invalid value: -3: must be greater than or equal to 0"]
        );
        let status = json!({"status": {"replicas": 1, "readyReplicas": 0, "availableReplicas": 1}});
        assert_eq!(
            messages_of(&ReplicaSet, &status, Some(&json!({})), "status"),
            ["status.availableReplicas: Invalid value: 1: cannot be greater than readyReplicas"]
        );
    }

    #[test]
    fn cells_show_counts_and_selector() {
        let cells = ReplicaSet.cells(&replica_set(3), Timestamp::UNIX_EPOCH);
        assert_eq!(
            cells[1..],
            [json!(3), json!(0), json!(0), json!("<unknown>"), json!("c"), json!("nginx"), json!("app=a")]
        );
    }
}
