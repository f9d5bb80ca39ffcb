//! Rules of the group `batch`.

pub mod cron_job;
mod indexes;
pub mod job;
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
