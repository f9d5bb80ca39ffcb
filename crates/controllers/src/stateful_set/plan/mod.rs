//! What happens to the pods of a stateful set, and its new status.
//!
//! In order: missing pods are created from the first to the last, each once the one before is available; surplus pods are
//! deleted from the last; then pods of an old revision are replaced from the last down to the partition.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec, StatefulSetStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use knarr_client::pod;

use super::identity::{corrected, first_ordinal, in_range, new_pod, ordinal_of, revision_of};
use super::revision::Revisions;
use crate::common::int_or_percent::scaled;
use crate::common::key::{name, uid};
use crate::common::requests::unless_zero;

pub(super) struct Observed<'a> {
    pub set: &'a StatefulSet,
    pub spec: &'a StatefulSetSpec,
    pub pods: &'a [Arc<Pod>],
    pub revisions: &'a Revisions,
}

#[derive(Debug)]
pub(super) enum Action {
    Create(Box<Pod>),
    Delete(Arc<Pod>),
    /// Creates claims that the pod still waits for.
    CreateClaims(Arc<Pod>),
    /// Sets the owners of the claims of a pod to be deleted.
    OwnClaims(Arc<Pod>),
    /// Corrects the identity and storage of the pod, and the owners of its claims.
    Correct(Arc<Pod>),
}

#[derive(Debug)]
pub(super) struct Plan {
    pub actions: Vec<Action>,
    /// One after the other, or all at once.
    pub in_order: bool,
    pub status: StatefulSetStatus,
}

pub(super) fn plan(observed: &Observed, now: Timestamp) -> Plan {
    let in_order = observed.spec.pod_management_policy.as_deref() != Some("Parallel");
    let mut plan = Plan { actions: Vec::new(), in_order, status: status(observed, now) };
    if observed.set.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let places = places(observed);
    let condemned = condemned(observed);
    let wait_synced = fill_places(observed, &places, in_order, now, &mut plan)
        && remove_condemned(observed, &places, &condemned, in_order, now, &mut plan);
    if wait_synced {
        roll(observed, &places, now, &mut plan);
    }
    complete(observed, &mut plan.status);
    plan
}

/// The pod of each desired ordinal, if it exists.
fn places(observed: &Observed) -> Vec<Option<Arc<Pod>>> {
    let count = usize::try_from(observed.spec.replicas.unwrap_or(1)).unwrap_or(0);
    let mut places: Vec<Option<Arc<Pod>>> = vec![None; count];
    for pod in observed.pods.iter().filter(|pod| in_range(observed.spec, pod)) {
        let at = ordinal_of(pod).map_or(0, |ordinal| (ordinal - first_ordinal(observed.spec)) as usize);
        places[at] = Some(pod.clone());
    }
    places
}

/// Pods beyond the desired number, the last first.
fn condemned(observed: &Observed) -> Vec<Arc<Pod>> {
    let beyond = observed.pods.iter().filter(|pod| ordinal_of(pod).is_some() && !in_range(observed.spec, pod));
    let mut condemned: Vec<Arc<Pod>> = beyond.cloned().collect();
    condemned.sort_by_key(|pod| std::cmp::Reverse(ordinal_of(pod)));
    condemned
}

fn min_ready(observed: &Observed) -> i32 {
    observed.spec.min_ready_seconds.unwrap_or(0)
}

fn is_unavailable(observed: &Observed, pod: Option<&Arc<Pod>>, now: Timestamp) -> bool {
    pod.is_none_or(|pod| !pod::is_available(pod, min_ready(observed), now) || pod::is_terminating(pod))
}

/// Creates missing pods. Returns whether the next phase may run.
fn fill_places(
    observed: &Observed,
    places: &[Option<Arc<Pod>>],
    in_order: bool,
    now: Timestamp,
    plan: &mut Plan,
) -> bool {
    for (at, place) in places.iter().enumerate() {
        let Some(pod) = place else {
            let Some(pod) = missing_pod(observed, at) else { return false };
            plan.actions.push(Action::Create(Box::new(pod)));
            if in_order {
                return false;
            }
            continue;
        };
        if pod::is_terminal(pod) {
            if !pod::is_terminating(pod) {
                plan.actions.push(Action::Delete(pod.clone()));
            }
            if in_order {
                return false;
            }
            continue;
        }
        if has_claims(observed.spec) && pod::phase(pod) == "Pending" {
            plan.actions.push(Action::CreateClaims(pod.clone()));
        }
        if in_order && is_unavailable(observed, Some(pod), now) {
            return false;
        }
        if has_claims(observed.spec) || corrected(observed.set, observed.spec, pod).is_some() {
            plan.actions.push(Action::Correct(pod.clone()));
        }
    }
    true
}

fn has_claims(spec: &StatefulSetSpec) -> bool {
    spec.volume_claim_templates.as_ref().is_some_and(|templates| !templates.is_empty())
}

fn missing_pod(observed: &Observed, at: usize) -> Option<Pod> {
    let start = first_ordinal(observed.spec);
    let ordinal = start + at as i32;
    let strategy = observed.spec.update_strategy.as_ref();
    let rolls = strategy.and_then(|strategy| strategy.type_.as_deref()).is_none_or(|kind| kind == "RollingUpdate");
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let kept = match rolling {
        Some(rolling) => rolling.partition.unwrap_or(0),
        None if rolls => observed.set.status.as_ref().and_then(|status| status.current_replicas).unwrap_or(0),
        None => 0,
    };
    let revisions = observed.revisions;
    let (template, revision) = if ordinal < start + kept {
        (revisions.current_template()?, name(&*revisions.current))
    } else {
        (revisions.update_template()?, name(&*revisions.update))
    };
    Some(new_pod(observed.set, observed.spec, &template, revision, ordinal))
}

/// Deletes surplus pods; with ordered management one at a time and only while the others are healthy.
fn remove_condemned(
    observed: &Observed,
    places: &[Option<Arc<Pod>>],
    condemned: &[Arc<Pod>],
    in_order: bool,
    now: Timestamp,
    plan: &mut Plan,
) -> bool {
    if has_claims(observed.spec) {
        plan.actions.extend(condemned.iter().cloned().map(Action::OwnClaims));
    }
    let unwell =
        places.iter().flatten().chain(condemned.iter().rev()).find(|pod| is_unavailable(observed, Some(pod), now));
    for pod in condemned {
        if pod::is_terminating(pod) {
            if in_order {
                return false;
            }
            continue;
        }
        let is_first_unwell = unwell.is_some_and(|unwell| uid(&**unwell) == uid(&**pod));
        if in_order && is_unavailable(observed, Some(pod), now) && !is_first_unwell {
            return false;
        }
        plan.actions.push(Action::Delete(pod.clone()));
        if in_order {
            return false;
        }
    }
    true
}

/// Replaces pods of an old revision from the last, as many as may be unavailable.
fn roll(observed: &Observed, places: &[Option<Arc<Pod>>], now: Timestamp, plan: &mut Plan) {
    let strategy = observed.spec.update_strategy.as_ref();
    if strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete") {
        return;
    }
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let partition = usize::try_from(rolling.and_then(|rolling| rolling.partition).unwrap_or(0)).unwrap_or(0);
    let most = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
    let most = most.map_or(Some(1), |most| scaled(most, places.len() as i32, false)).unwrap_or(1).max(1) as usize;
    let unavailable = places.iter().filter(|place| is_unavailable(observed, place.as_ref(), now)).count();
    let mut room = most.saturating_sub(unavailable);
    for place in places.iter().skip(partition).rev() {
        if room == 0 {
            break;
        }
        let Some(pod) = place else { continue };
        if revision_of(pod) != name(&*observed.revisions.update) && !pod::is_terminating(pod) {
            plan.actions.push(Action::Delete(pod.clone()));
            plan.status.current_replicas = unless_zero(plan.status.current_replicas.unwrap_or(0) - 1);
            room -= 1;
        }
    }
}

pub(super) fn status(observed: &Observed, now: Timestamp) -> StatefulSetStatus {
    let revisions = observed.revisions;
    let (mut replicas, mut ready, mut available, mut current, mut updated) = (0, 0, 0, 0, 0);
    for pod in observed.pods.iter().filter(|pod| !pod::phase(pod).is_empty()) {
        replicas += 1;
        if pod::phase(pod) == "Running" && pod::is_ready(pod) {
            ready += 1;
            available += i32::from(pod::is_available(pod, min_ready(observed), now));
        }
        if !pod::is_terminating(pod) {
            current += i32::from(revision_of(pod) == name(&*revisions.current));
            updated += i32::from(revision_of(pod) == name(&*revisions.update));
        }
    }
    StatefulSetStatus {
        observed_generation: observed.set.metadata.generation,
        replicas,
        ready_replicas: unless_zero(ready),
        available_replicas: Some(available),
        current_replicas: unless_zero(current),
        updated_replicas: unless_zero(updated),
        current_revision: Some(name(&*revisions.current).to_owned()),
        update_revision: Some(name(&*revisions.update).to_owned()),
        collision_count: Some(revisions.collisions),
        conditions: observed.set.status.as_ref().and_then(|status| status.conditions.clone()),
    }
}

/// Once all pods have the update revision and are ready, it becomes the current one.
fn complete(observed: &Observed, status: &mut StatefulSetStatus) {
    let strategy = observed.spec.update_strategy.as_ref();
    let rolls = strategy.and_then(|strategy| strategy.type_.as_deref()).is_none_or(|kind| kind == "RollingUpdate");
    let desired = observed.spec.replicas.unwrap_or(1);
    if rolls
        && status.updated_replicas.unwrap_or(0) == desired
        && status.ready_replicas.unwrap_or(0) == desired
        && status.replicas == desired
    {
        status.current_replicas = status.updated_replicas;
        status.current_revision = status.update_revision.clone();
    }
}

#[cfg(test)]
mod tests;
