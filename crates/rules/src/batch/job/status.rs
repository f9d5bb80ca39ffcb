//! Validation of the status of a Job.
//!
//! Most checks apply only to what a write changes, so that a stored status can be written again.

use std::collections::BTreeSet;

use knarr_api::field::{Errors, Path};
use knarr_api::time;
use knarr_api::value::Read;
use serde_json::Value;

use super::super::indexes;
use super::policies::invalid_without_value;
use super::spec;
use crate::common::{checks, go_json};

/// Validates a status update.
pub fn validate(errors: &mut Errors, job: &Value, old: &Value) {
    let writing = Writing::new(job, old);
    validate_counters(errors, &job["status"]);
    validate_uncounted(errors, &job["status"]);
    writing.validate_conditions(errors);
    writing.validate_finished(errors);
    writing.validate_indexes(errors);
    writing.validate_pods(errors);
    writing.validate_success_criteria(errors);
    writing.validate_progress(errors);
}

/// The new status, the old status, and what differs.
struct Writing<'a> {
    spec: &'a Value,
    status: &'a Value,
    old: &'a Value,
    complete: Condition,
    failed: Condition,
    target: Condition,
    met: Condition,
}

#[derive(Clone, Copy)]
struct Condition {
    now: bool,
    before: bool,
}

impl Condition {
    fn changed(self) -> bool {
        self.now != self.before
    }
}

impl<'a> Writing<'a> {
    fn new(job: &'a Value, old: &'a Value) -> Self {
        let (status, old) = (&job["status"], &old["status"]);
        let condition = |kind: &str| Condition { now: has(status, kind, "True"), before: has(old, kind, "True") };
        Writing {
            spec: &job["spec"],
            status,
            old,
            complete: condition("Complete"),
            failed: condition("Failed"),
            target: condition("FailureTarget"),
            met: condition("SuccessCriteriaMet"),
        }
    }

    fn changed(&self, field: &str) -> bool {
        self.status[field] != self.old[field]
    }

    fn finished(&self) -> bool {
        self.complete.now || self.failed.now
    }

    fn finish_changed(&self) -> bool {
        self.finished() != (self.complete.before || self.failed.before)
    }

    fn validate_conditions(&self, errors: &mut Errors) {
        let conditions = Path::root("status.conditions");
        let mut refuse = |wrong: bool, detail: &str| {
            if wrong {
                invalid_without_value(errors, &conditions, detail);
            }
        };
        let (complete, failed, target) = (self.complete, self.failed, self.target);
        refuse(
            (complete.changed() || failed.changed()) && complete.now && failed.now,
            "cannot set Complete=True and Failed=true conditions",
        );
        refuse(
            (complete.changed() || target.changed()) && complete.now && target.now,
            "cannot set Complete=True and FailureTarget=true conditions",
        );
        self.validate_times(errors);
        let mut refuse = |wrong: bool, detail: &str| {
            if wrong {
                invalid_without_value(errors, &conditions, detail);
            }
        };
        refuse(
            (failed.changed() || self.changed("failedIndexes")) && failed.now && !target.now,
            "cannot set Failed=True condition without the FailureTarget=true condition",
        );
        refuse(
            (complete.changed() || self.met.changed()) && complete.now && !self.met.now,
            "cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
        );
    }

    fn validate_times(&self, errors: &mut Errors) {
        let path = Path::root("status.completionTime");
        let completion = &self.status["completionTime"];
        if self.complete.changed() || self.changed("completionTime") {
            if !completion.is_null() && !self.complete.now {
                let detail = "cannot set completionTime when there is no Complete=True condition";
                errors.invalid(&path, completion.clone(), detail);
            }
            if completion.is_null() && self.complete.now {
                errors.required(&path, "completionTime is required for Complete jobs");
            }
        }
        if self.changed("startTime") || self.changed("completionTime") {
            let read = |field: &str| time::parse(self.status.text(&[field]));
            if let (Some(start), Some(end)) = (read("startTime"), read("completionTime"))
                && end < start
            {
                errors.invalid(&path, completion.clone(), "must be equal to or after `startTime`");
            }
        }
    }

    fn validate_finished(&self, errors: &mut Errors) {
        let path = Path::root("status");
        let active = self.status.integer(&["active"]).unwrap_or(0);
        if (self.finish_changed() || self.changed("active")) && active > 0 && self.finished() {
            errors.invalid(&path.child("active"), active, "active>0 is invalid for finished job");
        }
        let nothing_to_do =
            self.spec.flag(&["suspend"]) == Some(true) && self.spec.integer(&["completions"]) == Some(0);
        let start_matters = (self.finish_changed() || self.changed("startTime")) && !nothing_to_do;
        if start_matters && !self.status.has(&["startTime"]) && self.finished() {
            errors.required(&path.child("startTime"), "startTime is required for finished job");
        }
        let uncounted = &self.status["uncountedTerminatedPods"];
        let waiting = uncounted.items(&["failed"]).len() + uncounted.items(&["succeeded"]).len();
        let matters = self.finish_changed() || self.changed("uncountedTerminatedPods");
        if matters && self.finished() && waiting > 0 {
            let rendered = go_json::struct_json(&[
                ("Succeeded", uncounted["succeeded"].clone()),
                ("Failed", uncounted["failed"].clone()),
            ]);
            errors.invalid_verbatim(&path.child("uncountedTerminatedPods"), rendered, "must be empty for finished job");
        }
    }

    fn validate_indexes(&self, errors: &mut Errors) {
        let path = Path::root("status");
        let (completed_at, failed_at) = (path.child("completedIndexes"), path.child("failedIndexes"));
        let completed = self.status.text(&["completedIndexes"]);
        let failed = self.status["failedIndexes"].as_str();
        let completions = self.spec.integer(&["completions"]);
        let per_index = self.spec.has(&["backoffLimitPerIndex"]);
        let completed_changed = completed != self.old.text(&["completedIndexes"]);
        let failed_changed = self.changed("failedIndexes");
        if let Some(completions) = completions {
            if completed_changed && let Err(wrong) = indexes::count(completed, completions) {
                errors.invalid(&completed_at, completed, format!("error parsing completedIndexes: {wrong}"));
            }
            if let Some(failed) = failed.filter(|_| failed_changed && per_index)
                && let Err(wrong) = indexes::count(failed, completions)
            {
                errors.invalid(&failed_at, failed, format!("error parsing failedIndexes: {wrong}"));
            }
        }
        if completed_changed && !completed.is_empty() && !spec::is_indexed(self.spec) {
            let detail = "cannot set non-empty completedIndexes when non-indexed completion mode";
            errors.invalid(&completed_at, completed, detail);
        }
        let Some(failed) = failed else { return };
        if failed_changed && !per_index {
            let detail = "cannot set non-null failedIndexes when backoffLimitPerIndex is null";
            errors.invalid(&failed_at, failed, detail);
        }
        if let Some(completions) = completions.filter(|_| failed_changed || completed_changed)
            && let Some(index) = indexes::overlap(completed, failed, completions)
        {
            errors.invalid(&failed_at, failed, format!("failedIndexes and completedIndexes overlap at index: {index}"));
        }
    }

    fn validate_pods(&self, errors: &mut Errors) {
        let path = Path::root("status");
        if let Some(number) = self.status.integer(&["terminating"]).filter(|number| *number > 0)
            && (self.finish_changed() || self.changed("terminating"))
            && self.finished()
        {
            errors.invalid(&path.child("terminating"), number, "terminating>0 is invalid for finished job");
        }
        let active = self.status.integer(&["active"]).unwrap_or(0);
        if let Some(ready) = self.status.integer(&["ready"]).filter(|ready| *ready > active)
            && (self.changed("ready") || self.changed("active"))
        {
            errors.invalid(&path.child("ready"), ready, "cannot set more ready pods than active");
        }
    }

    fn validate_success_criteria(&self, errors: &mut Errors) {
        let path = Path::root("status.conditions");
        for (wrong, detail) in [
            (self.met.now && self.failed.now, "cannot set SuccessCriteriaMet=True and Failed=true conditions"),
            (self.met.now && self.target.now, "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions"),
            (
                self.spec.has(&["successPolicy"]) && !self.met.now && self.complete.now,
                "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True",
            ),
        ] {
            if wrong {
                invalid_without_value(errors, &path, detail);
            }
        }
    }

    fn validate_progress(&self, errors: &mut Errors) {
        let path = Path::root("status");
        let conditions = path.child("conditions");
        for (condition, name) in [(self.failed, "Failed"), (self.complete, "Complete"), (self.target, "FailureTarget")]
        {
            if condition.before && !condition.now {
                let detail = format!("cannot disable the terminal {name}=True condition");
                invalid_without_value(errors, &conditions, &detail);
            }
        }
        let elastic = spec::is_indexed(self.spec) && self.spec["completions"] == self.spec["parallelism"];
        for (counter, may_fall) in [("failed", false), ("succeeded", elastic)] {
            let count = |status: &Value| status.integer(&[counter]).unwrap_or(0);
            if !may_fall && count(self.status) < count(self.old) {
                let detail = format!("cannot decrease the {counter} counter");
                errors.invalid(&path.child(counter), count(self.status), detail);
            }
        }
        let (end, old_end) = (&self.status["completionTime"], &self.old["completionTime"]);
        if !end.is_null() && !old_end.is_null() && end != old_end {
            errors.invalid(&path.child("completionTime"), end.clone(), checks::IMMUTABLE);
        }
        let resuming = has(self.old, "Suspended", "True") && has(self.status, "Suspended", "False");
        let suspended = self.spec.flag(&["suspend"]).unwrap_or(false);
        if self.old.has(&["startTime"]) && self.changed("startTime") && !resuming && !suspended {
            let detail = "field is immutable for unsuspended job once set";
            errors.invalid(&path.child("startTime"), self.status["startTime"].clone(), detail);
        }
        if self.met.before && !self.met.now {
            invalid_without_value(errors, &conditions, "cannot disable the SuccessCriteriaMet=True condition");
        }
        if self.complete.before && !self.met.before && self.met.now {
            let detail = "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions";
            invalid_without_value(errors, &conditions, detail);
        }
    }
}

/// Returns whether a status has a condition with this value.
pub fn has(status: &Value, kind: &str, value: &str) -> bool {
    let mut conditions = status.items(&["conditions"]).iter();
    conditions.any(|condition| condition.text(&["type"]) == kind && condition.text(&["status"]) == value)
}

fn validate_counters(errors: &mut Errors, status: &Value) {
    for counter in ["active", "succeeded", "failed", "ready", "terminating"] {
        checks::non_negative(errors, &Path::root("status").child(counter), status.integer(&[counter]));
    }
}

fn validate_uncounted(errors: &mut Errors, status: &Value) {
    let path = Path::root("status.uncountedTerminatedPods");
    let mut seen = BTreeSet::new();
    for list in ["succeeded", "failed"] {
        for (index, uid) in status.items(&["uncountedTerminatedPods", list]).iter().enumerate() {
            let uid = uid.as_str().unwrap_or_default();
            let path = path.item(list, index);
            if uid.is_empty() {
                errors.invalid(&path, "", "must not be empty");
            } else if !seen.insert(uid) {
                errors.duplicate(&path, uid);
            }
        }
    }
}
