//! One task a pod. It looks at what is wanted, what the runtime holds and what it remembers, lets [`plan`] say what to do,
//! starts that beside itself, and reports the status. Nothing here waits for another pod, and nothing slow runs inline.

pub mod cleanup;
mod effects;
mod hooks;
pub mod state;
pub mod plan;
pub mod resize;
pub mod restart;
mod start;
mod stop;

pub use effects::Outcome;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_client::time::until;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::objects::Interest;
use crate::pod;
use crate::probes::{self, ProbeKind, ProbeTasks};
use crate::runtime::{ContainerView, Round, RuntimePod, State, observe_container, observe_sandbox};
use crate::status;
use crate::journey_events;
use crate::volumes::MountedVolumes;
use state::{Ending, WorkerState, Operation, ProbeResults};
use plan::{Plan, Situation};

/// What a worker is told. Queues have room for many, so what is large lies elsewhere.
pub enum Message {
    /// The pod as it is wanted now.
    Desired(Arc<Pod>),
    /// The API no longer knows the pod.
    Removed,
    /// The API's picture of a static pod, to which its status is written.
    Mirror(Option<Arc<Pod>>),
    Exited(String),
    /// The same, told by ourselves because the runtime did not know of it yet.
    ExitedAgain(String),
    Changed(String),
    /// The runtime was told to stop a container, and a moment ago said that it can't.
    NotStopped(String),
    /// Look at everything again: events may have been missed.
    Relist(Option<Arc<Round>>),
    ObjectsChanged,
    Running(Box<ContainerView>),
    Probe {
        id: String,
        kind: ProbeKind,
        success: bool,
    },
    /// The node ends the pod.
    Stop(Box<Ending>),
    Done(Operation, Box<Outcome>),
}

pub struct Worker {
    context: Arc<Context>,
    pod: Arc<Pod>,
    /// For static pods, where the status goes.
    mirror: Option<Arc<Pod>>,
    runtime: RuntimePod,
    state: WorkerState,
    volumes: Arc<MountedVolumes>,
    objects: Arc<Interest>,
    probes: ProbeTasks,
    /// What the API holds of our status.
    reported: PodStatus,
    /// What was computed last, on which the next is built.
    status: PodStatus,
    shared_status: Arc<parking_lot::Mutex<PodStatus>>,
    shared_pod: Arc<parking_lot::Mutex<Arc<Pod>>>,
    /// The version of the object that holds it.
    reported_version: Option<u64>,
    status_retry_at: Option<Timestamp>,
    /// Not before this moment what failed at the end is tried again.
    retry_at: Option<Timestamp>,
    /// The API was told to forget the pod.
    deleted: bool,
    sender: UnboundedSender<Message>,
    receiver: UnboundedReceiver<Message>,
    plan: Plan,
    /// The pod as the API wants it, where it differs in resources from the granted one.
    wished: Option<Arc<Pod>>,
    fits: Fits,
    /// Tells starts under way that the pod is to end.
    ends: CancellationToken,
    /// Of which containers and sandboxes we are about to tell ourselves again.
    echoes: HashSet<String>,
}

/// Whether the node has room for a pod in another size; the answer says why not.
pub type Fits = Arc<dyn Fn(&Pod) -> Option<resize::Pending> + Send + Sync>;

/// How others reach a worker.
#[derive(Clone)]
pub struct Handle {
    pub sender: UnboundedSender<Message>,
    pub pod: Arc<parking_lot::Mutex<Arc<Pod>>>,
    /// The status as the node knows it, ahead of the API's.
    pub status: Arc<parking_lot::Mutex<PodStatus>>,
    pub runtime: Arc<parking_lot::Mutex<RuntimePod>>,
    pub volumes: Arc<parking_lot::Mutex<Arc<MountedVolumes>>>,
}

/// How often a change of resources that found no room is tried again.
const LOOK_FOR_ROOM: SignedDuration = SignedDuration::from_secs(5);

impl Worker {
    /// `runtime` is what an earlier life of the node left in the runtime. A pod that is refused never begins, and nobody
    /// has to make room for it.
    pub fn spawn(
        context: Arc<Context>,
        pod: Arc<Pod>,
        runtime: RuntimePod,
        refused: Option<Ending>,
        fits: Fits,
        ended: impl FnOnce() + Send + 'static,
    ) -> Handle {
        let noted = resize::Granted::load(&context.settings.pod_directory(pod::uid(&pod))).unwrap_or_default();
        let wished = pod;
        let pod = match noted.granted.is_empty() || runtime.is_empty() {
            true => wished.clone(),
            false => Arc::new(resize::with_resources(&wished, &noted.granted)),
        };
        let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
        for id in runtime.ids() {
            context.index.insert(id, sender.clone());
        }
        if !runtime.is_empty() {
            // Between the look at the runtime and now something may have ended unheard.
            let _ = sender.send(Message::Relist(None));
        }
        let objects = Arc::new(context.objects.interest(sender.clone()));
        let status = if pod::is_static(&pod) { PodStatus::default() } else { pod.status.clone().unwrap_or_default() };
        let mut shown = status.clone();
        if refused.is_some() {
            shown.phase = Some("Failed".into());
        }
        let handle = Handle {
            sender: sender.clone(),
            pod: Arc::new(parking_lot::Mutex::new(pod.clone())),
            status: Arc::new(parking_lot::Mutex::new(shown)),
            runtime: Arc::new(parking_lot::Mutex::new(runtime.clone())),
            volumes: Arc::default(),
        };
        let probes = known_results(&runtime, &status, &context.runtime_name);
        let adopted = !runtime.is_empty();
        let state = WorkerState {
            probes,
            first_seen: Some(Timestamp::now()),
            applied: noted.applied,
            ending: refused,
            to_allocate: context.resources.concern(&pod),
            tried: known_starts(&runtime, &status),
            ..Default::default()
        };
        let worker = Self {
            context,
            pod,
            mirror: None,
            runtime,
            state,
            volumes: Arc::default(),
            objects,
            probes: ProbeTasks::new(adopted),
            reported: status.clone(),
            status,
            shared_status: handle.status.clone(),
            shared_pod: handle.pod.clone(),
            reported_version: None,
            status_retry_at: None,
            retry_at: None,
            deleted: false,
            sender,
            receiver,
            plan: Plan::default(),
            // Compared in the first step, as asking for room takes locks that may be held here.
            wished: Some(wished),
            fits,
            ends: CancellationToken::new(),
            echoes: HashSet::new(),
        };
        let shared = handle.clone();
        tokio::spawn(async move {
            worker.run(&shared).await;
            ended();
        });
        handle
    }

    async fn run(mut self, shared: &Handle) {
        if let Some(seen) = self.state.first_seen {
            let waited = until(seen, Timestamp::now());
            self.context.metrics.observe("kubelet_pod_worker_start_duration_seconds", &[], waited);
        }
        loop {
            let begun = std::time::Instant::now();
            let wake_at = self.step();
            let labels = [("operation_type", self.operation_type())];
            self.context.metrics.observe("kubelet_pod_worker_duration_seconds", &labels, begun.elapsed());
            *shared.runtime.lock() = self.runtime.clone();
            *shared.pod.lock() = self.pod.clone();
            *shared.volumes.lock() = self.volumes.clone();
            if self.is_gone() {
                self.forget();
                return;
            }
            let pause = async {
                match wake_at {
                    Some(at) => tokio::time::sleep(until(Timestamp::now(), at)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                message = self.receiver.recv() => {
                    let Some(message) = message else { return };
                    // Most of the time a worker waits here: what it needs to hear with is only there while it does.
                    Box::pin(self.hear(message)).await;
                }
                () = pause => {}
            }
            // What else has come meanwhile is taken in before the next plan; what comes while it is, is not: hearing may
            // take long, and a plan must come of it.
            for _ in 0..self.receiver.len() {
                let Ok(message) = self.receiver.try_recv() else { break };
                Box::pin(self.hear(message)).await;
            }
        }
    }

    async fn hear(&mut self, message: Message) {
        match message {
            Message::Desired(pod) => self.take(pod),
            Message::Removed => {
                self.state.ending = Some(Ending::Removed);
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
                self.echoes.remove(&id);
                self.refresh(&id, true).await;
            }
            Message::NotStopped(id) => {
                self.state.stop_again.insert(id);
            }
            Message::Changed(id) => self.refresh(&id, false).await,
            Message::Relist(_round) => {
                let begun = std::time::Instant::now();
                let containers = self.runtime.containers.iter().filter(|c| c.state != State::Exited);
                let ids: Vec<String> =
                    containers.map(|c| &c.id).chain(self.runtime.sandboxes.iter().map(|s| &s.id)).cloned().collect();
                for id in ids {
                    self.refresh(&id, false).await;
                }
                self.context.metrics.observe("kubelet_pleg_pod_relist_duration_seconds", &[], begun.elapsed());
            }
            Message::ObjectsChanged => {
                self.state.volumes_ready = false;
                self.state.volumes_retry_at = None;
                self.state.start_retry_at.retain(|name, _| {
                    self.state.waiting.get(name).is_none_or(|why| why.reason != "CreateContainerConfigError")
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
            Message::Stop(ending) => {
                self.state.ending.get_or_insert(*ending);
            }
            Message::Done(operation, outcome) => self.conclude(operation, *outcome),
        }
    }

    /// A pod that someone else changed after our last write is taken as what the API holds; an echo of our own write, or
    /// of something before it, is not.
    fn take(&mut self, pod: Arc<Pod>) {
        let version: Option<u64> = pod.metadata.resource_version.as_deref().and_then(|version| version.parse().ok());
        let newer = self.reported_version.zip(version).is_some_and(|(known, version)| version > known);
        if newer && !self.state.is_busy(&Operation::Status) && !pod::is_static(&pod) {
            self.reported = pod.status.clone().unwrap_or_default();
        }
        let fields_changed = pod.metadata.labels != self.pod.metadata.labels
            || pod.metadata.annotations != self.pod.metadata.annotations;
        if fields_changed {
            self.state.volumes_ready = false;
        }
        if fields_changed || pod.spec != self.pod.spec {
            // What failed for the old description may work for the new one.
            self.state.start_retry_at.clear();
            self.state.volumes_retry_at = None;
        }
        self.grant(pod);
    }

    /// Takes the pod as the API wants it if its resources can be had, else with those it has.
    fn grant(&mut self, wished: Arc<Pod>) {
        let (have, want) = (resize::resources_of(&self.pod), resize::resources_of(&wished));
        let metrics = self.context.metrics.clone();
        let asked = self.wished.as_ref().map(|wished| resize::resources_of(wished));
        if !self.runtime.is_empty() && !asked.as_ref().is_some_and(|asked| resize::same_all(asked, &want)) {
            for (resource, requirement, operation) in resize::changes(&have, &want) {
                let labels = [("resource", resource.as_str()), ("requirement", requirement), ("operation", operation)];
                metrics.count("kubelet_container_requested_resizes_total", &labels);
            }
        }
        let pending = match resize::same_all(&have, &want) {
            true => None,
            false => (self.fits)(&wished),
        };
        match (&self.state.resize_pending, &pending) {
            (Some(before), None) if before.reason == "Deferred" => {
                let labels = [("retry_trigger", "periodic_retry")];
                metrics.count("kubelet_pod_deferred_accepted_resizes_total", &labels);
            }
            (before, Some(now)) if before.as_ref() != Some(now) => {
                let reason = format!("Resize{}", now.reason);
                self.context.pod_event(&wished, true, &reason, resize::told(&wished, now.reason, &now.message));
                if now.reason == "Infeasible" {
                    let labels = [("reason_detail", "insufficient_node_allocatable")];
                    metrics.count("kubelet_pod_infeasible_resizes_total", &labels);
                }
            }
            _ => {}
        }
        let granted = pending.is_none();
        if granted {
            self.pod = wished;
            self.wished = None;
        } else {
            self.pod = Arc::new(resize::with_resources(&wished, &have));
            self.wished = Some(wished);
        }
        self.state.resize_pending = pending;
        if granted && have != want {
            self.state.resize_failed = None;
            self.note_granted();
            if !self.is_resized() {
                self.state.resizing = self.pod.metadata.generation;
                self.context.pod_event(&self.pod, false, "ResizeStarted", resize::told(&self.pod, "started", ""));
            }
        }
    }

    /// Whether all that runs has what the pod is granted.
    fn is_resized(&self) -> bool {
        let is_running = |name: &str| self.runtime.latest(name).is_some_and(ContainerView::is_running);
        resize::is_done(&self.pod, &self.state.applied, is_running)
    }

    /// Tells once that what was granted holds.
    fn tell_of_resize(&mut self) {
        if self.state.resizing.is_some() && self.is_resized() {
            self.state.resizing = None;
            self.context.pod_event(&self.pod, false, "ResizeCompleted", resize::told(&self.pod, "completed", ""));
        }
    }

    /// Takes in a container just started. Its end may have been heard of already, and then must be looked at now.
    fn put_started(&mut self, view: ContainerView) {
        if self.state.early_exits.remove(&view.id) {
            let _ = self.sender.send(Message::Exited(view.id.clone()));
        }
        if view.state == State::Exited {
            self.note_end(&view);
        }
        self.runtime.put_container(view);
    }

    /// Reads one container or sandbox anew. After an exit the runtime may need a moment to record it.
    async fn refresh(&mut self, id: &str, exited: bool) {
        if self.runtime.sandboxes.iter().any(|sandbox| sandbox.id == id) {
            self.refresh_sandbox(id, exited).await;
            return;
        }
        let Some(sandbox) = self.runtime.by_id(id).map(|container| container.sandbox.clone()) else {
            if exited {
                self.state.early_exits.insert(id.to_string());
            }
            return;
        };
        let mut pause = std::time::Duration::from_millis(2);
        loop {
            match observe_container(&self.context.runtime, id, &sandbox).await {
                Ok(view) if exited && view.state == State::Running && pause < std::time::Duration::from_millis(500) => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                Ok(view) => {
                    if view.state == State::Exited && self.runtime.by_id(id).is_some_and(ContainerView::is_running) {
                        self.note_end(&view);
                    }
                    if exited && view.state == State::Running {
                        // A busy runtime may take longer than we should wait here; it is asked again.
                        self.ask_again(id);
                    }
                    self.runtime.put_container(view);
                    return;
                }
                Err(error) if error.is_not_found() => {
                    self.runtime.forget(id);
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, pod = pod::title(&self.pod), "a container can't be read");
                    if exited {
                        self.ask_again(id);
                    }
                    return;
                }
            }
        }
    }

    fn note_end(&self, view: &ContainerView) {
        journey_events::container_ended(&self.pod, view);
        let labels = [
            ("container_type", pod::container_type(&self.pod, &view.name)),
            ("exit_code", &view.exit_code.to_string()),
            ("reason", view.reason.as_str()),
        ];
        self.context.metrics.count("kubelet_terminated_containers_total", &labels);
    }

    /// What a look at the pod is for, as metrics call it.
    fn operation_type(&self) -> &'static str {
        match (&self.state.ending, self.runtime.is_empty()) {
            (Some(_), _) => "kill",
            (None, true) => "create",
            (None, false) => "sync",
        }
    }

    /// Hears of an end once more in a moment, however often it was heard of meanwhile.
    fn ask_again(&mut self, id: &str) {
        if self.echoes.insert(id.to_string()) {
            self.hear_later(Message::ExitedAgain(id.to_string()));
        }
    }

    /// Sends a message to ourselves in a moment.
    fn hear_later(&self, message: Message) {
        let sender = self.sender.clone();
        tokio::spawn(async move {
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
            // A worker that has ended needs no news.
            let _ = sender.send(message);
        });
    }

    async fn refresh_sandbox(&mut self, id: &str, exited: bool) {
        let mut pause = std::time::Duration::from_millis(2);
        loop {
            match observe_sandbox(&self.context.runtime, id).await {
                Ok(view) if exited && view.ready && pause < std::time::Duration::from_millis(500) => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                Ok(view) => {
                    if exited && view.ready {
                        self.ask_again(id);
                    }
                    self.runtime.put_sandbox(view);
                    return;
                }
                Err(error) if error.is_not_found() => {
                    self.runtime.forget(id);
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, pod = pod::title(&self.pod), "a sandbox can't be read");
                    return;
                }
            }
        }
    }

    /// One look: plans, starts what is to be done, reports. Returns when to look again if nothing happens.
    fn step(&mut self) -> Option<Timestamp> {
        let now = Timestamp::now();
        if self.state.ending.is_none() {
            self.state.ending = self.reason_to_end(now);
        }
        if self.state.ending.is_some() && self.state.ending_since.is_none() {
            self.state.ending_since = Some(now);
            self.ends.cancel();
        }
        if let Some(wished) = self.wished.clone() {
            self.grant(wished);
        }
        let begun = pod::main_containers(&self.pod).any(|c| self.runtime.latest(&c.name).is_some());
        self.state.forget_tried(!begun);
        let situation = Situation { pod: &self.pod, runtime: &self.runtime, state: &self.state, now };
        let before = std::mem::replace(&mut self.plan, plan::plan(&situation));
        self.tell_of_back_off(&before);
        self.tell_of_resize();
        for action in std::mem::take(&mut self.plan.actions) {
            self.perform(action, now);
        }
        let surroundings =
            probes::Surroundings { context: &self.context, latest: &self.shared_pod, worker: &self.sender };
        self.probes.sync(&surroundings, &self.pod, &self.runtime, &self.state);
        self.report(now);
        if self.plan.ended {
            self.finish();
        }
        let look_for_room = self.wished.as_ref().map(|_| now.saturating_add(LOOK_FOR_ROOM).unwrap_or(now));
        let renew = self.volumes.renew_at.filter(|_| self.state.ending.is_none());
        if renew.is_some_and(|at| at <= now) && self.state.volumes_ready {
            self.state.volumes_ready = false;
            return Some(now);
        }
        [
            self.plan.wake_at,
            self.status_retry_at.filter(|at| *at > now),
            self.retry_at.filter(|at| *at > now),
            renew,
            look_for_room,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// An event each time a container begins to wait for its restart.
    fn tell_of_back_off(&self, before: &Plan) {
        for name in self.plan.backing_off.keys().filter(|name| !before.backing_off.contains_key(*name)) {
            let message = format!("Back-off restarting failed container {name} in pod {}", pod::full_title(&self.pod));
            self.context.container_event(&self.pod, name, true, "BackOff", message);
        }
    }

    /// How long the pod took until it ran.
    fn measure_start(&self, now: Timestamp) {
        let metrics = &self.context.metrics;
        if let Some(seen) = self.state.first_seen {
            metrics.observe("kubelet_pod_start_duration_seconds", &[], until(seen, now));
        }
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

    fn reason_to_end(&self, now: Timestamp) -> Option<Ending> {
        if self.pod.metadata.deletion_timestamp.is_some() {
            return Some(Ending::Deleted);
        }
        if matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed")) {
            return Some(Ending::Finished);
        }
        if let Some(seconds) = pod::spec(&self.pod).active_deadline_seconds
            && let Some(start) = &self.status.start_time
            && start.0.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX) <= now
        {
            let message = "Pod was active on the node longer than the specified deadline".to_string();
            self.context.pod_event(&self.pod, false, "DeadlineExceeded", message.clone());
            return Some(Ending::Stopped { reason: "DeadlineExceeded".into(), message, grace: None, condition: None });
        }
        let phase = restart::phase(&self.pod, &self.runtime, status::was_initialized(&self.status));
        phase.is_final().then_some(Ending::Finished)
    }

    fn report(&mut self, now: Timestamp) {
        let devices = self.context.resources.health_of(pod::uid(&self.pod));
        let input = status::Input {
            devices: &devices,
            pod: &self.pod,
            previous: &self.status,
            runtime: &self.runtime,
            state: &self.state,
            plan: &self.plan,
            node_addresses: &self.context.addresses,
            runtime_name: &self.context.runtime_name,
            now,
        };
        // What others wrote into the API's status is carried along.
        let mut previous = self.status.clone();
        carry_foreign(&self.pod, &mut previous);
        let status = status::compute(&status::Input { previous: &previous, ..input });
        let runs = status.phase.as_deref() == Some("Running");
        if runs && matches!(self.status.phase.as_deref(), None | Some("Pending")) {
            self.measure_start(now);
        }
        if status != self.status {
            self.probes.status_changed(&self.pod, &self.runtime, &self.state);
        }
        self.status = status;
        *self.shared_status.lock() = self.status.clone();
        self.send_status(now);
    }
}

/// What an earlier life of the node found out about containers that still run, so that none of them looks unready until it
/// is asked again.
fn known_results(runtime: &RuntimePod, status: &PodStatus, runtime_name: &str) -> HashMap<String, ProbeResults> {
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let mut found = HashMap::new();
    for reported in all {
        let view = runtime.running().find(|view| reported.container_id.as_ref() == Some(&view.shown_id(runtime_name)));
        if let Some(view) = view {
            let results = ProbeResults {
                ready: Some(reported.ready),
                started: reported.started.filter(|started| *started),
                ..Default::default()
            };
            found.insert(view.id.clone(), results);
        }
    }
    found
}

/// Containers that the runtime or the API knows to have been started.
fn known_starts(runtime: &RuntimePod, status: &PodStatus) -> HashSet<String> {
    let reported = status.container_statuses.iter().flatten();
    let reported = reported.filter(|known| known.container_id.is_some() || known.last_state.is_some());
    runtime.containers.iter().map(|view| &view.name).chain(reported.map(|known| &known.name)).cloned().collect()
}

/// Conditions and fields of the status that belong to other components.
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
