//! Accepts new versions of the pod and grants its resizes.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::state::Operation;
use super::{Worker, resize};
use crate::pod;
use crate::runtime::ContainerView;

impl Worker {
    /// Accepts a new version of the pod. If it is newer than our last status write, its status is what the API has; an
    /// echo of our own write or of an earlier one is not.
    pub(super) fn accept(&mut self, pod: Arc<Pod>) {
        let version: Option<u64> = pod.metadata.resource_version.as_deref().and_then(|version| version.parse().ok());
        let newer = self.reported_version.zip(version).is_some_and(|(known, version)| version > known);
        if newer && !self.state.is_busy(&Operation::Status) && !pod::is_static(&pod) {
            self.reported = pod.status.clone().unwrap_or_default();
        }
        let fields_changed = pod.metadata.labels != self.pod.metadata.labels
            || pod.metadata.annotations != self.pod.metadata.annotations;
        if fields_changed {
            self.state.volumes.invalidate();
        }
        if fields_changed || pod.spec != self.pod.spec {
            // An operation that failed with the old spec may succeed with the new one.
            self.state.starts.retry_at.clear();
            self.state.volumes.retry_at = None;
        }
        self.grant(pod);
    }

    /// Uses the desired pod if its resources fit, otherwise the desired pod with the granted resources.
    pub(super) fn grant(&mut self, desired: Arc<Pod>) {
        let (have, want) = (resize::resources_of(&self.pod), resize::resources_of(&desired));
        let metrics = self.context.metrics.clone();
        let last_requested = self.desired.as_ref().map(|desired| resize::resources_of(desired));
        if !self.runtime.is_empty() && !last_requested.as_ref().is_some_and(|last| resize::same_all(last, &want)) {
            for (resource, requirement, operation) in resize::changes(&have, &want) {
                let labels = [("resource", resource.as_str()), ("requirement", requirement), ("operation", operation)];
                metrics.count("kubelet_container_requested_resizes_total", &labels);
            }
        }
        let pending = match resize::same_all(&have, &want) {
            true => None,
            false => (self.fits)(&desired),
        };
        match (&self.state.resize.pending, &pending) {
            (Some(before), None) if before.reason == "Deferred" => {
                let labels = [("retry_trigger", "periodic_retry")];
                metrics.count("kubelet_pod_deferred_accepted_resizes_total", &labels);
            }
            (before, Some(now)) if before.as_ref() != Some(now) => {
                let reason = format!("Resize{}", now.reason);
                self.context.events.about_pod(
                    &desired,
                    true,
                    &reason,
                    resize::event_message(&desired, now.reason, &now.message),
                );
                if now.reason == "Infeasible" {
                    let labels = [("reason_detail", "insufficient_node_allocatable")];
                    metrics.count("kubelet_pod_infeasible_resizes_total", &labels);
                }
            }
            _ => {}
        }
        self.state.reset_delays(&self.pod, &desired);
        let granted = pending.is_none();
        if granted {
            self.pod = desired;
            self.desired = None;
        } else {
            self.pod = Arc::new(resize::with_resources(&desired, &have));
            self.desired = Some(desired);
        }
        self.state.resize.pending = pending;
        if granted && have != want {
            self.state.resize.failed = None;
            self.store_granted();
            if !self.is_resized() {
                self.state.resize.generation = self.pod.metadata.generation;
                self.context.events.about_pod(
                    &self.pod,
                    false,
                    "ResizeStarted",
                    resize::event_message(&self.pod, "started", ""),
                );
            }
        }
    }

    /// Whether all running containers have the granted resources.
    pub(super) fn is_resized(&self) -> bool {
        let is_running = |name: &str| self.runtime.latest(name).is_some_and(ContainerView::is_running);
        resize::is_done(&self.pod, &self.state.resize.applied, is_running)
    }

    /// Records an event once when a granted resize is complete.
    pub(super) fn record_resize_completed(&mut self) {
        if self.state.resize.generation.is_some() && self.is_resized() {
            self.state.resize.generation = None;
            self.context.events.about_pod(
                &self.pod,
                false,
                "ResizeCompleted",
                resize::event_message(&self.pod, "completed", ""),
            );
        }
    }
}
