//! The results of operations, and what the worker does with each.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use knarr_client::is_unreachable;
use tokio::time::Instant;

use super::resize::{self, ByContainer};
use super::sandbox::MountFailure;
use super::start::StartFailure;
use super::state::{Operation, Termination, Waiting};
use super::{Message, Worker};
use crate::api_text::api_text;
use crate::container::user_namespace;
use crate::journey_events;
use crate::pod;
use crate::resources::AllocationRefusal;
use crate::runtime::{ContainerView, RuntimePod, Sandbox, State};
use crate::volumes::MountedVolumes;

/// The result of an operation.
pub enum Outcome {
    Allocated(Result<(), AllocationRefusal>),
    Volumes(Result<MountedVolumes, MountFailure>),
    Sandbox(Result<Sandbox, String>),
    Started(Result<ContainerView, StartFailure>),
    Stopped(Result<(), String>),
    SandboxStopped(Result<(), String>),
    Removed(Result<(), String>),
    /// The status in the API after the write, with the object's resource version.
    Status(Result<(Box<PodStatus>, Option<String>), StatusError>),
    Deleted(Result<(), StatusError>),
    /// Containers and sandboxes of the pod in the runtime that were not known.
    Found(Result<RuntimePod, String>),
    Cleaned(Result<(), String>),
    /// The resources that are applied now, and the error of a failed resize.
    Resized(ByContainer, Option<String>),
    /// The message of a panic.
    Panicked(String),
}

pub enum StatusError {
    /// The pod is gone, or replaced by another of the same name.
    Gone,
    /// The API server is unreachable, which is logged once for all pods.
    Unreachable,
    Refused(String),
}

impl From<kube::Error> for StatusError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 404 || status.code == 409 => StatusError::Gone,
            error if is_unreachable(&error) => StatusError::Unreachable,
            error => StatusError::Refused(api_text(&error)),
        }
    }
}

/// The reason of pods that are rejected because the node has as many volumes as their driver can attach.
const ATTACH_LIMIT_EXCEEDED: &str = "VolumeAttachmentLimitExceeded";
const SANDBOX_RETRY: Duration = Duration::from_secs(2);
const RESIZE_RETRY: Duration = Duration::from_secs(3);
const CLEAN_RETRY: Duration = Duration::from_secs(2);
const STATUS_RETRY: Duration = Duration::from_secs(1);

impl Worker {
    pub(super) fn finish_operation(&mut self, operation: Operation, outcome: Outcome) {
        self.state.operations.remove(&operation);
        let now = Instant::now();
        let later = |wait: Duration| Some(now + wait);
        match (operation, outcome) {
            (operation, Outcome::Panicked(reason)) => self.finish_panicked(operation, &reason),
            (_, Outcome::Allocated(Ok(()))) => self.state.to_allocate = false,
            (_, Outcome::Allocated(Err(refused))) => {
                self.reject(refused.reason, refused.message);
            }
            (_, Outcome::Volumes(result)) => self.finish_volumes(result, now),
            (_, Outcome::Sandbox(Ok(sandbox))) => {
                self.state.sandbox_retry_at = None;
                if self.state.starts.early_exits.remove(&sandbox.id) {
                    let _ = self.sender.send(Message::Exited(sandbox.id.clone()));
                }
                self.runtime.put_sandbox(sandbox);
            }
            (_, Outcome::Sandbox(Err(_))) => self.state.sandbox_retry_at = later(SANDBOX_RETRY),
            (Operation::Start(name), Outcome::Started(result)) => self.finish_start(name, result),
            // The runtime reports the exit as an event; this message reads it in any case.
            (Operation::Stop(id), Outcome::Stopped(Ok(()))) => drop(self.sender.send(Message::Exited(id))),
            (Operation::Stop(id), Outcome::Stopped(Err(error))) => {
                tracing::warn!(error, pod = pod::title(&self.pod), "cannot stop a container");
                self.send_later(Message::NotStopped(id));
            }
            (Operation::StopSandbox(id), Outcome::SandboxStopped(result)) => self.finish_stop_sandbox(id, result),
            (Operation::Remove(id), Outcome::Removed(result)) => self.finish_remove(id, result),
            (_, Outcome::Status(result)) => self.finish_status(result, now),
            (_, Outcome::Deleted(Ok(()) | Err(StatusError::Gone))) => self.deleted = true,
            (_, Outcome::Deleted(Err(error))) => {
                if let StatusError::Refused(error) = error {
                    tracing::warn!(error, pod = pod::title(&self.pod), "cannot delete the pod in the API");
                }
                self.wake_later(CLEAN_RETRY);
            }
            (_, Outcome::Resized(applied, failure)) => {
                self.state.resize.applied = applied;
                self.state.resize.failed = failure.zip(later(RESIZE_RETRY));
                self.store_granted();
            }
            (_, Outcome::Found(Ok(found))) => self.adopt_found(found),
            (_, Outcome::Found(Err(error))) => {
                tracing::warn!(error, pod = pod::title(&self.pod), "cannot list a pod in the runtime");
                self.wake_later(CLEAN_RETRY);
            }
            (_, Outcome::Cleaned(Ok(()))) => self.state.cleaned = true,
            (_, Outcome::Cleaned(Err(error))) => {
                tracing::warn!(error, pod = pod::title(&self.pod), "cannot clean up after a pod");
                self.state.clean_failures = self.state.clean_failures.saturating_add(1);
                self.wake_later(crate::backoff::backoff(self.state.clean_failures));
            }
            _ => {}
        }
    }

    fn finish_volumes(&mut self, result: Result<MountedVolumes, MountFailure>, now: Instant) {
        let failure = match result {
            Ok(volumes) => {
                self.volumes = Arc::new(volumes);
                return self.state.volumes.finish_mount();
            }
            Err(failure) => failure,
        };
        tracing::debug!(error = failure.message, pod = pod::title(&self.pod), "volumes are not mounted");
        let complete = !self.volumes.volumes.is_empty();
        let is_late = self.state.volumes.fail_mount(complete, failure.waits(), now);
        if is_late && failure.limit_exceeded {
            self.reject(ATTACH_LIMIT_EXCEEDED, failure.limit_message());
        } else if is_late {
            self.context.events.about_pod(&self.pod, true, "FailedMount", failure.timeout_message());
        }
    }

    fn finish_stop_sandbox(&mut self, id: String, result: Result<(), String>) {
        if let Err(error) = result {
            tracing::warn!(error, pod = pod::title(&self.pod), "cannot stop a sandbox");
            return self.retry_later(Operation::StopSandbox(id));
        }
        self.state.refused.remove(&Operation::StopSandbox(id.clone()));
        if let Some(sandbox) = self.runtime.sandboxes.iter_mut().find(|sandbox| sandbox.id == id) {
            sandbox.ready = false;
        }
        self.state.stopped_sandboxes.insert(id);
    }

    fn finish_remove(&mut self, id: String, result: Result<(), String>) {
        if let Err(error) = result {
            tracing::warn!(error, pod = pod::title(&self.pod), "cannot remove a container");
            self.retry_later(Operation::Remove(id));
            return self.wake_later(CLEAN_RETRY);
        }
        self.context.index.remove(&id);
        self.runtime.forget(&id);
        self.state.probes.remove(&id);
        self.state.exits.remove(&id);
        self.state.refused.remove(&Operation::Remove(id));
    }

    /// Schedules a retry of an operation that the runtime failed.
    fn retry_later(&mut self, operation: Operation) {
        self.state.refused.insert(operation, Instant::now() + CLEAN_RETRY);
    }

    /// Schedules a retry of the pod's final cleanup.
    fn wake_later(&mut self, wait: Duration) {
        let at = Instant::now() + wait;
        self.retry_at = Some(self.retry_at.map_or(at, |known| known.max(at)));
    }

    fn finish_start(&mut self, name: String, result: Result<ContainerView, StartFailure>) {
        let is_first = self.state.starts.attempted.insert(name.clone());
        match result {
            Ok(view) => {
                self.state.starts.waiting.remove(&name);
                self.state.starts.retry_at.remove(&name);
                self.state.starts.finished.insert(view.id.clone());
                if let Some(resources) = resize::resources_of(&self.pod).remove(&name) {
                    let changed = self.state.resize.applied.insert(name.clone(), resources.clone());
                    resize::record_pod_level(&self.pod, &mut self.state.resize.applied);
                    self.store_granted();
                    if changed.is_some_and(|before| !resize::same(&before, &resources)) {
                        self.size_cgroup(None);
                    }
                }
                // The exit may have been observed before the start finished.
                let exited = self.runtime.by_id(&view.id).is_some_and(|known| known.state == State::Exited);
                if !exited {
                    self.put_started(view);
                }
            }
            Err(failure) => {
                tracing::debug!(
                    pod = pod::title(&self.pod),
                    container = name,
                    reason = failure.reason,
                    message = failure.message,
                    "a container failed to start"
                );
                // A user namespace that does not work is often noticed only here. Each pod counts once.
                if is_first && self.state.starts.waiting.is_empty() && user_namespace::is_requested(&self.pod) {
                    self.context.metrics.count("kubelet_started_user_namespaced_pods_errors_total", &[]);
                }
                let waiting = Waiting { reason: failure.reason, message: failure.message };
                self.state.starts.waiting.insert(name.clone(), waiting);
                self.state.starts.retry_at.insert(name, failure.retry_at);
                if let Some(view) = failure.remains {
                    self.put_started(view);
                }
            }
        }
    }

    /// Sets the pod's cgroup to its containers' applied resources, or larger if a restarting container needs more.
    pub(super) fn size_cgroup(&self, room_for: Option<&Pod>) {
        let Some(cgroups) = &self.context.cgroups else { return };
        let now = resize::with_resources(&self.pod, &self.state.resize.applied);
        let sized = match room_for {
            Some(desired) => cgroups.widen(&now, desired),
            None => cgroups.ensure(&now),
        };
        if let Err(error) = sized {
            tracing::warn!(%error, pod = pod::title(&self.pod), "cannot resize the pod's cgroup");
        }
    }

    /// The pod will not run on this node.
    fn reject(&mut self, reason: &'static str, message: String) {
        self.context.events.about_pod(&self.pod, true, reason, message.clone());
        self.context.metrics.count("kubelet_admission_rejections_total", &[("reason", reason)]);
        journey_events::refused(&self.pod, &message);
        self.state.termination.get_or_insert(Termination::Rejected { reason: reason.into(), message });
    }

    fn finish_status(&mut self, result: Result<(Box<PodStatus>, Option<String>), StatusError>, now: Instant) {
        match result {
            Ok((status, version)) => {
                self.reported = *status;
                self.reported_version = version.and_then(|version| version.parse().ok());
                self.status_retry_at = None;
            }
            Err(StatusError::Gone) => {
                // The removal will arrive from the informer.
                self.reported = self.status.clone();
            }
            Err(error) => {
                if let StatusError::Refused(error) = error {
                    tracing::warn!(error, pod = pod::title(&self.pod), "cannot write the status of a pod");
                }
                self.status_retry_at = Some(now + STATUS_RETRY);
            }
        }
    }
}
