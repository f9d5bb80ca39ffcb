//! The status of a pod, computed afresh from what the runtime holds and what the worker knows.

mod conditions;
mod containers;
mod patch;

pub use patch::{differs, patch};

use k8s_openapi::api::core::v1::{HostIP, Pod, PodIP, PodStatus};
use k8s_openapi::jiff::Timestamp;
use knarr_client::time::truncated;

use crate::cgroup::qos::qos_class;
use crate::pod;
use crate::runtime::RuntimePod;
use crate::worker::memory::{Ending, Memory};
use crate::worker::plan::Plan;
use crate::worker::restart::{Phase, phase};

pub struct Input<'a> {
    pub pod: &'a Pod,
    /// The status last reported, or the API's when none was yet.
    pub previous: &'a PodStatus,
    pub runtime: &'a RuntimePod,
    pub memory: &'a Memory,
    pub plan: &'a Plan,
    pub node_addresses: &'a [String],
    pub runtime_name: &'a str,
    pub now: Timestamp,
}

pub fn compute(input: &Input<'_>) -> PodStatus {
    let Input { pod, previous, runtime, memory, now, .. } = input;
    let phase = reported_phase(input);
    let rejected = matches!(memory.ending, Some(Ending::Rejected { .. }));
    let (init, main, ephemeral) = if rejected {
        Default::default()
    } else {
        (containers::init(input, phase), containers::main(input, phase), containers::ephemeral(input))
    };
    let addresses = addresses(input);
    let (reason, message) = match &memory.ending {
        Some(Ending::Stopped { reason, message, .. } | Ending::Rejected { reason, message }) => {
            (Some(reason.clone()), Some(message.clone()))
        }
        _ => (
            previous.reason.clone().filter(|_| phase.is_final()),
            previous.message.clone().filter(|_| phase.is_final()),
        ),
    };
    // Fields of others are carried along as the API has them.
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
        qos_class: previous
            .qos_class
            .clone()
            .filter(|class| !class.is_empty())
            .or_else(|| Some(qos_class(pod).as_str().to_string())),
        start_time: previous.start_time.clone().or_else(|| Some(truncated(memory.first_seen.unwrap_or(*now)))),
        observed_generation: pod.metadata.generation,
        nominated_node_name: field(pod, |status| status.nominated_node_name.clone()),
        resource_claim_statuses: field(pod, |status| status.resource_claim_statuses.clone()),
        extended_resource_claim_status: field(pod, |status| status.extended_resource_claim_status.clone()),
        init_container_statuses: none_if_empty(init),
        container_statuses: none_if_empty(main),
        ephemeral_container_statuses: none_if_empty(ephemeral),
        ..PodStatus::default()
    };
    status.conditions = Some(conditions::conditions(input, &status, runtime));
    status
}

fn none_if_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    if list.is_empty() { None } else { Some(list) }
}

/// A phase once final stays; and it is final only when nothing runs any more.
fn reported_phase(input: &Input<'_>) -> Phase {
    let Input { pod, previous, runtime, memory, plan, .. } = input;
    match previous.phase.as_deref() {
        Some("Succeeded") => return Phase::Succeeded,
        Some("Failed") => return Phase::Failed,
        _ => {}
    }
    let by_containers = phase(pod, runtime, was_initialized(previous));
    match &memory.ending {
        None if by_containers.is_final() => running_or_pending(previous),
        None => by_containers,
        Some(_) if !plan.ended => {
            if by_containers.is_final() {
                running_or_pending(previous)
            } else {
                by_containers
            }
        }
        Some(Ending::Stopped { .. } | Ending::Rejected { .. }) => Phase::Failed,
        Some(Ending::Finished) => by_containers,
        Some(Ending::Deleted | Ending::Removed) => {
            let all_well = pod::main_containers(pod).all(|container| {
                runtime
                    .latest(&container.name)
                    .is_some_and(|view| view.state == crate::runtime::State::Exited && view.exit_code == 0)
            });
            if all_well { Phase::Succeeded } else { Phase::Failed }
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

/// The addresses of the sandbox, kept in the status after it has gone.
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
