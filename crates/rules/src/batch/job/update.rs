//! Validation of updates: what may change in the spec of a Job.

use knarr_api::field::{Errors, Path};
use knarr_api::value::{Read, Write};
use serde_json::{Map, Value};

use super::{spec, status, validate_spec};
use crate::common::checks::{self, IMMUTABLE};
use crate::common::label_selector;

/// Validates an update. The errors of the spec are repeated, as in Kubernetes.
pub(super) fn validate_change(errors: &mut Errors, job: &Value, old_job: &Value) {
    let path = Path::root("spec");
    let (spec, old) = (&job["spec"], &old_job["spec"]);
    validate_spec(errors, spec, Some(old));
    validate_completions_change(errors, &path.child("completions"), spec, old);
    label_selector::immutable(errors, &path.child("selector"), &spec["selector"], &old["selector"]);
    validate_template_change(errors, job, old_job);
    checks::immutable(errors, &path.child("completionMode"), &spec["completionMode"], &old["completionMode"]);
    if spec["podFailurePolicy"] != old["podFailurePolicy"] {
        let rendered = spec::failure_policy_json(&spec["podFailurePolicy"]);
        errors.invalid_verbatim(&path.child("podFailurePolicy"), rendered, IMMUTABLE);
    }
    for field in ["backoffLimitPerIndex", "managedBy"] {
        checks::immutable(errors, &path.child(field), &spec[field], &old[field]);
    }
    if spec["successPolicy"] != old["successPolicy"] {
        let rendered = spec::success_policy_json(&spec["successPolicy"]);
        errors.invalid_verbatim(&path.child("successPolicy"), rendered, IMMUTABLE);
    }
}

fn validate_completions_change(errors: &mut Errors, path: &Path<'_>, spec: &Value, old: &Value) {
    let completions = &spec["completions"];
    if !spec::is_indexed(spec) {
        checks::immutable(errors, path, completions, &old["completions"]);
    } else if *completions != old["completions"] && !completions.is_null() && *completions != spec["parallelism"] {
        errors.invalid(path, completions.clone(), "can only be modified in tandem with spec.parallelism");
    }
}

/// Requires that the template is unchanged, except for scheduling and resources of a suspended Job.
fn validate_template_change(errors: &mut Errors, job: &Value, old_job: &Value) {
    let template = job.at(&["spec", "template"]);
    let mut old = old_job.at(&["spec", "template"]).clone();
    let suspended = old_job.flag(&["spec", "suspend"]) == Some(true);
    let status = &old_job["status"];
    let idle = !status.has(&["startTime"]) || status::has(status, "Suspended", "True");
    let mutable = suspended && idle && status.integer(&["active"]).unwrap_or(0) == 0;
    if mutable {
        copy_scheduling(&mut old, template);
        for list in ["containers", "initContainers"] {
            copy_resources(&mut old, template, list);
        }
        let path = Path::root("spec.template.spec");
        checks::immutable_structure(errors, &path, "PodSpec", &template["spec"], &old["spec"]);
    } else {
        checks::immutable_structure(errors, &Path::root("spec.template"), "PodTemplateSpec", template, &old);
    }
}

/// Copies the scheduling fields that may change to the old template.
fn copy_scheduling(old: &mut Value, template: &Value) {
    match template.at(&["spec", "affinity", "nodeAffinity"]) {
        Value::Null => {
            old.remove(&["spec", "affinity", "nodeAffinity"]);
            let empty = old.fields(&["spec", "affinity"]).is_some_and(Map::is_empty);
            if empty && !template.has(&["spec", "affinity"]) {
                old.remove(&["spec", "affinity"]);
            }
        }
        affinity => old.set(&["spec", "affinity", "nodeAffinity"], affinity.clone()),
    }
    for field in ["nodeSelector", "tolerations", "schedulingGates"] {
        match template.at(&["spec", field]) {
            Value::Null => drop(old.remove(&["spec", field])),
            value => old.set(&["spec", field], value.clone()),
        }
    }
}

fn copy_resources(old: &mut Value, template: &Value, list: &str) {
    let containers = template.items(&["spec", list]);
    let old_containers = old.items_mut(&["spec", list]);
    if containers.len() != old_containers.len() {
        return;
    }
    for (old, new) in old_containers.iter_mut().zip(containers) {
        if old["name"] == new["name"] {
            match new.get("resources") {
                Some(resources) => old.set(&["resources"], resources.clone()),
                None => drop(old.remove(&["resources"])),
            }
        }
    }
}
