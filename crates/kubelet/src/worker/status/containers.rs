//! Computes the status of each container.

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    ContainerUser, LinuxContainerUser, VolumeMount, VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use knarr_client::time::truncated;

use super::Input;
use crate::pod::{self, Role};
use crate::runtime::{ContainerView, State};
use crate::worker::resize::same;
use crate::worker::restart::{Phase, will_restart};

/// The reason of containers that wait or terminated because all containers of the pod restart.
const RESTARTING_ALL: &str = "RestartingAllContainers";

pub fn init(input: &Input<'_>, phase: Phase) -> Vec<ContainerStatus> {
    let containers = pod::init_containers(input.pod);
    let mut statuses: Vec<_> = containers.map(|(role, container)| one(input, role, container, phase)).collect();
    if phase.is_final() && input.plan.terminated {
        finalize_init(&mut statuses);
    }
    statuses
}

/// In a terminated pod, the first init container and all up to the last one that ever started must be terminated too.
fn finalize_init(statuses: &mut [ContainerStatus]) {
    let started = |status: &ContainerStatus| {
        let terminated_before = status.last_state.as_ref().is_some_and(|last| last.terminated.is_some());
        terminated_before || status.state.as_ref().is_none_or(|state| state.waiting.is_none())
    };
    let last = statuses.iter().rposition(started).unwrap_or(0);
    statuses.iter_mut().take(last + 1).for_each(finalize);
}

pub fn main(input: &Input<'_>, phase: Phase) -> Vec<ContainerStatus> {
    pod::main_containers(input.pod).map(|container| one(input, Role::Main, container, phase)).collect()
}

pub fn ephemeral(input: &Input<'_>) -> Vec<ContainerStatus> {
    let names: Vec<&str> = pod::ephemeral_containers(input.pod).map(|container| container.name.as_str()).collect();
    let found = names.into_iter().filter_map(|name| pod::find(input.pod, name));
    found.map(|found| one(input, Role::Ephemeral, &found.container, Phase::Running)).collect()
}

fn one(input: &Input<'_>, role: Role, container: &Container, phase: Phase) -> ContainerStatus {
    let latest = input.runtime.latest(&container.name);
    let previous = reported(input, role, &container.name);
    let mut status = ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        ..Default::default()
    };
    match latest {
        Some(view) => {
            status.image.clone_from(&view.image);
            status.image_id = view.image_id.clone();
            status.container_id = Some(view.api_id(input.runtime_name));
            status.restart_count = i32::try_from(view.restart_count).unwrap_or(i32::MAX);
            let (state, last) = states(input, role, container, view);
            status.state = Some(state);
            status.last_state = last.or_else(|| carried_termination(previous, view, input.runtime_name));
            status.user = view.user.clone().map(|(uid, gid, groups)| ContainerUser {
                linux: Some(LinuxContainerUser { uid, gid, supplemental_groups: Some(groups) }),
            });
        }
        None => lost_or_waiting(input, role, container, previous, phase, &mut status),
    }
    // A container that never had its turn stays waiting.
    let had_turn = status.container_id.is_some() || super::was_initialized(input.previous);
    if phase.is_final() && input.plan.terminated && had_turn {
        finalize(&mut status);
    }
    let running = status.state.as_ref().is_some_and(|state| state.running.is_some());
    let probes = latest.and_then(|view| input.state.probes.get(&view.id)).copied().unwrap_or_default();
    let started = running && (container.startup_probe.is_none() || probes.started == Some(true));
    // Ephemeral containers have no `started`.
    status.started = Some(started).filter(|_| role != Role::Ephemeral);
    status.ready = match role {
        Role::Init => {
            let done = status.state.as_ref().and_then(|state| state.terminated.as_ref());
            done.is_some_and(|terminated| terminated.exit_code == 0)
        }
        Role::Ephemeral => false,
        _ => started && (container.readiness_probe.is_none() || probes.ready == Some(true)),
    };
    if latest.is_some() {
        let desired = container.resources.clone().unwrap_or_default();
        let applied = input.state.resize.applied.get(&container.name).filter(|applied| !same(applied, &desired));
        status.resources = Some(applied.cloned().unwrap_or(desired));
        status.allocated_resources = pod::requests(container).clone();
    }
    if role == Role::Main {
        status.allocated_resources_status = input.devices.get(&container.name).cloned();
    }
    status.volume_mounts = mounts(container);
    status
}

fn reported<'a>(input: &'a Input<'_>, role: Role, name: &str) -> Option<&'a ContainerStatus> {
    let list = match role {
        Role::Main => &input.previous.container_statuses,
        Role::Ephemeral => &input.previous.ephemeral_container_statuses,
        _ => &input.previous.init_container_statuses,
    };
    list.iter().flatten().find(|status| status.name == name)
}

/// The current state, and the termination of the previous instance.
fn states(
    input: &Input<'_>,
    role: Role,
    container: &Container,
    view: &ContainerView,
) -> (ContainerState, Option<ContainerState>) {
    let before = input.runtime.all_of(&container.name).nth(1).filter(|before| before.state == State::Exited);
    let before = before.map(|before| terminated_state(before, input.runtime_name));
    let starts_again = input.runtime.restarting.contains(&view.id) && input.state.termination.is_none();
    match view.state {
        State::Running => (running(view), before),
        // The API takes a container that terminated for good by its policy and exit code for just that.
        State::Exited if starts_again => {
            (waiting_for(input, role, container), Some(terminated_state(view, input.runtime_name)))
        }
        State::Exited => {
            let restarts = will_restart(input.pod, role, container, view) && input.state.termination.is_none();
            let waiting = input
                .plan
                .backing_off
                .get(&container.name)
                .or_else(|| input.state.starts.waiting.get(&container.name))
                .filter(|_| restarts);
            match waiting {
                Some(why) => (
                    waiting_state(&why.reason, Some(why.message.clone())),
                    Some(terminated_state(view, input.runtime_name)),
                ),
                None => (terminated_state(view, input.runtime_name), before),
            }
        }
        State::Created | State::Unknown => (waiting_for(input, role, container), before),
    }
}

/// The termination of the previous instance, as reported while the runtime still had it.
fn carried_termination(
    previous: Option<&ContainerStatus>,
    view: &ContainerView,
    runtime_name: &str,
) -> Option<ContainerState> {
    let previous = previous?;
    let terminated = |state: &Option<ContainerState>| state.clone().filter(|state| state.terminated.is_some());
    let replaced = previous.container_id.as_ref().is_some_and(|known| *known != view.api_id(runtime_name));
    let state = if replaced { terminated(&previous.state) } else { None };
    state.or_else(|| terminated(&previous.last_state))
}

fn running(view: &ContainerView) -> ContainerState {
    let started_at = view.started_at.map(truncated);
    ContainerState { running: Some(ContainerStateRunning { started_at }), ..Default::default() }
}

fn terminated_state(view: &ContainerView, runtime_name: &str) -> ContainerState {
    let reason = match (view.reason.as_str(), view.exit_code) {
        ("", 0) => "Completed",
        ("", _) => "Error",
        (reason, _) => reason,
    };
    let terminated = ContainerStateTerminated {
        container_id: Some(view.api_id(runtime_name)),
        exit_code: view.exit_code,
        reason: Some(reason.to_string()),
        message: Some(view.message.clone()).filter(|message| !message.is_empty()),
        // A container that failed to start has no start time, but clients expect one.
        started_at: Some(view.started_at.map_or(Time(Timestamp::UNIX_EPOCH), truncated)),
        finished_at: view.finished_at.map(truncated),
        signal: None,
    };
    ContainerState { terminated: Some(terminated), ..Default::default() }
}

fn waiting_state(reason: &str, message: Option<String>) -> ContainerState {
    let waiting = ContainerStateWaiting {
        reason: Some(reason.to_string()),
        message: message.filter(|message| !message.is_empty()),
    };
    ContainerState { waiting: Some(waiting), ..Default::default() }
}

fn waiting_for(input: &Input<'_>, role: Role, container: &Container) -> ContainerState {
    // During a retry the last failure stays visible, so that the status does not flap.
    if let Some(why) = input.state.starts.waiting.get(&container.name) {
        return waiting_state(&why.reason, Some(why.message.clone()));
    }
    let has_init = pod::init_containers(input.pod).next().is_some();
    let reason = if has_init && role != Role::Ephemeral { "PodInitializing" } else { "ContainerCreating" };
    waiting_state(reason, None)
}

/// The status of a container that the runtime does not have: not created yet, or already removed.
fn lost_or_waiting(
    input: &Input<'_>,
    role: Role,
    container: &Container,
    previous: Option<&ContainerStatus>,
    phase: Phase,
    status: &mut ContainerStatus,
) {
    let restarting = super::is_restarting_all(input) && role != Role::Ephemeral;
    let not_waiting = |status: &&ContainerStatus| status.state.as_ref().is_none_or(|state| state.waiting.is_none());
    if restarting && let Some(removed) = previous.filter(not_waiting) {
        let message = "The container is removed because RestartAllContainers in place";
        status.restart_count = removed.restart_count + 1;
        status.state = Some(waiting_state(RESTARTING_ALL, Some(message.to_string())));
        status.last_state = Some(lost_termination(RESTARTING_ALL, message));
        return;
    }
    let was_removed = |status: &&ContainerStatus| {
        status.last_state.as_ref().and_then(|last| last.terminated.as_ref()?.reason.as_deref()) == Some(RESTARTING_ALL)
    };
    if let Some(removed) = previous.filter(|previous| previous.container_id.is_none()).filter(was_removed) {
        status.restart_count = removed.restart_count;
        status.state = removed.state.clone();
        status.last_state = removed.last_state.clone();
        return;
    }
    let known = previous.filter(|previous| previous.container_id.is_some());
    let Some(known) = known else {
        status.state = Some(waiting_for(input, role, container));
        return;
    };
    status.image_id = known.image_id.clone();
    status.restart_count = known.restart_count;
    let was_terminated = known.state.as_ref().and_then(|state| state.terminated.clone());
    let is_final = phase.is_final() || role == Role::Init || input.state.termination.is_some();
    match was_terminated {
        Some(terminated) if is_final => {
            status.container_id = known.container_id.clone();
            status.state = Some(ContainerState { terminated: Some(terminated), ..Default::default() });
            status.last_state = known.last_state.clone();
        }
        Some(terminated) => {
            status.state = Some(waiting_for(input, role, container));
            status.last_state = Some(ContainerState { terminated: Some(terminated), ..Default::default() });
        }
        None if known.state.as_ref().is_some_and(|state| state.running.is_some()) => {
            status.container_id = known.container_id.clone();
            status.state = Some(waiting_for(input, role, container));
            status.last_state = Some(unknown_termination(
                "The container could not be located when the pod was deleted.  \
                The container used to be Running",
            ));
        }
        None => {
            status.state = known.state.clone();
            status.last_state = known.last_state.clone();
        }
    }
}

fn unknown_termination(message: &str) -> ContainerState {
    lost_termination("ContainerStatusUnknown", message)
}

fn lost_termination(reason: &str, message: &str) -> ContainerState {
    let terminated = ContainerStateTerminated {
        exit_code: 137,
        reason: Some(reason.to_string()),
        message: Some(message.to_string()),
        ..Default::default()
    };
    ContainerState { terminated: Some(terminated), ..Default::default() }
}

/// In a terminated pod no container may look as if it could still run.
fn finalize(status: &mut ContainerStatus) {
    if status.state.as_ref().is_some_and(|state| state.terminated.is_some()) {
        return;
    }
    match status.last_state.take() {
        Some(last) if last.terminated.is_some() => status.state = Some(last),
        _ => {
            status.state = Some(unknown_termination("The container could not be located when the pod was terminated"));
        }
    }
}

fn mounts(container: &Container) -> Option<Vec<VolumeMountStatus>> {
    let one = |mount: &VolumeMount| VolumeMountStatus {
        mount_path: mount.mount_path.clone(),
        name: mount.name.clone(),
        read_only: mount.read_only.filter(|read_only| *read_only),
        recursive_read_only: mount.read_only.filter(|read_only| *read_only).map(|_| {
            if mount.recursive_read_only.as_deref() == Some("Enabled") { "Enabled" } else { "Disabled" }.to_string()
        }),
        ..Default::default()
    };
    let list: Vec<_> = container.volume_mounts.iter().flatten().map(one).collect();
    if list.is_empty() { None } else { Some(list) }
}
