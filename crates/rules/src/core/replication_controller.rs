//! ReplicationController: the predecessor of ReplicaSet.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::names::{self, Check};
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use super::{pod, pod_template};
use crate::common::checks::non_negative;
use crate::common::columns::{self, field, wide};
use crate::common::labels;
use crate::kind::{Column, Context, KindRules, keep_all_but_status, keep_field};

const SPEC: &str = "io.k8s.api.core.v1.ReplicationControllerSpec";
const STATUS: &str = "io.k8s.api.core.v1.ReplicationControllerStatus";
const COLUMNS: &[Column] = &[
    columns::NAME,
    field("Desired", "integer", SPEC, "replicas"),
    field("Current", "integer", STATUS, "replicas"),
    field("Ready", "integer", STATUS, "readyReplicas"),
    columns::AGE,
    columns::CONTAINERS,
    columns::IMAGES,
    wide(field("Selector", "string", SPEC, "selector")),
];

/// The rules of ReplicationController.
pub struct ReplicationController;

impl KindRules for ReplicationController {
    fn name_check(&self) -> Check {
        names::long_name
    }

    fn orphans_by_default(&self) -> bool {
        true
    }

    fn set_defaults(&self, object: &mut Value, _version: &str) {
        let labels = object.at(&["spec", "template", "metadata", "labels"]).clone();
        if labels.is_object() {
            for path in [&["spec", "selector"][..], &["metadata", "labels"]] {
                if object.fields(path).is_none_or(serde_json::Map::is_empty) {
                    object.set(path, labels.clone());
                }
            }
        }
        object.set_default(&["spec", "replicas"], 1);
        if let Some(template) = object.find(&["spec", "template"]).filter(|template| template.is_object()) {
            pod_template::set_defaults(template);
        }
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        object.set(&["status"], json!({"replicas": 0}));
    }

    fn prepare_update(&self, object: &mut Value, old: &Value, context: &Context<'_>) {
        if context.subresource == "status" {
            return keep_all_but_status(object, old);
        }
        keep_field(object, old, "status");
    }

    fn validate(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if context.subresource != "status" {
            spec(&mut errors, object.at(&["spec"]), old.map(|old| old.at(&["spec"])), &Path::root("spec"));
        }
        errors
    }

    fn validate_update(&self, object: &Value, _old: &Value, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if context.subresource == "status" {
            status(&mut errors, object.at(&["status"]), &Path::root("status"));
        }
        errors
    }

    fn warnings(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Vec<String> {
        let mut warnings = Vec::new();
        let spec = Path::root("spec");
        match old {
            None => {
                let wrong = names::dns_label(object.text(&["metadata", "name"]));
                if !wrong.is_empty() {
                    warnings.push(format!(
                        "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; \
                         a DNS label is recommended: [{}]",
                        wrong.join(" ")
                    ));
                }
            }
            Some(_) if context.subresource == "status" => return warnings,
            Some(old) if old.at(&["spec"]) == object.at(&["spec"]) => return warnings,
            Some(_) => {}
        }
        // On update, upstream warns about the old template, not the new one.
        let template = old.unwrap_or(object).at(&["spec", "template"]);
        if !template.is_null() {
            warnings.extend(pod::warnings::of_template(template, &spec.child("template")));
        }
        warnings
    }

    fn has_status(&self) -> bool {
        true
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let [names, images] = columns::containers_and_images(object.at(&["spec", "template"]));
        vec![
            columns::name(object),
            columns::count(object, &["spec", "replicas"]),
            columns::count(object, &["status", "replicas"]),
            columns::count(object, &["status", "readyReplicas"]),
            columns::age(object, now),
            names,
            images,
            labels::display(object.at(&["spec", "selector"])).into(),
        ]
    }
}

fn spec(errors: &mut Errors, spec: &Value, old: Option<&Value>, path: &Path<'_>) {
    non_negative(errors, &path.child("minReadySeconds"), spec.integer(&["minReadySeconds"]));
    let selector = spec.fields(&["selector"]).filter(|selector| !selector.is_empty());
    if selector.is_none() {
        errors.required(&path.child("selector"), "");
    }
    match spec.integer(&["replicas"]) {
        None => errors.required(&path.child("replicas"), ""),
        replicas => non_negative(errors, &path.child("replicas"), replicas),
    }
    let template = spec.at(&["template"]);
    let path = path.child("template");
    if template.is_null() {
        return errors.required(&path, "");
    }
    let labels = template.at(&["metadata", "labels"]);
    if selector.is_some_and(|selector| selector.iter().any(|(key, value)| labels.get(key) != Some(value))) {
        errors.invalid(&path.child("metadata.labels"), labels.clone(), "`selector` does not match template `labels`");
    }
    let before = old.map(|old| old.at(&["template"])).filter(|template| !template.is_null());
    pod_template::validate(errors, template, before, &path);
    let restart = template.text(&["spec", "restartPolicy"]);
    if restart != "Always" {
        errors.not_supported(&path.child("spec.restartPolicy"), restart, &["Always"]);
    }
    if template.has(&["spec", "activeDeadlineSeconds"]) {
        let detail = "activeDeadlineSeconds in ReplicationController is not Supported";
        errors.forbidden(&path.child("spec.activeDeadlineSeconds"), detail);
    }
}

fn status(errors: &mut Errors, status: &Value, path: &Path<'_>) {
    let count = |field: &str| status.integer(&[field]).unwrap_or_default();
    for field in ["replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas", "observedGeneration"] {
        non_negative(errors, &path.child(field), Some(count(field)));
    }
    for field in ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"] {
        if count(field) > count("replicas") {
            errors.invalid(&path.child(field), count(field), "cannot be greater than status.replicas");
        }
    }
    if count("availableReplicas") > count("readyReplicas") {
        let detail = "cannot be greater than readyReplicas";
        errors.invalid(&path.child("availableReplicas"), count("availableReplicas"), detail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{defaulted, messages};

    #[test]
    fn controllers_take_the_labels_of_their_template() {
        let controller = defaulted(
            &ReplicationController,
            json!({"metadata": {"name": "r"}, "spec": {"template": {
                "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}}}),
        );
        assert_eq!(controller["spec"]["selector"], json!({"a": "b"}));
        assert_eq!(controller["metadata"]["labels"], json!({"a": "b"}));
        assert_eq!(controller["spec"]["replicas"], 1);
        assert!(messages(&ReplicationController, &controller, None).is_empty());
        let mut wrong = controller.clone();
        wrong["spec"]["selector"] = json!({"a": "c"});
        wrong["spec"]["template"]["spec"]["restartPolicy"] = json!("Never");
        assert_eq!(
            messages(&ReplicationController, &wrong, None),
            [
                "spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match template `labels`",
                "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
            ]
        );
    }
}
