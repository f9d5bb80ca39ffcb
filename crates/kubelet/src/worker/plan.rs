//! Computes the next actions for a pod: a pure function of the pod, the runtime's state, the worker's state, and the
//! time.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_client::time::until;
use tokio::time::Instant;

use super::resize;
use super::restart::{AfterExit, after_exit, restarts_all, to_remove_for_restart};
use super::state::{Operation, Termination, Waiting, WorkerState};
use crate::pod::{self, Role};
use crate::runtime::{ContainerView, RuntimePod, Sandbox, State};

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

/// Stops main containers first, then sidecars from last to first, then the sandbox.
fn terminate(situation: &Situation<'_>, plan: &mut Plan) {
    let Situation { pod, runtime, state, now, .. } = situation;
    if state.is_starting() || state.is_busy(&Operation::Sandbox) {
        // A start in progress finishes by itself; its container is stopped when it is known.
        for container in runtime.running() {
            stop(situation, plan, container, termination_grace(pod, state, *now), StopReason::PodTerminates);
        }
        return;
    }
    let grace = termination_grace(pod, state, *now);
    let is_sidecar = |name: &str| pod::init_containers(pod).any(|(role, c)| role == Role::Sidecar && c.name == name);
    let mut waits = false;
    for container in runtime.running().filter(|container| !is_sidecar(&container.name)) {
        stop(situation, plan, container, grace, StopReason::PodTerminates);
        waits = true;
    }
    for (role, sidecar) in pod::init_containers(pod).rev() {
        if waits || role != Role::Sidecar {
            continue;
        }
        for container in runtime.running().filter(|container| container.name == sidecar.name) {
            stop(situation, plan, container, grace, StopReason::PodTerminates);
            waits = true;
        }
    }
    if waits {
        return;
    }
    for sandbox in &runtime.sandboxes {
        if sandbox.ready || !state.stopped_sandboxes.contains(&sandbox.id) {
            waits = true;
            stop_sandbox(situation, plan, sandbox);
        }
    }
    plan.terminated = !waits;
}

/// When a container with this grace period in seconds is killed.
pub fn kill_time(now: Instant, grace: i64) -> Instant {
    const MAX_SECONDS: u64 = 100 * 365 * 24 * 3600;
    now + Duration::from_secs(u64::try_from(grace).unwrap_or(0).min(MAX_SECONDS))
}

/// The rest of the pod's grace period in seconds.
fn termination_grace(pod: &Pod, state: &WorkerState, now: Instant) -> i64 {
    let whole = match &state.termination {
        Some(Termination::Stopped { grace: Some(grace), .. }) => *grace,
        _ => pod::grace_seconds(pod),
    };
    let passed = state.terminating_since.map_or(0, |since| now.saturating_duration_since(since).as_secs());
    let passed = i64::try_from(passed).unwrap_or(i64::MAX);
    (whole - passed).max(if passed > 0 { 2.min(whole) } else { 0 }).max(1)
}

fn stop(situation: &Situation<'_>, plan: &mut Plan, container: &ContainerView, grace: i64, why: StopReason) {
    let Situation { state, now, .. } = situation;
    let kill_at = kill_time(*now, grace);
    // Repeated only if it failed, or if the grace period became notably shorter.
    if let Some(known) = state.stopping.get(&container.id)
        && !state.stop_again.contains(&container.id)
        && known.saturating_duration_since(kill_at) < Duration::from_secs(2)
    {
        return;
    }
    plan.actions.push(Action::Stop { id: container.id.clone(), container: container.name.clone(), grace, why });
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

fn run_containers(situation: &Situation<'_>, plan: &mut Plan, sandbox: &Sandbox) {
    let Situation { pod, runtime, state, .. } = situation;
    for container in pod::ephemeral_containers(pod) {
        if runtime.latest(&container.name).is_none() {
            start(situation, plan, sandbox, &container.name, None);
        }
    }
    let initialized = pod::main_containers(pod).any(|c| runtime.latest_in(&sandbox.id, &c.name).is_some());
    // Main containers start together: one that exits at once does not prevent the first start of others.
    let all_attempted = pod::main_containers(pod).all(|c| state.starts.attempted.contains(&c.name));
    if restarts_all(pod, runtime) && (all_attempted || !initialized) {
        restart_all(situation, plan);
        return;
    }
    run_in_order(situation, plan, sandbox, initialized);
    resize(situation, plan);
}

/// Init containers one after the other, then the main containers.
fn run_in_order(situation: &Situation<'_>, plan: &mut Plan, sandbox: &Sandbox, initialized: bool) {
    let Situation { pod, .. } = situation;
    for (role, container) in pod::init_containers(pod) {
        let done = match role {
            Role::Sidecar => run_sidecar(situation, plan, sandbox, container),
            _ => initialized || run_init(situation, plan, sandbox, container),
        };
        if !done && !initialized {
            return;
        }
    }
    for container in pod::main_containers(pod) {
        run_main(situation, plan, sandbox, container);
    }
}

/// Resizes containers in place where their policy allows it; others are stopped and restart with the new resources.
fn resize(situation: &Situation<'_>, plan: &mut Plan) {
    let Situation { pod, runtime, state, now, .. } = situation;
    let is_running = |name: &str| runtime.latest(name).is_some_and(ContainerView::is_running);
    let mut in_place = false;
    for container in resize::outstanding(pod, &state.resize.applied, is_running) {
        match runtime.latest(&container.name) {
            Some(view) if resize::needs_restart(pod, container, &state.resize.applied) => {
                stop(situation, plan, view, pod::grace_seconds(pod), StopReason::Resize);
            }
            _ => in_place = true,
        }
    }
    let in_place = in_place || resize::is_whole_outstanding(pod, &state.resize.applied);
    if !in_place || state.is_busy(&Operation::Resize) {
        return;
    }
    match &state.resize.failed {
        Some((_, at)) if at > now => plan.wake(*at),
        _ => plan.actions.push(Action::Resize),
    }
}

/// Kills and removes all containers but the ephemeral ones; then they start as in a new pod.
fn restart_all(situation: &Situation<'_>, plan: &mut Plan) {
    let Situation { pod, runtime, state, .. } = situation;
    if state.is_starting() {
        return;
    }
    let own = |name: &str| pod::ephemeral_containers(pod).all(|container| container.name != name);
    let mut running = runtime.running().filter(|container| own(&container.name)).peekable();
    if running.peek().is_some() {
        running.for_each(|container| stop(situation, plan, container, 0, StopReason::RestartAll));
        return;
    }
    for old in to_remove_for_restart(pod, runtime) {
        remove(situation, plan, &old.id);
    }
}

/// Runs an init container. Returns whether the next one may start.
fn run_init(situation: &Situation<'_>, plan: &mut Plan, sandbox: &Sandbox, container: &Container) -> bool {
    let Situation { pod, runtime, .. } = situation;
    let Some(view) = runtime.latest_in(&sandbox.id, &container.name) else {
        start(situation, plan, sandbox, &container.name, runtime.latest(&container.name));
        return false;
    };
    match view.state {
        State::Running => false,
        State::Exited if view.exit_code == 0 => true,
        State::Exited => {
            if after_exit(pod, Role::Init, container, view.exit_code) == AfterExit::Restart {
                start(situation, plan, sandbox, &container.name, Some(view));
            }
            false
        }
        State::Created | State::Unknown => {
            start(situation, plan, sandbox, &container.name, Some(view));
            false
        }
    }
}

fn run_sidecar(situation: &Situation<'_>, plan: &mut Plan, sandbox: &Sandbox, container: &Container) -> bool {
    let Situation { pod, runtime, state, .. } = situation;
    match runtime.latest_in(&sandbox.id, &container.name) {
        Some(view) if view.is_running() => {
            stop_if_unhealthy(situation, plan, container, view);
            let results = state.probes.get(&view.id).copied().unwrap_or_default();
            let over = !state.is_busy(&Operation::Start(container.name.clone()));
            over && (container.startup_probe.is_none() || results.started == Some(true))
        }
        Some(view) => {
            // A sidecar whose exit restarts all containers waits for that.
            if after_exit(pod, Role::Sidecar, container, view.exit_code) != AfterExit::RestartAll {
                start(situation, plan, sandbox, &container.name, Some(view));
            }
            false
        }
        None => {
            start(situation, plan, sandbox, &container.name, runtime.latest(&container.name));
            false
        }
    }
}

fn run_main(situation: &Situation<'_>, plan: &mut Plan, sandbox: &Sandbox, container: &Container) {
    let Situation { pod, runtime, .. } = situation;
    let Some(view) = runtime.latest(&container.name) else {
        start(situation, plan, sandbox, &container.name, None);
        return;
    };
    match view.state {
        State::Running => stop_if_unhealthy(situation, plan, container, view),
        State::Exited => {
            if after_exit(pod, Role::Main, container, view.exit_code) == AfterExit::Restart {
                start(situation, plan, sandbox, &container.name, Some(view));
            }
        }
        State::Created | State::Unknown => start(situation, plan, sandbox, &container.name, Some(view)),
    }
}

fn stop_if_unhealthy(situation: &Situation<'_>, plan: &mut Plan, container: &Container, view: &ContainerView) {
    let Situation { pod, state, .. } = situation;
    let results = state.probes.get(&view.id).copied().unwrap_or_default();
    let grace_of = |probe: &Option<k8s_openapi::api::core::v1::Probe>| {
        let own = probe.as_ref().and_then(|probe| probe.termination_grace_period_seconds);
        own.unwrap_or_else(|| pod::grace_seconds(pod)).max(1)
    };
    if results.startup_failed {
        stop(situation, plan, view, grace_of(&container.startup_probe), StopReason::Startup);
    } else if results.liveness_failed {
        stop(situation, plan, view, grace_of(&container.liveness_probe), StopReason::Liveness);
    } else if container.image.as_deref().is_some_and(|image| image != view.image)
        && view.annotations.contains_key(crate::runtime::label::IMAGE)
    {
        stop(situation, plan, view, pod::grace_seconds(pod), StopReason::ImageChanged);
    }
}

/// Starts a container if nothing prevents it. Containers of a pod start one after the other, as their order and their
/// post-start hooks may matter.
fn start(situation: &Situation<'_>, plan: &mut Plan, sandbox: &Sandbox, name: &str, previous: Option<&ContainerView>) {
    let Situation { pod, state, now, .. } = situation;
    if state.is_busy(&Operation::Start(name.to_string())) {
        return;
    }
    if let Some(at) = state.starts.retry_at.get(name)
        && at > now
    {
        plan.wake(*at);
        return;
    }
    let restart = previous.is_some_and(|view| view.state == State::Exited && view.sandbox == sandbox.id);
    // An exit that no event was seen for belongs to a previous process, whose delays are not known.
    if restart && let Some(exited) = previous.and_then(|view| state.exits.get(&view.id)) {
        let allowed = state.restart_allowed_at(name, *exited);
        if allowed > *now {
            plan.wake(allowed);
            let delay = k8s_duration(state.restart_delay(name));
            let message = format!("back-off {delay} restarting failed container={name} pod={}", pod::full_title(pod));
            plan.backing_off.insert(name.to_string(), Waiting { reason: "CrashLoopBackOff".into(), message });
            return;
        }
    }
    let another = plan.actions.iter().any(|action| matches!(action, Action::Start { .. }));
    if another || state.is_starting() {
        return;
    }
    let attempt = previous.map_or_else(|| reported_restarts(pod, name), |view| view.restart_count + 1);
    plan.actions.push(Action::Start { container: name.to_string(), sandbox: sandbox.id.clone(), attempt, restart });
}

/// A container that the runtime lost but the API has counts as restarted. One that was removed to restart has already
/// been counted.
fn reported_restarts(pod: &Pod, name: &str) -> u32 {
    let Some(status) = &pod.status else { return 0 };
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let known = all.into_iter().find(|container| container.name == name);
    known.map_or(0, |container| {
        u32::try_from(container.restart_count).unwrap_or(0) + u32::from(container.container_id.is_some())
    })
}

/// Formats a duration as in Kubernetes' messages: "10s", "1m20s", "5m0s".
pub fn k8s_duration(duration: std::time::Duration) -> String {
    let seconds = duration.as_secs();
    if seconds >= 60 { format!("{}m{}s", seconds / 60, seconds % 60) } else { format!("{seconds}s") }
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
