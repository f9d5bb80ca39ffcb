//! Job: pods that run until enough of them have succeeded.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::selector::LabelSelector;
use knarr_api::time;
use knarr_api::value::{Read, Write};
use serde_json::{Map, Value, json};

use super::{job_spec, job_status};
use crate::common::checks::{self, IMMUTABLE};
use crate::common::columns::{self, AGE, CONTAINERS, IMAGES, NAME, field, text, wide};
use crate::common::label_selector;
use crate::core::pod_template;
use crate::kind::{self, Column, Context, KindRules, MetadataPasses};

const SPEC: &str = "io.k8s.api.batch.v1.JobSpec";
const STATUS: &str = "io.k8s.api.batch.v1.JobStatus";
const UID_LABEL: &str = "batch.kubernetes.io/controller-uid";
const NAME_LABEL: &str = "batch.kubernetes.io/job-name";
const OLD_UID_LABEL: &str = "controller-uid";
const OLD_NAME_LABEL: &str = "job-name";
const MAX_PER_INDEX: i64 = i32::MAX as i64;

const TEMPLATE: [&str; 2] = ["spec", "template"];

pub struct Job;

impl KindRules for Job {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        job_spec::set_template_defaults(object.object(&[]).entry("spec").or_insert_with(|| json!({})));
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
        pod_template::drop_disabled_at(object, None, &TEMPLATE);
    }

    fn prepare_update(&self, object: &mut Value, old: &Value, context: &Context<'_>) {
        if context.subresource == "status" {
            kind::keep_all_but_status(object, old);
        } else {
            kind::keep_field(object, old, "status");
            pod_template::drop_disabled_at(object, Some(old), &TEMPLATE);
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        match old {
            Some(old) if context.subresource == "status" => job_status::validate(&mut errors, object, old),
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
        warnings.extend(job_spec::warnings(&object["spec"], &Path::root("spec")));
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

/// A job without labels of its own takes its template's.
fn copy_template_labels(job: &mut Value) {
    let of_template = job.at(&["spec", "template", "metadata", "labels"]);
    if !of_template.is_null() && job.fields(&["metadata", "labels"]).is_none_or(Map::is_empty) {
        let labels = of_template.clone();
        job.set(&["metadata", "labels"], labels);
    }
}

/// Makes the template's labels and the selector name this very job.
fn generate_selector(job: &mut Value) {
    let name = job.text(&["metadata", "name"]).to_owned();
    let uid = job.text(&["metadata", "uid"]).to_owned();
    let (own, of_template) = (job.at(&["metadata", "labels"]), job.at(&["spec", "template", "metadata", "labels"]));
    // Labels that the job took from its template grow with those; one without any takes them when it is stored, by when
    // they have been found to be right.
    let shared = own == of_template && (!own.is_null() || names::label_value(&name).is_empty());
    for (label, value) in [(OLD_NAME_LABEL, &name), (NAME_LABEL, &name), (OLD_UID_LABEL, &uid), (UID_LABEL, &uid)] {
        job.set_default(&["spec", "template", "metadata", "labels", label], value.as_str());
    }
    if shared {
        let labels = job.at(&["spec", "template", "metadata", "labels"]).clone();
        job.set(&["metadata", "labels"], labels);
    }
    job.set_default(&["spec", "selector", "matchLabels", UID_LABEL], uid);
}

fn validate_whole(errors: &mut Errors, job: &Value, old: Option<&Value>) {
    validate_generated_selector(errors, job, old);
    validate_spec(errors, &job["spec"], old.map(|old| &old["spec"]));
    let completions = job.integer(&["spec", "completions"]).unwrap_or(0);
    if job_spec::is_indexed(&job["spec"]) && completions > 0 {
        let name = job.text(&["metadata", "name"]);
        let last = format!("{name}-{}", completions - 1);
        if !names::dns_label(&last).is_empty() {
            let detail = format!("will not able to create pod with invalid DNS label: {last}");
            errors.invalid(&Path::root("metadata.name"), name, detail);
        }
    }
}

fn validate_generated_selector(errors: &mut Errors, job: &Value, old: Option<&Value>) {
    let selector = job.at(&["spec", "selector"]);
    if job.flag(&["spec", "manualSelector"]) == Some(true) || selector.is_null() {
        return;
    }
    let (name, uid) = (job.text(&["metadata", "name"]), job.text(&["metadata", "uid"]));
    if uid.is_empty() {
        errors.required(&Path::root("metadata.uid"), "");
    }
    let labels = job.at(&["spec", "template", "metadata", "labels"]);
    let prefixed = old.is_none_or(|old| {
        let had = |label: &str| old.has(&["spec", "template", "metadata", "labels", label]);
        had(NAME_LABEL) && had(UID_LABEL)
    });
    let mut expected = vec![(OLD_UID_LABEL, uid), (OLD_NAME_LABEL, name)];
    if prefixed {
        expected.extend([(UID_LABEL, uid), (NAME_LABEL, name)]);
    }
    for (label, value) in &expected {
        let path = Path::root("spec.template.metadata.labels");
        match labels.get(label).and_then(Value::as_str) {
            None => errors.required(&path.key(label), format!("must be '{value}'")),
            Some(actual) if actual != *value => {
                errors.invalid(&path.key(label), labels.clone(), format!("must be '{value}'"));
            }
            Some(_) => {}
        }
    }
    let expected: Map<String, Value> = expected.into_iter().map(|(k, v)| (k.to_owned(), v.into())).collect();
    if LabelSelector::from_object(selector).is_ok_and(|read| !read.matches(Some(&expected))) {
        label_selector::invalid(errors, &Path::root("spec.selector"), selector, "`selector` not auto-generated");
    }
}

fn validate_spec(errors: &mut Errors, spec: &Value, old: Option<&Value>) {
    let path = Path::root("spec");
    job_spec::validate(errors, &path, spec, old);
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

/// What an update may not change. The spec's own errors are told again, as Kubernetes does.
fn validate_change(errors: &mut Errors, job: &Value, old_job: &Value) {
    let path = Path::root("spec");
    let (spec, old) = (&job["spec"], &old_job["spec"]);
    validate_spec(errors, spec, Some(old));
    validate_completions_change(errors, &path.child("completions"), spec, old);
    label_selector::immutable(errors, &path.child("selector"), &spec["selector"], &old["selector"]);
    validate_template_change(errors, job, old_job);
    checks::immutable(errors, &path.child("completionMode"), &spec["completionMode"], &old["completionMode"]);
    if spec["podFailurePolicy"] != old["podFailurePolicy"] {
        let rendered = job_spec::failure_policy_json(&spec["podFailurePolicy"]);
        errors.invalid_verbatim(&path.child("podFailurePolicy"), rendered, IMMUTABLE);
    }
    for field in ["backoffLimitPerIndex", "managedBy"] {
        checks::immutable(errors, &path.child(field), &spec[field], &old[field]);
    }
    if spec["successPolicy"] != old["successPolicy"] {
        let rendered = job_spec::success_policy_json(&spec["successPolicy"]);
        errors.invalid_verbatim(&path.child("successPolicy"), rendered, IMMUTABLE);
    }
}

fn validate_completions_change(errors: &mut Errors, path: &Path<'_>, spec: &Value, old: &Value) {
    let completions = &spec["completions"];
    if !job_spec::is_indexed(spec) {
        checks::immutable(errors, path, completions, &old["completions"]);
    } else if *completions != old["completions"] && !completions.is_null() && *completions != spec["parallelism"] {
        errors.invalid(path, completions.clone(), "can only be modified in tandem with spec.parallelism");
    }
}

/// The template stays, but for what a suspended job's scheduling and resources are.
fn validate_template_change(errors: &mut Errors, job: &Value, old_job: &Value) {
    let template = job.at(&["spec", "template"]);
    let mut old = old_job.at(&["spec", "template"]).clone();
    let suspended = old_job.flag(&["spec", "suspend"]) == Some(true);
    let status = &old_job["status"];
    let idle = !status.has(&["startTime"]) || job_status::has(status, "Suspended", "True");
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

/// Copies to the old template what may change of where its pods go.
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

fn state(job: &Value) -> &'static str {
    let first = |kind: &str| {
        let mut conditions = job.items(&["status", "conditions"]).iter();
        conditions.find(|c| c.text(&["type"]) == kind).is_some_and(|c| c.text(&["status"]) == "True")
    };
    if first("Complete") {
        "Complete"
    } else if first("Failed") {
        "Failed"
    } else if job.has(&["metadata", "deletionTimestamp"]) {
        "Terminating"
    } else {
        ["Suspended", "FailureTarget", "SuccessCriteriaMet"].into_iter().find(|kind| first(kind)).unwrap_or("Running")
    }
}

fn completions(job: &Value) -> String {
    let succeeded = job.integer(&["status", "succeeded"]).unwrap_or(0);
    match (job.integer(&["spec", "completions"]), job.integer(&["spec", "parallelism"]).unwrap_or(0)) {
        (Some(completions), _) => format!("{succeeded}/{completions}"),
        (None, parallelism) if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        _ => format!("{succeeded}/1"),
    }
}

fn duration(status: &Value, now: Timestamp) -> String {
    let Some(start) = time::parse(status.text(&["startTime"])) else { return String::new() };
    let end = time::parse(status.text(&["completionTime"])).unwrap_or(now);
    time::human_duration(end.duration_since(start).as_secs())
}

#[cfg(test)]
mod tests {
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
