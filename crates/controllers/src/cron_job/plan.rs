//! Whether a job is due, and when to sync again.

use std::time::Duration;

use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, Job};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::tz::TimeZone;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_client::{owner, time};

use super::schedule::Schedule;
use crate::common::key::name;

const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
/// Added so that rounding never syncs too early.
const MARGIN: Duration = Duration::from_millis(100);

#[derive(Debug, Default, PartialEq)]
pub(super) struct Due {
    pub at: Option<Timestamp>,
    pub many_missed: bool,
    pub recheck: Option<Duration>,
}

/// Finds the latest missed start.
pub(super) fn due(cron: &CronJob, spec: &CronJobSpec, schedule: &Schedule, zone: &TimeZone, now: Timestamp) -> Due {
    let status = cron.status.clone().unwrap_or_default();
    let created = cron.metadata.creation_timestamp.as_ref().map_or(now, |at| at.0);
    let last = status.last_schedule_time.map_or(created, |at| at.0);
    let deadline = spec.starting_deadline_seconds.map(SignedDuration::from_secs);
    let earliest = deadline.and_then(|deadline| now.checked_sub(deadline).ok()).map_or(last, |start| start.max(last));
    let (at, many_missed) = latest(schedule, zone, earliest, now);
    // The starting deadline does not affect the next sync.
    let (reached, _) = latest(schedule, zone, last, now);
    let next = schedule.next(reached.unwrap_or(if last > now { last } else { now.min(last.max(created)) }), zone);
    let next = next.filter(|next| *next > now).or_else(|| schedule.next(now, zone));
    Due { at, many_missed, recheck: next.map(|next| time::until(now, next) + MARGIN) }
}

/// The latest start after `earliest` up to now, and whether more than a hundred were missed.
fn latest(schedule: &Schedule, zone: &TimeZone, earliest: Timestamp, now: Timestamp) -> (Option<Timestamp>, bool) {
    const MANY: i64 = 100;
    let Some(first) = schedule.next(earliest, zone).filter(|first| *first <= now) else { return (None, false) };
    let Some(second) = schedule.next(first, zone).filter(|second| *second <= now) else { return (Some(first), false) };
    let between = second.duration_since(first).as_secs().max(1);
    let missed = now.duration_since(first).as_secs() / between + 1;
    // Jumps close to now by the distance of the first two starts, then steps.
    let jump = SignedDuration::from_secs((missed - 2).max(0) * between);
    let mut at = first.checked_add(jump).unwrap_or(first).min(now);
    let mut found = if missed <= 2 { Some(second) } else { None };
    while let Some(next) = schedule.next(at, zone).filter(|next| *next <= now) {
        found = Some(next);
        at = next;
    }
    (found.or(Some(first)), missed > MANY)
}

pub(super) fn is_too_late(spec: &CronJobSpec, at: Timestamp, now: Timestamp) -> bool {
    spec.starting_deadline_seconds
        .is_some_and(|seconds| at.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX) < now)
}

/// The name contains the scheduled minute, so that one start never creates two jobs.
pub(super) fn job_name(cron: &CronJob, at: Timestamp) -> String {
    format!("{}-{}", name(cron), at.as_second() / 60)
}

pub(super) fn new_job(cron: &CronJob, spec: &CronJobSpec, zone: &TimeZone, at: Timestamp) -> Job {
    let template = spec.job_template.metadata.clone().unwrap_or_default();
    let mut annotations = template.annotations.unwrap_or_default();
    let zoned = at.to_zoned(zone.clone());
    let stamp = match zoned.offset().is_zero() {
        true => zoned.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        false => zoned.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
    };
    annotations.insert(SCHEDULED.to_owned(), stamp);
    Job {
        metadata: ObjectMeta {
            name: Some(job_name(cron, at)),
            namespace: cron.metadata.namespace.clone(),
            labels: template.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![owner::controller_reference(cron)]),
            ..ObjectMeta::default()
        },
        spec: spec.job_template.spec.clone(),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn cron(last: Option<&str>, spec: Value) -> CronJob {
        let mut full = json!({"schedule": "0 * * * *", "jobTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"template": {}}}});
        for (key, value) in spec.as_object().cloned().unwrap_or_default() {
            full[key] = value;
        }
        serde_json::from_value(json!({
            "metadata": {"name": "c", "namespace": "ns", "uid": "u", "creationTimestamp": "2026-01-01T00:10:00Z"},
            "spec": full, "status": {"lastScheduleTime": last}
        }))
        .unwrap()
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn the_latest_missed_start_is_due() {
        let hour = |text: &str| Some(at(text));
        for (case, last, deadline, now, expected, many) in [
            ("not yet", None, None, "2026-01-01T00:50:00Z", None, false),
            ("the first", None, None, "2026-01-01T01:00:10Z", hour("2026-01-01T01:00:00Z"), false),
            ("done", Some("2026-01-01T01:00:00Z"), None, "2026-01-01T01:30:00Z", None, false),
            (
                "two missed",
                Some("2026-01-01T01:00:00Z"),
                None,
                "2026-01-01T03:30:00Z",
                hour("2026-01-01T03:00:00Z"),
                false,
            ),
            (
                "many missed",
                Some("2026-01-01T01:00:00Z"),
                None,
                "2026-01-10T03:30:00Z",
                hour("2026-01-10T03:00:00Z"),
                true,
            ),
            ("past the deadline", Some("2026-01-01T01:00:00Z"), Some(60), "2026-01-01T03:30:00Z", None, false),
            (
                "within the deadline",
                Some("2026-01-01T01:00:00Z"),
                Some(3600),
                "2026-01-10T03:30:00Z",
                hour("2026-01-10T03:00:00Z"),
                false,
            ),
        ] {
            let cron = cron(last, json!({"startingDeadlineSeconds": deadline}));
            let spec = &cron.spec;
            let schedule = Schedule::parse(&spec.schedule).unwrap();
            let due = due(&cron, spec, &schedule, &TimeZone::UTC, at(now));
            assert_eq!((due.at, due.many_missed), (expected, many), "{case}");
            let minutes = (60 - now[14..16].parse::<u64>().unwrap()) * 60 - now[17..19].parse::<u64>().unwrap();
            assert_eq!(due.recheck, Some(Duration::from_secs(minutes) + MARGIN), "{case}");
        }
    }

    #[test]
    fn jobs_are_named_by_their_minute() {
        let cron = cron(None, json!({"timeZone": "Europe/Berlin"}));
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        let job = new_job(&cron, &cron.spec, &zone, at("2026-01-01T01:00:00Z"));
        assert_eq!(name(&job), "c-29453820");
        assert_eq!(job.metadata.annotations.unwrap()[SCHEDULED], "2026-01-01T02:00:00+01:00");
        assert_eq!(job.metadata.labels.unwrap()["a"], "b");
    }
}
