//! What happens to the pods of a stateful set, and its new status.
//!
//! In order: missing pods are created from the first to the last, each once the one before is available; surplus pods are
//! deleted from the last; then pods of an old revision are replaced from the last down to the partition.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec, StatefulSetStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::Timestamp;
use knarr_client::pod;

use super::identity::{corrected, in_range, new_pod, ordinal_of, ordinals, revision_of};
use super::revision::Revisions;
use crate::common::int_or_percent::scaled;
use crate::common::key::{name, uid};
use crate::common::requests::unless_zero;

/// At most this many pods are created before the cache must show them.
const BURST: usize = 500;

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
    let places = Places::of(observed);
    let condemned = condemned(observed);
    let wait_synced = fill_places(observed, &places, in_order, now, &mut plan)
        && remove_condemned(observed, &places, &condemned, in_order, now, &mut plan);
    if wait_synced {
        roll(observed, &places, now, &mut plan);
    }
    complete(observed, &mut plan.status);
    plan
}

/// The desired ordinals, and the pods that have one. A set may ask for any number of pods; nothing here costs more than the
/// pods there are.
struct Places {
    ordinals: Range<i64>,
    pods: BTreeMap<i64, Arc<Pod>>,
}

impl Places {
    fn of(observed: &Observed) -> Self {
        let placed = observed.pods.iter().filter(|pod| in_range(observed.spec, pod));
        let pods = placed.filter_map(|pod| Some((i64::from(ordinal_of(pod)?), pod.clone()))).collect();
        Self { ordinals: ordinals(observed.spec), pods }
    }

    fn missing(&self) -> usize {
        usize::try_from(self.ordinals.end - self.ordinals.start).unwrap_or(0).saturating_sub(self.pods.len())
    }

    /// The ordinals from the last down to the partition, and their pods.
    fn last_first(&self, partition: i64) -> impl Iterator<Item = Option<&Arc<Pod>>> {
        let ordinals = self.ordinals.start.saturating_add(partition)..self.ordinals.end;
        ordinals.rev().map(move |ordinal| self.pods.get(&ordinal))
    }
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
fn fill_places(observed: &Observed, places: &Places, in_order: bool, now: Timestamp, plan: &mut Plan) -> bool {
    let mut created = 0;
    for ordinal in places.ordinals.clone() {
        let Some(pod) = places.pods.get(&ordinal) else {
            let Some(pod) = missing_pod(observed, ordinal) else { return false };
            plan.actions.push(Action::Create(Box::new(pod)));
            created += 1;
            if in_order || created == BURST {
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

/// `None` for an ordinal that no pod's name could be read back from.
fn missing_pod(observed: &Observed, ordinal: i64) -> Option<Pod> {
    let first = ordinals(observed.spec).start;
    let strategy = observed.spec.update_strategy.as_ref();
    let rolls = strategy.and_then(|strategy| strategy.type_.as_deref()).is_none_or(|kind| kind == "RollingUpdate");
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let kept = match rolling {
        Some(rolling) => rolling.partition.unwrap_or(0),
        None if rolls => observed.set.status.as_ref().and_then(|status| status.current_replicas).unwrap_or(0),
        None => 0,
    };
    let revisions = observed.revisions;
    let (template, revision) = if ordinal < first + i64::from(kept) {
        (revisions.current_template()?, name(&*revisions.current))
    } else {
        (revisions.update_template()?, name(&*revisions.update))
    };
    Some(new_pod(observed.set, observed.spec, &template, revision, i32::try_from(ordinal).ok()?))
}

/// Deletes surplus pods; with ordered management one at a time and only while the others are healthy.
fn remove_condemned(
    observed: &Observed,
    places: &Places,
    condemned: &[Arc<Pod>],
    in_order: bool,
    now: Timestamp,
    plan: &mut Plan,
) -> bool {
    if has_claims(observed.spec) {
        plan.actions.extend(condemned.iter().cloned().map(Action::OwnClaims));
    }
    let unwell =
        places.pods.values().chain(condemned.iter().rev()).find(|pod| is_unavailable(observed, Some(pod), now));
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

/// Replaces pods of an old revision from the last down to the partition.
fn roll(observed: &Observed, places: &Places, now: Timestamp, plan: &mut Plan) {
    let strategy = observed.spec.update_strategy.as_ref();
    if strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete") {
        return;
    }
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let partition = i64::from(rolling.and_then(|rolling| rolling.partition).unwrap_or(0));
    match rolling.and_then(|rolling| rolling.max_unavailable.as_ref()) {
        Some(most) => roll_several(observed, places, partition, most, now, plan),
        None => roll_one(observed, places, partition, now, plan),
    }
}

fn is_outdated(observed: &Observed, pod: &Pod) -> bool {
    revision_of(pod) != name(&*observed.revisions.update) && !pod::is_terminating(pod)
}

fn replace(pod: &Arc<Pod>, plan: &mut Plan) {
    plan.actions.push(Action::Delete(pod.clone()));
    plan.status.current_replicas = unless_zero(plan.status.current_replicas.unwrap_or(0) - 1);
}

/// Without `maxUnavailable`, one pod after the other: the last that is outdated, once all behind it are available. Those
/// before it do not matter, so that a new template replaces pods that are broken.
fn roll_one(observed: &Observed, places: &Places, partition: i64, now: Timestamp, plan: &mut Plan) {
    for pod in places.last_first(partition) {
        match pod {
            // Failed pods are deleted whatever their revision.
            Some(pod) if is_outdated(observed, pod) && !pod::is_terminal(pod) => return replace(pod, plan),
            _ if is_unavailable(observed, pod, now) => return,
            _ => {}
        }
    }
}

/// With `maxUnavailable`, as many at once as may be unavailable.
fn roll_several(
    observed: &Observed,
    places: &Places,
    partition: i64,
    most: &IntOrString,
    now: Timestamp,
    plan: &mut Plan,
) {
    let desired = observed.spec.replicas.unwrap_or(1);
    let most = scaled(most, desired, false).unwrap_or(1).max(1) as usize;
    let present = places.pods.values().filter(|pod| is_unavailable(observed, Some(pod), now)).count();
    let mut room = most.saturating_sub(present.saturating_add(places.missing()));
    for pod in places.last_first(partition).flatten() {
        if room == 0 {
            break;
        }
        if is_outdated(observed, pod) {
            replace(pod, plan);
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
