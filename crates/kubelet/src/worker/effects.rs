//! Executes the plan's actions: each runs in its own task and returns its outcome as a message.

use std::collections::HashSet;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use knarr_client::is_unreachable;
use knarr_supervisor::panic_message;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use tokio::time::Instant;

use super::apply_resize::apply_resize;
use super::plan::{Action, kill_time};
use super::resize::{self, ByContainer, Granted};
use super::sandbox::{MountFailure, create_sandbox, mount_volumes};
use super::start::{Start, StartFailure};
use super::state::{Operation, Termination, Waiting};
use super::stop::Stop;
use super::{Message, Worker, cleanup};
use crate::context::api_text;
use crate::journey_events::pod_step;
use crate::pod;
use crate::runtime::{ContainerView, RuntimePod, Sandbox, State, list_pod};
use crate::status;
use crate::volumes::MountedVolumes;

/// The result of an operation.
pub enum Outcome {
    Allocated(Result<(), crate::resources::AllocationRefusal>),
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

const SANDBOX_RETRY: Duration = Duration::from_secs(2);
const RESIZE_RETRY: Duration = Duration::from_secs(3);
const CLEAN_RETRY: Duration = Duration::from_secs(2);
const STATUS_RETRY: Duration = Duration::from_secs(1);

impl Worker {
    fn launch<F>(&mut self, operation: Operation, work: F)
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        self.state.operations.insert(operation.clone());
        let sender = self.sender.clone();
        // Boxed, as a task would hold a large future twice: before and while it awaits it.
        let work = Box::pin(work);
        knarr_supervisor::spawn(async move {
            let work = AssertUnwindSafe(async {
                knarr_supervisor::fault::point("operation");
                work.await
            });
            let outcome = work.catch_unwind().await;
            let outcome = outcome.unwrap_or_else(|panic| Outcome::Panicked(panic_message(&*panic)));
            // The worker may already have stopped.
            let _ = sender.send(Message::Done(operation, Box::new(outcome)));
        });
    }

    pub(super) fn perform(&mut self, action: Action, now: Instant) {
        let context = self.context.clone();
        let pod = self.pod.clone();
        match action {
            Action::Allocate => {
                self.launch(
                    Operation::Allocate,
                    async move { Outcome::Allocated(context.resources.allocate(&pod).await) },
                );
            }
            Action::MountVolumes => {
                let objects = self.objects.clone();
                let addresses = self.runtime.current_sandbox().map(|s| s.addresses.clone()).unwrap_or_default();
                let downward = context.downward_context(&pod, addresses);
                self.state.volumes.start_mount();
                let first = self.volumes.volumes.is_empty();
                self.launch(Operation::Volumes, async move {
                    Outcome::Volumes(mount_volumes(&context, &pod, &downward, &objects, first).await)
                });
            }
            Action::CreateSandbox { attempt } => {
                if attempt > 0 {
                    context.pod_event(
                        &pod,
                        false,
                        "SandboxChanged",
                        "Pod sandbox changed, it will be killed and re-created.",
                    );
                }
                let sender = self.sender.clone();
                self.launch(Operation::Sandbox, async move {
                    Outcome::Sandbox(create_sandbox(&context, &pod, attempt, sender).await)
                });
            }
            Action::StopSandbox { id } => {
                let step = pod_step!("sandbox-stopped", &self.pod);
                self.launch(Operation::StopSandbox(id.clone()), async move {
                    let _step = step;
                    Outcome::SandboxStopped(match context.runtime.stop_pod_sandbox(&id).await {
                        Err(error) if !error.is_not_found() => Err(error.message()),
                        _ => Ok(()),
                    })
                });
            }
            Action::Start { container, sandbox, attempt, restart } => {
                let Some(sandbox) = self.runtime.sandboxes.iter().find(|s| s.id == sandbox).cloned() else { return };
                if restart {
                    self.state.record_restart(&container, now);
                }
                if !self.is_resized() {
                    self.size_cgroup(Some(&pod));
                }
                let target = pod::find(&pod, &container)
                    .and_then(|found| found.target)
                    .and_then(|target| self.runtime.latest(&target).map(|view| view.id.clone()));
                let start = Start {
                    context,
                    pod,
                    name: container.clone(),
                    sandbox,
                    attempt,
                    volumes: self.volumes.clone(),
                    objects: self.objects.clone(),
                    target,
                    worker: self.sender.clone(),
                    terminating: self.terminating.clone(),
                };
                self.launch(Operation::Start(container), async move { Outcome::Started(start.run().await) });
            }
            Action::Stop { id, container, grace, why } => {
                let hurried = self.state.stopping.insert(id.clone(), kill_time(now, grace)).is_some();
                self.state.stop_again.remove(&id);
                let addresses = self.runtime.current_sandbox().map(|s| s.addresses.clone()).unwrap_or_default();
                let stop = Stop { context, pod, id: id.clone(), name: container, addresses, grace, why, hurried };
                self.launch(Operation::Stop(id), async move {
                    Outcome::Stopped(stop.run().await.map_err(|error| error.message()))
                });
            }
            Action::Resize => {
                let running: Vec<(String, String)> =
                    self.runtime.running().map(|view| (view.name.clone(), view.id.clone())).collect();
                let applied = self.state.resize.applied.clone();
                self.launch(Operation::Resize, async move {
                    let started = std::time::Instant::now();
                    let (applied, failure) = apply_resize(&context, &pod, running, applied).await;
                    let (name, success) = ("kubelet_pod_resize_duration_milliseconds", failure.is_none());
                    let labels = [("success", if success { "true" } else { "false" })];
                    context.metrics.observe_value(name, &labels, started.elapsed().as_secs_f64() * 1e3);
                    Outcome::Resized(applied, failure)
                });
            }
            Action::Remove { id } => {
                let is_sandbox = self.runtime.sandboxes.iter().any(|sandbox| sandbox.id == id);
                self.launch(Operation::Remove(id.clone()), async move {
                    Outcome::Removed(cleanup::remove_from_runtime(&context, &id, is_sandbox).await)
                });
            }
        }
    }

    pub(super) fn finish_operation(&mut self, operation: Operation, outcome: Outcome) {
        self.state.operations.remove(&operation);
        let now = Instant::now();
        let later = |wait: Duration| Some(now + wait);
        match (operation, outcome) {
            (operation, Outcome::Panicked(reason)) => self.finish_panicked(operation, &reason),
            (_, Outcome::Allocated(Ok(()))) => self.state.to_allocate = false,
            (_, Outcome::Allocated(Err(refused))) => {
                self.context.pod_event(&self.pod, true, refused.reason, refused.message.clone());
                let rejected = Termination::Rejected { reason: refused.reason.into(), message: refused.message };
                self.state.termination.get_or_insert(rejected);
            }
            (_, Outcome::Volumes(Ok(volumes))) => {
                self.volumes = Arc::new(volumes);
                self.state.volumes.finish_mount();
            }
            (_, Outcome::Volumes(Err(failure))) => {
                tracing::debug!(error = failure.message, pod = pod::title(&self.pod), "volumes are not mounted");
                let complete = !self.volumes.volumes.is_empty();
                if self.state.volumes.fail_mount(complete, failure.waits(), now) {
                    self.context.pod_event(&self.pod, true, "FailedMount", failure.timeout_message());
                }
            }
            (_, Outcome::Sandbox(Ok(sandbox))) => {
                self.state.sandbox_retry_at = None;
                if self.state.starts.early_exits.remove(&sandbox.id) {
                    let _ = self.sender.send(Message::Exited(sandbox.id.clone()));
                }
                self.runtime.put_sandbox(sandbox);
            }
            (_, Outcome::Sandbox(Err(_))) => self.state.sandbox_retry_at = later(SANDBOX_RETRY),
            (Operation::Start(name), Outcome::Started(result)) => self.finish_start(name, result),
            (Operation::Stop(id), Outcome::Stopped(result)) => {
                match result {
                    // The runtime reports the exit as an event; this message reads it in any case.
                    Ok(()) => drop(self.sender.send(Message::Exited(id))),
                    Err(error) => {
                        tracing::warn!(error, pod = pod::title(&self.pod), "cannot stop a container");
                        self.send_later(Message::NotStopped(id));
                    }
                }
            }
            (Operation::StopSandbox(id), Outcome::SandboxStopped(result)) => match result {
                Ok(()) => {
                    self.state.refused.remove(&Operation::StopSandbox(id.clone()));
                    self.state.stopped_sandboxes.insert(id.clone());
                    if let Some(sandbox) = self.runtime.sandboxes.iter_mut().find(|sandbox| sandbox.id == id) {
                        sandbox.ready = false;
                    }
                }
                Err(error) => {
                    tracing::warn!(error, pod = pod::title(&self.pod), "cannot stop a sandbox");
                    self.retry_later(Operation::StopSandbox(id));
                }
            },
            (Operation::Remove(id), Outcome::Removed(result)) => match result {
                Ok(()) => {
                    self.context.index.remove(&id);
                    self.runtime.forget(&id);
                    self.state.probes.remove(&id);
                    self.state.exits.remove(&id);
                    self.state.refused.remove(&Operation::Remove(id));
                }
                Err(error) => {
                    tracing::warn!(error, pod = pod::title(&self.pod), "cannot remove a container");
                    self.retry_later(Operation::Remove(id));
                    self.wake_later(CLEAN_RETRY);
                }
            },
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
                self.wake_later(crate::csi::backoff(self.state.clean_failures));
            }
            _ => {}
        }
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
        self.state.starts.attempted.insert(name.clone());
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
    fn size_cgroup(&self, room_for: Option<&Pod>) {
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

    /// Stores the granted resources on disk. Pods without any resources need none.
    pub(super) fn store_granted(&self) {
        let granted = resize::resources_of(&self.pod);
        let empty = |resources: &ByContainer| resources.values().all(|one| *one == Default::default());
        if empty(&granted) && empty(&self.state.resize.applied) {
            return;
        }
        let directory = self.context.settings.pod_directory(pod::uid(&self.pod));
        Granted { granted, applied: self.state.resize.applied.clone() }.store(&directory);
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

    /// The remaining steps when nothing of the pod runs any more.
    pub(super) fn finish(&mut self) {
        if self.retry_at.is_some_and(|at| at > Instant::now()) {
            return;
        }
        self.retry_at = None;
        if !self.state.searched {
            if !self.state.is_busy(&Operation::Search) {
                self.search();
            }
            return;
        }
        if !self.state.cleaned {
            if !self.state.is_busy(&Operation::Clean) && !self.state.is_busy(&Operation::Volumes) {
                let (context, uid) = (self.context.clone(), pod::uid(&self.pod).to_string());
                let step = pod_step!("volumes-removed", &self.pod);
                let notify = self.objects.notifier();
                self.launch(Operation::Clean, async move {
                    let _step = step;
                    Outcome::Cleaned(cleanup::release(&context, &uid, Some(notify)).await)
                });
            }
            return;
        }
        if self.state.termination == Some(Termination::Removed) {
            self.remove_remains();
            return;
        }
        let deleting = self.pod.metadata.deletion_timestamp.is_some() && !pod::is_static(&self.pod);
        let is_reported = !status::differs(&self.reported, &self.status);
        if deleting && is_reported && !self.deleted && !self.state.is_busy(&Operation::Delete) {
            let (client, pod) = (self.context.client.clone(), self.pod.clone());
            self.launch(Operation::Delete, async move { Outcome::Deleted(delete(client, &pod).await) });
        }
    }

    /// Searches the runtime for unknown containers of the pod: a start whose response was lost, because the runtime or
    /// a previous process was killed, may have created some.
    fn search(&mut self) {
        let (context, uid) = (self.context.clone(), pod::uid(&self.pod).to_string());
        let known: HashSet<String> = self.runtime.ids().map(str::to_string).collect();
        self.launch(Operation::Search, async move {
            let found = list_pod(&context.runtime, &uid, |id| !known.contains(id)).await;
            Outcome::Found(found.map_err(|error| error.message()))
        });
    }

    fn adopt_found(&mut self, found: RuntimePod) {
        self.state.searched = found.is_empty();
        for id in found.ids() {
            tracing::info!(pod = pod::title(&self.pod), id, "found an unknown container or sandbox of a pod");
            self.context.index.insert(id, self.sender.clone());
        }
        found.containers.into_iter().for_each(|container| self.put_container(container));
        found.sandboxes.into_iter().for_each(|sandbox| self.runtime.put_sandbox(sandbox));
    }

    fn remove_remains(&mut self) {
        let containers: Vec<String> = self.runtime.containers.iter().map(|container| container.id.clone()).collect();
        let ids = if containers.is_empty() {
            self.runtime.sandboxes.iter().map(|sandbox| sandbox.id.clone()).collect()
        } else {
            containers
        };
        for id in ids {
            if !self.state.is_busy(&Operation::Remove(id.clone())) {
                self.perform(Action::Remove { id }, Instant::now());
            }
        }
    }

    /// Nothing is left anywhere: the worker may stop.
    pub(super) fn is_gone(&self) -> bool {
        self.state.termination == Some(Termination::Removed)
            && self.plan.terminated
            && self.state.cleaned
            && self.runtime.is_empty()
            && self.state.operations.is_empty()
    }

    pub(super) fn forget(&self) {
        let uid = pod::uid(&self.pod);
        self.context.tokens.forget(uid);
        self.context.images.forget_pod(uid);
        let (namespace, name) = (pod::namespace(&self.pod), pod::name(&self.pod));
        self.context.metrics.forget("prober_probe_total", &[("pod_uid", uid)]);
        self.context.metrics.forget("prober_probe_duration_seconds", &[("namespace", namespace), ("pod", name)]);
        cleanup::remove_logs(&self.context, &self.pod);
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

async fn delete(client: kube::Client, pod: &Pod) -> Result<(), StatusError> {
    let pods: Api<Pod> = Api::namespaced(client, pod::namespace(pod));
    let parameters = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: pod.metadata.uid.clone(), resource_version: None }),
        ..DeleteParams::default()
    };
    pods.delete(pod::name(pod), &parameters).await?;
    Ok(())
}
