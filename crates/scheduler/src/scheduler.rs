//! The task that owns the queue and the cluster's state: it takes in what changed, decides the next pod, and sends the
//! decision on its way.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use knarr_client::events::{EventType, reference};
use knarr_client::pod::{is_terminal, node_name};
use knarr_client::{Informers, SeriesRecorder};
use kube::Client;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::bind::{self, Nomination, Reason};
use crate::cluster::pod::{PodState, pod_key};
use crate::cluster::storage::object_key;
use crate::cluster::{Cluster, NodeIndex};
use crate::config::Configuration;
use crate::cycle::{Candidates, NoFit, Ready, Rotation};
use crate::extender::{self, Extender, ExtenderError};
use crate::framework::Rejection;
use crate::handlers::{self, Message};
use crate::nominations::Nominations;
use crate::plugins::volume_binding::{VolumePlan, plan_volumes};
use crate::preemption::{Budget, Outcome, best, is_ineligible, make_room};
use crate::queue::{Happened, Queue};
use crate::volumes::Watched;

/// So many bindings are on their way at once.
const BINDINGS_IN_FLIGHT: usize = 256;

pub struct Settings {
    pub configuration: Configuration,
    /// The clock; decisions are given its time.
    pub now: fn() -> Timestamp,
}

/// Schedules until the process ends or the API's informers close.
pub async fn run(client: Client, informers: Informers, settings: Settings) {
    let (sender, receiver) = unbounded_channel();
    let watched = Watched::new(&informers);
    handlers::watch(&informers, &sender).await;
    Scheduler::new(client, watched, settings, sender).run(receiver).await;
}

struct Scheduler {
    client: Client,
    watched: Watched,
    now: fn() -> Timestamp,
    profiles: HashMap<String, Ready>,
    recorders: HashMap<String, SeriesRecorder>,
    cluster: Cluster,
    queue: Queue,
    nominations: Nominations,
    budgets: HashMap<String, Arc<PodDisruptionBudget>>,
    rotation: Rotation,
    extenders: Vec<Extender>,
    messages: UnboundedSender<Message>,
    permits: Arc<Semaphore>,
}

impl Scheduler {
    fn new(client: Client, watched: Watched, settings: Settings, messages: UnboundedSender<Message>) -> Self {
        let Configuration { profiles, percentage_of_nodes_to_score, initial_backoff, max_backoff, extenders } =
            settings.configuration;
        let extenders = extenders.into_iter().filter_map(|settings| {
            let made = Extender::new(settings);
            made.inspect_err(|error| tracing::error!(%error, "an extender cannot be used")).ok()
        });
        let recorders = profiles
            .iter()
            .map(|profile| {
                let name = profile.scheduler_name.clone();
                let recorder = SeriesRecorder::new(client.clone(), &name, &name);
                (name, recorder)
            })
            .collect();
        let profiles = profiles
            .into_iter()
            .map(|profile| (profile.scheduler_name.clone(), Ready::new(profile, percentage_of_nodes_to_score)))
            .collect();
        Scheduler {
            client,
            watched,
            now: settings.now,
            profiles,
            recorders,
            cluster: Cluster::default(),
            queue: Queue::new(initial_backoff, max_backoff),
            nominations: Nominations::default(),
            budgets: HashMap::new(),
            rotation: Rotation::default(),
            extenders: extenders.collect(),
            messages,
            permits: Arc::new(Semaphore::new(BINDINGS_IN_FLIGHT)),
        }
    }

    async fn run(mut self, mut receiver: UnboundedReceiver<Message>) {
        loop {
            while let Ok(message) = receiver.try_recv() {
                self.take_in(message);
            }
            let next = self.queue.advance((self.now)());
            if let Some(pod) = self.queue.pop() {
                self.schedule(pod).await;
                // Informers and bindings run on the same threads: let them.
                tokio::task::yield_now().await;
                continue;
            }
            let message = match next {
                None => receiver.recv().await,
                Some(at) => {
                    let wait = at.duration_since((self.now)());
                    let wait = std::time::Duration::try_from(wait).unwrap_or_default();
                    tokio::select! {
                        message = receiver.recv() => message,
                        () = tokio::time::sleep(wait) => continue,
                    }
                }
            };
            match message {
                Some(message) => self.take_in(message),
                None => return,
            }
        }
    }

    fn take_in(&mut self, message: Message) {
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
            Message::Other(apply) => apply(&mut self.cluster, &mut self.queue, (self.now)()),
            Message::Bound(pod) => {
                self.end_promises(&pod);
                self.queue.remove_same(&pod.key, pod.uid());
            }
            Message::Failed { pod, error, is_gone } => self.decision_failed(&pod, error, is_gone),
        }
    }

    /// A decision could not be carried out: what it took is free again, and the pod is decided anew after a while.
    fn decision_failed(&mut self, pod: &Arc<PodState>, error: String, is_gone: bool) {
        let now = (self.now)();
        self.end_promises(pod);
        self.cluster.unassume(&pod.key, pod.uid());
        if is_gone {
            self.queue.remove_same(&pod.key, pod.uid());
        } else if self.queue.is_same(&pod.key, pod.uid()) {
            tracing::warn!(pod = &*pod.key, error, "a pod could not be bound");
            self.queue.failed(&pod.key, now);
            if let Some(recorder) = self.recorder(pod) {
                record(&recorder, pod, true, "FailedScheduling", "Scheduling", error.clone());
            }
            self.write_reason(Arc::clone(pod), Reason::SchedulerError, error, Nomination::Cleared);
        }
        self.queue.happened(Happened::PodRemoved, now);
    }

    fn end_promises(&mut self, pod: &PodState) {
        for used in &pod.claims {
            self.cluster.storage.end_promises(&used.key);
        }
    }

    fn pod_changed(&mut self, old: Option<&Arc<Pod>>, new: Option<&Arc<Pod>>) {
        let now = (self.now)();
        if let (Some(gone), Some(pod)) = (old, new)
            && gone.metadata.uid != pod.metadata.uid
        {
            // Deleted and made anew between two looks.
            self.pod_changed(Some(gone), None);
            self.pod_changed(None, Some(pod));
            return;
        }
        let placed = |pod: &Pod| node_name(pod).is_some_and(|name| !name.is_empty()) && !is_terminal(pod);
        let was_placed = old.is_some_and(|pod| placed(pod));
        match new {
            Some(pod) if placed(pod) => {
                let key = pod_key(pod);
                self.queue.remove(&key);
                self.nominations.remove(&key);
                let relabelled = old.is_some_and(|old| old.metadata.labels != pod.metadata.labels);
                self.cluster.set_pod(pod, node_name(pod).unwrap_or_default());
                if !was_placed {
                    self.queue.happened(Happened::PodAdded, now);
                } else if relabelled {
                    self.queue.happened(Happened::PodLabels, now);
                } else if old.is_some_and(|old| old.spec != pod.spec) {
                    // It may ask for less.
                    self.queue.happened(Happened::PodRemoved, now);
                }
            }
            Some(pod) if is_terminal(pod) || node_name(pod).is_some_and(|name| !name.is_empty()) => {
                self.pod_gone(pod, was_placed)
            }
            Some(pod) => self.pod_waits(pod, now),
            None => {
                if let Some(pod) = old {
                    self.pod_gone(pod, was_placed);
                }
            }
        }
    }

    fn pod_waits(&mut self, pod: &Arc<Pod>, now: Timestamp) {
        let key = pod_key(pod);
        let state = Arc::new(PodState::new(Arc::clone(pod)));
        if self.profile_of(&state).is_none() || is_leaving(pod) {
            self.queue.remove(&key);
            self.nominations.remove(&key);
            return;
        }
        // A binding on its way will be told by the API or by its failure.
        if self.cluster.is_placed(&key) {
            return;
        }
        let nominated = pod.status.as_ref().and_then(|status| status.nominated_node_name.clone());
        match nominated.filter(|node| !node.is_empty()) {
            Some(node) => self.nominations.set(Arc::clone(&state), &node),
            None => self.nominations.remove(&key),
        }
        let is_gated = handlers::is_gated(&state, &self.cluster.resource_claims);
        self.queue.set(state, is_gated, now);
    }

    fn pod_gone(&mut self, pod: &Arc<Pod>, was_placed: bool) {
        let key = pod_key(pod);
        self.queue.remove(&key);
        self.nominations.remove(&key);
        let assumed = self.cluster.is_placed(&key);
        self.cluster.remove_pod(&key);
        if was_placed || assumed {
            self.queue.happened(Happened::PodRemoved, (self.now)());
        }
    }

    fn node_changed(&mut self, old: Option<&Arc<Node>>, new: Option<Arc<Node>>) {
        let now = (self.now)();
        let Some(node) = new else {
            if let Some(old) = old {
                self.cluster.remove_node(old.metadata.name.as_deref().unwrap_or_default());
            }
            return;
        };
        let mut events = Vec::new();
        match old {
            None => events.push(Happened::NodeAdded),
            Some(old) => {
                let allocatable = |node: &Node| node.status.as_ref().and_then(|status| status.allocatable.clone());
                let taints = |node: &Node| {
                    node.spec.as_ref().map(|spec| (spec.taints.clone(), spec.unschedulable.unwrap_or(false)))
                };
                if allocatable(old) != allocatable(&node) {
                    events.push(Happened::NodeAllocatable);
                }
                if old.metadata.labels != node.metadata.labels {
                    events.push(Happened::NodeLabels);
                }
                if taints(old) != taints(&node) {
                    events.push(Happened::NodeTaints);
                }
            }
        }
        self.cluster.set_node(node);
        for event in events {
            self.queue.happened(event, now);
        }
    }

    async fn schedule(&mut self, pod: Arc<PodState>) {
        let Some(ready) = self.profiles.get(scheduler_of(&pod)) else {
            self.queue.remove(&pod.key);
            return;
        };
        let found = ready.candidates(&pod, &mut self.cluster, &self.nominations, &mut self.rotation);
        let mut candidates = match found {
            Ok(candidates) => candidates,
            Err(no_fit) => return self.explain(pod, no_fit).await,
        };
        let asked: Vec<&Extender> = self.extenders.iter().filter(|extender| extender.is_interested(&pod)).collect();
        let mut points = HashMap::new();
        if !asked.is_empty() {
            if let Err(error) = extenders_filter(&asked, &pod, &self.cluster, &mut candidates).await {
                return self.decision_failed(&pod, error.to_string(), false);
            }
            if candidates.feasible.is_empty() {
                return self.explain(pod, candidates.no_fit).await;
            }
            points = extenders_score(&asked, &pod, &self.cluster, &candidates).await;
        }
        let chosen = ready.choose(&pod, &mut self.cluster, &candidates, &points, &mut self.rotation);
        // The filters share counts with the cluster, which is about to change.
        drop(candidates);
        let node = self.cluster.node(chosen.node).name().to_owned();
        self.bind(pod, node).await;
    }

    async fn bind(&mut self, pod: Arc<PodState>, node: String) {
        let plan = match self.cluster.index_of(&node) {
            Some(index) => plan_volumes(&pod, &self.cluster.storage, self.cluster.node(index)),
            None => VolumePlan::default(),
        };
        for (claim, volume) in &plan.bind {
            let volume = volume.metadata.name.as_deref().unwrap_or_default();
            self.cluster.storage.promise_volume(volume, &object_key(&claim.metadata));
        }
        for claim in &plan.make {
            self.cluster.storage.promise_node(&object_key(&claim.metadata), &node);
        }
        let devices = self.cluster.resource_claims.of_pod(&pod.object).unwrap_or_default();
        self.cluster.assume(Arc::clone(&pod), &node);
        self.nominations.remove(&pod.key);
        // Waiting for volumes takes none of the places: others need not wait for it.
        let permits = plan.is_empty().then(|| Arc::clone(&self.permits));
        let permit = match permits {
            Some(permits) => permits.acquire_owned().await.ok(),
            None => None,
        };
        let client = self.client.clone();
        let messages = self.messages.clone();
        let recorder = self.recorder(&pod);
        let watched = self.watched.clone();
        let binder = self.extenders.iter().find(|one| one.is_binder() && one.is_interested(&pod)).cloned();
        tokio::spawn(async move {
            let _permit = permit;
            let message = match bind::carry_out(client, &watched, &pod, &node, &plan, &devices, binder.as_ref()).await {
                Ok(()) => {
                    if let Some(recorder) = recorder {
                        let text = format!("Successfully assigned {}/{} to {node}", pod.namespace(), pod.name());
                        record(&recorder, &pod, false, "Scheduled", "Binding", text);
                    }
                    Message::Bound(pod)
                }
                Err(error) => Message::Failed { pod, is_gone: error.is_gone(), error: error.to_string() },
            };
            let _ = messages.send(message);
        });
    }

    async fn explain(&mut self, pod: Arc<PodState>, mut no_fit: Box<NoFit>) {
        let now = (self.now)();
        let mut nomination = Nomination::Kept;
        if no_fit.diagnosis.all_nodes == 0 {
            nomination = Nomination::Cleared;
        } else if no_fit.diagnosis.rejected.is_some() && !no_fit.diagnosis.plugins.contains(&"DynamicResources") {
            // Kubernetes' claim plugin, which runs first here, never saw the pod and says so.
            no_fit.diagnosis.after = "not found".to_owned();
        } else {
            match self.room_for(&pod, &no_fit).await {
                Room::Made(node) => nomination = Nomination::On(node),
                Room::None(why) => {
                    nomination = Nomination::Cleared;
                    no_fit.diagnosis.after = format!("no new claims to deallocate, preemption: {why}");
                }
                Room::NotConfigured => no_fit.diagnosis.after = "no new claims to deallocate".to_owned(),
                Room::NotSought(why) => {
                    no_fit.diagnosis.after = format!("no new claims to deallocate, preemption: {why}");
                }
            }
        }
        let message = no_fit.diagnosis.message();
        if let Some(recorder) = self.recorder(&pod) {
            record(&recorder, &pod, true, "FailedScheduling", "Scheduling", message.clone());
        }
        self.queue.unschedulable(&pod.key, no_fit.diagnosis.plugins, now);
        match &nomination {
            Nomination::On(node) => self.nominations.set(Arc::clone(&pod), node),
            Nomination::Cleared => self.nominations.remove(&pod.key),
            Nomination::Kept => {}
        }
        self.write_reason(pod, Reason::Unschedulable, message, nomination);
    }

    /// Has written onto the pod why it waits.
    fn write_reason(&self, pod: Arc<PodState>, reason: Reason, message: String, nomination: Nomination) {
        let client = self.client.clone();
        let now = (self.now)();
        tokio::spawn(async move {
            let key = Arc::clone(&pod.key);
            if let Err(error) = bind::explain(client, pod, reason, message, nomination, now).await
                && !bind::is_gone(&error)
            {
                tracing::warn!(pod = &*key, %error, "the reason could not be written to the pod");
            }
        });
    }

    /// Begins to make room for a pod, and answers where; or why it cannot be made.
    async fn room_for(&mut self, pod: &Arc<PodState>, no_fit: &NoFit) -> Room {
        if !self.profile_of(pod).is_some_and(|ready| ready.profile.preempts) {
            return Room::NotConfigured;
        }
        if let Some(why) = is_ineligible(pod, self.nominations.node_of(&pod.key), no_fit, &self.cluster) {
            return Room::NotSought(why);
        }
        let budgets: Vec<Budget> = self.budgets.values().map(|budget| Budget::of(budget)).collect();
        let mut candidates = match make_room(pod, no_fit, &self.cluster, &self.nominations, &budgets) {
            Outcome::Candidates(candidates) => candidates,
            Outcome::Nothing(why) => return Room::None(why),
        };
        for extender in self.extenders.iter().filter(|one| one.preempts() && one.is_interested(pod)) {
            // An extender that cannot be asked has no say; without its agreement nobody is displaced.
            candidates = match extender.preempt(pod, candidates, &self.cluster).await {
                Ok(left) => left,
                Err(error) => {
                    tracing::warn!(pod = &*pod.key, %error, "an extender did not answer");
                    return Room::None("no candidate node for preemption".to_owned());
                }
            };
        }
        let Some(victims) = best(candidates) else {
            return Room::None("no candidate node for preemption".to_owned());
        };
        let node = self.cluster.node(victims.node).name().to_owned();
        for lower in self.nominations.lower_on(&node, pod.priority()) {
            self.nominations.remove(&lower.key);
            let client = self.client.clone();
            tokio::spawn(async move {
                if let Err(error) = bind::clear_nomination(client, lower).await
                    && !bind::is_gone(&error)
                {
                    tracing::warn!(%error, "a promise could not be taken back");
                }
            });
        }
        for victim in victims.pods {
            let client = self.client.clone();
            let preemptor = Arc::clone(pod);
            let recorder = self.recorder(pod);
            let now = (self.now)();
            let node = node.clone();
            tokio::spawn(async move {
                match bind::evict(client, Arc::clone(&victim), &preemptor, now).await {
                    Ok(()) => {
                        if let Some(recorder) = recorder {
                            let text = format!("Preempted by pod {} on node {node}", preemptor.uid());
                            record(&recorder, &victim, false, "Preempted", "Preempting", text);
                        }
                    }
                    Err(error) if bind::is_gone(&error) => {}
                    Err(error) => tracing::warn!(pod = &*victim.key, %error, "a pod could not be preempted"),
                }
            });
        }
        Room::Made(node)
    }

    fn profile_of(&self, pod: &PodState) -> Option<&Ready> {
        self.profiles.get(scheduler_of(pod))
    }

    fn recorder(&self, pod: &PodState) -> Option<SeriesRecorder> {
        self.recorders.get(scheduler_of(pod)).cloned()
    }
}

/// The name of the scheduler that a pod is for.
fn scheduler_of(pod: &PodState) -> &str {
    let named = pod.object.spec.as_ref().and_then(|spec| spec.scheduler_name.as_deref());
    named.unwrap_or("default-scheduler")
}

/// Leaves out the nodes that extenders reject. An error means that one could not be asked.
async fn extenders_filter(
    extenders: &[&Extender],
    pod: &PodState,
    cluster: &Cluster,
    candidates: &mut Candidates,
) -> Result<(), ExtenderError> {
    for extender in extenders.iter().filter(|extender| extender.filters()) {
        let nodes: Vec<&Node> = candidates.feasible.iter().map(|index| cluster.node(*index).object()).collect();
        if nodes.is_empty() {
            return Ok(());
        }
        let filtered = match extender.filter(pod, &nodes).await {
            Ok(filtered) => filtered,
            Err(error) if extender.is_ignorable() => {
                tracing::warn!(extender = extender.url(), %error, "an extender was skipped");
                continue;
            }
            Err(error) => return Err(error),
        };
        for index in candidates.feasible.clone() {
            let name = cluster.node(index).name();
            if !filtered.left.contains(name) {
                let unexplained = || Rejection { plugin: extender::NAME, reasons: Vec::new(), unresolvable: false };
                let rejection = filtered.rejected.get(name).cloned().unwrap_or_else(unexplained);
                candidates.reject(index, &rejection);
            }
        }
    }
    Ok(())
}

/// The points that extenders give to nodes. One that does not answer gives none.
async fn extenders_score(
    extenders: &[&Extender],
    pod: &PodState,
    cluster: &Cluster,
    candidates: &Candidates,
) -> HashMap<NodeIndex, i64> {
    let nodes: Vec<&Node> = candidates.feasible.iter().map(|index| cluster.node(*index).object()).collect();
    let mut points = HashMap::new();
    if nodes.len() < 2 {
        return points;
    }
    for extender in extenders.iter().filter(|extender| extender.scores()) {
        match extender.score(pod, &nodes).await {
            Ok(given) => {
                for (name, score) in given {
                    if let Some(index) = cluster.index_of(&name) {
                        *points.entry(index).or_default() += score;
                    }
                }
            }
            Err(error) => tracing::warn!(extender = extender.url(), %error, "an extender gave no points"),
        }
    }
    points
}

/// What making room for a pod came to.
enum Room {
    Made(String),
    None(String),
    NotSought(&'static str),
    NotConfigured,
}

fn is_leaving(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

fn record(recorder: &SeriesRecorder, pod: &PodState, warns: bool, reason: &str, action: &str, note: String) {
    let kind = if warns { EventType::Warning } else { EventType::Normal };
    let note = shortened(note);
    recorder.record(reference(pod.object.as_ref()), None, kind, reason, action, note);
}

/// An event's note has at most so many bytes.
fn shortened(note: String) -> String {
    const MOST: usize = 1024;
    const END: &str = " ...";
    if note.len() <= MOST {
        return note;
    }
    let mut end = MOST - END.len();
    while !note.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{END}", &note[..end])
}
