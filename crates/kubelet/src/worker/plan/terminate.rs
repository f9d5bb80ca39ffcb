//! The plan of a pod that terminates.

use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;

use super::{Action, Plan, Situation, StopReason, stop, stop_in_turn, stop_sandbox};
use crate::pod::{self, Role};
use crate::worker::state::{Operation, Termination, WorkerState};

/// Stops main containers first, then sidecars from last to first, then the sandbox. Hooks do not wait for that order.
pub fn terminate(situation: &Situation<'_>, plan: &mut Plan) {
    let Situation { pod, runtime, state, now, .. } = situation;
    if state.is_starting() || state.is_busy(&Operation::Sandbox) {
        // A start in progress finishes by itself; its container is stopped when it is known.
        for container in runtime.running() {
            stop(situation, plan, container, termination_grace(pod, state, *now), StopReason::PodTerminates);
        }
        return;
    }
    // Containers that have exited meanwhile need no turn.
    for id in state.turns.keys().filter(|id| !runtime.running().any(|container| container.id == **id)) {
        plan.actions.push(Action::TakeTurn { id: id.clone() });
    }
    let grace = termination_grace(pod, state, *now);
    let is_sidecar = |name: &str| pod::init_containers(pod).any(|(role, c)| role == Role::Sidecar && c.name == name);
    let mut waits = false;
    for container in runtime.running().filter(|container| !is_sidecar(&container.name)) {
        stop(situation, plan, container, grace, StopReason::PodTerminates);
        waits = true;
    }
    for (role, sidecar) in pod::init_containers(pod).rev() {
        if role != Role::Sidecar {
            continue;
        }
        for container in runtime.running().filter(|container| container.name == sidecar.name) {
            stop_in_turn(situation, plan, container, grace, StopReason::PodTerminates, !waits);
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
