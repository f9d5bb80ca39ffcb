//! Computes the status of a pod from the runtime's state and the worker's state.

mod conditions;
mod containers;
mod limits;
mod patch;
mod resources;

pub use patch::{differs, patch};

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{HostIP, Pod, PodIP, PodStatus, ResourceStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use knarr_client::time::truncated;

use crate::cgroup::qos::qos_class;
use crate::pod;
use crate::runtime::{RuntimePod, State};
use crate::worker::plan::Plan;
use crate::worker::resize::with_resources;
use crate::worker::restart::{Phase, may_restart_all, phase, restarts_all};
use crate::worker::state::{Termination, WorkerState};

pub struct Input<'a> {
    pub pod: &'a Pod,
    /// The status last reported, or the API's when none was yet.
    pub previous: &'a PodStatus,
    pub runtime: &'a RuntimePod,
    pub state: &'a WorkerState,
    pub plan: &'a Plan,
    pub node_addresses: &'a [String],
    pub runtime_name: &'a str,
    /// The health of assigned devices, by container.
    pub devices: &'a BTreeMap<String, Vec<ResourceStatus>>,
    pub now: Timestamp,
}

pub fn compute(input: &Input<'_>) -> PodStatus {
    let Input { pod, previous, runtime, state, .. } = input;
    let phase = reported_phase(input);
    let addresses = addresses(input);
    let (reason, message) = match &state.termination {
        Some(Termination::Rejected { reason, message }) => return rejected(input, reason, message),
        Some(Termination::Stopped { reason, message, .. }) => (Some(reason.clone()), Some(message.clone())),
        _ => (
            previous.reason.clone().filter(|_| phase.is_final()),
            previous.message.clone().filter(|_| phase.is_final()),
        ),
    };
    // Fields that other components own are copied from the API.
    fn field<T>(pod: &Pod, read: impl FnOnce(&PodStatus) -> Option<T>) -> Option<T> {
        pod.status.as_ref().and_then(read)
    }
    let mut status = PodStatus {
        phase: Some(phase.as_str().to_string()),
        reason: reason.filter(|reason| !reason.is_empty()),
        message: message.filter(|message| !message.is_empty()),
        host_ip: input.node_addresses.first().cloned(),
        host_ips: none_if_empty(input.node_addresses.iter().map(|ip| HostIP { ip: ip.clone() }).collect()),
        pod_ip: addresses.first().cloned(),
        pod_ips: none_if_empty(addresses.into_iter().map(|ip| PodIP { ip }).collect()),
        qos_class: class(input),
        start_time: start_time(input),
        observed_generation: pod.metadata.generation,
        nominated_node_name: field(pod, |status| status.nominated_node_name.clone()),
        resource_claim_statuses: field(pod, |status| status.resource_claim_statuses.clone()),
        extended_resource_claim_status: field(pod, |status| status.extended_resource_claim_status.clone()),
        init_container_statuses: none_if_empty(containers::init(input, phase)),
        container_statuses: none_if_empty(containers::main(input, phase)),
        ephemeral_container_statuses: none_if_empty(containers::ephemeral(input)),
        allocated_resources: resources::allocated(pod),
        // The applied resources, not those that are only desired.
        resources: Some(resources::reported(&with_resources(pod, &state.resize.applied), previous, phase)),
        ..PodStatus::default()
    };
    status.conditions = Some(conditions::conditions(input, &status, condition_phase(input, phase), runtime));
    limits::limit_messages(pod, &mut status);
    status
}

/// The phase for computing conditions. The reported phase becomes final later than the containers, and a pod that is
/// deleted before all its containers ran fails without any of them failing.
fn condition_phase(input: &Input<'_>, reported: Phase) -> Phase {
    let Input { pod, previous, runtime, state, .. } = input;
    match &state.termination {
        None | Some(Termination::Finished) if !reported.is_final() => phase(pod, runtime, was_initialized(previous)),
        Some(Termination::Deleted) if reported.is_final() => {
            let known = previous.conditions.iter().flatten().find(|known| known.type_ == "ContainersReady");
            let reason = known.and_then(|known| known.reason.as_deref());
            let was_final = matches!(previous.phase.as_deref(), Some("Succeeded" | "Failed"));
            let exited = |name: &str| runtime.latest(name).is_some_and(|view| view.state == State::Exited);
            // The reported reason is kept, as the containers may be gone by now.
            let all_exited = match was_final {
                true => reason != Some("ContainersNotReady"),
                false => pod::main_containers(pod).all(|container| exited(&container.name)),
            };
            if all_exited { reported } else { Phase::Pending }
        }
        _ => reported,
    }
}

/// All containers of the pod are being stopped and removed, to restart in the same sandbox.
pub fn is_restarting_all(input: &Input<'_>) -> bool {
    may_restart_all(input.pod)
        && input.state.termination.is_none()
        && (restarts_all(input.pod, input.runtime)
            || input
                .previous
                .conditions
                .iter()
                .flatten()
                .any(|known| known.type_ == conditions::ALL_RESTARTING && known.status == "True"))
}

/// The status of a rejected pod: only the rejection, and what other components own.
fn rejected(input: &Input<'_>, reason: &str, message: &str) -> PodStatus {
    let api = input.pod.status.clone().unwrap_or_default();
    PodStatus {
        phase: Some(Phase::Failed.as_str().to_string()),
        reason: Some(reason.to_string()),
        message: Some(format!("Pod was rejected: {message}")),
        qos_class: class(input),
        start_time: start_time(input),
        observed_generation: input.pod.metadata.generation,
        conditions: none_if_empty(conditions::foreign(input)),
        nominated_node_name: api.nominated_node_name,
        resource_claim_statuses: api.resource_claim_statuses,
        extended_resource_claim_status: api.extended_resource_claim_status,
        ..PodStatus::default()
    }
}

fn class(input: &Input<'_>) -> Option<String> {
    let known = input.previous.qos_class.clone().filter(|class| !class.is_empty());
    known.or_else(|| Some(qos_class(input.pod).as_str().to_string()))
}

fn start_time(input: &Input<'_>) -> Option<Time> {
    let known = input.previous.start_time.clone();
    known.or_else(|| Some(truncated(input.state.first_seen.unwrap_or(input.now))))
}

fn none_if_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    if list.is_empty() { None } else { Some(list) }
}

/// A final phase stays, and a phase is final only when nothing runs any more.
fn reported_phase(input: &Input<'_>) -> Phase {
    let Input { pod, previous, runtime, state, plan, .. } = input;
    match previous.phase.as_deref() {
        Some("Succeeded") => return Phase::Succeeded,
        Some("Failed") => return Phase::Failed,
        _ => {}
    }
    let by_containers = phase(pod, runtime, was_initialized(previous));
    match &state.termination {
        None if by_containers.is_final() => running_or_pending(previous),
        None if by_containers == Phase::Pending && may_restart_all(pod) => running_or_pending(previous),
        None => by_containers,
        Some(_) if !plan.terminated => {
            if by_containers.is_final() {
                running_or_pending(previous)
            } else {
                by_containers
            }
        }
        Some(Termination::Stopped { .. } | Termination::Rejected { .. }) => Phase::Failed,
        Some(Termination::Finished) => by_containers,
        Some(Termination::Deleted | Termination::Removed) => {
            let all_succeeded = pod::main_containers(pod).all(|container| {
                runtime.latest(&container.name).is_some_and(|view| view.state == State::Exited && view.exit_code == 0)
            });
            if all_succeeded { Phase::Succeeded } else { Phase::Failed }
        }
    }
}

fn running_or_pending(previous: &PodStatus) -> Phase {
    if previous.phase.as_deref() == Some("Running") { Phase::Running } else { Phase::Pending }
}

pub fn was_initialized(status: &PodStatus) -> bool {
    let conditions = status.conditions.iter().flatten();
    conditions.into_iter().any(|condition| condition.type_ == "Initialized" && condition.status == "True")
}

/// The addresses of the sandbox, kept in the status after it is gone.
fn addresses(input: &Input<'_>) -> Vec<String> {
    if pod::host_network(input.pod) {
        let known = input.runtime.current_sandbox().is_some() || input.previous.pod_ip.is_some();
        return if known { input.node_addresses.to_vec() } else { Vec::new() };
    }
    let current = input.runtime.current_sandbox().filter(|sandbox| sandbox.ready && !sandbox.addresses.is_empty());
    match current {
        Some(sandbox) => sandbox.addresses.clone(),
        None => input.previous.pod_ips.iter().flatten().map(|address| address.ip.clone()).collect(),
    }
}

#[cfg(test)]
mod tests;
