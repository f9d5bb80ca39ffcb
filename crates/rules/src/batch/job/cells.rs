//! The cells of a Job in a table.

use jiff::Timestamp;
use knarr_api::time;
use knarr_api::value::Read;
use serde_json::Value;

pub(super) fn state(job: &Value) -> &'static str {
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

pub(super) fn completions(job: &Value) -> String {
    let succeeded = job.integer(&["status", "succeeded"]).unwrap_or(0);
    match (job.integer(&["spec", "completions"]), job.integer(&["spec", "parallelism"]).unwrap_or(0)) {
        (Some(completions), _) => format!("{succeeded}/{completions}"),
        (None, parallelism) if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        _ => format!("{succeeded}/1"),
    }
}

pub(super) fn duration(status: &Value, now: Timestamp) -> String {
    let Some(start) = time::parse(status.text(&["startTime"])) else { return String::new() };
    let end = time::parse(status.text(&["completionTime"])).unwrap_or(now);
    time::human_duration(end.duration_since(start).as_secs())
}
