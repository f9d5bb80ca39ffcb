//! The conditions of a pod.

use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition, PodStatus};
use knarr_client::time::truncated;

use super::Input;
use crate::pod::{self, Role};
use crate::runtime::RuntimePod;
use crate::worker::resize as worker_resize;
use crate::worker::restart::{Phase, may_restart_all};
use crate::worker::state::Termination;

/// The conditions that the kubelet owns; others are left unchanged.
pub(super) const OWN: [&str; 9] = [
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
    "DisruptionTarget",
    "PodResizePending",
    "PodResizeInProgress",
    ALL_RESTARTING,
];

pub(super) const ALL_RESTARTING: &str = "AllContainersRestarting";

struct ConditionValue {
    kind: &'static str,
    holds: bool,
    reason: &'static str,
    message: String,
}

pub fn conditions(input: &Input<'_>, status: &PodStatus, phase: Phase, runtime: &RuntimePod) -> Vec<PodCondition> {
    let containers_ready = containers_ready(input, status, phase);
    let ready = ready(input, &containers_ready);
    let mut values = vec![sandbox_ready(input, runtime), initialized(input, status, phase), ready, containers_ready];
    values.push(ConditionValue { kind: "PodScheduled", holds: true, reason: "", message: String::new() });
    values.extend(all_restarting(input, phase));
    let mut result: Vec<PodCondition> = values.into_iter().map(|value| dated(input, value)).collect();
    if let Some(Termination::Stopped { condition: Some((reason, message)), .. }) = &input.state.termination {
        let mut target = dated(
            input,
            ConditionValue { kind: "DisruptionTarget", holds: true, reason: "", message: message.clone() },
        );
        target.reason = Some(reason.clone());
        result.push(target);
    } else {
        let previous_targets =
            input.previous.conditions.iter().flatten().filter(|known| known.type_ == "DisruptionTarget");
        result.extend(previous_targets.cloned());
    }
    result.extend(resize(input));
    result.extend(foreign(input));
    result
}

/// The conditions that other components own.
pub fn foreign(input: &Input<'_>) -> Vec<PodCondition> {
    let known = input.previous.conditions.iter().flatten();
    known.filter(|known| !OWN.contains(&known.type_.as_str())).cloned().collect()
}

/// Keeps the transition time while the status is unchanged.
fn dated(input: &Input<'_>, value: ConditionValue) -> PodCondition {
    let status = if value.holds { "True" } else { "False" };
    let known = input.previous.conditions.iter().flatten().find(|known| known.type_ == value.kind);
    let since = known.filter(|known| known.status == status).and_then(|known| known.last_transition_time.clone());
    PodCondition {
        type_: value.kind.to_string(),
        status: status.to_string(),
        reason: Some(value.reason.to_string()).filter(|reason| !reason.is_empty()),
        message: Some(value.message).filter(|message| !message.is_empty()),
        last_transition_time: since.or_else(|| Some(truncated(input.now))),
        last_probe_time: None,
        // It depends on the containers, not on the pod's generation.
        observed_generation: input.pod.metadata.generation.filter(|_| value.kind != ALL_RESTARTING),
    }
}

fn sandbox_ready(input: &Input<'_>, runtime: &RuntimePod) -> ConditionValue {
    let sandbox = runtime.current_sandbox().filter(|sandbox| sandbox.ready);
    let holds = sandbox.is_some_and(|sandbox| pod::host_network(input.pod) || !sandbox.addresses.is_empty());
    ConditionValue { kind: "PodReadyToStartContainers", holds, reason: "", message: String::new() }
}

/// Present only while a resize is pending or in progress.
fn resize(input: &Input<'_>) -> Vec<PodCondition> {
    let mut found = Vec::new();
    if let Some(pending) = &input.state.resize.pending {
        let message = pending.message.clone();
        found.push(dated(
            input,
            ConditionValue { kind: "PodResizePending", holds: true, reason: pending.reason, message },
        ));
    }
    let running = |name: &str| input.runtime.latest(name).is_some_and(|view| view.is_running());
    let (pod, applied) = (input.pod, &input.state.resize.applied);
    if !worker_resize::outstanding(pod, applied, running).is_empty()
        || worker_resize::is_whole_outstanding(pod, applied)
    {
        let (reason, message) = match &input.state.resize.failed {
            Some((message, _)) => ("Error", message.clone()),
            None => ("", String::new()),
        };
        found.push(dated(input, ConditionValue { kind: "PodResizeInProgress", holds: true, reason, message }));
    }
    found
}

fn names(list: &[&str]) -> String {
    format!("[{}]", list.join(" "))
}

/// Present on every pod that has a rule to restart all containers.
fn all_restarting(input: &Input<'_>, phase: Phase) -> Option<ConditionValue> {
    if !may_restart_all(input.pod) {
        return None;
    }
    let own = pod::init_containers(input.pod).map(|(_, container)| container).chain(pod::main_containers(input.pod));
    let remains = own.into_iter().any(|container| input.runtime.latest(&container.name).is_some());
    let holds = super::is_restarting_all(input) && remains;
    let (reason, message) = match phase {
        _ if holds => ("RestartAllContainersStarted", "container exited with restart policy rule"),
        Phase::Succeeded => ("PodCompleted", ""),
        Phase::Failed => ("PodFailed", ""),
        _ => ("", ""),
    };
    Some(ConditionValue { kind: ALL_RESTARTING, holds, reason, message: message.to_string() })
}

fn initialized(input: &Input<'_>, status: &PodStatus, phase: Phase) -> ConditionValue {
    let kind = "Initialized";
    let succeeded = phase == Phase::Succeeded;
    let none = ConditionValue {
        kind,
        holds: true,
        reason: if succeeded { "PodCompleted" } else { "" },
        message: String::new(),
    };
    if succeeded || super::was_initialized(input.previous) && main_started(status) {
        return none;
    }
    let statuses = status.init_container_statuses.as_deref().unwrap_or_default();
    let mut missing = Vec::new();
    for (role, container) in pod::init_containers(input.pod) {
        let found = statuses.iter().find(|status| status.name == container.name);
        let done = match role {
            Role::Sidecar => found.is_some_and(|status| status.started == Some(true)),
            _ => found.is_some_and(|status| status.ready),
        };
        if !done {
            missing.push(container.name.as_str());
        }
    }
    if missing.is_empty() {
        return none;
    }
    let message = format!("containers with incomplete status: {}", names(&missing));
    ConditionValue { kind, holds: false, reason: "ContainersNotInitialized", message }
}

fn main_started(status: &PodStatus) -> bool {
    status.container_statuses.iter().flatten().any(|container| container.container_id.is_some())
}

fn containers_ready(input: &Input<'_>, status: &PodStatus, phase: Phase) -> ConditionValue {
    let kind = "ContainersReady";
    match phase {
        Phase::Succeeded => {
            return ConditionValue { kind, holds: false, reason: "PodCompleted", message: String::new() };
        }
        Phase::Failed => return ConditionValue { kind, holds: false, reason: "PodFailed", message: String::new() },
        _ => {}
    }
    let is_ready = |list: &Option<Vec<ContainerStatus>>, name: &str| {
        list.iter().flatten().any(|status| status.name == name && status.ready)
    };
    let mut unready = Vec::new();
    for (role, container) in pod::init_containers(input.pod) {
        if role == Role::Sidecar && !is_ready(&status.init_container_statuses, &container.name) {
            unready.push(container.name.as_str());
        }
    }
    for container in pod::main_containers(input.pod) {
        if !is_ready(&status.container_statuses, &container.name) {
            unready.push(container.name.as_str());
        }
    }
    if unready.is_empty() {
        return ConditionValue { kind, holds: true, reason: "", message: String::new() };
    }
    let message = format!("containers with unready status: {}", names(&unready));
    ConditionValue { kind, holds: false, reason: "ContainersNotReady", message }
}

fn ready(input: &Input<'_>, containers: &ConditionValue) -> ConditionValue {
    let kind = "Ready";
    if !containers.holds {
        return ConditionValue { kind, holds: false, reason: containers.reason, message: containers.message.clone() };
    }
    let mut unmet = Vec::new();
    // Other components set the gates in the API, so the API's status is read and not the one last reported.
    let reported = input.pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    for gate in pod::spec(input.pod).readiness_gates.iter().flatten() {
        let found = reported.into_iter().flatten().find(|condition| condition.type_ == gate.condition_type);
        match found {
            Some(condition) if condition.status == "True" => {}
            Some(condition) => unmet.push(format!(
                "the status of pod readiness gate \"{}\" is not \"True\", but {}",
                gate.condition_type, condition.status
            )),
            None => unmet.push(format!(
                "corresponding condition of pod readiness gate \"{}\" does not exist.",
                gate.condition_type
            )),
        }
    }
    if unmet.is_empty() {
        return ConditionValue { kind, holds: true, reason: "", message: String::new() };
    }
    ConditionValue { kind, holds: false, reason: "ReadinessGatesNotReady", message: unmet.join(", ") }
}
