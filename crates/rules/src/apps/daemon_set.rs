//! DaemonSet: a pod on every node.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::selector::LabelSelector;
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use super::workload;
use crate::common::columns::{self, AGE, CONTAINERS, IMAGES, NAME, field, wide};
use crate::common::label_selector;
use crate::common::{checks, int_or_percent};
use crate::core::pod_template;
use crate::kind::{self, Column, Context, KindRules};

const SPEC: &str = "io.k8s.api.apps.v1.DaemonSetSpec";
const STATUS: &str = "io.k8s.api.apps.v1.DaemonSetStatus";
/// The number of changes of the template, for clients of old versions.
const TEMPLATE_GENERATION: [&str; 3] = ["metadata", "annotations", "deprecated.daemonset.template.generation"];

/// The rules of DaemonSet.
pub struct DaemonSet;

impl KindRules for DaemonSet {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        pod_template::set_defaults(object.object(&["spec"]).entry("template").or_insert_with(|| json!({})));
        object.set_default(&TEMPLATE_GENERATION, "0");
        let strategy = object.object(&["spec", "updateStrategy"]);
        if strategy.get("type").and_then(Value::as_str).unwrap_or_default().is_empty() {
            strategy.insert("type".to_owned(), "RollingUpdate".into());
        }
        if strategy["type"] == "RollingUpdate" {
            object.set_default(&["spec", "updateStrategy", "rollingUpdate", "maxUnavailable"], 1);
            object.set_default(&["spec", "updateStrategy", "rollingUpdate", "maxSurge"], 0);
        }
        object.set_default(&["spec", "revisionHistoryLimit"], 10);
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        object.set(&["status"], self.empty_status());
        if template_generation(object) < 1 {
            set_template_generation(object, 1);
        }
    }

    fn prepare_update(&self, object: &mut Value, old: &Value, context: &Context<'_>) {
        if context.subresource == "status" {
            kind::keep_all_but_status(object, old);
            // The annotation represents a field of the internal type's spec.
            set_template_generation(object, template_generation(old));
            return;
        }
        kind::keep_field(object, old, "status");
        let changed = object.at(&["spec", "template"]) != old.at(&["spec", "template"]);
        set_template_generation(object, template_generation(old) + i64::from(changed));
    }

    fn validate(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if let ("status", Some(old)) = (context.subresource, old) {
            validate_status(&mut errors, &object["status"], &old["status"]);
            return errors;
        }
        let spec = &object["spec"];
        let old = old.map(|old| &old["spec"]);
        if let Some(old) = old {
            label_selector::immutable(&mut errors, &Path::root("spec.selector"), &spec["selector"], &old["selector"]);
        }
        validate_spec(&mut errors, spec, old);
        errors
    }

    fn warnings(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Vec<String> {
        let template = object.at(&["spec", "template"]);
        if context.subresource == "status" || old.is_some_and(|old| old.at(&["spec", "template"]) == template) {
            return Vec::new();
        }
        workload::template_warnings(object)
    }

    fn has_status(&self) -> bool {
        true
    }

    fn empty_status(&self) -> Value {
        json!({"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0})
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                NAME,
                field("Desired", "integer", STATUS, "desiredNumberScheduled"),
                field("Current", "integer", STATUS, "currentNumberScheduled"),
                field("Ready", "integer", STATUS, "numberReady"),
                field("Up-to-date", "integer", STATUS, "updatedNumberScheduled"),
                field("Available", "integer", STATUS, "numberAvailable"),
                field("Node Selector", "string", "io.k8s.api.core.v1.PodSpec", "nodeSelector"),
                AGE,
                CONTAINERS,
                IMAGES,
                wide(field("Selector", "string", SPEC, "selector")),
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let mut cells = vec![columns::name(object)];
        for counter in [
            "desiredNumberScheduled",
            "currentNumberScheduled",
            "numberReady",
            "updatedNumberScheduled",
            "numberAvailable",
        ] {
            cells.push(columns::count(object, &["status", counter]));
        }
        let nodes = object.fields(&["spec", "template", "spec", "nodeSelector"]);
        cells.push(columns::labels(nodes).into());
        cells.push(columns::age(object, now));
        cells.extend(columns::containers_and_images(object.at(&["spec", "template"])));
        cells.push(label_selector::display(object.at(&["spec", "selector"])).into());
        cells
    }
}

fn template_generation(object: &Value) -> i64 {
    object.text(&TEMPLATE_GENERATION).parse().unwrap_or(0)
}

fn set_template_generation(object: &mut Value, generation: i64) {
    object.set(&TEMPLATE_GENERATION, generation.to_string());
}

fn validate_spec(errors: &mut Errors, spec: &Value, old: Option<&Value>) {
    let path = Path::root("spec");
    let selector = &spec["selector"];
    let at = path.child("selector");
    let lax = old.is_some_and(|old| label_selector::has_invalid_value(&old["selector"]));
    label_selector::validate(errors, &at, selector, lax);
    let template = &spec["template"];
    if let Ok(read) = LabelSelector::from_object(selector) {
        workload::validate_template_labels(errors, &path.child("template"), template, &read);
    }
    if !selector.is_null() && label_selector::is_empty(selector) {
        label_selector::invalid(errors, &at, selector, "empty selector is invalid for daemonset");
    }
    pod_template::validate(errors, template, old.map(|old| &old["template"]), &path.child("template"));
    workload::validate_runs_forever(errors, &path.child("template"), template, "DaemonSet");
    checks::non_negative(errors, &path.child("minReadySeconds"), spec.integer(&["minReadySeconds"]));
    validate_strategy(errors, &path.child("updateStrategy"), &spec["updateStrategy"]);
    checks::non_negative(errors, &path.child("revisionHistoryLimit"), spec.integer(&["revisionHistoryLimit"]));
}

fn validate_strategy(errors: &mut Errors, path: &Path<'_>, strategy: &Value) {
    let rolling = &strategy["rollingUpdate"];
    let at = path.child("rollingUpdate");
    match strategy.text(&["type"]) {
        "OnDelete" => {}
        "RollingUpdate" if rolling.is_null() => errors.required(&at, ""),
        "RollingUpdate" => {
            let (unavailable, surge) = (&rolling["maxUnavailable"], &rolling["maxSurge"]);
            let (unavailable_at, surge_at) = (at.child("maxUnavailable"), at.child("maxSurge"));
            int_or_percent::validate(errors, &unavailable_at, unavailable);
            int_or_percent::validate(errors, &surge_at, surge);
            int_or_percent::at_most_all(errors, &unavailable_at, unavailable);
            int_or_percent::at_most_all(errors, &surge_at, surge);
            match (int_or_percent::number(unavailable) != 0, int_or_percent::number(surge) != 0) {
                (true, true) => {
                    errors.invalid(&surge_at, surge.clone(), "may not be set when maxUnavailable is non-zero");
                }
                (false, false) => errors.required(&unavailable_at, "cannot be 0 when maxSurge is 0"),
                _ => {}
            }
        }
        _ => {
            let settings =
                [("MaxUnavailable", "maxUnavailable", Value::from(0)), ("MaxSurge", "maxSurge", Value::from(0))];
            let rendered = workload::strategy_json(strategy, &settings);
            checks::not_supported_struct(errors, path, rendered, &["RollingUpdate", "OnDelete"]);
        }
    }
}

fn validate_status(errors: &mut Errors, status: &Value, old: &Value) {
    workload::validate_counters(
        errors,
        status,
        &[
            "currentNumberScheduled",
            "numberMisscheduled",
            "desiredNumberScheduled",
            "numberReady",
            "observedGeneration",
            "updatedNumberScheduled",
            "numberAvailable",
            "numberUnavailable",
            "collisionCount",
        ],
    );
    workload::validate_collisions(errors, status, old);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{context, defaulted, messages};

    fn daemon_set(image: &str, strategy: Value) -> Value {
        defaulted(
            &DaemonSet,
            json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"app": "a"}}, "updateStrategy": strategy,
                "template": {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": image}]}}}}),
        )
    }

    #[test]
    fn the_template_generation_counts() {
        let mut first = daemon_set("nginx", json!({}));
        DaemonSet.prepare_create(&mut first, &context("v1"));
        assert_eq!(template_generation(&first), 1);
        for (image, generation) in [("nginx", 1), ("other", 2)] {
            let mut next = daemon_set(image, json!({}));
            DaemonSet.prepare_update(&mut next, &first, &context("v1"));
            assert_eq!(template_generation(&next), generation);
        }
    }

    #[test]
    fn strategies_are_checked() {
        for (strategy, wrong) in [
            (json!({}), vec![]),
            (json!({"type": "OnDelete"}), vec![]),
            (
                json!({"type": "Never"}),
                vec![
                    "spec.updateStrategy: Unsupported value: {\"Type\":\"Never\",\"RollingUpdate\":null}: supported values: \
                     \"RollingUpdate\", \"OnDelete\"",
                ],
            ),
            (
                json!({"rollingUpdate": {"maxUnavailable": 0}}),
                vec![
                    "spec.updateStrategy.rollingUpdate.maxUnavailable: Required value: cannot be 0 when maxSurge is 0",
                ],
            ),
            (
                json!({"rollingUpdate": {"maxUnavailable": 1, "maxSurge": "200%"}}),
                vec![
                    "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: \"200%\": must not be greater than 100%",
                    "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: \"200%\": may not be set when \
                     maxUnavailable is non-zero",
                ],
            ),
        ] {
            assert_eq!(messages(&DaemonSet, &daemon_set("nginx", strategy), None), wrong);
        }
    }
}
