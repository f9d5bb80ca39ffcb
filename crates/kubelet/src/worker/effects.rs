//! Executes the plan's actions: each runs in its own task and returns its outcome as a message.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_client::is_unreachable;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};

use super::plan::Action;
use super::resize::{self, ByContainer, Granted, MemoryDecrease};
use super::start::{Start, StartFailure};
use super::state::{Operation, Termination, Waiting};
use super::stop::Stop;
use super::{Message, Worker, cleanup};
use crate::cgroup::Cgroups;
use crate::cgroup::amounts::pod_amounts;
use crate::container::hosts::fitting_hostname;
use crate::container::resources::linux_resources;
use crate::container::sandbox::sandbox_config;
use crate::container::user_namespace;
use crate::context::{Context, api_text};
use crate::journey_events::{self, pod_step};
use crate::pod;
use crate::private;
use crate::runtime::{ContainerView, RuntimePod, Sandbox, State, label, list_pod, observe_sandbox};
use crate::status;
use crate::volumes::{self, MountedVolumes};
use knarr_cri::messages::{PodSandbox, PodSandboxFilter};

/// The result of an operation.
pub enum Outcome {
    Allocated(Result<(), crate::resources::AllocationRefusal>),
    Volumes(Result<MountedVolumes, String>),
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

const INITIAL_VOLUME_RETRY: SignedDuration = SignedDuration::from_millis(100);
const MAX_VOLUME_RETRY: SignedDuration = SignedDuration::from_mins(1);
const SANDBOX_RETRY: SignedDuration = SignedDuration::from_secs(2);
const RESIZE_RETRY: SignedDuration = SignedDuration::from_secs(3);
const CLEAN_RETRY: SignedDuration = SignedDuration::from_secs(2);

impl Worker {
    fn launch<F>(&mut self, operation: Operation, work: F)
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        self.state.operations.insert(operation.clone());
        let sender = self.sender.clone();
        // Boxed, as a task would hold a large future twice: before and while it awaits it.
        let work = Box::pin(work);
        tokio::spawn(async move {
            let outcome = work.await;
            // The worker may already have stopped.
            let _ = sender.send(Message::Done(operation, Box::new(outcome)));
        });
    }

    pub(super) fn perform(&mut self, action: Action, now: Timestamp) {
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
                self.launch(Operation::Volumes, async move {
                    Outcome::Volumes(mount(&context, &pod, &downward, &objects).await)
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
                let kill_at = now.saturating_add(SignedDuration::from_secs(grace)).unwrap_or(now);
                let hurried = self.state.stopping.insert(id.clone(), kill_at).is_some();
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
                let applied = self.state.applied.clone();
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
        let now = Timestamp::now();
        let later = |wait: SignedDuration| Some(now.saturating_add(wait).unwrap_or(now));
        match (operation, outcome) {
            (_, Outcome::Allocated(Ok(()))) => self.state.to_allocate = false,
            (_, Outcome::Allocated(Err(refused))) => {
                self.context.pod_event(&self.pod, true, refused.reason, refused.message.clone());
                let rejected = Termination::Rejected { reason: refused.reason.into(), message: refused.message };
                self.state.termination.get_or_insert(rejected);
            }
            (_, Outcome::Volumes(Ok(volumes))) => {
                self.volumes = Arc::new(volumes);
                self.state.volumes_ready = true;
                self.state.volume_failures = 0;
                self.state.volumes_retry_at = None;
            }
            (_, Outcome::Volumes(Err(_))) => {
                // Complete volumes stay in use while an update fails.
                self.state.volumes_ready = !self.volumes.volumes.is_empty();
                self.state.volume_failures += 1;
                let wait = INITIAL_VOLUME_RETRY * 2i32.saturating_pow(self.state.volume_failures.min(10));
                self.state.volumes_retry_at = later(wait.min(MAX_VOLUME_RETRY));
            }
            (_, Outcome::Sandbox(Ok(sandbox))) => {
                self.state.sandbox_retry_at = None;
                if self.state.early_exits.remove(&sandbox.id) {
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
                self.state.applied = applied;
                self.state.resize_failed = failure.zip(later(RESIZE_RETRY));
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
                self.wake_later(CLEAN_RETRY);
            }
            _ => {}
        }
    }

    /// Schedules a retry of an operation that the runtime failed.
    fn retry_later(&mut self, operation: Operation) {
        let now = Timestamp::now();
        self.state.refused.insert(operation, now.saturating_add(CLEAN_RETRY).unwrap_or(now));
    }

    /// Schedules a retry of the pod's final cleanup.
    fn wake_later(&mut self, wait: SignedDuration) {
        let now = Timestamp::now();
        let at = now.saturating_add(wait).unwrap_or(now);
        self.retry_at = Some(self.retry_at.map_or(at, |known| known.max(at)));
    }

    fn finish_start(&mut self, name: String, result: Result<ContainerView, StartFailure>) {
        self.state.attempted.insert(name.clone());
        match result {
            Ok(view) => {
                self.state.waiting.remove(&name);
                self.state.start_retry_at.remove(&name);
                self.state.started.insert(view.id.clone());
                if let Some(resources) = resize::resources_of(&self.pod).remove(&name) {
                    let changed = self.state.applied.insert(name.clone(), resources.clone());
                    resize::record_pod_level(&self.pod, &mut self.state.applied);
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
                self.state.waiting.insert(name.clone(), waiting);
                self.state.start_retry_at.insert(name, failure.retry_at);
                if let Some(view) = failure.remains {
                    self.put_started(view);
                }
            }
        }
    }

    /// Sets the pod's cgroup to its containers' applied resources, or larger if a restarting container needs more.
    fn size_cgroup(&self, room_for: Option<&Pod>) {
        let Some(cgroups) = &self.context.cgroups else { return };
        let now = resize::with_resources(&self.pod, &self.state.applied);
        let sized = match room_for {
            Some(desired) => cgroups.widen(&now, desired),
            None => cgroups.ensure(&now),
        };
        if let Err(error) = sized {
            tracing::warn!(%error, pod = pod::title(&self.pod), "cannot resize the pod's cgroup");
        }
    }

    fn finish_status(&mut self, result: Result<(Box<PodStatus>, Option<String>), StatusError>, now: Timestamp) {
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
                self.status_retry_at = Some(now.saturating_add(SignedDuration::from_secs(1)).unwrap_or(now));
            }
        }
    }

    /// Stores the granted resources on disk. Pods without any resources need none.
    pub(super) fn store_granted(&self) {
        let granted = resize::resources_of(&self.pod);
        let empty = |resources: &ByContainer| resources.values().all(|one| *one == Default::default());
        if empty(&granted) && empty(&self.state.applied) {
            return;
        }
        let directory = self.context.settings.pod_directory(pod::uid(&self.pod));
        Granted { granted, applied: self.state.applied.clone() }.store(&directory);
    }

    /// Writes the status if it differs from the API's and no write is in progress.
    pub(super) fn send_status(&mut self, now: Timestamp) {
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
        if self.retry_at.is_some_and(|at| at > Timestamp::now()) {
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
                self.launch(Operation::Clean, async move {
                    let _step = step;
                    Outcome::Cleaned(cleanup::release(&context, &uid).await)
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
        found.containers.into_iter().for_each(|container| self.runtime.put_container(container));
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
                self.perform(Action::Remove { id }, Timestamp::now());
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

/// Enlarges the pod's cgroup to the maximum of old and new, updates the containers, and then sets the pod's cgroup to
/// its new size: a child must never be allowed more than its parent.
async fn apply_resize(
    context: &Context,
    pod: &Pod,
    running: Vec<(String, String)>,
    mut applied: ByContainer,
) -> (ByContainer, Option<String>) {
    let cgroups = context.cgroups.as_ref();
    let is_running = |name: &str| running.iter().any(|(known, _)| known == name);
    let before = applied.clone();
    let to_update: Vec<_> = resize::outstanding(pod, &before, is_running)
        .into_iter()
        .filter(|container| !resize::needs_restart(pod, container, &before))
        .collect();
    let old = resize::with_resources(pod, &applied);
    if let Some(cgroups) = cgroups
        && let Some(refusal) = memory_decrease(cgroups, pod, &old, &to_update, &running, &before).refusal()
    {
        return (applied, Some(refusal));
    }
    let widened = cgroups.map_or(Ok(()), |cgroups| cgroups.widen(&old, pod));
    if let Err(error) = widened {
        return (applied, Some(error.to_string()));
    }
    let unified = cgroups.is_some_and(|cgroups| cgroups.is_unified());
    for container in to_update {
        let mut resources = linux_resources(pod, container, context.host.memory, unified);
        if resources.cpu_quota == 0 {
            resources.cpu_quota = -1;
        }
        let Some((_, id)) = running.iter().find(|(name, _)| *name == container.name) else { continue };
        if let Err(error) = context.runtime.update_container_resources(id, resources).await {
            return (applied, Some(error.message()));
        }
        applied.insert(container.name.clone(), container.resources.clone().unwrap_or_default());
    }
    resize::record_pod_level(pod, &mut applied);
    let started = std::time::Instant::now();
    let narrowed = cgroups.map_or(Ok(()), |cgroups| cgroups.ensure(&resize::with_resources(pod, &applied)));
    let operation = [("operation_type", "update")];
    context.metrics.observe("kubelet_cgroup_manager_duration_seconds", &operation, started.elapsed());
    (applied, narrowed.err().map(|error| error.to_string()))
}

/// Reads the usage of the memory whose limits are lowered.
fn memory_decrease(
    cgroups: &Cgroups,
    pod: &Pod,
    old: &Pod,
    to_update: &[&Container],
    running: &[(String, String)],
    applied: &ByContainer,
) -> MemoryDecrease {
    let limits = (pod_amounts(old).memory_limit, pod_amounts(pod).memory_limit);
    let pod_limit = limits.1.filter(|new| limits.0.is_none_or(|old| *new < old));
    let containers = to_update.iter().filter_map(|container| {
        let limit = resize::lowered_memory_limit(pod, container, applied)?;
        let (_, id) = running.iter().find(|(name, _)| *name == container.name)?;
        let usage = cgroups.usage(&format!("{}/{id}", cgroups.pod_path(pod)));
        Some((container.name.clone(), limit, usage.memory))
    });
    MemoryDecrease { pod_limit, containers: containers.collect(), pod_usage: cgroups.pod_usage(pod).memory }
}

async fn mount(
    context: &Context,
    pod: &Pod,
    downward: &crate::container::env::DownwardContext,
    objects: &crate::objects::Subscription,
) -> Result<MountedVolumes, String> {
    let started = std::time::Instant::now();
    let ensured = context.cgroups.as_ref().map_or(Ok(()), |cgroups| cgroups.ensure(pod));
    let operation = [("operation_type", "create")];
    context.metrics.observe("kubelet_cgroup_manager_duration_seconds", &operation, started.elapsed());
    if let Err(error) = ensured {
        let message = format!("Failed to create the pod's cgroup: {error}");
        context.pod_event(pod, true, "FailedCreatePodContainer", message.clone());
        return Err(message);
    }
    let mounted = volumes::mount_all(context, pod, downward, objects).await;
    mounted.map_err(|failed| {
        let messages: Vec<String> = failed.into_iter().map(|(name, error)| error.event_message(pod, &name)).collect();
        for message in &messages {
            context.pod_event(pod, true, "FailedMount", message.clone());
        }
        messages.join("; ")
    })
}

async fn create_sandbox(
    context: &Context,
    pod: &Pod,
    attempt: u32,
    worker: tokio::sync::mpsc::UnboundedSender<Message>,
) -> Result<Sandbox, String> {
    let failed = |message: String| {
        context.pod_event(pod, true, "FailedCreatePodSandBox", format!("Failed to create pod sandbox: {message}"));
        message
    };
    let handler = crate::node::runtime_class::handler(context, pod).await.map_err(failed)?;
    if user_namespace::is_requested(pod) {
        if !context.runtime_features.read().of_handler(&handler).user_namespaces {
            let who = match handler.as_str() {
                "" => "runtime".to_string(),
                handler => format!("RuntimeClass handler \"{handler}\""),
            };
            return Err(failed(format!("can't set `spec.hostUsers: false`, {who} does not support user namespaces")));
        }
        user_namespace::ensure(&context.settings, pod).map_err(|error| failed(error.to_string()))?;
    }
    if !pod::host_network(pod) {
        fitting_hostname(pod, &context.settings.cluster_domain).map_err(failed)?;
    }
    let config = sandbox_config(pod, attempt, &context.settings, &context.node_dns, &context.cgroup_parent(pod));
    private::create_log_directory(config.log_directory.as_ref()).map_err(|error| failed(error.to_string()))?;
    let _turn = context.starts.turn().await;
    let step = journey_events::sandbox(pod);
    context.metrics.count("kubelet_started_pods_total", &[]);
    let own_users = user_namespace::is_requested(pod);
    if own_users {
        context.metrics.count("kubelet_started_user_namespaced_pods_total", &[]);
    }
    let started = std::time::Instant::now();
    let id = match context.runtime.run_pod_sandbox(config, &handler).await {
        Ok(id) => id,
        Err(error) => match find_sandbox(context, pod, attempt).await {
            Some(id) => id,
            None => {
                context.metrics.count("kubelet_started_pods_errors_total", &[]);
                if own_users {
                    context.metrics.count("kubelet_started_user_namespaced_pods_errors_total", &[]);
                }
                context.metrics.count("kubelet_run_podsandbox_errors_total", &[("runtime_handler", &handler)]);
                step.record("failed", error.rpc_message());
                return Err(failed(error.rpc_message()));
            }
        },
    };
    let labels = [("runtime_handler", handler.as_str())];
    context.metrics.observe("kubelet_run_podsandbox_duration_seconds", &labels, started.elapsed());
    context.index.insert(&id, worker);
    let sandbox = observe_sandbox(&context.runtime, &id).await.map_err(|error| failed(error.rpc_message()))?;
    step.record("address", sandbox.addresses.join(", "));
    Ok(sandbox)
}

/// A sandbox that the runtime finished creating after a previous process requested it and stopped. Its name is in use,
/// so no other can be created; if it exists it is adopted.
async fn find_sandbox(context: &Context, pod: &Pod, attempt: u32) -> Option<String> {
    let filter = PodSandboxFilter {
        label_selector: [(label::POD_UID.to_string(), pod::uid(pod).to_string())].into(),
        ..Default::default()
    };
    let all = context.runtime.list_pod_sandboxes(filter).await.ok()?;
    let same = |sandbox: &PodSandbox| sandbox.metadata.as_ref().is_some_and(|metadata| metadata.attempt == attempt);
    all.into_iter().find(same).map(|sandbox| sandbox.id)
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
