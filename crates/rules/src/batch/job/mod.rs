//! Job: runs pods until enough of them have succeeded.

mod cells;
mod policies;
mod selector;
pub mod spec;
mod status;
mod update;

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::selector::LabelSelector;
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use crate::common::columns::{self, AGE, CONTAINERS, IMAGES, NAME, field, text, wide};
use crate::common::label_selector;
use crate::core::pod_template;
use crate::kind::{self, Column, Context, KindRules, MetadataPasses};
use cells::{completions, duration, state};
use selector::{copy_template_labels, generate_selector, validate_generated_selector};
use update::validate_change;

const SPEC: &str = "io.k8s.api.batch.v1.JobSpec";
const STATUS: &str = "io.k8s.api.batch.v1.JobStatus";
const MAX_PER_INDEX: i64 = i32::MAX as i64;

/// The rules of Job.
pub struct Job;

impl KindRules for Job {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        spec::set_template_defaults(object.object(&[]).entry("spec").or_insert_with(|| json!({})));
        let spec = &object["spec"];
        if !spec.has(&["completions"]) && !spec.has(&["parallelism"]) {
            object.set(&["spec", "completions"], 1);
        }
        object.set_default(&["spec", "parallelism"], 1);
        let retries = if object.has(&["spec", "backoffLimitPerIndex"]) { MAX_PER_INDEX } else { 6 };
        object.set_default(&["spec", "backoffLimit"], retries);
        copy_template_labels(object);
        object.set_default(&["spec", "completionMode"], "NonIndexed");
        object.set_default(&["spec", "suspend"], false);
        let replaced = if object.has(&["spec", "podFailurePolicy"]) { "Failed" } else { "TerminatingOrFailed" };
        object.set_default(&["spec", "podReplacementPolicy"], replaced);
        object.set_default(&["spec", "manualSelector"], false);
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        object.set(&["status"], json!({}));
        if object.flag(&["spec", "manualSelector"]) != Some(true) {
            generate_selector(object);
        }
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
        match old {
            Some(old) if context.subresource == "status" => status::validate(&mut errors, object, old),
            _ => {
                validate_whole(&mut errors, object, old);
                if let Some(old) = old {
                    validate_change(&mut errors, object, old);
                }
            }
        }
        errors
    }

    fn warnings(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Vec<String> {
        let mut warnings = Vec::new();
        if context.subresource == "status" || old.is_some_and(|old| !self.increments_generation(object, old)) {
            return warnings;
        }
        if old.is_none() {
            warnings.extend(pod_template::name_warning(object));
        }
        warnings.extend(spec::warnings(&object["spec"], &Path::root("spec")));
        warnings
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 1, as_create: 1 }
    }

    fn has_status(&self) -> bool {
        true
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn orphans_by_default(&self) -> bool {
        true
    }

    fn orphan_warning(&self) -> Option<&'static str> {
        Some(
            "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or \
             set propagationPolicy=Orphan to suppress this warning",
        )
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                NAME,
                text("Status", "string", "Status of the job."),
                field("Completions", "string", STATUS, "succeeded"),
                text("Duration", "string", "Time required to complete the job."),
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
            state(object).into(),
            completions(object).into(),
            duration(&object["status"], now).into(),
            columns::age(object, now),
            containers,
            images,
            label_selector::display(object.at(&["spec", "selector"])).into(),
        ]
    }
}

fn validate_whole(errors: &mut Errors, job: &Value, old: Option<&Value>) {
    validate_generated_selector(errors, job, old);
    validate_spec(errors, &job["spec"], old.map(|old| &old["spec"]));
    let completions = job.integer(&["spec", "completions"]).unwrap_or(0);
    if spec::is_indexed(&job["spec"]) && completions > 0 {
        let name = job.text(&["metadata", "name"]);
        let last = format!("{name}-{}", completions - 1);
        if !names::dns_label(&last).is_empty() {
            let detail = format!("will not able to create pod with invalid DNS label: {last}");
            errors.invalid(&Path::root("metadata.name"), name, detail);
        }
    }
}

fn validate_spec(errors: &mut Errors, spec: &Value, old: Option<&Value>) {
    let path = Path::root("spec");
    spec::validate(errors, &path, spec, old);
    let selector = &spec["selector"];
    if selector.is_null() {
        errors.required(&path.child("selector"), "");
    } else {
        let lax = old.is_some_and(|old| label_selector::has_invalid_value(&old["selector"]));
        label_selector::validate(errors, &path.child("selector"), selector, lax);
    }
    let labels = spec.at(&["template", "metadata", "labels"]);
    if LabelSelector::from_object(selector).is_ok_and(|read| !read.matches(labels.as_object())) {
        let detail = "`selector` does not match template `labels`";
        errors.invalid(&path.child("template.metadata.labels"), labels.clone(), detail);
    }
}

#[cfg(test)]
mod table_tests;

#[cfg(test)]
mod tests {
    use knarr_api::time;

    use super::*;
    use crate::testing::{context, defaulted, messages, messages_of};

    fn job(spec: Value) -> Value {
        let mut whole =
            json!({"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}});
        for (field, value) in spec.as_object().unwrap() {
            whole[field] = value.clone();
        }
        let mut job = defaulted(&Job, json!({"metadata": {"name": "j", "uid": "UID"}, "spec": whole}));
        Job.prepare_create(&mut job, &context("v1"));
        job
    }

    #[test]
    fn a_new_job_selects_its_own_pods() {
        let job = job(json!({}));
        let labels = json!({"batch.kubernetes.io/controller-uid": "UID", "batch.kubernetes.io/job-name": "j",
            "controller-uid": "UID", "job-name": "j"});
        assert_eq!(job["spec"]["template"]["metadata"]["labels"], labels);
        assert_eq!(job["metadata"]["labels"], labels);
        assert_eq!(job["spec"]["selector"], json!({"matchLabels": {"batch.kubernetes.io/controller-uid": "UID"}}));
        for (field, value) in [
            ("parallelism", json!(1)),
            ("completions", json!(1)),
            ("backoffLimit", json!(6)),
            ("manualSelector", json!(false)),
            ("completionMode", json!("NonIndexed")),
            ("suspend", json!(false)),
            ("podReplacementPolicy", json!("TerminatingOrFailed")),
        ] {
            assert_eq!(job["spec"][field], value, "{field}");
        }
        assert!(messages(&Job, &job, None).is_empty());
    }

    #[test]
    fn wrong_specs_are_reported() {
        for (spec, wrong) in [
            (
                json!({"parallelism": -1}),
                vec!["spec.parallelism: Invalid value: -1: must be greater than or equal to 0"],
            ),
            (
                json!({"completionMode": "Indexed", "parallelism": 1}),
                vec!["spec.completions: Required value: when completion mode is Indexed"],
            ),
            (
                json!({"maxFailedIndexes": 1}),
                vec![
                    "spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified",
                    "spec.maxFailedIndexes: Invalid value: 1: requires indexed completion mode",
                ],
            ),
            (
                json!({"managedBy": "me"}),
                vec!["spec.managedBy: Invalid value: \"me\": must be a domain-prefixed path (such as \"acme.io/foo\")"],
            ),
            (
                json!({"podReplacementPolicy": "Now"}),
                vec![
                    "spec.podReplacementPolicy: Unsupported value: \"Now\": supported values: \"Failed\", \"TerminatingOrFailed\"",
                ],
            ),
            (
                json!({"podFailurePolicy": {"rules": [{"action": "Ignore", "onExitCodes": {"operator": "In", "values": [2, 1, 0]}}]}}),
                vec![
                    "spec.podFailurePolicy.rules[0].onExitCodes.values[2]: Invalid value: 0: must not be 0 for the In operator",
                    "spec.podFailurePolicy.rules[0].onExitCodes.values: Invalid value: [2,1,0]: must be ordered",
                ],
            ),
            (
                json!({"podFailurePolicy": {"rules": [{}]}}),
                vec![
                    "spec.podFailurePolicy.rules[0].action: Required value: valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]",
                    "spec.podFailurePolicy.rules[0]: Invalid value: specifying one of OnExitCodes and OnPodConditions is required",
                ],
            ),
            (
                json!({"successPolicy": {"rules": [{"succeededCount": 1}]}}),
                vec![
                    "spec.successPolicy: Invalid value: {\"Rules\":[{\"SucceededIndexes\":null,\"SucceededCount\":1}]}: requires \
                 indexed completion mode",
                ],
            ),
            (
                json!({"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}),
                vec!["spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\""],
            ),
        ] {
            assert_eq!(messages(&Job, &job(spec), None), wrong);
        }
    }

    #[test]
    fn updates_change_little() {
        let old = job(json!({}));
        let mut more = old.clone();
        more["spec"]["parallelism"] = json!(5);
        assert!(messages(&Job, &more, Some(&old)).is_empty());
        more["spec"]["completions"] = json!(3);
        assert_eq!(messages(&Job, &more, Some(&old)), ["spec.completions: Invalid value: 3: field is immutable"]);
        let suspended = job(json!({"suspend": true}));
        let mut moved = suspended.clone();
        moved["spec"]["template"]["spec"]["nodeSelector"] = json!({"zone": "a"});
        assert!(messages(&Job, &moved, Some(&suspended)).is_empty());
        let mut started = suspended.clone();
        started["status"] = json!({"startTime": "2026-01-01T00:00:00Z"});
        assert_eq!(messages(&Job, &moved, Some(&started)).len(), 1);
    }

    #[test]
    fn statuses_are_checked() {
        let condition = |kind: &str| json!({"type": kind, "status": "True"});
        let with = |status: Value| {
            let mut job = job(json!({}));
            job["status"] = status;
            job
        };
        let start = "2026-01-01T00:00:00Z";
        for (old, new, wrong) in [
            (
                json!({"startTime": start}),
                json!({"startTime": start, "completionTime": start, "succeeded": 1, "conditions": [condition("Complete"), condition("SuccessCriteriaMet")]}),
                vec![],
            ),
            (
                json!({"startTime": start}),
                json!({"startTime": start, "conditions": [condition("Complete")]}),
                vec![
                    "status.completionTime: Required value: completionTime is required for Complete jobs",
                    "status.conditions: Invalid value: cannot set Complete=True condition without the SuccessCriteriaMet=true \
                     condition",
                ],
            ),
            (
                json!({"failed": 2}),
                json!({"failed": 1}),
                vec!["status.failed: Invalid value: 1: cannot decrease the failed counter"],
            ),
            (
                json!({}),
                json!({"ready": 1}),
                vec!["status.ready: Invalid value: 1: cannot set more ready pods than active"],
            ),
        ] {
            assert_eq!(messages_of(&Job, &with(new), Some(&with(old)), "status"), wrong);
        }
    }

    #[test]
    fn cells_show_how_far_it_is() {
        let now = time::parse("2026-01-01T00:01:00Z").unwrap();
        let mut job = job(json!({"completions": 3}));
        job["status"] = json!({"succeeded": 2, "startTime": "2026-01-01T00:00:00Z"});
        let cells = Job.cells(&job, now);
        assert_eq!(cells[1..4], [json!("Running"), json!("2/3"), json!("60s")]);
    }
}
