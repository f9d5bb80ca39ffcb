//! The pod worker: one task per pod. It compares the desired pod with the runtime's state, computes a [`plan`], starts
//! the planned operations in separate tasks, and reports the status. A worker never waits for another pod, and nothing
//! slow runs inline.

mod apply_resize;
pub mod cleanup;
mod effects;
#[cfg(test)]
pub mod fake_runtime;
mod grant;
mod hooks;
mod message;
mod outcome;
mod panicked;
pub mod plan;
mod probe_tasks;
mod recovery;
mod refresh;
mod report;
pub mod resize;
pub mod restart;
mod runtime_class;
#[cfg(test)]
mod runtime_failure_tests;
mod sandbox;
mod spawn;
mod start;
pub mod state;
mod status;
mod stop;
mod termination;

pub use message::Message;
pub use outcome::Outcome;
pub use spawn::Handle;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::jiff::Timestamp;
use knarr_client::time::until;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::objects::Subscription;
use crate::pod;
use crate::probes::ProbeKind;
use crate::runtime::{EventHandler, RuntimePod, State};
use crate::volumes::MountedVolumes;
use plan::{Plan, Situation};
use probe_tasks::{ProbeContext, ProbeTasks};
use state::{Termination, WorkerState};

pub struct Worker {
    context: Arc<Context>,
    pod: Arc<Pod>,
    /// The mirror pod of a static pod.
    mirror: Option<Arc<Pod>>,
    runtime: RuntimePod,
    state: WorkerState,
    volumes: Arc<MountedVolumes>,
    objects: Arc<Subscription>,
    probes: ProbeTasks,
    /// The status that the API has.
    reported: PodStatus,
    /// The last computed status, from which the next one is derived.
    status: PodStatus,
    shared_status: Arc<parking_lot::Mutex<PodStatus>>,
    shared_pod: Arc<parking_lot::Mutex<Arc<Pod>>>,
    /// When the kubelet first saw the pod.
    created_at: Instant,
    /// The resource version of the reported status.
    reported_version: Option<u64>,
    status_retry_at: Option<Instant>,
    /// The earliest retry of the final cleanup.
    retry_at: Option<Instant>,
    /// The pod was deleted in the API.
    deleted: bool,
    sender: UnboundedSender<Message>,
    /// Sends the events of this pod's containers to `sender`.
    runtime_events: EventHandler,
    receiver: UnboundedReceiver<Message>,
    plan: Plan,
    /// The desired pod, if its resources are not granted yet.
    desired: Option<Arc<Pod>>,
    fits: Fits,
    /// Cancelled when the pod terminates, which aborts starts in progress.
    terminating: CancellationToken,
    /// Containers and sandboxes with a pending [`Message::ExitedAgain`].
    pending_rechecks: HashSet<String>,
}

/// Grants a resize of the pod, or returns why not.
pub type Fits = Arc<dyn Fn(&Arc<Pod>) -> Option<resize::Pending> + Send + Sync>;

/// How often a resize without room is retried.
const RESIZE_RETRY_INTERVAL: Duration = Duration::from_secs(5);

impl Worker {
    async fn run(mut self, shared: &Handle) {
        let waited = self.created_at.elapsed();
        self.context.metrics.observe("kubelet_pod_worker_start_duration_seconds", &[], waited);
        loop {
            knarr_supervisor::fault::point("worker");
            let started = std::time::Instant::now();
            let span = crate::traces::sync(self.operation_type(), &self.pod);
            let wake_at = knarr_traces::call_within(span.as_ref().map(knarr_traces::Span::place), || self.step());
            drop(span);
            let labels = [("operation_type", self.operation_type())];
            self.context.metrics.observe("kubelet_pod_worker_duration_seconds", &labels, started.elapsed());
            *shared.runtime.lock() = self.runtime.clone();
            *shared.pod.lock() = self.pod.clone();
            *shared.volumes.lock() = self.volumes.clone();
            if self.is_gone() {
                self.forget();
                return;
            }
            let pause = async {
                match wake_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                message = self.receiver.recv() => {
                    let Some(message) = message else { return };
                    // Boxed, as a worker mostly waits here and should not hold the handler's state meanwhile.
                    Box::pin(self.handle(message)).await;
                }
                () = pause => {}
            }
            // Handles all queued messages before the next plan, but none that arrive meanwhile: handling may take long,
            // and must not starve planning.
            for _ in 0..self.receiver.len() {
                let Ok(message) = self.receiver.try_recv() else { break };
                Box::pin(self.handle(message)).await;
            }
        }
    }

    async fn handle(&mut self, message: Message) {
        match message {
            Message::Desired(pod) => self.accept(pod),
            Message::Removed => {
                self.state.termination = Some(Termination::Removed);
            }
            Message::Mirror(mirror) => {
                let fresh = mirror.as_ref().map(|mirror| pod::uid(mirror)) != self.mirror.as_ref().map(|m| pod::uid(m));
                if fresh {
                    self.reported = mirror.as_ref().and_then(|mirror| mirror.status.clone()).unwrap_or_default();
                }
                self.mirror = mirror;
            }
            Message::Exited(id) => self.refresh(&id, true).await,
            Message::ExitedAgain(id) => {
                self.pending_rechecks.remove(&id);
                self.refresh(&id, true).await;
            }
            Message::NotStopped(id) => {
                self.state.stop_again.insert(id);
            }
            Message::Changed(id) => self.refresh(&id, false).await,
            Message::Relist(_round) => {
                let started = std::time::Instant::now();
                let containers = self.runtime.containers.iter().filter(|c| c.state != State::Exited);
                let ids: Vec<String> =
                    containers.map(|c| &c.id).chain(self.runtime.sandboxes.iter().map(|s| &s.id)).cloned().collect();
                for id in ids {
                    self.refresh(&id, false).await;
                }
                self.context.metrics.observe("kubelet_pleg_pod_relist_duration_seconds", &[], started.elapsed());
            }
            Message::ObjectsChanged => {
                self.state.volumes.invalidate();
                self.state.volumes.retry_at = None;
                // The driver of a volume that is to be unmounted may be back.
                self.retry_at = None;
                self.state.starts.retry_at.retain(|name, _| {
                    self.state.starts.waiting.get(name).is_none_or(|why| why.reason != "CreateContainerConfigError")
                });
            }
            Message::Running(view) => self.put_started(*view),
            Message::Probe { id, kind, success } => {
                let results = self.state.probes.entry(id).or_default();
                match kind {
                    ProbeKind::Readiness => results.ready = Some(success),
                    ProbeKind::Startup if success => results.started = Some(true),
                    ProbeKind::Startup => results.startup_failed = true,
                    ProbeKind::Liveness => results.liveness_failed = !success,
                }
            }
            Message::Stop(termination) => {
                self.state.termination.get_or_insert(*termination);
            }
            Message::Done(operation, outcome) => self.finish_operation(operation, *outcome),
        }
    }

    /// The `operation_type` label of a reconciliation.
    fn operation_type(&self) -> &'static str {
        match (&self.state.termination, self.runtime.is_empty()) {
            (Some(_), _) => "kill",
            (None, true) => "create",
            (None, false) => "sync",
        }
    }

    /// One reconciliation: plans, starts operations, reports. Returns when to reconcile again if nothing happens.
    fn step(&mut self) -> Option<Instant> {
        let (now, wall) = (Instant::now(), Timestamp::now());
        if self.state.termination.is_none() {
            self.state.termination = self.termination_reason(wall);
        }
        if self.state.termination.is_some() && self.state.terminating_since.is_none() {
            self.state.terminating_since = Some(now);
            self.terminating.cancel();
        }
        if let Some(desired) = self.desired.clone() {
            self.grant(desired);
        }
        let has_main_container = pod::main_containers(&self.pod).any(|c| self.runtime.latest(&c.name).is_some());
        self.state.reset_attempts(!has_main_container);
        let situation = Situation { pod: &self.pod, runtime: &self.runtime, state: &self.state, now, wall };
        let before = std::mem::replace(&mut self.plan, plan::plan(&situation));
        self.record_back_off(&before);
        self.record_resize_completed();
        for action in std::mem::take(&mut self.plan.actions) {
            self.perform(action, now);
        }
        let probe_context = ProbeContext { context: &self.context, latest: &self.shared_pod, worker: &self.sender };
        self.probes.sync(&probe_context, &self.pod, &self.runtime, &self.state);
        self.report(now, wall);
        if self.plan.terminated {
            self.finish();
        }
        let resize_retry_at = self.desired.as_ref().map(|_| now + RESIZE_RETRY_INTERVAL);
        let renew = self.volumes.renew_at.filter(|_| self.state.termination.is_none());
        // An update that failed is retried while the containers keep using the volumes as they were.
        let remount = self.state.volumes.retry_at.filter(|_| self.state.termination.is_none());
        let is_due = renew.is_some_and(|at| at <= wall) || remount.is_some_and(|at| at <= now);
        if is_due && self.state.volumes.ready {
            self.state.volumes.ready = false;
            return Some(now);
        }
        [
            self.plan.wake_at,
            self.status_retry_at.filter(|at| *at > now),
            self.retry_at.filter(|at| *at > now),
            renew.map(|at| now + until(wall, at)),
            remount.filter(|at| *at > now),
            resize_retry_at,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Records an event each time a container enters its restart back-off.
    fn record_back_off(&self, before: &Plan) {
        for name in self.plan.backing_off.keys().filter(|name| !before.backing_off.contains_key(*name)) {
            let message = format!("Back-off restarting failed container {name} in pod {}", pod::full_title(&self.pod));
            self.context.events.about_container(&self.pod, name, true, "BackOff", message);
        }
    }
}
