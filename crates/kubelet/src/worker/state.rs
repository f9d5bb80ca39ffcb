//! What a worker remembers between two looks at its pod. All of it may be lost: a restarted node finds what matters in
//! the runtime and in the API.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

#[derive(Clone, Debug, Default)]
pub struct WorkerState {
    /// CPUs, memory or devices must be set aside before anything starts.
    pub to_allocate: bool,
    pub volumes_ready: bool,
    /// Not before this moment the volumes, and the sandbox, are tried again.
    pub volumes_retry_at: Option<Timestamp>,
    pub volume_failures: u32,
    pub sandbox_retry_at: Option<Timestamp>,
    /// What runs now on behalf of the pod.
    pub operations: HashSet<Operation>,
    /// What the runtime could not do, and not before which moment it is asked again.
    pub refused: HashMap<Operation, Timestamp>,
    /// Containers told to stop, with the moment of their kill.
    pub stopping: HashMap<String, Timestamp>,
    /// Those of them that the runtime could not stop.
    pub stop_again: HashSet<String>,
    /// Why a container does not run, as its last start found.
    pub waiting: BTreeMap<String, Waiting>,
    /// Not before this moment a failed start is tried again.
    pub start_retry_at: HashMap<String, Timestamp>,
    pub restarts: HashMap<String, RestartDelay>,
    /// Results of probes by container id.
    pub probes: HashMap<String, ProbeResults>,
    /// Containers whose start, hook included, is over.
    pub started: HashSet<String>,
    /// Containers whose start was tried since the pod, or the restart of all its containers, began.
    pub tried: HashSet<String>,
    /// Ends heard of before the start that leads to them was over.
    pub early_exits: HashSet<String>,
    pub ending: Option<Ending>,
    pub ending_since: Option<Timestamp>,
    /// Sandboxes whose network has been given back.
    pub stopped_sandboxes: HashSet<String>,
    pub first_seen: Option<Timestamp>,
    /// The resources the runtime was told, by container.
    pub applied: super::resize::ByContainer,
    /// The generation of the pod whose change of resources is granted and under way.
    pub resizing: Option<i64>,
    /// Why a change of resources is not granted.
    pub resize_pending: Option<super::resize::Pending>,
    /// Why the last change of resources failed, and when it is tried again.
    pub resize_failed: Option<(String, Timestamp)>,
    /// The runtime holds nothing of the ended pod that is not known.
    pub searched: bool,
    /// The pod's volumes and cgroups are gone.
    pub cleaned: bool,
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

/// Why all containers of a pod must end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Deleted in the API, or its manifest went away.
    Deleted,
    /// It is gone from the API while its containers are not.
    Removed,
    /// Its containers are done and none will be started again.
    Finished,
    /// It was never let in.
    Rejected { reason: String, message: String },
    /// The node ends it: with the reason and message its status gets, and a grace of its own.
    Stopped { reason: String, message: String, grace: Option<i64>, condition: Option<(String, String)> },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeResults {
    pub ready: Option<bool>,
    pub started: Option<bool>,
    pub liveness_failed: bool,
    pub startup_failed: bool,
}

/// How long a container waits before it is started again, counted from its end: nothing at first, then doubling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartDelay {
    pub delay: Duration,
    pub updated: Timestamp,
}

const FIRST_DELAY: Duration = Duration::from_secs(10);
const LONGEST_DELAY: Duration = Duration::from_secs(300);
/// A container that ran this long without a restart begins with no delay again.
const FORGIVEN_AFTER: SignedDuration = SignedDuration::from_secs(600);

impl WorkerState {
    /// The moment a container that ended at `finished` may start again.
    pub fn restart_allowed_at(&self, name: &str, finished: Timestamp) -> Timestamp {
        let Some(entry) = self.restarts.get(name) else { return finished };
        if finished.duration_since(entry.updated) > FORGIVEN_AFTER {
            return finished;
        }
        finished.saturating_add(SignedDuration::try_from(entry.delay).unwrap_or_default()).unwrap_or(Timestamp::MAX)
    }

    /// To be called when a container that ended is started again.
    pub fn note_restart(&mut self, name: &str, now: Timestamp) {
        let delay = match self.restarts.get(name) {
            Some(entry) if now.duration_since(entry.updated) <= FORGIVEN_AFTER + SignedDuration::from_secs(300) => {
                (entry.delay * 2).min(LONGEST_DELAY)
            }
            _ => FIRST_DELAY,
        };
        self.restarts.insert(name.to_string(), RestartDelay { delay, updated: now });
    }

    /// A pod of which no main container is left begins anew.
    pub fn forget_tried(&mut self, no_main_container: bool) {
        if no_main_container && !self.is_starting() {
            self.tried.clear();
        }
    }

    pub fn restart_delay(&self, name: &str) -> Duration {
        self.restarts.get(name).map_or(FIRST_DELAY, |entry| entry.delay)
    }

    pub fn is_busy(&self, operation: &Operation) -> bool {
        self.operations.contains(operation)
    }

    pub fn is_starting(&self) -> bool {
        self.operations.iter().any(|operation| matches!(operation, Operation::Start(_)))
    }
}
