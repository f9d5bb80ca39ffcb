//! The plan of a pod's containers in a sandbox that is ready: their order, restarts, health and resizes.

use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_client::go_duration;

use super::terminate::terminate;
use super::{Action, Plan, Situation, StopReason, remove, stop};
use crate::pod::{self, Role};
use crate::runtime::{ContainerView, Sandbox, State};
use crate::worker::resize;
use crate::worker::restart::{
    AfterExit, after_exit, after_exit_of, restarts_all, restarts_on_failure, to_remove_for_restart,
};
use crate::worker::state::{Operation, Waiting};

pub fn run_containers(situation: &Situation<'_>, plan: &mut Plan, sandbox: &Sandbox) {
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
    if initialized && stops_pod(situation) {
        terminate(situation, plan);
        return;
    }
    run_in_order(situation, plan, sandbox, initialized);
    resize(situation, plan);
}

/// Whether the pod stops as a whole, sidecars included: its main containers that still run failed a probe, and none starts
/// again.
fn stops_pod(situation: &Situation<'_>) -> bool {
    let Situation { pod, runtime, .. } = situation;
    let mut some_fail = false;
    for container in pod::main_containers(pod) {
        let Some(view) = runtime.latest(&container.name) else { return false };
        let stays_stopped = match view.state {
            State::Running => {
                some_fail = true;
                let why = reason_to_stop(situation, container, view);
                matches!(why, Some(StopReason::Liveness | StopReason::Startup)) && !restarts_on_failure(pod, container)
            }
            State::Exited => after_exit_of(pod, runtime, Role::Main, container, view) == AfterExit::Stay,
            State::Created | State::Unknown => false,
        };
        if !stays_stopped {
            return false;
        }
    }
    some_fail
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
            if after_exit_of(pod, runtime, Role::Main, container, view) == AfterExit::Restart {
                start(situation, plan, sandbox, &container.name, Some(view));
            }
        }
        State::Created | State::Unknown => start(situation, plan, sandbox, &container.name, Some(view)),
    }
}

/// Why a running container must stop: another image is desired, or a probe failed.
fn reason_to_stop(situation: &Situation<'_>, container: &Container, view: &ContainerView) -> Option<StopReason> {
    let results = situation.state.probes.get(&view.id).copied().unwrap_or_default();
    let knows_image = view.annotations.contains_key(crate::runtime::label::IMAGE);
    if knows_image && container.image.as_deref().is_some_and(|image| image != view.image) {
        return Some(StopReason::ImageChanged);
    }
    if results.liveness_failed {
        return Some(StopReason::Liveness);
    }
    results.startup_failed.then_some(StopReason::Startup)
}

fn stop_if_unhealthy(situation: &Situation<'_>, plan: &mut Plan, container: &Container, view: &ContainerView) {
    let Some(why) = reason_to_stop(situation, container, view) else { return };
    let probe = match why {
        StopReason::Liveness => container.liveness_probe.as_ref(),
        StopReason::Startup => container.startup_probe.as_ref(),
        _ => None,
    };
    let own = probe.and_then(|probe| probe.termination_grace_period_seconds);
    stop(situation, plan, view, own.unwrap_or_else(|| pod::grace_seconds(situation.pod)).max(1), why);
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
            let delay = go_duration::format_duration(state.restart_delay(name));
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
