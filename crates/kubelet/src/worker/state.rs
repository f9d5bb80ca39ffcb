//! The state of a pod's worker between reconciliations. All of it may be lost: a restarted kubelet recovers what it
//! needs from the runtime and the API.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::pod;
use crate::settings::RestartBackoff;

/// What a worker knows about its pod beyond spec, status and the runtime's state.
#[derive(Clone, Debug, Default)]
pub struct WorkerState {
    /// CPUs, memory or devices must be allocated before anything starts.
    pub to_allocate: bool,
    pub volumes: VolumeState,
    pub starts: StartState,
    pub resize: ResizeState,
    /// The earliest retry of creating the sandbox.
    pub sandbox_retry_at: Option<Instant>,
    /// Operations in progress.
    pub operations: HashSet<Operation>,
    /// Operations that the runtime failed, and the earliest retry.
    pub refused: HashMap<Operation, Instant>,
    /// Containers that are being stopped, and when they will be killed.
    pub stopping: HashMap<String, Instant>,
    /// Those of them that wait for their turn.
    pub turns: HashMap<String, Arc<Notify>>,
    /// Those that the runtime failed to stop.
    pub stop_again: HashSet<String>,
    pub restarts: HashMap<String, RestartDelay>,
    /// When the worker observed the exit of a container, by its id. The restart delay counts from here, as the runtime's
    /// time of exit is wall-clock time, which may jump.
    pub exits: HashMap<String, Instant>,
    /// Results of probes by container id.
    pub probes: HashMap<String, ProbeResults>,
    pub termination: Option<Termination>,
    pub terminating_since: Option<Instant>,
    /// Sandboxes that are stopped, with their network released.
    pub stopped_sandboxes: HashSet<String>,
    pub first_seen: Option<Timestamp>,
    /// The runtime has no unknown containers of the terminated pod.
    pub searched: bool,
    /// The pod's volumes and cgroups are gone.
    pub cleaned: bool,
    /// Failed attempts at that in a row.
    pub clean_failures: u32,
}

/// The mounting of the pod's volumes.
#[derive(Clone, Debug, Default)]
pub struct VolumeState {
    pub ready: bool,
    /// Something that the volumes contain changed since the mount in progress was started.
    pub changed: bool,
    /// The earliest retry of mounting the volumes.
    pub retry_at: Option<Instant>,
    pub failures: u32,
    /// Since when the volumes have not been mounted, or the last event about that.
    pub unmounted_since: Option<Instant>,
}

/// Pods whose volumes are not mounted by then get an event, and again after each such time.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(123);
/// How often a worker looks whether its volumes are attached, besides being notified.
const ATTACH_RECHECK_INTERVAL: Duration = Duration::from_secs(15);

impl VolumeState {
    /// The content of the volumes changed: they are mounted again, even if a mount is in progress.
    pub fn invalidate(&mut self) {
        self.ready = false;
        self.changed = true;
    }

    pub fn start_mount(&mut self) {
        self.changed = false;
    }

    pub fn finish_mount(&mut self) {
        self.ready = !self.changed;
        self.failures = 0;
        self.retry_at = None;
        self.unmounted_since = None;
    }

    /// The volumes are not, or not all, mounted. `complete` ones of an earlier mount stay in use while an update fails.
    /// Returns whether it is time for an event about that.
    pub fn fail_mount(&mut self, complete: bool, waits: bool, now: Instant) -> bool {
        self.ready = complete;
        self.failures = if waits { 0 } else { self.failures.saturating_add(1) };
        let wait = if waits { ATTACH_RECHECK_INTERVAL } else { crate::backoff::backoff(self.failures) };
        // A notification during the mount must not be lost.
        self.retry_at = Some(if self.changed { now } else { now + wait });
        let since = *self.unmounted_since.get_or_insert(now);
        let is_late = !complete && now.saturating_duration_since(since) >= MOUNT_TIMEOUT;
        if is_late {
            self.unmounted_since = Some(now);
        }
        is_late
    }
}

/// The starts of containers, by name unless stated otherwise.
#[derive(Clone, Debug, Default)]
pub struct StartState {
    /// Why a container does not run, from its last start.
    pub waiting: BTreeMap<String, Waiting>,
    /// The earliest retry of a failed start.
    pub retry_at: HashMap<String, Instant>,
    /// Containers whose start, hook included, has finished.
    pub finished: HashSet<String>,
    /// Containers whose start was attempted since the pod, or the restart of all its containers, started.
    pub attempted: HashSet<String>,
    /// Exits that were reported before the container's start finished.
    pub early_exits: HashSet<String>,
}

/// The in-place resize of the pod.
#[derive(Clone, Debug, Default)]
pub struct ResizeState {
    /// The applied resources by container.
    pub applied: super::resize::ByContainer,
    /// The generation of the pod whose resize is granted and in progress.
    pub generation: Option<i64>,
    /// Why a resize is not granted.
    pub pending: Option<super::resize::Pending>,
    /// Why the last resize failed, and when it is retried.
    pub failed: Option<(String, Instant)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    Allocate,
    Volumes,
    Sandbox,
    Start(String),
    Stop(String),
    StopSandbox(String),
    Remove(String),
    Status,
    Delete,
    Search,
    Clean,
    Resize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    pub reason: String,
    pub message: String,
}

/// Why all containers of a pod must terminate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Termination {
    /// The pod is being deleted in the API, or its manifest is gone.
    Deleted,
    /// The pod is gone from the API, but its containers are not.
    Removed,
    /// Its containers have finished and none will be restarted.
    Finished,
    /// The node rejected it.
    Rejected { reason: String, message: String },
    /// The node terminates it, with this reason and message in its status and its own grace period.
    Stopped { reason: String, message: String, grace: Option<i64>, condition: Option<(String, String)> },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeResults {
    pub ready: Option<bool>,
    pub started: Option<bool>,
    pub liveness_failed: bool,
    pub startup_failed: bool,
}

/// The delay before a container is restarted, counted from its exit: none at first, then doubling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartDelay {
    pub delay: Duration,
    pub updated: Instant,
}

/// After this time without a restart the delay is reset.
const BACKOFF_RESET_AFTER: Duration = Duration::from_secs(600);

impl WorkerState {
    /// When a container that exited at `exited` may start again.
    pub fn restart_allowed_at(&self, name: &str, exited: Instant) -> Instant {
        let Some(entry) = self.restarts.get(name) else { return exited };
        if exited.saturating_duration_since(entry.updated) > BACKOFF_RESET_AFTER {
            return exited;
        }
        exited + entry.delay
    }

    /// Records the restart of a container.
    pub fn record_restart(&mut self, name: &str, now: Instant, backoff: RestartBackoff) {
        let delay = match self.restarts.get(name) {
            Some(entry) if now.saturating_duration_since(entry.updated) <= BACKOFF_RESET_AFTER + backoff.max => {
                (entry.delay * 2).min(backoff.max)
            }
            _ => backoff.initial,
        };
        self.restarts.insert(name.to_string(), RestartDelay { delay, updated: now });
    }

    /// Drops the delays of containers whose image changed: it was the old image that failed.
    pub fn reset_delays(&mut self, old: &Pod, new: &Pod) {
        if self.restarts.is_empty() && self.starts.retry_at.is_empty() {
            return;
        }
        let images = |pod: &Pod| -> BTreeMap<String, Option<String>> {
            let plain = pod::init_containers(pod).map(|(_, container)| container).chain(pod::main_containers(pod));
            plain.map(|container| (container.name.clone(), container.image.clone())).collect()
        };
        let before = images(old);
        for (name, image) in images(new) {
            if before.get(&name).is_some_and(|known| *known != image) {
                self.restarts.remove(&name);
                self.starts.retry_at.remove(&name);
            }
        }
    }

    /// Resets the attempted starts when no main container is left.
    pub fn reset_attempts(&mut self, no_main_container: bool) {
        if no_main_container && !self.is_starting() {
            self.starts.attempted.clear();
        }
    }

    pub fn restart_delay(&self, name: &str) -> Duration {
        self.restarts.get(name).map_or_else(Duration::default, |entry| entry.delay)
    }

    pub fn is_busy(&self, operation: &Operation) -> bool {
        self.operations.contains(operation)
    }

    pub fn is_starting(&self) -> bool {
        self.operations.iter().any(|operation| matches!(operation, Operation::Start(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn failed_mounts_are_repeated_with_growing_delays() {
        let start = Instant::now();
        let mut volumes = VolumeState::default();
        let mut delays = Vec::new();
        for _ in 0..4 {
            volumes.start_mount();
            assert!(!volumes.fail_mount(false, false, start));
            delays.push(volumes.retry_at.map(|at| (at - start).as_millis()));
        }
        assert_eq!(delays, [Some(500), Some(1000), Some(2000), Some(4000)]);
        volumes.start_mount();
        volumes.invalidate();
        volumes.fail_mount(false, false, start);
        assert_eq!(volumes.retry_at, Some(start), "a notification is followed at once");
        volumes.start_mount();
        assert!(volumes.fail_mount(false, true, start + MOUNT_TIMEOUT), "it is time for an event");
        assert!(!volumes.fail_mount(false, true, start + MOUNT_TIMEOUT), "which is not repeated at once");
        assert_eq!(volumes.failures, 0, "waiting is no failure");
    }

    #[test]
    fn a_change_during_a_mount_is_not_lost() {
        let mut volumes = VolumeState::default();
        volumes.start_mount();
        volumes.invalidate();
        volumes.finish_mount();
        assert!(!volumes.ready, "the mount may have read the state before the change");
        volumes.start_mount();
        volumes.finish_mount();
        assert!(volumes.ready);
    }

    #[test]
    fn a_new_image_starts_without_the_delays_of_the_old_one() {
        let pod = |a: &str| -> Pod {
            let containers = [("a", a), ("b", "b:1")].map(|(name, image)| json!({ "name": name, "image": image }));
            serde_json::from_value(json!({ "spec": { "containers": containers } })).expect("a pod")
        };
        let now = Instant::now();
        let mut state = WorkerState::default();
        for name in ["a", "b"] {
            state.record_restart(name, now, RestartBackoff::default());
            state.starts.retry_at.insert(name.into(), now);
        }
        state.reset_delays(&pod("a:1"), &pod("a:1"));
        assert_eq!((state.restarts.len(), state.starts.retry_at.len()), (2, 2), "nothing changed");
        state.reset_delays(&pod("a:1"), &pod("a:2"));
        assert_eq!(state.restarts.keys().collect::<Vec<_>>(), ["b"]);
        assert_eq!(state.starts.retry_at.keys().collect::<Vec<_>>(), ["b"]);
    }
}
