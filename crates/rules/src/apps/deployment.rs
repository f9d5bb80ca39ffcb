//! Deployment: replicated pods with rolling updates.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::selector::LabelSelector;
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use super::workload;
use crate::common::columns::{self, AGE, CONTAINERS, IMAGES, NAME, field, text, wide};
use crate::common::{checks, int_or_percent, label_selector};
use crate::core::pod_template;
use crate::kind::{self, Column, Context, KindRules};

const SPEC: &str = "io.k8s.api.apps.v1.DeploymentSpec";
const STATUS: &str = "io.k8s.api.apps.v1.DeploymentStatus";

/// The rules of Deployment.
pub struct Deployment;

impl KindRules for Deployment {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        pod_template::set_defaults(object.object(&["spec"]).entry("template").or_insert_with(|| json!({})));
        object.set_default(&["spec", "replicas"], 1);
        if object.text(&["spec", "strategy", "type"]).is_empty() {
            object.set(&["spec", "strategy", "type"], "RollingUpdate");
        }
        if object.text(&["spec", "strategy", "type"]) == "RollingUpdate" {
            object.set_default(&["spec", "strategy", "rollingUpdate", "maxUnavailable"], "25%");
            object.set_default(&["spec", "strategy", "rollingUpdate", "maxSurge"], "25%");
        }
        object.set_default(&["spec", "revisionHistoryLimit"], 10);
        object.set_default(&["spec", "progressDeadlineSeconds"], 600);
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        object.set(&["status"], self.empty_status());
    }

    fn prepare_update(&self, object: &mut Value, old: &Value, context: &Context<'_>) {
        if context.subresource != "status" {
            kind::keep_field(object, old, "status");
            return;
        }
        kind::keep_all_but_status(object, old);
        if let Some(metadata) = object.get_mut("metadata") {
            kind::keep_field(metadata, &old["metadata"], "labels");
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        match (context.subresource, old) {
            ("status", Some(old)) => validate_status(&mut errors, &object["status"], &old["status"]),
            _ => validate_spec(&mut errors, &object["spec"], old.map(|old| &old["spec"])),
        }
        errors
    }

    fn warnings(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Vec<String> {
        workload::spec_warnings(self, object, old, context)
    }

    fn has_status(&self) -> bool {
        true
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn increments_generation(&self, object: &Value, old: &Value) -> bool {
        object["spec"] != old["spec"] || object.at(&["metadata", "annotations"]) != old.at(&["metadata", "annotations"])
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                NAME,
                text("Ready", "string", "Number of the pod with ready state"),
                field("Up-to-date", "string", STATUS, "updatedReplicas"),
                field("Available", "string", STATUS, "availableReplicas"),
                AGE,
                CONTAINERS,
                IMAGES,
                wide(field("Selector", "string", SPEC, "selector")),
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let ready = object.integer(&["status", "readyReplicas"]).unwrap_or(0);
        let desired = object.integer(&["spec", "replicas"]).unwrap_or(0);
        let [containers, images] = columns::containers_and_images(object.at(&["spec", "template"]));
        let selector = LabelSelector::from_object(object.at(&["spec", "selector"]));
        vec![
            columns::name(object),
            format!("{ready}/{desired}").into(),
            columns::count(object, &["status", "updatedReplicas"]),
            columns::count(object, &["status", "availableReplicas"]),
            columns::age(object, now),
            containers,
            images,
            selector.map_or("<invalid>".to_owned(), |selector| selector.to_string()).into(),
        ]
    }
}

fn validate_spec(errors: &mut Errors, spec: &Value, old: Option<&Value>) {
    let path = Path::root("spec");
    checks::non_negative(errors, &path.child("replicas"), spec.integer(&["replicas"]));
    workload::validate_selector_and_template(errors, &path, spec, old);
    validate_strategy(errors, &path.child("strategy"), &spec["strategy"]);
    let min_ready = spec.integer(&["minReadySeconds"]);
    checks::non_negative(errors, &path.child("minReadySeconds"), min_ready);
    checks::non_negative(errors, &path.child("revisionHistoryLimit"), spec.integer(&["revisionHistoryLimit"]));
    if let Some(deadline) = spec.integer(&["progressDeadlineSeconds"]) {
        let path = path.child("progressDeadlineSeconds");
        checks::non_negative(errors, &path, Some(deadline));
        if deadline <= min_ready.unwrap_or(0) {
            errors.invalid(&path, deadline, "must be greater than minReadySeconds");
        }
    }
    if let Some(old) = old {
        label_selector::immutable(errors, &path.child("selector"), &spec["selector"], &old["selector"]);
    }
}

fn validate_strategy(errors: &mut Errors, path: &Path<'_>, strategy: &Value) {
    let rolling = &strategy["rollingUpdate"];
    let at = path.child("rollingUpdate");
    match strategy.text(&["type"]) {
        "Recreate" => {
            if !rolling.is_null() {
                errors.forbidden(&at, "may not be specified when strategy `type` is 'Recreate'");
            }
        }
        "RollingUpdate" => {
            let (unavailable, surge) = (&rolling["maxUnavailable"], &rolling["maxSurge"]);
            int_or_percent::validate(errors, &at.child("maxUnavailable"), unavailable);
            int_or_percent::validate(errors, &at.child("maxSurge"), surge);
            if int_or_percent::number(unavailable) == 0 && int_or_percent::number(surge) == 0 {
                let detail = "may not be 0 when `maxSurge` is 0";
                errors.invalid(&at.child("maxUnavailable"), unavailable.clone(), detail);
            }
            int_or_percent::at_most_all(errors, &at.child("maxUnavailable"), unavailable);
        }
        _ => {
            let settings =
                [("MaxUnavailable", "maxUnavailable", Value::from(0)), ("MaxSurge", "maxSurge", Value::from(0))];
            let rendered = workload::strategy_json(strategy, &settings);
            checks::not_supported_struct(errors, path, rendered, &["Recreate", "RollingUpdate"]);
        }
    }
}

fn validate_status(errors: &mut Errors, status: &Value, old: &Value) {
    workload::validate_counters(
        errors,
        status,
        &[
            "observedGeneration",
            "replicas",
            "updatedReplicas",
            "readyReplicas",
            "availableReplicas",
            "unavailableReplicas",
            "terminatingReplicas",
            "collisionCount",
        ],
    );
    let within = ["updatedReplicas", "readyReplicas", "availableReplicas"];
    workload::validate_at_most(errors, status, &within, "replicas", "cannot be greater than status.replicas");
    let ready = "cannot be greater than readyReplicas";
    workload::validate_at_most(errors, status, &["availableReplicas"], "readyReplicas", ready);
    workload::validate_collisions(errors, status, old);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{defaulted, messages, messages_of};

    fn deployment(spec: Value) -> Value {
        let mut whole = json!({"selector": {"matchLabels": {"app": "a"}}, "template": {"metadata": {"labels": {"app": "a"}},
            "spec": {"containers": [{"name": "c", "image": "nginx"}]}}});
        for (field, value) in spec.as_object().unwrap() {
            whole[field] = value.clone();
        }
        defaulted(&Deployment, json!({"metadata": {"name": "d"}, "spec": whole}))
    }

    #[test]
    fn defaults_are_set() {
        let spec = &deployment(json!({}))["spec"];
        assert_eq!(spec["replicas"], 1);
        let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}});
        assert_eq!(spec["strategy"], rolling);
        assert_eq!((&spec["revisionHistoryLimit"], &spec["progressDeadlineSeconds"]), (&json!(10), &json!(600)));
        let recreate = deployment(json!({"strategy": {"type": "Recreate"}}));
        assert_eq!(recreate["spec"]["strategy"], json!({"type": "Recreate"}));
    }

    #[test]
    fn wrong_specs_are_reported() {
        for (spec, wrong) in [
            (json!({}), vec![]),
            (json!({"replicas": -1}), vec!["spec.replicas: Invalid value: -1: must be greater than or equal to 0"]),
            (
                json!({"selector": null}),
                vec![
                    "spec.selector: Required value",
                    "spec.template.metadata.labels: Invalid value: {\"app\":\"a\"}: `selector` does not match template \
                     `labels`",
                ],
            ),
            (
                json!({"selector": {}}),
                vec!["spec.selector: Invalid value: {}: empty selector is invalid for deployment"],
            ),
            (
                json!({"strategy": {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}}),
                vec!["spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'"],
            ),
            (
                json!({"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}}}),
                vec![
                    "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"0%\": may not be 0 when `maxSurge` is 0",
                ],
            ),
            (
                json!({"strategy": {"type": "Sometimes"}}),
                vec![
                    "spec.strategy: Unsupported value: {\"Type\":\"Sometimes\",\"RollingUpdate\":null}: supported values: \
                     \"Recreate\", \"RollingUpdate\"",
                ],
            ),
            (
                json!({"minReadySeconds": 700}),
                vec!["spec.progressDeadlineSeconds: Invalid value: 600: must be greater than minReadySeconds"],
            ),
        ] {
            assert_eq!(messages(&Deployment, &deployment(spec), None), wrong);
        }
    }

    #[test]
    fn the_selector_stays_and_labels_stay_with_a_status() {
        let old = deployment(json!({}));
        let new = deployment(json!({"selector": {"matchLabels": {"app": "b"}}}));
        assert_eq!(
            messages(&Deployment, &new, Some(&old)),
            [
                "spec.template.metadata.labels: Invalid value: {\"app\":\"a\"}: `selector` does not match template `labels`",
                "spec.selector: Invalid value: {\"matchLabels\":{\"app\":\"b\"}}: field is immutable",
            ]
        );
        let mut new = json!({"metadata": {"name": "d", "labels": {"x": "y"}}, "status": {"replicas": 1}});
        let context = Context { subresource: "status", ..crate::testing::context("v1") };
        Deployment.prepare_update(&mut new, &old, &context);
        assert_eq!((&new["metadata"]["labels"], &new["spec"]), (&Value::Null, &old["spec"]));
    }

    #[test]
    fn counters_are_checked() {
        let status = json!({"status": {"replicas": 1, "readyReplicas": 2, "availableReplicas": -1}});
        assert_eq!(
            messages_of(&Deployment, &status, Some(&json!({"status": {"collisionCount": 1}})), "status"),
            [
                "status.availableReplicas: Invalid value: -1: must be greater than or equal to 0",
                "status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas",
                "status.collisionCount: Invalid value: 0: cannot be decremented",
            ]
        );
    }
}
