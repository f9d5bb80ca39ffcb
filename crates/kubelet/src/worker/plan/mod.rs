//! Computes the next actions for a pod: a pure function of the pod, the runtime's state, the worker's state, and the
//! time.

mod containers;
mod terminate;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_client::time::until;
use tokio::time::Instant;

use super::state::{Operation, Waiting, WorkerState};
use crate::pod;
use crate::runtime::{ContainerView, RuntimePod, Sandbox, State};
use containers::run_containers;
use terminate::terminate;

pub struct Situation<'a> {
    pub pod: &'a Pod,
    pub runtime: &'a RuntimePod,
    pub state: &'a WorkerState,
    pub now: Instant,
    /// The wall-clock time of `now`, for deadlines in the API.
    pub wall: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Allocate exclusive CPUs, memory and devices.
    Allocate,
    MountVolumes,
    CreateSandbox {
        attempt: u32,
    },
    StopSandbox {
        id: String,
    },
    Start {
        container: String,
        sandbox: String,
        attempt: u32,
        restart: bool,
    },
    Stop {
        id: String,
        container: String,
        grace: i64,
        why: StopReason,
        /// Whether it gets the signal after its hook, or waits for its turn after that.
        in_turn: bool,
    },
    /// The turn of a container that waits for it to be stopped.
    TakeTurn {
        id: String,
    },
    Remove {
        id: String,
    },
    /// Apply changed resources.
    Resize,
}

/// Why a running container is stopped, for its event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    PodTerminates,
    Liveness,
    Startup,
    ImageChanged,
    SandboxGone,
    RestartAll,
    Resize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub actions: Vec<Action>,
    /// Plan again at this time even if nothing happens.
    pub wake_at: Option<Instant>,
    /// Containers that wait for their restart back-off.
    pub backing_off: BTreeMap<String, Waiting>,
    /// Nothing of the pod runs, and nothing will start.
    pub terminated: bool,
}

impl Plan {
    fn wake(&mut self, at: Instant) {
        self.wake_at = Some(self.wake_at.map_or(at, |known| known.min(at)));
    }
}

pub fn plan(situation: &Situation<'_>) -> Plan {
    let mut plan = Plan::default();
    if situation.state.termination.is_some() {
        terminate(situation, &mut plan);
    } else {
        run(situation, &mut plan);
        remove_remains(situation, &mut plan);
    }
    plan
}

/// When a container with this grace period in seconds is killed.
pub fn kill_time(now: Instant, grace: i64) -> Instant {
    const MAX_SECONDS: u64 = 100 * 365 * 24 * 3600;
    now + Duration::from_secs(u64::try_from(grace).unwrap_or(0).min(MAX_SECONDS))
}

fn stop(situation: &Situation<'_>, plan: &mut Plan, container: &ContainerView, grace: i64, why: StopReason) {
    stop_in_turn(situation, plan, container, grace, why, true);
}

fn stop_in_turn(
    situation: &Situation<'_>,
    plan: &mut Plan,
    container: &ContainerView,
    grace: i64,
    why: StopReason,
    in_turn: bool,
) {
    let Situation { state, now, .. } = situation;
    let id = container.id.clone();
    if in_turn && state.turns.contains_key(&id) {
        plan.actions.push(Action::TakeTurn { id: id.clone() });
    }
    let kill_at = kill_time(*now, grace);
    // Repeated only if it failed, or if the grace period became notably shorter.
    if let Some(known) = state.stopping.get(&container.id)
        && !state.stop_again.contains(&container.id)
        && known.saturating_duration_since(kill_at) < Duration::from_secs(2)
    {
        return;
    }
    plan.actions.push(Action::Stop { id, container: container.name.clone(), grace, why, in_turn });
}

fn stop_sandbox(situation: &Situation<'_>, plan: &mut Plan, sandbox: &Sandbox) {
    let id = sandbox.id.clone();
    if may_request(situation, plan, &Operation::StopSandbox(id.clone())) {
        plan.actions.push(Action::StopSandbox { id });
    }
}

fn remove(situation: &Situation<'_>, plan: &mut Plan, id: &str) {
    let action = Action::Remove { id: id.to_string() };
    if !plan.actions.contains(&action) && may_request(situation, plan, &Operation::Remove(id.to_string())) {
        plan.actions.push(action);
    }
}

/// Whether to request an operation now: not while it is in progress, and after a failure only when its retry is due.
fn may_request(situation: &Situation<'_>, plan: &mut Plan, operation: &Operation) -> bool {
    let Situation { state, now, .. } = situation;
    if state.is_busy(operation) {
        return false;
    }
    match state.refused.get(operation) {
        Some(at) if at > now => {
            plan.wake(*at);
            false
        }
        _ => true,
    }
}

fn run(situation: &Situation<'_>, plan: &mut Plan) {
    let Situation { pod, runtime, state, now, wall } = situation;
    if state.to_allocate {
        if !state.is_busy(&Operation::Allocate) {
            plan.actions.push(Action::Allocate);
        }
        return;
    }
    if !state.volumes.ready {
        if !state.is_busy(&Operation::Volumes) {
            match state.volumes.retry_at {
                Some(at) if at > *now => plan.wake(at),
                _ => plan.actions.push(Action::MountVolumes),
            }
        }
        return;
    }
    match runtime.current_sandbox().filter(|sandbox| sandbox.ready) {
        Some(sandbox) => run_containers(situation, plan, sandbox),
        None => renew_sandbox(situation, plan),
    }
    if let Some(seconds) = pod::spec(pod).active_deadline_seconds
        && let Some(start) = pod.status.as_ref().and_then(|status| status.start_time.as_ref())
    {
        let deadline = start.0.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX);
        plan.wake(*now + until(*wall, deadline));
    }
}

fn renew_sandbox(situation: &Situation<'_>, plan: &mut Plan) {
    let Situation { pod, runtime, state, now, .. } = situation;
    if state.is_busy(&Operation::Sandbox) || state.is_starting() {
        return;
    }
    let mut waits = false;
    for container in runtime.running() {
        stop(situation, plan, container, pod::grace_seconds(pod), StopReason::SandboxGone);
        waits = true;
    }
    for sandbox in runtime.sandboxes.iter().filter(|sandbox| !state.stopped_sandboxes.contains(&sandbox.id)) {
        waits = true;
        stop_sandbox(situation, plan, sandbox);
    }
    if waits {
        return;
    }
    let attempt = runtime.current_sandbox().map_or(0, |sandbox| sandbox.attempt + 1);
    let may_restart = pod::restart_policy(pod) != "Never";
    if attempt > 0 && !may_restart && !runtime.containers.is_empty() {
        return;
    }
    match state.sandbox_retry_at {
        Some(at) if at > *now => plan.wake(at),
        _ => plan.actions.push(Action::CreateSandbox { attempt }),
    }
}

/// Removes all but the newest two instances of each container, but never a running one.
fn remove_remains(situation: &Situation<'_>, plan: &mut Plan) {
    let Situation { pod, runtime, state, .. } = situation;
    for (_, name) in pod::roles(pod) {
        for old in runtime.all_of(name).skip(2) {
            if old.state == State::Exited {
                remove(situation, plan, &old.id);
            }
        }
    }
    if state.is_busy(&Operation::Sandbox) || state.is_starting() {
        return;
    }
    for old in runtime.sandboxes.iter().skip(1) {
        let used = runtime.containers.iter().any(|container| container.sandbox == old.id);
        if !used && state.stopped_sandboxes.contains(&old.id) {
            remove(situation, plan, &old.id);
        }
    }
}

#[cfg(test)]
mod tests;
