//! Starts the worker of a pod, from what a previous process left in the runtime and on disk.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::jiff::Timestamp;
use knarr_supervisor::panic_message;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::plan::Plan;
use super::probe_tasks::ProbeTasks;
use super::recovery::{known_results, known_starts};
use super::state::{ResizeState, StartState, Termination, WorkerState};
use super::{Fits, Message, Worker, resize};
use crate::context::Context;
use crate::pod;
use crate::runtime::{EventHandler, RuntimePod};
use crate::volumes::MountedVolumes;

/// Access to a running worker.
#[derive(Clone)]
pub struct Handle {
    pub sender: UnboundedSender<Message>,
    pub pod: Arc<parking_lot::Mutex<Arc<Pod>>>,
    /// The latest status, ahead of the API's.
    pub status: Arc<parking_lot::Mutex<PodStatus>>,
    pub runtime: Arc<parking_lot::Mutex<RuntimePod>>,
    pub volumes: Arc<parking_lot::Mutex<Arc<MountedVolumes>>>,
}

impl Worker {
    /// Starts a worker. `runtime` is what a previous process left in the runtime. A refused pod never starts and uses
    /// no resources. `on_stopped` gets the message if the worker panicked.
    pub fn spawn(
        context: Arc<Context>,
        pod: Arc<Pod>,
        runtime: RuntimePod,
        refused: Option<Termination>,
        fits: Fits,
        on_stopped: impl FnOnce(Option<String>) + Send + 'static,
    ) -> Handle {
        let (worker, handle) = Self::new(context, pod, runtime, refused, fits);
        let shared = handle.clone();
        knarr_supervisor::spawn(async move {
            let ended = AssertUnwindSafe(worker.run(&shared)).catch_unwind().await;
            on_stopped(ended.err().map(|panic| panic_message(&*panic)));
        });
        handle
    }

    fn new(
        context: Arc<Context>,
        desired: Arc<Pod>,
        runtime: RuntimePod,
        refused: Option<Termination>,
        fits: Fits,
    ) -> (Self, Handle) {
        let noted = resize::Granted::load(&context.settings.pod_directory(pod::uid(&desired))).unwrap_or_default();
        let pod = match noted.granted.is_empty() || runtime.is_empty() {
            true => desired.clone(),
            false => Arc::new(resize::with_resources(&desired, &noted.granted)),
        };
        let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
        let runtime_events = event_handler(&sender);
        for id in runtime.ids() {
            context.index.insert(id, runtime_events.clone());
        }
        if !runtime.is_empty() {
            // Something may have exited since the runtime was listed.
            let _ = sender.send(Message::Relist(None));
        }
        let notified = sender.clone();
        // The worker may already have stopped.
        let notify = Arc::new(move || drop(notified.send(Message::ObjectsChanged)));
        let objects = Arc::new(context.objects.subscribe(notify));
        let status = if pod::is_static(&pod) { PodStatus::default() } else { pod.status.clone().unwrap_or_default() };
        let handle = Handle::new(&sender, &pod, &status, &runtime, refused.is_some());
        let state = WorkerState {
            probes: known_results(&runtime, &status, &context.runtime_name),
            first_seen: Some(Timestamp::now()),
            resize: ResizeState { applied: noted.applied, ..Default::default() },
            termination: refused,
            to_allocate: context.resources.needs_allocation(&pod),
            starts: StartState { attempted: known_starts(&runtime, &status), ..Default::default() },
            ..Default::default()
        };
        let worker = Self {
            context,
            pod,
            mirror: None,
            probes: ProbeTasks::new(!runtime.is_empty()),
            runtime,
            state,
            volumes: Arc::default(),
            objects,
            reported: status.clone(),
            status,
            shared_status: handle.status.clone(),
            shared_pod: handle.pod.clone(),
            created_at: Instant::now(),
            reported_version: None,
            status_retry_at: None,
            retry_at: None,
            deleted: false,
            sender,
            runtime_events,
            receiver,
            plan: Plan::default(),
            // Compared in the first step, as checking for room takes locks that may be held here.
            desired: Some(desired),
            fits,
            terminating: CancellationToken::new(),
            pending_rechecks: HashSet::new(),
        };
        (worker, handle)
    }
}

impl Handle {
    fn new(
        sender: &UnboundedSender<Message>,
        pod: &Arc<Pod>,
        status: &PodStatus,
        runtime: &RuntimePod,
        is_refused: bool,
    ) -> Self {
        let mut visible = status.clone();
        if is_refused {
            visible.phase = Some("Failed".into());
        }
        Self {
            sender: sender.clone(),
            pod: Arc::new(parking_lot::Mutex::new(pod.clone())),
            status: Arc::new(parking_lot::Mutex::new(visible)),
            runtime: Arc::new(parking_lot::Mutex::new(runtime.clone())),
            volumes: Arc::default(),
        }
    }
}

/// Passes events of the runtime to a worker, which may have stopped.
fn event_handler(worker: &UnboundedSender<Message>) -> EventHandler {
    let worker = worker.clone();
    Arc::new(move |event| drop(worker.send(event.into())))
}
