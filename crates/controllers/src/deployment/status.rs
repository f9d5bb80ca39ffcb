//! A Deployment's status: counts, and the conditions Available, Progressing and ReplicaFailure.

use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentSpec, DeploymentStatus};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_client::time;

use super::plan::{Set, max_unavailable, replicas};
use crate::common::requests::unless_zero;

pub(super) const PROGRESSING: &str = "Progressing";
const AVAILABLE: &str = "Available";
const REPLICA_FAILURE: &str = "ReplicaFailure";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const NEW_AVAILABLE: &str = "NewReplicaSetAvailable";

pub(super) fn condition<'a>(status: &'a DeploymentStatus, kind: &str) -> Option<&'a DeploymentCondition> {
    status.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

pub(super) fn new_condition(
    kind: &str,
    status: &str,
    reason: &str,
    message: impl Into<String>,
    now: Timestamp,
) -> DeploymentCondition {
    DeploymentCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        last_update_time: Some(time::truncated(now)),
        last_transition_time: Some(time::truncated(now)),
        reason: Some(reason.to_owned()),
        message: Some(message.into()),
    }
}

/// Appends the condition, unless the present one equals it; a transition is a change of status.
pub(super) fn set_condition(status: &mut DeploymentStatus, mut condition: DeploymentCondition) {
    let present = self::condition(status, &condition.type_);
    if present.is_some_and(|present| present.status == condition.status && present.reason == condition.reason) {
        return;
    }
    if let Some(present) = present.filter(|present| present.status == condition.status) {
        condition.last_transition_time = present.last_transition_time.clone();
    }
    remove_condition(status, &condition.type_);
    status.conditions.get_or_insert_default().push(condition);
}

fn remove_condition(status: &mut DeploymentStatus, kind: &str) {
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|condition| condition.type_ != kind);
    }
    status.conditions = status.conditions.take().filter(|conditions| !conditions.is_empty());
}

pub(super) fn has_deadline(spec: &DeploymentSpec) -> bool {
    spec.progress_deadline_seconds.is_some_and(|seconds| seconds != i32::MAX)
}

/// Pausing and resuming restart the progress clock.
pub(super) fn with_pause(mut status: DeploymentStatus, spec: &DeploymentSpec, now: Timestamp) -> DeploymentStatus {
    let reason = condition(&status, PROGRESSING).and_then(|condition| condition.reason.as_deref());
    if !has_deadline(spec) || reason == Some(TIMED_OUT) {
        return status;
    }
    let reported_paused = reason == Some("DeploymentPaused");
    let paused = spec.paused == Some(true);
    if paused && !reported_paused {
        set_condition(
            &mut status,
            new_condition(PROGRESSING, "Unknown", "DeploymentPaused", "Deployment is paused", now),
        );
    } else if !paused && reported_paused {
        set_condition(
            &mut status,
            new_condition(PROGRESSING, "Unknown", "DeploymentResumed", "Deployment is resumed", now),
        );
    }
    status
}

/// Counts over all revisions, and whether enough is available.
pub(super) fn counted(
    deployment: &Deployment,
    spec: &DeploymentSpec,
    before: &DeploymentStatus,
    all: &[&Set],
    new: Option<&Set>,
    now: Timestamp,
) -> DeploymentStatus {
    let available: i32 = all.iter().map(|set| set.available()).sum();
    let total: i32 = all.iter().map(|set| set.former_replicas()).sum();
    let ready = all.iter().map(|set| set.set.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0));
    let mut status = DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: unless_zero(all.iter().map(|set| set.actual()).sum()),
        updated_replicas: unless_zero(new.map_or(0, Set::actual)),
        ready_replicas: unless_zero(ready.sum()),
        available_replicas: unless_zero(available),
        unavailable_replicas: unless_zero((total - available).max(0)),
        terminating_replicas: terminating(all),
        collision_count: before.collision_count,
        conditions: before.conditions.clone(),
    };
    let condition = if available >= replicas(spec) - max_unavailable(spec) {
        new_condition(AVAILABLE, "True", "MinimumReplicasAvailable", "Deployment has minimum availability.", now)
    } else {
        let message = "Deployment does not have minimum availability.";
        new_condition(AVAILABLE, "False", "MinimumReplicasUnavailable", message, now)
    };
    set_condition(&mut status, condition);
    status
}

/// Known only when every ReplicaSet reports it.
fn terminating(all: &[&Set]) -> Option<i32> {
    let mut total = 0;
    for set in all {
        let Some(status) = &set.set.status else { continue };
        match status.terminating_replicas {
            Some(count) => total += count,
            None if status.observed_generation.unwrap_or(0) == 0 => {}
            None => return None,
        }
    }
    Some(total)
}

/// Adds the progress of the rollout. `before` is the status this decision started from.
pub(super) fn with_progress(
    deployment: &Deployment,
    spec: &DeploymentSpec,
    before: &DeploymentStatus,
    mut status: DeploymentStatus,
    all: &[&Set],
    new: Option<&Set>,
    now: Timestamp,
) -> DeploymentStatus {
    if !has_deadline(spec) {
        remove_condition(&mut status, PROGRESSING);
    }
    let current = condition(before, PROGRESSING).cloned();
    let was_complete = status.replicas == status.updated_replicas
        && current.as_ref().is_some_and(|current| current.reason.as_deref() == Some(NEW_AVAILABLE));
    if has_deadline(spec) && !was_complete {
        let subject = match new {
            Some(new) => format!("ReplicaSet \"{}\"", super::name(&new.set)),
            None => format!("Deployment \"{}\"", super::name(deployment)),
        };
        if is_complete(deployment, &status) {
            let message = format!("{subject} has successfully progressed.");
            set_condition(&mut status, new_condition(PROGRESSING, "True", NEW_AVAILABLE, message, now));
        } else if has_progressed(before, &status) {
            let message = format!("{subject} is progressing.");
            let mut progress = new_condition(PROGRESSING, "True", "ReplicaSetUpdated", message, now);
            if let Some(current) = current.filter(|current| current.status == "True") {
                progress.last_transition_time = current.last_transition_time;
            }
            // Removed first, so that the time of the last progress is always the newest.
            remove_condition(&mut status, PROGRESSING);
            set_condition(&mut status, progress);
        } else if has_timed_out(spec, &status, now) {
            let message = format!("{subject} has timed out progressing.");
            set_condition(&mut status, new_condition(PROGRESSING, "False", TIMED_OUT, message, now));
        }
    }
    match replica_failure(all, new) {
        Some(failure) => set_condition(&mut status, failure),
        None => remove_condition(&mut status, REPLICA_FAILURE),
    }
    status
}

/// All replicas are updated and available, and the spec was observed.
pub(super) fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let desired = deployment.spec.as_ref().map_or(1, replicas);
    status.updated_replicas.unwrap_or(0) == desired
        && status.replicas.unwrap_or(0) == desired
        && status.available_replicas.unwrap_or(0) == desired
        && status.observed_generation >= deployment.metadata.generation
}

fn has_progressed(before: &DeploymentStatus, after: &DeploymentStatus) -> bool {
    let updated = |status: &DeploymentStatus| status.updated_replicas.unwrap_or(0);
    let old = |status: &DeploymentStatus| status.replicas.unwrap_or(0) - updated(status);
    updated(after) > updated(before)
        || old(after) < old(before)
        || after.ready_replicas.unwrap_or(0) > before.ready_replicas.unwrap_or(0)
        || after.available_replicas.unwrap_or(0) > before.available_replicas.unwrap_or(0)
}

fn has_timed_out(spec: &DeploymentSpec, status: &DeploymentStatus, now: Timestamp) -> bool {
    let Some(progress) = condition(status, PROGRESSING) else { return false };
    match progress.reason.as_deref() {
        Some(NEW_AVAILABLE) => false,
        Some(TIMED_OUT) => true,
        _ => deadline(spec, progress).is_some_and(|deadline| deadline < now),
    }
}

fn deadline(spec: &DeploymentSpec, progress: &DeploymentCondition) -> Option<Timestamp> {
    let last = progress.last_update_time.as_ref()?;
    Some(time::after_seconds(last, spec.progress_deadline_seconds?.into()))
}

/// When to check whether the deadline has passed, while the rollout is in progress.
pub(super) fn next_progress_check(
    deployment: &Deployment,
    spec: &DeploymentSpec,
    status: &DeploymentStatus,
    now: Timestamp,
) -> Option<Duration> {
    let progress = condition(status, PROGRESSING).filter(|_| has_deadline(spec))?;
    if is_complete(deployment, status) || progress.reason.as_deref() == Some(TIMED_OUT) {
        return None;
    }
    let at = deadline(spec, progress)?.saturating_add(SignedDuration::from_secs(1)).unwrap_or(Timestamp::MAX);
    Some(time::until(now, at).max(Duration::from_secs(1)))
}

fn replica_failure(all: &[&Set], new: Option<&Set>) -> Option<DeploymentCondition> {
    let failures = |set: &Set| {
        let conditions = set.set.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        conditions.into_iter().find(|condition| condition.type_ == REPLICA_FAILURE)
    };
    let failure = new.and_then(failures).or_else(|| all.iter().find_map(|set| failures(set)))?;
    Some(DeploymentCondition {
        type_: failure.type_,
        status: failure.status,
        last_update_time: failure.last_transition_time.clone(),
        last_transition_time: failure.last_transition_time,
        reason: failure.reason,
        message: failure.message,
    })
}

/// The deployment with one more hash collision counted.
pub(super) fn with_collision(deployment: &Deployment) -> Deployment {
    let mut changed = deployment.clone();
    let status = changed.status.get_or_insert_default();
    status.collision_count = Some(status.collision_count.unwrap_or(0) + 1);
    changed
}

/// The deployment with a condition for the failed creation of its ReplicaSet, if it reports progress.
pub(super) fn with_create_failure(deployment: &Deployment, message: &str, now: Timestamp) -> Option<Deployment> {
    deployment.spec.as_ref().filter(|spec| has_deadline(spec))?;
    let mut changed = deployment.clone();
    let failure = new_condition(PROGRESSING, "False", "ReplicaSetCreateError", message, now);
    set_condition(changed.status.get_or_insert_default(), failure);
    (changed.status != deployment.status).then_some(changed)
}
