//! CronJob: creates Jobs on a schedule.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use super::job::spec as job_spec;
use super::{schedule, time_zone};
use crate::common::checks;
use crate::common::columns::{self, AGE, CONTAINERS, IMAGES, NAME, field, wide};
use crate::common::label_selector;
use crate::core::pod_template;
use crate::kind::{self, Column, Context, KindRules};

const SPEC: &str = "io.k8s.api.batch.v1.CronJobSpec";
const STATUS: &str = "io.k8s.api.batch.v1.CronJobStatus";
const JOB_SPEC: &str = "io.k8s.api.batch.v1.JobSpec";
/// The controller appends eleven characters to the names of Jobs, which must still be DNS labels.
const MAX_NAME_LENGTH: usize = 52;

/// The rules of CronJob.
pub struct CronJob;

impl KindRules for CronJob {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        let template = object.object(&["spec", "jobTemplate"]);
        job_spec::set_template_defaults(template.entry("spec").or_insert_with(|| json!({})));
        if object.text(&["spec", "concurrencyPolicy"]).is_empty() {
            object.set(&["spec", "concurrencyPolicy"], "Allow");
        }
        object.set_default(&["spec", "suspend"], false);
        object.set_default(&["spec", "successfulJobsHistoryLimit"], 3);
        object.set_default(&["spec", "failedJobsHistoryLimit"], 1);
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
            return errors;
        }
        validate_spec(&mut errors, &object["spec"], old.map(|old| &old["spec"]));
        let name = object.text(&["metadata", "name"]);
        if old.is_none() && name.len() > MAX_NAME_LENGTH {
            errors.invalid(&Path::root("metadata.name"), name, "must be no more than 52 characters");
        }
        errors
    }

    fn warnings(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Vec<String> {
        let mut warnings = Vec::new();
        if context.subresource == "status" {
            return warnings;
        }
        if old.is_none() {
            warnings.extend(pod_template::name_warning(object));
        }
        if old.is_none_or(|old| self.increments_generation(object, old)) {
            let path = Path::root("spec.jobTemplate.spec");
            warnings.extend(job_spec::warnings(object.at(&["spec", "jobTemplate", "spec"]), &path));
        }
        if old.is_some() && object.text(&["spec", "schedule"]).contains("TZ") {
            let detail = "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see \
                        https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details";
            warnings.push(detail.to_owned());
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
        const {
            &[
                NAME,
                field("Schedule", "string", SPEC, "schedule"),
                field("Timezone", "string", SPEC, "timeZone"),
                field("Suspend", "boolean", SPEC, "suspend"),
                field("Active", "integer", STATUS, "active"),
                field("Last Schedule", "string", STATUS, "lastScheduleTime"),
                AGE,
                CONTAINERS,
                IMAGES,
                wide(field("Selector", "string", JOB_SPEC, "selector")),
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let job = object.at(&["spec", "jobTemplate", "spec"]);
        let [containers, images] = columns::containers_and_images(&job["template"]);
        let suspended = match object.flag(&["spec", "suspend"]) {
            Some(true) => "True",
            Some(false) => "False",
            None => "<unset>",
        };
        let last = match object.at(&["status", "lastScheduleTime"]).as_str() {
            Some(at) => columns::since(at, now),
            None => "<none>".to_owned(),
        };
        vec![
            columns::name(object),
            object.text(&["spec", "schedule"]).into(),
            object.at(&["spec", "timeZone"]).as_str().unwrap_or("<none>").into(),
            suspended.into(),
            object.items(&["status", "active"]).len().into(),
            last.into(),
            columns::age(object, now),
            containers,
            images,
            label_selector::display(&job["selector"]).into(),
        ]
    }
}

fn validate_spec(errors: &mut Errors, spec: &Value, old: Option<&Value>) {
    let path = Path::root("spec");
    validate_schedule(errors, &path.child("schedule"), spec, old);
    checks::non_negative(errors, &path.child("startingDeadlineSeconds"), spec.integer(&["startingDeadlineSeconds"]));
    if let Some(zone) = spec["timeZone"].as_str().filter(|_| old.is_none_or(|old| old["timeZone"] != spec["timeZone"]))
    {
        for wrong in time_zone::faults(zone) {
            errors.invalid(&path.child("timeZone"), zone, wrong);
        }
    }
    match spec.text(&["concurrencyPolicy"]) {
        "" => errors.required(&path.child("concurrencyPolicy"), ""),
        policy => {
            checks::one_of(errors, &path.child("concurrencyPolicy"), policy, &["Allow", "Forbid", "Replace"]);
        }
    }
    let template = &spec["jobTemplate"]["spec"];
    let at = path.child("jobTemplate.spec");
    job_spec::validate(errors, &at, template, old.map(|old| old.at(&["jobTemplate", "spec"])));
    if template.has(&["selector"]) {
        let detail = "`selector` will be auto-generated";
        label_selector::invalid(errors, &at.child("selector"), &template["selector"], detail);
    }
    if template.flag(&["manualSelector"]) == Some(true) {
        errors.not_supported(&at.child("manualSelector"), true, &["nil", "false"]);
    }
    for field in ["successfulJobsHistoryLimit", "failedJobsHistoryLimit"] {
        checks::non_negative(errors, &path.child(field), spec.integer(&[field]));
    }
}

fn validate_schedule(errors: &mut Errors, path: &Path<'_>, spec: &Value, old: Option<&Value>) {
    let text = spec.text(&["schedule"]);
    if text.is_empty() {
        errors.required(path, "");
        return;
    }
    if let Err(wrong) = schedule::check(text) {
        errors.invalid(path, text, wrong);
    }
    if text.contains("TZ") {
        if !old.is_some_and(|old| old.text(&["schedule"]).contains("TZ")) {
            errors.invalid(path, text, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead");
        } else if spec.has(&["timeZone"]) {
            errors.invalid(path, text, "cannot use both timeZone field and TZ or CRON_TZ in schedule");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{defaulted, messages};

    fn cron_job(spec: Value) -> Value {
        let mut whole = json!({"schedule": "*/5 * * * *", "jobTemplate": {"spec": {"template": {"spec": {
            "restartPolicy": "OnFailure", "containers": [{"name": "c", "image": "i"}]}}}}});
        for (field, value) in spec.as_object().unwrap() {
            whole[field] = value.clone();
        }
        defaulted(&CronJob, json!({"metadata": {"name": "cj"}, "spec": whole}))
    }

    #[test]
    fn defaults_are_set() {
        let spec = &cron_job(json!({}))["spec"];
        assert_eq!((&spec["concurrencyPolicy"], &spec["suspend"]), (&json!("Allow"), &json!(false)));
        assert_eq!((&spec["successfulJobsHistoryLimit"], &spec["failedJobsHistoryLimit"]), (&json!(3), &json!(1)));
        assert_eq!(spec["jobTemplate"]["spec"].get("parallelism"), None);
    }

    #[test]
    fn wrong_specs_are_reported() {
        for (spec, wrong) in [
            (json!({}), vec![]),
            (
                json!({"schedule": "not a schedule"}),
                vec![
                    "spec.schedule: Invalid value: \"not a schedule\": expected exactly 5 fields, found 3: [not a schedule]",
                ],
            ),
            (
                json!({"schedule": "TZ=UTC 0 0 * * *"}),
                vec![
                    "spec.schedule: Invalid value: \"TZ=UTC 0 0 * * *\": cannot use TZ or CRON_TZ in schedule, use timeZone \
                     field instead",
                ],
            ),
            (
                json!({"timeZone": "Mars/Base"}),
                vec!["spec.timeZone: Invalid value: \"Mars/Base\": unknown time zone Mars/Base"],
            ),
            (
                json!({"concurrencyPolicy": "x"}),
                vec![
                    "spec.concurrencyPolicy: Unsupported value: \"x\": supported values: \"Allow\", \"Forbid\", \"Replace\"",
                ],
            ),
        ] {
            assert_eq!(messages(&CronJob, &cron_job(spec), None), wrong);
        }
        let mut long = cron_job(json!({}));
        long["metadata"]["name"] = "a".repeat(53).into();
        assert_eq!(messages(&CronJob, &long, None).len(), 1);
    }
}
