//! Computes a budget's status.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_client::{pod, time};

use crate::common::int_or_percent::scaled;
use crate::common::key::name;

/// An evicted pod must be terminating within this time, or it counts as running again.
const DELETION_TIMEOUT: SignedDuration = SignedDuration::from_mins(2);
const DISRUPTION_ALLOWED: &str = "DisruptionAllowed";

#[derive(Debug, Default)]
pub(super) struct Scale {
    pub expected: i32,
    /// Pods without a controller.
    pub unmanaged: Vec<String>,
}

/// A number is absolute; a percentage is relative to the expected number.
pub(super) fn needs_scale(budget: &PodDisruptionBudget) -> bool {
    let Some(spec) = &budget.spec else { return false };
    spec.max_unavailable.is_some() || matches!(spec.min_available, Some(IntOrString::String(_)))
}

/// The status, and when to sync again for pods that should be gone by then.
pub(super) fn status(
    budget: &PodDisruptionBudget,
    pods: &[Arc<Pod>],
    scale: i32,
    now: Timestamp,
) -> (PodDisruptionBudgetStatus, Option<Timestamp>) {
    let old = budget.status.clone().unwrap_or_default();
    let (expected, desired) = expected_and_desired(budget, pods.len() as i32, scale);
    let (disrupted, recheck) = disrupted(&old, pods, now);
    let healthy = pods
        .iter()
        .filter(|pod| !pod::is_terminating(pod) && !disrupted.contains_key(name(&***pod)) && pod::is_ready(pod));
    let healthy = healthy.count() as i32;
    let allowed = if expected <= 0 { 0 } else { (healthy - desired).max(0) };
    let (condition_status, reason) =
        if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    let status = PodDisruptionBudgetStatus {
        current_healthy: Some(healthy),
        desired_healthy: Some(desired),
        expected_pods: Some(expected),
        disruptions_allowed: Some(allowed),
        disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
        observed_generation: budget.metadata.generation,
        conditions: Some(with_condition(old.conditions, condition_status, reason, "", budget.metadata.generation, now)),
    };
    (status, recheck)
}

/// How many pods there should be, and how many of them healthy.
fn expected_and_desired(budget: &PodDisruptionBudget, present: i32, scale: i32) -> (i32, i32) {
    let Some(spec) = &budget.spec else { return (0, 0) };
    match (&spec.max_unavailable, &spec.min_available) {
        (Some(max), _) => (scale, (scale - scaled(max, scale, true).unwrap_or(0)).max(0)),
        (None, Some(IntOrString::Int(min))) => (present, *min),
        (None, Some(share)) => (scale, scaled(share, scale, true).unwrap_or(scale)),
        (None, None) => (0, 0),
    }
}

/// Pods whose eviction was granted and that are not terminating yet.
fn disrupted(
    old: &PodDisruptionBudgetStatus,
    pods: &[Arc<Pod>],
    now: Timestamp,
) -> (BTreeMap<String, Time>, Option<Timestamp>) {
    let granted = old.disrupted_pods.clone().unwrap_or_default();
    let mut remaining = BTreeMap::new();
    let mut recheck: Option<Timestamp> = None;
    for pod in pods.iter().filter(|pod| !pod::is_terminating(pod)) {
        let Some(at) = granted.get(name(&**pod)) else { continue };
        let until = at.0.saturating_add(DELETION_TIMEOUT).unwrap_or(Timestamp::MAX);
        if until >= now {
            recheck = Some(recheck.map_or(until, |known| known.min(until)));
            remaining.insert(name(&**pod).to_owned(), at.clone());
        }
    }
    (remaining, recheck)
}

fn with_condition(
    conditions: Option<Vec<Condition>>,
    condition_status: &str,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let mut conditions = conditions.unwrap_or_default();
    let present = conditions.iter().position(|condition| condition.type_ == DISRUPTION_ALLOWED);
    let since = present.map(|at| &conditions[at]).filter(|present| present.status == condition_status);
    let since = since.map_or_else(|| time::truncated(now), |present| present.last_transition_time.clone());
    let condition = Condition {
        type_: DISRUPTION_ALLOWED.to_owned(),
        status: condition_status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: generation,
        last_transition_time: since,
    };
    match present {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
    conditions
}

/// The status when the state is unknown: nothing may be disrupted.
pub(super) fn failed(budget: &PodDisruptionBudget, reason: &str, now: Timestamp) -> PodDisruptionBudgetStatus {
    let old = budget.status.clone().unwrap_or_default();
    let conditions =
        with_condition(old.conditions.clone(), "False", "SyncFailed", reason, old.observed_generation, now);
    PodDisruptionBudgetStatus { disruptions_allowed: Some(0), conditions: Some(conditions), ..old }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn now() -> Timestamp {
        "2026-01-01T00:10:00Z".parse().unwrap()
    }

    fn pods(ready: usize, not_ready: usize) -> Vec<Arc<Pod>> {
        let pod = |n: usize| {
            let condition_status = if n < ready { "True" } else { "False" };
            let value = json!({"metadata": {"name": format!("p{n}")}, "status": {"conditions": [{"type": "Ready", "status": condition_status}]}});
            Arc::new(serde_json::from_value(value).unwrap())
        };
        (0..ready + not_ready).map(pod).collect()
    }

    fn budget(spec: Value, status: Value) -> PodDisruptionBudget {
        serde_json::from_value(json!({"metadata": {"name": "b", "generation": 1}, "spec": spec, "status": status}))
            .unwrap()
    }

    #[test]
    fn what_may_be_disrupted() {
        for (spec, pods, scale, expected) in [
            (json!({"minAvailable": 2}), pods(3, 0), 0, (3, 2, 3, 1)),
            (json!({"minAvailable": 3}), pods(3, 0), 0, (3, 3, 3, 0)),
            (json!({"minAvailable": "50%"}), pods(3, 0), 5, (3, 3, 5, 0)),
            (json!({"maxUnavailable": 1}), pods(4, 1), 5, (4, 4, 5, 0)),
            (json!({"maxUnavailable": "40%"}), pods(5, 0), 5, (5, 3, 5, 2)),
            (json!({"maxUnavailable": 10}), pods(0, 0), 0, (0, 0, 0, 0)),
        ] {
            let status = status(&budget(spec.clone(), json!({})), &pods, scale, now()).0;
            let counts =
                (status.current_healthy, status.desired_healthy, status.expected_pods, status.disruptions_allowed);
            assert_eq!(counts, (Some(expected.0), Some(expected.1), Some(expected.2), Some(expected.3)), "{spec}");
        }
    }

    #[test]
    fn granted_evictions_count_until_their_time_is_over() {
        let granted = json!({"disruptedPods": {"p0": "2026-01-01T00:09:00Z", "p1": "2026-01-01T00:01:00Z"}});
        let (status, recheck) = status(&budget(json!({"minAvailable": 1}), granted), &pods(3, 0), 0, now());
        assert_eq!(status.current_healthy, Some(2));
        assert_eq!(status.disrupted_pods.unwrap().into_keys().collect::<Vec<_>>(), ["p0"]);
        assert_eq!(recheck, Some("2026-01-01T00:11:00Z".parse().unwrap()));
    }

    #[test]
    fn an_unknown_state_allows_no_disruption() {
        let before = status(&budget(json!({"minAvailable": 1}), json!({})), &pods(3, 0), 0, now()).0;
        let budget = PodDisruptionBudget { status: Some(before), ..PodDisruptionBudget::default() };
        let failed = failed(&budget, "found no controllers", now());
        assert_eq!(failed.disruptions_allowed, Some(0));
        assert_eq!(failed.conditions.unwrap()[0].reason, "SyncFailed");
    }
}
