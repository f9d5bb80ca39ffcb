//! How many pods to create or delete, and what the status says.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::ReplicaSetCondition;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use knarr_client::selector::Selector;
use knarr_client::{owner, pod, time};

use super::replicated::Replicated;

/// At most this many pods are created or deleted before the cache must show them.
const BURST: usize = 1000;

#[derive(Debug, PartialEq)]
pub(super) enum Step {
    Nothing,
    Create(usize),
    Delete(usize),
}

/// Why creating or deleting failed.
pub(super) struct Failure {
    pub message: String,
}

/// The status of both kinds, with zero for what is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Status {
    pub replicas: i32,
    pub fully_labeled: i32,
    pub ready: i32,
    pub available: i32,
    /// Only ReplicaSets have it.
    pub terminating: Option<i32>,
    pub observed_generation: i64,
    pub conditions: Vec<ReplicaSetCondition>,
}

pub(super) fn plan(desired: i32, active: usize) -> Step {
    let desired = usize::try_from(desired).unwrap_or(0);
    match active.cmp(&desired) {
        std::cmp::Ordering::Less => Step::Create((desired - active).min(BURST)),
        std::cmp::Ordering::Greater => Step::Delete((active - desired).min(BURST)),
        std::cmp::Ordering::Equal => Step::Nothing,
    }
}

pub(super) fn status<K: Replicated>(
    owner: &K,
    active: &[Arc<Pod>],
    terminating: usize,
    failure: Option<Failure>,
    now: Timestamp,
) -> Status {
    let labels = owner.template().and_then(|template| template.metadata.as_ref()?.labels.clone()).unwrap_or_default();
    let labeled = Selector::from_labels(&labels);
    let old = owner.status();
    let mut status = Status {
        replicas: active.len() as i32,
        terminating: K::REPORTS_TERMINATING.then_some(terminating as i32),
        observed_generation: owner.meta().generation.unwrap_or(0),
        ..Status::default()
    };
    for each in active {
        status.fully_labeled += i32::from(labeled.matches(each.metadata.labels.as_ref()));
        status.ready += i32::from(pod::is_ready(each));
        status.available += i32::from(pod::is_available(each, owner.min_ready_seconds(), now));
    }
    status.conditions = conditions(old.conditions, failure, active.len() as i32 - owner.replicas(), now);
    status
}

const REPLICA_FAILURE: &str = "ReplicaFailure";

/// The condition is added when a failure appears and stays unchanged until it is gone.
fn conditions(
    mut conditions: Vec<ReplicaSetCondition>,
    failure: Option<Failure>,
    surplus: i32,
    now: Timestamp,
) -> Vec<ReplicaSetCondition> {
    let is_reported = conditions.iter().any(|condition| condition.type_ == REPLICA_FAILURE);
    match failure {
        Some(failure) if !is_reported => conditions.push(ReplicaSetCondition {
            type_: REPLICA_FAILURE.to_owned(),
            status: "True".to_owned(),
            last_transition_time: Some(time::truncated(now)),
            reason: match surplus {
                ..0 => Some("FailedCreate".to_owned()),
                1.. => Some("FailedDelete".to_owned()),
                0 => None,
            },
            message: Some(failure.message),
        }),
        None => conditions.retain(|condition| condition.type_ != REPLICA_FAILURE),
        Some(_) => {}
    }
    conditions
}

/// When to sync again because a ready pod will have become available.
pub(super) fn next_availability<K: Replicated>(
    owner: &K,
    active: &[Arc<Pod>],
    status: &Status,
    now: Timestamp,
) -> Option<Duration> {
    let min_ready = owner.min_ready_seconds();
    if min_ready == 0 || status.ready == status.available {
        return None;
    }
    let next = active.iter().filter_map(|each| pod::available_at(each, min_ready, now)).min();
    Some(next.map_or(Duration::from_secs(min_ready as u64), |at| time::until(now, at)))
}

/// The pod to create, with a generated name; `None` when the owner has no template.
pub(super) fn new_pod<K: Replicated>(owner: &K) -> Option<Pod> {
    let mut pod = pod::from_template(owner.template()?);
    pod.metadata.generate_name = Some(format!("{}-", owner.meta().name.as_deref().unwrap_or("")));
    pod.metadata.owner_references = Some(vec![owner::controller_reference(owner)]);
    Some(pod)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::apps::v1::ReplicaSet;
    use serde_json::{Value, json};

    fn replica_set(spec: Value, status: Value) -> ReplicaSet {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u", "generation": 2}, "spec": spec, "status": status
        }))
        .unwrap()
    }

    fn pods(values: &[Value]) -> Vec<Arc<Pod>> {
        values.iter().map(|value| Arc::new(serde_json::from_value(value.clone()).unwrap())).collect()
    }

    #[test]
    fn counts() {
        for (desired, active, step) in [
            (3, 3, Step::Nothing),
            (3, 0, Step::Create(3)),
            (10_000, 0, Step::Create(BURST)),
            (0, 2, Step::Delete(2)),
            (0, 1000, Step::Delete(BURST)),
        ] {
            assert_eq!(plan(desired, active), step);
        }
    }

    #[test]
    fn status_counts_pods_by_their_state() {
        let spec = json!({
            "replicas": 3, "minReadySeconds": 10, "selector": {},
            "template": {"metadata": {"labels": {"app": "web", "v": "1"}}, "spec": {"containers": []}}
        });
        let set = replica_set(spec, json!({"replicas": 0}));
        let ready = |since: &str| json!([{"type": "Ready", "status": "True", "lastTransitionTime": since}]);
        let active = pods(&[
            json!({"metadata": {"labels": {"app": "web", "v": "1"}}, "status": {"conditions": ready("2026-01-01T00:00:00Z")}}),
            json!({"metadata": {"labels": {"app": "web"}}, "status": {"conditions": ready("2026-01-01T00:00:55Z")}}),
            json!({"metadata": {"labels": {"app": "web", "v": "1"}}}),
        ]);
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let counted = status(&set, &active, 1, None, now);
        let expected = Status {
            replicas: 3,
            fully_labeled: 2,
            ready: 2,
            available: 1,
            terminating: Some(1),
            observed_generation: 2,
            conditions: Vec::new(),
        };
        assert_eq!(counted, expected);
        assert_eq!(next_availability(&set, &active, &counted, now), Some(Duration::from_secs(5)));
        assert_eq!(
            replica_set(json!({"selector": {}}), json!({"replicas": 0})).with_status(expected.clone()).status(),
            expected
        );
    }

    #[test]
    fn a_failure_is_reported_until_it_passes() {
        let set = replica_set(json!({"replicas": 2, "selector": {}}), json!({"replicas": 0}));
        let now = Timestamp::UNIX_EPOCH;
        let failed = status(&set, &[], 0, Some(Failure { message: "exceeded quota".into() }), now);
        let condition = &failed.conditions[0];
        assert_eq!((condition.type_.as_str(), condition.status.as_str()), ("ReplicaFailure", "True"));
        assert_eq!(condition.reason.as_deref(), Some("FailedCreate"));
        let set = set.with_status(failed.clone());
        let again = status(&set, &[], 0, Some(Failure { message: "another".into() }), now);
        assert_eq!(again.conditions, failed.conditions);
        assert!(status(&set, &[], 0, None, now).conditions.is_empty());
    }
}
