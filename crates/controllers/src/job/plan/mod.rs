//! What a job does next: fail, complete, create pods, or delete some.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use knarr_client::{pod, time};

use super::back_off::{self, Failures};
use super::policy::{self, Failure};
use super::view::{View, index_failures, index_of};
use crate::common::pods::deletion_order;

/// At most this many pods are created or deleted before the cache must show them.
const BURST: usize = 500;

pub(crate) const COMPLETE: &str = "Complete";
pub(crate) const FAILED: &str = "Failed";
pub(super) const FAILURE_TARGET: &str = "FailureTarget";
pub(super) const SUCCESS_CRITERIA_MET: &str = "SuccessCriteriaMet";

#[derive(Debug)]
pub(super) enum Step {
    /// The job is finished: all its running pods are deleted and the condition is set.
    Finish(JobCondition),
    /// Surplus running pods; they are not counted as failed.
    Remove(Vec<Arc<Pod>>),
    /// New pods, with these indexes when the job is indexed.
    Create(Vec<Option<u32>>),
    Nothing,
}

#[derive(Debug)]
pub(super) struct Decision {
    pub step: Step,
    pub recheck: Option<Duration>,
}

/// Decides without regard to whether creating and deleting is allowed yet.
pub(super) fn decide(view: &View, start: Option<Timestamp>, failures: Failures, now: Timestamp) -> Decision {
    let mut recheck = None;
    if let Some(condition) = finished(view, start, now, &mut recheck) {
        return Decision { step: Step::Finish(condition), recheck };
    }
    let step = manage(view, failures, now, &mut recheck);
    Decision { step, recheck }
}

pub(crate) fn condition(job: &Job, kind: &str) -> Option<JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind && condition.status == "True").cloned()
}

pub(crate) fn is_finished(job: &Job) -> bool {
    condition(job, COMPLETE).is_some() || condition(job, FAILED).is_some()
}

pub(super) fn new_condition(kind: &str, reason: &str, message: impl Into<String>, now: Timestamp) -> JobCondition {
    JobCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        last_probe_time: Some(time::truncated(now)),
        last_transition_time: Some(time::truncated(now)),
        reason: Some(reason.to_owned()),
        message: Some(message.into()),
    }
}

/// Why the job is finished, if it is (other than by completing).
fn finished(
    view: &View,
    start: Option<Timestamp>,
    now: Timestamp,
    recheck: &mut Option<Duration>,
) -> Option<JobCondition> {
    if let Some(met) = condition(view.job, SUCCESS_CRITERIA_MET) {
        return Some(met);
    }
    if let Some(target) = condition(view.job, FAILURE_TARGET) {
        let reason = target.reason.unwrap_or_default();
        return Some(new_condition(FAILED, &reason, target.message.unwrap_or_default(), now));
    }
    let fail = |reason: &str, message: &str| Some(new_condition(FAILURE_TARGET, reason, message, now));
    let failed_pods = view.pods.iter().filter(|pod| policy::is_failed(view.spec, pod));
    for pod in failed_pods {
        if let Failure::FailJob(message) = view.failure(pod) {
            return fail("PodFailurePolicy", &message);
        }
    }
    let limit = view.spec.backoff_limit.unwrap_or(6);
    if view.failed > limit || restarts_exceed(view, limit) {
        return fail("BackoffLimitExceeded", "Job has reached the specified backoff limit");
    }
    if let (Some(seconds), Some(start), false) = (view.spec.active_deadline_seconds, start, view.is_suspended()) {
        let left = time::until(now, time::after_seconds(&time::truncated(start), seconds));
        if left.is_zero() {
            return fail("DeadlineExceeded", "Job was active longer than specified deadline");
        }
        *recheck = Some(left);
    }
    if !view.is_indexed() {
        return None;
    }
    if let Some(failed) = &view.failed_indexes {
        let max = view.spec.max_failed_indexes.and_then(|max| usize::try_from(max).ok());
        if max.is_some_and(|max| failed.count() > max) {
            let message = "Job has exceeded the specified maximal number of failed indexes";
            return fail("MaxFailedIndexesExceeded", message);
        }
        if !failed.is_empty() && failed.count() + view.succeeded_indexes.count() >= view.completions() as usize {
            return fail("FailedIndexes", "Job has failed indexes");
        }
    }
    let met = policy::success(view.spec.success_policy.as_ref(), view.completions(), &view.succeeded_indexes)?;
    Some(new_condition(SUCCESS_CRITERIA_MET, "SuccessPolicy", met, now))
}

/// With the restart policy OnFailure, container restarts count instead of failed pods.
fn restarts_exceed(view: &View, limit: i32) -> bool {
    let policy = view.spec.template.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
    if policy != Some("OnFailure") {
        return false;
    }
    let running = view.pods.iter().filter(|pod| matches!(pod::phase(pod), "Running" | "Pending"));
    let restarts: i32 = running
        .filter_map(|pod| pod.status.as_ref())
        .flat_map(|status| {
            status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten())
        })
        .map(|container| container.restart_count)
        .sum();
    if limit == 0 { restarts > 0 } else { restarts >= limit }
}

fn manage(view: &View, failures: Failures, now: Timestamp, recheck: &mut Option<Duration>) -> Step {
    let active = view.active.len();
    if view.is_suspended() {
        return if active == 0 { Step::Nothing } else { Step::Remove(surplus(view, active, now)) };
    }
    let parallelism = usize::try_from(view.spec.parallelism.unwrap_or(1)).unwrap_or(0);
    let desired = match view.spec.completions {
        None if view.succeeded > 0 => active,
        None => parallelism,
        Some(completions) => usize::try_from(completions - view.succeeded).unwrap_or(0).min(parallelism),
    };
    let mut remove = surplus(view, active.saturating_sub(desired), now);
    remove.truncate(BURST);
    if !remove.is_empty() {
        return Step::Remove(remove);
    }
    let waiting = if policy::waits_for_termination(view.spec) { view.terminating.max(0) as usize } else { 0 };
    let missing = desired.saturating_sub(waiting + active);
    if missing == 0 {
        return Step::Nothing;
    }
    let soonest = |known: Option<Duration>, wait: Duration| Some(known.map_or(wait, |known| known.min(wait)));
    if !view.backs_off_per_index() {
        let wait = failures.remaining(now);
        if !wait.is_zero() {
            *recheck = soonest(*recheck, wait);
            return Step::Nothing;
        }
    }
    let missing = missing.min(BURST);
    if !view.is_indexed() {
        return Step::Create(vec![None; missing]);
    }
    let mut indexes = pending_indexes(view, missing);
    if view.backs_off_per_index() {
        let wait_of = |index: &u32| {
            view.awaiting_replacement.get(index).map_or(Duration::ZERO, |pod| {
                back_off::remaining(index_failures(pod) as u32 + 1, back_off::finished_at(pod), now)
            })
        };
        let earliest = indexes.iter().map(wait_of).min();
        indexes.retain(|index| wait_of(index).is_zero());
        if let (true, Some(wait)) = (indexes.is_empty(), earliest) {
            *recheck = soonest(*recheck, wait);
        }
    }
    if indexes.is_empty() { Step::Nothing } else { Step::Create(indexes.into_iter().map(Some).collect()) }
}

fn pending_indexes(view: &View, count: usize) -> Vec<u32> {
    let mut used = view.succeeded_indexes.with(view.active.iter().filter_map(|pod| index_of(pod)));
    if policy::waits_for_termination(view.spec) {
        let leaving = view.pods.iter().filter(|pod| pod::is_terminating(pod) && !pod::is_terminal(pod));
        used = used.with(leaving.filter_map(|pod| index_of(pod)));
    }
    if let Some(failed) = &view.failed_indexes {
        used = used.union(failed);
    }
    used.missing(count, view.completions())
}

/// At least this many running pods to delete first; of an index always all but one, and those without a valid index.
fn surplus(view: &View, min_count: usize, now: Timestamp) -> Vec<Arc<Pod>> {
    let order = |pods: &mut Vec<Arc<Pod>>| pods.sort_by(|a, b| deletion_order(a, 0, b, 0, now));
    let mut left = view.active.clone();
    let mut removed = Vec::new();
    if view.is_indexed() {
        let mut by_index: BTreeMap<u32, Vec<Arc<Pod>>> = BTreeMap::new();
        for pod in std::mem::take(&mut left) {
            match view.valid_index(&pod) {
                Some(index) => by_index.entry(index).or_default().push(pod),
                None => removed.push(pod),
            }
        }
        for mut pods in by_index.into_values() {
            order(&mut pods);
            left.extend(pods.pop());
            removed.extend(pods);
        }
    }
    if removed.len() < min_count {
        order(&mut left);
        let more = (min_count - removed.len()).min(left.len());
        removed.extend(left.drain(..more));
    }
    removed
}

/// Whether enough pods have succeeded and none is running any more.
pub(super) fn is_complete(view: &View, active: i32) -> bool {
    let enough = match view.spec.completions {
        None => view.succeeded > 0,
        Some(completions) => view.succeeded >= completions,
    };
    enough && active == 0
}

/// The distinct indexes of pods.
#[cfg(test)]
fn indexes_of(pods: &[Arc<Pod>]) -> std::collections::BTreeSet<u32> {
    pods.iter().filter_map(|pod| index_of(pod)).collect()
}

#[cfg(test)]
mod tests;
