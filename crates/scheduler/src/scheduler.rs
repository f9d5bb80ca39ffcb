//! The task that owns the queue and the cluster's state: it applies changes, decides the next pod, and starts
//! the binding.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use knarr_client::events::EventType;
use knarr_client::{Informers, SeriesRecorder};
use kube::Client;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use crate::bind::{Nomination, Reason};
use crate::cluster::Cluster;
use crate::cluster::placed::PlacedPod;
use crate::cluster::pod::PodState;
use crate::cluster::storage::object_key;
use crate::config::Configuration;
use crate::cycle::{ProfilePlugins, Rotation};
use crate::device_binding::ClaimInformer;
use crate::extender::Extender;
use crate::handlers::{self, Message};
use crate::metrics::{self, Lengths};
use crate::nominations::Nominations;
use crate::queue::{ClusterEvent, Queue};
use crate::steady_clock::SteadyClock;
use crate::volumes::VolumeInformers;

/// At most this many bindings are in flight.
const BINDINGS_IN_FLIGHT: usize = 256;

/// What the scheduler is started with.
pub struct Settings {
    pub configuration: Configuration,
    /// The clock, injected into decisions.
    pub now: fn() -> Timestamp,
}

/// Schedules until the process exits or the API's informers close.
pub async fn run(client: Client, informers: Informers, settings: Settings) {
    // Extenders get whole pods.
    let informers = if settings.configuration.extenders.is_empty() {
        informers.with_transform(handlers::reduce_pod)
    } else {
        informers
    };
    metrics::start();
    crate::resource_metrics::watch(&informers.of());
    let (sender, receiver) = unbounded_channel();
    let watched = VolumeInformers::new(&informers);
    let claims = ClaimInformer::new(&informers);
    handlers::watch(&informers, &sender).await;
    Scheduler::new(client, (watched, claims), settings, sender).run(receiver).await;
}

pub(crate) struct Scheduler {
    pub(crate) client: Client,
    pub(crate) watched: VolumeInformers,
    pub(crate) watched_claims: ClaimInformer,
    /// The wall clock, for what is written.
    pub(crate) now: fn() -> Timestamp,
    pub(crate) clock: SteadyClock,
    pub(crate) profiles: HashMap<String, ProfilePlugins>,
    pub(crate) recorders: HashMap<String, SeriesRecorder>,
    pub(crate) cluster: Cluster,
    pub(crate) queue: Queue,
    pub(crate) nominations: Nominations,
    pub(crate) budgets: HashMap<String, Arc<PodDisruptionBudget>>,
    pub(crate) rotation: Rotation,
    pub(crate) extenders: Vec<Extender>,
    pub(crate) messages: UnboundedSender<Message>,
    pub(crate) permits: Arc<Semaphore>,
    /// Running writes of why pods wait, by pod.
    pub(crate) explaining: HashMap<Arc<str>, JoinHandle<()>>,
    /// The lengths of the queues that metrics show.
    published: Option<Lengths>,
}

impl Scheduler {
    fn new(
        client: Client,
        (watched, watched_claims): (VolumeInformers, ClaimInformer),
        settings: Settings,
        messages: UnboundedSender<Message>,
    ) -> Self {
        let Configuration { profiles, percentage_of_nodes_to_score, initial_backoff, max_backoff, extenders, .. } =
            settings.configuration;
        let mut cluster = Cluster::default();
        cluster.keeps_whole_pods = !extenders.is_empty();
        let extenders = extenders.into_iter().filter_map(|settings| {
            let built = Extender::new(settings);
            built.inspect_err(|error| tracing::error!(%error, "an extender cannot be used")).ok()
        });
        let host = host_name();
        let recorders = profiles
            .iter()
            .map(|profile| {
                let name = profile.scheduler_name.clone();
                let recorder = SeriesRecorder::new(client.clone(), &name, &host);
                (name, recorder)
            })
            .collect();
        let profiles = profiles
            .into_iter()
            .map(|profile| (profile.scheduler_name.clone(), ProfilePlugins::new(profile, percentage_of_nodes_to_score)))
            .collect();
        Scheduler {
            client,
            watched,
            watched_claims,
            now: settings.now,
            clock: SteadyClock::starting_at((settings.now)()),
            profiles,
            recorders,
            cluster,
            queue: Queue::new(initial_backoff, max_backoff),
            nominations: Nominations::default(),
            budgets: HashMap::new(),
            rotation: Rotation::default(),
            extenders: extenders.collect(),
            messages,
            permits: Arc::new(Semaphore::new(BINDINGS_IN_FLIGHT)),
            explaining: HashMap::new(),
            published: None,
        }
    }

    async fn run(mut self, mut receiver: UnboundedReceiver<Message>) {
        loop {
            while let Ok(message) = receiver.try_recv() {
                self.apply_change(message);
            }
            let next = self.queue.advance(self.clock.now());
            self.publish_lengths();
            if let Some(pod) = self.queue.pop() {
                self.schedule(pod).await;
                // Informers and bindings run on the same threads: yields to them.
                tokio::task::yield_now().await;
                continue;
            }
            let message = match next {
                None => receiver.recv().await,
                Some(at) => {
                    let wait = at.duration_since(self.clock.now());
                    let wait = std::time::Duration::try_from(wait).unwrap_or_default();
                    tokio::select! {
                        message = receiver.recv() => message,
                        () = tokio::time::sleep(wait) => continue,
                    }
                }
            };
            match message {
                Some(message) => self.apply_change(message),
                None => return,
            }
        }
    }

    fn publish_lengths(&mut self) {
        let lengths = self.queue.lengths();
        if self.published.replace(lengths) != Some(lengths) {
            lengths.publish();
        }
    }

    fn apply_change(&mut self, message: Message) {
        match message {
            Message::Pod { old, new } => self.pod_changed(old.as_ref(), new.as_ref()),
            Message::Node { old, new } => self.node_changed(old.as_ref(), new),
            Message::Budget { old, new } => {
                let key = |budget: &PodDisruptionBudget| object_key(&budget.metadata);
                match (old, new) {
                    (_, Some(budget)) => {
                        self.budgets.insert(key(&budget), budget);
                    }
                    (Some(budget), None) => {
                        self.budgets.remove(&key(&budget));
                    }
                    (None, None) => {}
                }
            }
            Message::Other(apply) => apply(&mut self.cluster, &mut self.queue, self.clock.now()),
            Message::ClaimWritten(claim) => self.cluster.resource_claims.store(Arc::new(*claim)),
            Message::Bound(pod) => {
                if let Some((attempts, since)) = self.queue.progress(&pod.key) {
                    let waited =
                        std::time::Duration::try_from(self.clock.now().duration_since(since)).unwrap_or_default();
                    metrics::finish_pod(attempts, waited);
                }
                self.drop_assumptions(&pod);
                self.queue.remove_same(&pod.key, pod.uid());
            }
            Message::Failed { pod, error, is_gone } => self.decision_failed(&pod, error, is_gone),
            Message::NotPreempted(pod) => {
                if self.queue.is_same(&pod.key, pod.uid()) {
                    self.queue.retry(&pod.key, self.clock.now());
                }
            }
        }
    }

    /// A decision could not be carried out: its assumptions are dropped, and the pod is decided again after its backoff.
    pub(crate) fn decision_failed(&mut self, pod: &Arc<PodState>, error: String, is_gone: bool) {
        let now = self.clock.now();
        self.drop_assumptions(pod);
        self.cluster.unassume(&pod.key, pod.uid());
        if is_gone {
            self.queue.remove_same(&pod.key, pod.uid());
        } else if self.queue.is_same(&pod.key, pod.uid()) {
            tracing::warn!(pod = &*pod.key, error, "cannot bind a pod");
            self.queue.failed(&pod.key, now);
            if let Some(recorder) = self.recorder(pod) {
                record(&recorder, pod, true, "FailedScheduling", "Scheduling", error.clone());
            }
            self.write_reason(Arc::clone(pod), Reason::SchedulerError, error, Nomination::Cleared);
        }
        let is_another = |other: &PodState| other.uid() != pod.uid();
        self.queue.on_event_for(&ClusterEvent::PodRemoved(pod), &self.cluster.namespaces, is_another, now);
    }

    fn drop_assumptions(&mut self, pod: &PodState) {
        for used in &pod.claims {
            self.cluster.storage.drop_assumptions(&used.key);
        }
        if self.cluster.resource_claims.finish_pending(pod.uid()) {
            let event = ClusterEvent::ResourceClaim { is_new: false };
            let is_another = |other: &PodState| other.uid() != pod.uid();
            self.queue.on_event_for(&event, &self.cluster.namespaces, is_another, self.clock.now());
        }
    }

    pub(crate) fn profile_of(&self, pod: &PodState) -> Option<&ProfilePlugins> {
        self.profiles.get(pod.scheduler_name())
    }

    pub(crate) fn recorder(&self, pod: &PodState) -> Option<SeriesRecorder> {
        self.recorders.get(pod.scheduler_name()).cloned()
    }
}

/// The host's name, which events contain; empty where it cannot be read.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

pub(crate) fn record(
    recorder: &SeriesRecorder,
    pod: &PlacedPod,
    warns: bool,
    reason: &str,
    action: &str,
    note: String,
) {
    let kind = if warns { EventType::Warning } else { EventType::Normal };
    let note = shortened(note);
    recorder.record(pod.reference(), None, kind, reason, action, note);
}

/// Truncates a note to the length that the API accepts.
fn shortened(note: String) -> String {
    const MAX_LENGTH: usize = 1024;
    const END: &str = " ...";
    if note.len() <= MAX_LENGTH {
        return note;
    }
    let mut end = MAX_LENGTH - END.len();
    while !note.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{END}", &note[..end])
}
