//! Backoff of a job after failures: 10 s at first, doubling up to 10 minutes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_client::pod_resources::is_sidecar;
use parking_lot::Mutex;

use crate::common::Key;

const INITIAL_BACKOFF: Duration = Duration::from_secs(10);
const MAX_BACKOFF: Duration = Duration::from_secs(600);

/// Failures since the last success, and when the last of them was.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Failures {
    pub count: u32,
    pub last: Option<Timestamp>,
}

impl Failures {
    /// The backoff after pods were newly observed to have finished.
    pub fn after(self, succeeded: &[Arc<Pod>], failed: &[Arc<Pod>]) -> Self {
        let last_success = succeeded.iter().map(|pod| finished_at(pod)).max();
        let before = if last_success.is_some() { Self::default() } else { self };
        let recent = failed.iter().map(|pod| finished_at(pod));
        let recent: Vec<Timestamp> = recent.filter(|at| last_success.is_none_or(|success| *at > success)).collect();
        Self { count: before.count + recent.len() as u32, last: recent.into_iter().max().or(before.last) }
    }

    pub fn remaining(self, now: Timestamp) -> Duration {
        self.last.map_or(Duration::ZERO, |last| remaining(self.count, last, now))
    }
}

/// The remaining delay after this many failures, the last of which was at `last`.
pub(super) fn remaining(failures: u32, last: Timestamp, now: Timestamp) -> Duration {
    if failures == 0 {
        return Duration::ZERO;
    }
    let wait = INITIAL_BACKOFF.saturating_mul(1u32.checked_shl(failures - 1).unwrap_or(u32::MAX)).min(MAX_BACKOFF);
    let elapsed = Duration::try_from(now.duration_since(last)).unwrap_or_default();
    wait.saturating_sub(elapsed)
}

/// When a pod finished: by its containers, else by its readiness, its deletion or at last its creation.
pub(super) fn finished_at(pod: &Pod) -> Timestamp {
    by_containers(pod)
        .or_else(|| by_readiness(pod))
        .or_else(|| by_deletion(pod))
        .unwrap_or_else(|| pod.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |at| at.0))
}

fn by_containers(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref()?;
    let is_sidecar = |name: &str| {
        let mut init = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
        init.any(|container| container.name == name && is_sidecar(container))
    };
    let sidecars = status.init_container_statuses.iter().flatten().filter(|container| is_sidecar(&container.name));
    let finished =
        |container: &ContainerStatus| Some(container.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()?.0);
    let all: Option<Vec<Timestamp>> =
        status.container_statuses.iter().flatten().chain(sidecars).map(finished).collect();
    all?.into_iter().max()
}

fn by_readiness(pod: &Pod) -> Option<Timestamp> {
    let ready = knarr_client::pod::condition(pod, "Ready").filter(|ready| ready.status == "False")?;
    Some(ready.last_transition_time.as_ref()?.0)
}

fn by_deletion(pod: &Pod) -> Option<Timestamp> {
    let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(0));
    pod.metadata.deletion_timestamp.as_ref()?.0.checked_sub(grace).ok()
}

/// The backoffs of all unfinished jobs.
#[derive(Default)]
pub(super) struct Records(Mutex<HashMap<Key, Failures>>);

impl Records {
    pub fn get(&self, key: &Key) -> Failures {
        self.0.lock().get(key).copied().unwrap_or_default()
    }

    pub fn set(&self, key: &Key, failures: Failures) {
        self.0.lock().insert(key.clone(), failures);
    }

    pub fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn finished(second: i64) -> Arc<Pod> {
        let at = Timestamp::from_second(second).unwrap().to_string();
        Arc::new(serde_json::from_value(json!({"metadata": {"creationTimestamp": at}})).unwrap())
    }

    #[test]
    fn failures_count_since_the_last_success() {
        let none = Failures::default();
        let at = |second| Timestamp::from_second(second).unwrap();
        let two = none.after(&[], &[finished(10), finished(20)]);
        assert_eq!(two, Failures { count: 2, last: Some(at(20)) });
        assert_eq!(two.after(&[], &[]), two);
        assert_eq!(two.after(&[finished(30)], &[]), none);
        assert_eq!(
            two.after(&[finished(30)], &[finished(25), finished(40)]),
            Failures { count: 1, last: Some(at(40)) }
        );
    }

    #[test]
    fn waiting_doubles() {
        let at = |second| Timestamp::from_second(second).unwrap();
        for (count, now, left) in [(0, 0, 0), (1, 0, 10), (2, 0, 20), (2, 5, 15), (2, 30, 0), (30, 0, 600)] {
            assert_eq!(Failures { count, last: Some(at(0)) }.remaining(at(now)), Duration::from_secs(left));
        }
    }
}
