//! Pods that run to an end, once or by the clock.

pub mod cron_job;
mod indexes;
pub mod job;
mod job_policies;
mod job_spec;
mod job_status;
mod schedule;
mod time_zone;

use crate::KindRules;

/// The rules of a kind of this group.
pub fn rules_of(kind: &str) -> Option<&'static dyn KindRules> {
    Some(match kind {
        "CronJob" => &cron_job::CronJob,
        "Job" => &job::Job,
        _ => return None,
    })
}
