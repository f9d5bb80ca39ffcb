//! Counts finished pods exactly once.
//!
//! A pod has a finalizer until it is counted. First its uid is added to the status as uncounted; then its
//! finalizer is removed; then, once it is gone, the count is raised and the uid removed. Whatever fails in between, a pod is
//! neither lost nor counted twice.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::batch::v1::{JobCondition, JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use knarr_client::pod;

use super::plan::{COMPLETE, FAILED, FAILURE_TARGET, SUCCESS_CRITERIA_MET, new_condition};
use super::policy::{self, Failure};
use super::view::View;
use crate::common::key::uid;
use crate::common::requests::unless_zero;

/// At most this many pods are in the status at once.
const MAX_UNCOUNTED: usize = 500;

/// What to write first, and which pods lose their finalizer then.
pub(super) struct Tracked {
    pub status: JobStatus,
    pub release: Vec<Arc<Pod>>,
    /// The condition to set once all pods are counted.
    pub ending: Option<JobCondition>,
    pub still_tracked: HashSet<String>,
    /// Some finished pods are left for the next sync.
    pub reached_limit: bool,
}

/// Adds newly finished pods to the status. `finished` is the condition that the job will finish with.
pub(super) fn track(view: &View, mut status: JobStatus, finished: Option<JobCondition>, now: Timestamp) -> Tracked {
    let still_tracked: HashSet<String> =
        view.pods.iter().filter(|pod| view.is_tracked(pod)).map(|pod| uid(&**pod).to_owned()).collect();
    status.uncounted_terminated_pods.get_or_insert_default();
    count_released(&mut status, &still_tracked);
    let mut release = Vec::new();
    let mut new_indexes = Vec::new();
    let mut reached_limit = false;
    let mut pods: Vec<&Arc<Pod>> = view.pods.iter().filter(|pod| view.is_tracked(pod)).collect();
    pods.sort_by_key(|pod| super::view::index_of(pod));
    for pod in pods {
        if !may_release(view, pod, finished.is_some()) {
            continue;
        }
        release.push(pod.clone());
        note(view, pod, finished.as_ref(), &mut status, &mut new_indexes);
        let uncounted = status.uncounted_terminated_pods.as_ref();
        let count = |list: fn(&UncountedTerminatedPods) -> &Option<Vec<String>>| {
            uncounted.and_then(|uncounted| list(uncounted).as_ref()).map_or(0, Vec::len)
        };
        if new_indexes.len() + count(|u| &u.succeeded) + count(|u| &u.failed) >= MAX_UNCOUNTED {
            reached_limit = true;
            break;
        }
    }
    if view.is_indexed() {
        let done = view.succeeded_indexes.with(new_indexes);
        status.succeeded = unless_zero(done.count() as i32);
        status.completed_indexes = Some(done.to_string()).filter(|text| !text.is_empty());
        status.failed_indexes = view.failed_indexes.as_ref().map(ToString::to_string);
    }
    let ending = finished.map(|finished| set_interim_condition(&mut status, finished, now));
    Tracked { status, release, ending, still_tracked, reached_limit }
}

/// Finished pods lose their finalizer; when the job is finished or being deleted, all do.
fn may_release(view: &View, pod: &Pod, job_is_over: bool) -> bool {
    if view.job.metadata.deletion_timestamp.is_some() || job_is_over || pod::phase(pod) == "Succeeded" {
        return true;
    }
    let awaits_replacement = view
        .valid_index(pod)
        .and_then(|index| view.awaiting_replacement.get(&index))
        .is_some_and(|awaiting| uid(&**awaiting) == uid(pod));
    policy::is_failed(view.spec, pod) && !awaits_replacement
}

fn note(view: &View, pod: &Pod, finished: Option<&JobCondition>, status: &mut JobStatus, new_indexes: &mut Vec<u32>) {
    let uncounted = status.uncounted_terminated_pods.get_or_insert_default();
    let has = |list: &Option<Vec<String>>| list.as_ref().is_some_and(|list| list.iter().any(|known| known == uid(pod)));
    if pod::phase(pod) == "Succeeded" && !has(&view.uncounted.failed) {
        if view.is_indexed() {
            new_indexes.extend(view.valid_index(pod).filter(|index| !view.former_indexes.has(*index)));
        } else if !has(&view.uncounted.succeeded) {
            uncounted.succeeded.get_or_insert_default().push(uid(pod).to_owned());
        }
        return;
    }
    let job_failed = finished.is_some_and(|finished| finished.type_ != SUCCESS_CRITERIA_MET);
    let counts = policy::is_failed(view.spec, pod) || job_failed;
    let has_place = !view.is_indexed() || view.valid_index(pod).is_some();
    if counts && has_place && !has(&view.uncounted.failed) && view.failure(pod) != Failure::Ignore {
        uncounted.failed.get_or_insert_default().push(uid(pod).to_owned());
    }
}

/// Sets the interim condition, and returns the final one, to be set once nothing is left to count.
fn set_interim_condition(status: &mut JobStatus, finished: JobCondition, now: Timestamp) -> JobCondition {
    let conditions = status.conditions.get_or_insert_default();
    let is_reported = conditions.iter().any(|known| known.type_ == finished.type_ && known.status == "True");
    let (reason, message) = (finished.reason.clone().unwrap_or_default(), finished.message.clone().unwrap_or_default());
    match finished.type_.as_str() {
        FAILURE_TARGET => {
            conditions.push(finished);
            new_condition(FAILED, &reason, message, now)
        }
        SUCCESS_CRITERIA_MET => {
            if !is_reported {
                conditions.push(finished);
            }
            new_condition(COMPLETE, &reason, message, now)
        }
        _ => finished,
    }
}

/// Moves pods without their finalizer from the list of uncounted ones into the counts.
pub(super) fn count_released(status: &mut JobStatus, still_tracked: &HashSet<String>) {
    let Some(uncounted) = &mut status.uncounted_terminated_pods else { return };
    let drain = |list: &mut Option<Vec<String>>| {
        let before = list.as_ref().map_or(0, Vec::len);
        if let Some(uids) = list {
            uids.retain(|uid| still_tracked.contains(uid));
        }
        *list = list.take().filter(|uids| !uids.is_empty());
        (before - list.as_ref().map_or(0, Vec::len)) as i32
    };
    let succeeded = drain(&mut uncounted.succeeded);
    let failed = drain(&mut uncounted.failed);
    status.succeeded = unless_zero(status.succeeded.unwrap_or(0) + succeeded);
    status.failed = unless_zero(status.failed.unwrap_or(0) + failed);
}

/// Sets the job's final condition, if all pods are counted and none is terminating.
pub(super) fn end(status: &mut JobStatus, ending: &JobCondition, terminating: i32) -> bool {
    let uncounted = status.uncounted_terminated_pods.clone().unwrap_or_default();
    if uncounted.succeeded.is_some() || uncounted.failed.is_some() || terminating > 0 {
        return false;
    }
    let conditions = status.conditions.get_or_insert_default();
    conditions.retain(|known| known.type_ != ending.type_);
    conditions.push(ending.clone());
    if ending.type_ == COMPLETE {
        status.completion_time = ending.last_transition_time.clone();
    }
    true
}
