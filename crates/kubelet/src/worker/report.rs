//! Computes the status of the pod and writes it to the API.

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::jiff::Timestamp;
use knarr_client::time::until;
use kube::Api;
use kube::api::{Patch, PatchParams};
use tokio::time::Instant;

use super::outcome::{Outcome, StatusError};
use super::state::{Operation, Termination};
use super::{Worker, status};
use crate::pod;

impl Worker {
    pub(super) fn report(&mut self, now: Instant, wall: Timestamp) {
        let mut devices = self.context.resources.health_of(pod::uid(&self.pod));
        self.context.dra.add_health(&self.pod, &mut devices);
        let input = status::Input {
            devices: &devices,
            pod: &self.pod,
            previous: &self.status,
            runtime: &self.runtime,
            state: &self.state,
            plan: &self.plan,
            node_addresses: &self.context.addresses,
            runtime_name: &self.context.runtime_name,
            now: wall,
        };
        // Keeps what other components wrote to the API's status.
        let mut previous = self.status.clone();
        carry_foreign(&self.pod, &mut previous);
        let status = status::compute(&status::Input { previous: &previous, ..input });
        let runs = status.phase.as_deref() == Some("Running");
        if runs && matches!(self.status.phase.as_deref(), None | Some("Pending")) {
            self.measure_start(wall);
        }
        if status != self.status {
            self.probes.status_changed(&self.pod, &self.runtime, &self.state);
        }
        self.status = status;
        *self.shared_status.lock() = self.status.clone();
        self.send_status(now);
    }

    /// Records how long the pod took until it ran.
    fn measure_start(&self, now: Timestamp) {
        let metrics = &self.context.metrics;
        metrics.observe("kubelet_pod_start_duration_seconds", &[], self.created_at.elapsed());
        let Some(created) = &self.pod.metadata.creation_timestamp else { return };
        let whole = until(created.0, now);
        metrics.observe("kubelet_pod_start_total_duration_seconds", &[], whole);
        let without_pulls = whole.saturating_sub(self.context.images.time_pulling(pod::uid(&self.pod)));
        metrics.observe("kubelet_pod_start_sli_duration_seconds", &[], without_pulls);
        if !pod::host_network(&self.pod) {
            let name = "kubelet_first_network_pod_start_sli_duration_seconds";
            metrics.set_once(name, without_pulls.as_secs_f64());
        }
    }

    /// Writes the status if it differs from the API's and no write is in progress.
    pub(super) fn send_status(&mut self, now: Instant) {
        let target = if pod::is_static(&self.pod) { self.mirror.clone() } else { Some(self.pod.clone()) };
        let Some(target) = target else { return };
        let waits = self.status_retry_at.is_some_and(|at| at > now);
        if waits || self.state.is_busy(&Operation::Status) || !status::differs(&self.reported, &self.status) {
            return;
        }
        if self.state.termination == Some(Termination::Removed) {
            return;
        }
        let (client, old, new) = (self.context.client.clone(), self.reported.clone(), self.status.clone());
        let context = self.context.clone();
        self.launch(Operation::Status, async move {
            let started = std::time::Instant::now();
            let written = write_status(client, &target, &old, new).await;
            context.metrics.observe("kubelet_pod_status_sync_duration_seconds", &[], started.elapsed());
            Outcome::Status(written)
        });
    }
}

async fn write_status(
    client: kube::Client,
    pod: &Pod,
    old: &PodStatus,
    new: PodStatus,
) -> Result<(Box<PodStatus>, Option<String>), StatusError> {
    let pods: Api<Pod> = Api::namespaced(client, pod::namespace(pod));
    let change = status::patch(pod, old, &new).map_err(|error| StatusError::Refused(error.to_string()))?;
    match pods.patch_status(pod::name(pod), &PatchParams::default(), &Patch::Strategic(change)).await {
        Ok(pod) => Ok((Box::new(new), pod.metadata.resource_version)),
        Err(error) => Err(error.into()),
    }
}

/// Copies the conditions that other components own from the API.
fn carry_foreign(pod: &Pod, status: &mut PodStatus) {
    const OWN: [&str; 5] = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
    let Some(api) = &pod.status else { return };
    let conditions = status.conditions.get_or_insert_default();
    conditions.retain(|condition| OWN.contains(&condition.type_.as_str()));
    let foreign = api.conditions.iter().flatten().filter(|condition| !OWN.contains(&condition.type_.as_str()));
    conditions.extend(foreign.cloned());
    if let Some(scheduled) = api.conditions.iter().flatten().find(|condition| condition.type_ == "PodScheduled")
        && let Some(own) = conditions.iter_mut().find(|condition| condition.type_ == "PodScheduled")
    {
        *own = scheduled.clone();
    }
}
