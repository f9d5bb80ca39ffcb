//! Decides the next pod: starts its binding, or records why it waits.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use knarr_client::api_error::is_not_found;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::JoinHandle;

use crate::bind::{self, Nomination, Reason};
use crate::cluster::claims::DevicePlan;
use crate::cluster::placed::PlacedPod;
use crate::cluster::pod::PodState;
use crate::cluster::storage::object_key;
use crate::cycle::NoFit;
use crate::device_binding::{DeviceBinding, Write, free_claims};
use crate::extender::Extender;
use crate::extender::rounds::{extenders_filter, extenders_score};
use crate::handlers::Message;
use crate::journey_events::{filtering, note_misfits, scores};
use crate::metrics;
use crate::plugins::dynamic_resources::BINDING_TIMEOUT;
use crate::plugins::volume_binding::{VolumePlan, plan_volumes};
use crate::preemption::{Budget, Outcome, best, find_victims, is_ineligible};
use crate::scheduler::{Scheduler, record};

impl Scheduler {
    pub(crate) async fn schedule(&mut self, pod: Arc<PodState>) {
        let Some(ready) = self.profiles.get(pod.scheduler_name()) else {
            self.queue.remove(&pod.key);
            return;
        };
        let (started, profile) = (Instant::now(), pod.scheduler_name().to_owned());
        self.cluster.resource_claims.now = (self.now)();
        let step = filtering(&pod, self.cluster.node_count());
        let mut search = || ready.candidates(&pod, &mut self.cluster, &self.nominations, &mut self.rotation);
        let found = if asks_for_devices(&pod) { blocking(search) } else { search() };
        metrics::finish_step("Filter", &profile, found.is_ok(), started);
        let mut candidates = match found {
            Ok(candidates) => candidates,
            Err(no_fit) => {
                note_misfits(&step, &no_fit);
                step.record("feasible", 0);
                if let Some(error) = no_fit.error {
                    drop(step);
                    metrics::finish_attempt(&profile, "error", started.elapsed());
                    return self.decision_failed(&pod, error, false);
                }
                drop(step);
                return self.does_not_fit(pod, no_fit, started).await;
            }
        };
        let interested: Vec<&Extender> =
            self.extenders.iter().filter(|extender| extender.is_interested(&pod)).collect();
        let mut points = HashMap::new();
        if !interested.is_empty() {
            if let Err(error) = extenders_filter(&interested, &pod, &self.cluster, &mut candidates).await {
                metrics::finish_attempt(&profile, "error", started.elapsed());
                return self.decision_failed(&pod, error.to_string(), false);
            }
            if candidates.feasible.is_empty() {
                note_misfits(&step, &candidates.no_fit);
                step.record("feasible", 0);
                drop(step);
                return self.does_not_fit(pod, candidates.no_fit, started).await;
            }
            points = extenders_score(&interested, &pod, &self.cluster, &candidates).await;
        }
        let scoring = Instant::now();
        let chosen = ready.choose(&pod, &mut self.cluster, &candidates, &points, &mut self.rotation);
        metrics::finish_step("Score", &profile, true, scoring);
        metrics::ALGORITHM_DURATION.observe(&[], started.elapsed().as_secs_f64());
        note_misfits(&step, &candidates.no_fit);
        step.record("detail", scores(&chosen, &self.cluster));
        // The filters share counts with the cluster, which is about to change.
        drop(candidates);
        let node = self.cluster.node(chosen.node).name().to_owned();
        step.record("feasible", chosen.feasible);
        step.record("chosen", node.as_str());
        drop(step);
        self.bind(pod, node, started).await;
    }

    /// No node fits: looks for pods to preempt, and records why the pod waits.
    async fn does_not_fit(&mut self, pod: Arc<PodState>, no_fit: Box<NoFit>, started: Instant) {
        metrics::ALGORITHM_DURATION.observe(&[], started.elapsed().as_secs_f64());
        let profile = pod.scheduler_name().to_owned();
        self.explain(pod, no_fit).await;
        metrics::finish_attempt(&profile, "unschedulable", started.elapsed());
    }

    /// Counts the pod, its volumes and its devices as placed on the node, before the API says so.
    fn assume(&mut self, pod: &Arc<PodState>, node: &str) -> (VolumePlan, DevicePlan) {
        let plan = match self.cluster.index_of(node) {
            Some(index) => plan_volumes(pod, &self.cluster.storage, self.cluster.node(index)),
            None => VolumePlan::default(),
        };
        for (claim, volume) in &plan.bind {
            let volume = volume.metadata.name.as_deref().unwrap_or_default();
            self.cluster.storage.assume_volume(volume, &object_key(&claim.metadata));
        }
        for claim in &plan.provision {
            self.cluster.storage.assume_node(&object_key(&claim.metadata), node);
        }
        let devices = match self.cluster.index_of(node) {
            Some(index) => self.cluster.resource_claims.reserve(pod, index),
            None => DevicePlan::default(),
        };
        self.cluster.assume(Arc::clone(&pod.placed), node);
        self.nominations.remove(&pod.key);
        (plan, devices)
    }

    async fn bind(&mut self, pod: Arc<PodState>, node: String, started: Instant) {
        let (plan, devices) = self.assume(&pod, &node);
        // Waiting for volumes and devices occupies no binding slot: other pods need not wait for it.
        let permits = (plan.is_empty() && !devices.waits()).then(|| Arc::clone(&self.permits));
        let permit = match permits {
            Some(permits) => permits.acquire_owned().await.ok(),
            None => None,
        };
        let client = self.client.clone();
        let messages = self.messages.clone();
        let recorder = self.recorder(&pod);
        let watched = self.watched.clone();
        let mut devices = self.device_binding(&pod, &node, devices);
        let binder = self.extenders.iter().find(|one| one.is_binder() && one.is_interested(&pod)).cloned();
        // The reason for waiting must not be written after the pod is bound: it would seem to wait still.
        let explaining = self.explaining.remove(&pod.key);
        // A panic would leave the pod assumed on its node.
        knarr_supervisor::spawn_linked("binding", async move {
            let _permit = permit;
            let _counted = CountedBinding::start();
            knarr_supervisor::fault::point("binding");
            finished(explaining).await;
            let object = format!("pods/{}", pod.key);
            let _step = tracing::info_span!(target: "journey", "bound", object, node);
            let (profile, binding) = (pod.scheduler_name().to_owned(), Instant::now());
            let result = bind::carry_out(client, &watched, &pod, &node, &plan, devices.as_mut(), binder.as_ref()).await;
            if let (Err(_), Some(devices)) = (&result, &mut devices) {
                devices.undo(&pod).await;
            }
            metrics::finish_step("Bind", &profile, result.is_ok(), binding);
            let outcome = if result.is_ok() { "scheduled" } else { "error" };
            metrics::finish_attempt(&profile, outcome, started.elapsed());
            let message = match result {
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

    /// Writes the pod's claims before it is bound.
    fn device_binding(&self, pod: &Arc<PodState>, node: &str, plan: DevicePlan) -> Option<DeviceBinding> {
        if plan.is_empty() {
            return None;
        }
        let (messages, recorder, pending) = (self.messages.clone(), self.recorder(pod), Arc::clone(pod));
        let text = format!("waiting for binding conditions for device on node {node}");
        let timeout = self.profile_of(pod).map(|ready| ready.profile.device_binding_timeout);
        Some(DeviceBinding {
            write: Write { client: self.client.clone(), now: self.now },
            watched: self.watched_claims.clone(),
            plan,
            timeout: timeout.unwrap_or(BINDING_TIMEOUT),
            // The receiver is dropped only with the scheduler.
            on_written: Box::new(move |claim| drop(messages.send(Message::ClaimWritten(Box::new(claim.clone()))))),
            on_waiting: Box::new(move || {
                if let Some(recorder) = &recorder {
                    record(recorder, &pending, false, "BindingConditionsPending", "Scheduling", text.clone());
                }
            }),
            reserved: Vec::new(),
            created: None,
        })
    }

    /// Deallocates a claim that keeps the pod from fitting; returns what the pod's condition says of it.
    async fn free_claims(&mut self, pod: &PodState) -> String {
        let cycle = self.cluster.resource_claims.cycle.take().filter(|cycle| cycle.is_for(pod));
        match cycle {
            None => "no new claims to deallocate".to_owned(),
            Some(cycle) => free_claims(self.client.clone(), &cycle).await,
        }
    }

    async fn explain(&mut self, pod: Arc<PodState>, mut no_fit: Box<NoFit>) {
        let now = self.clock.now();
        let mut nomination = Nomination::Unchanged;
        let frees_claims = self.profile_of(&pod).is_some_and(|ready| ready.profile.frees_claims);
        let claims_text = if frees_claims { Some(self.free_claims(&pod).await) } else { None };
        let preemption_text = |preemption: Option<&str>| {
            let claims = claims_text.clone();
            let preemption = preemption.map(|why| format!("preemption: {why}"));
            claims.into_iter().chain(preemption).collect::<Vec<_>>().join(", ")
        };
        if no_fit.diagnosis.all_nodes == 0 {
            nomination = Nomination::Cleared;
        } else if frees_claims
            && no_fit.diagnosis.rejected.is_some()
            && !no_fit.diagnosis.plugins.contains(&"DynamicResources")
        {
            // Kubernetes' claim plugin, which runs first here, never saw the pod and says so.
            no_fit.diagnosis.after = "not found".to_owned();
        } else {
            match self.preempt(&pod, &no_fit).await {
                Preemption::Made(node) => nomination = Nomination::On(node),
                Preemption::None(why) => {
                    nomination = Nomination::Cleared;
                    no_fit.diagnosis.after = preemption_text(Some(&why));
                }
                Preemption::NotConfigured => no_fit.diagnosis.after = preemption_text(None),
                Preemption::NotEligible(why) => no_fit.diagnosis.after = preemption_text(Some(why)),
            }
        }
        let message = no_fit.diagnosis.message();
        tracing::info!(target: "journey", step = "unschedulable", object = format!("pods/{}", pod.key), why = message);
        if let Some(recorder) = self.recorder(&pod) {
            record(&recorder, &pod, true, "FailedScheduling", "Scheduling", message.clone());
        }
        self.queue.unschedulable(&pod.key, no_fit.diagnosis.plugins, now);
        match &nomination {
            Nomination::On(node) => self.nominations.set(Arc::clone(&pod), node),
            Nomination::Cleared => self.nominations.remove(&pod.key),
            Nomination::Unchanged => {}
        }
        self.write_reason(pod, Reason::Unschedulable, message, nomination);
    }

    /// Starts writing to the pod why it waits, after the previous write for it has finished.
    pub(crate) fn write_reason(&mut self, pod: Arc<PodState>, reason: Reason, message: String, nomination: Nomination) {
        const CLEANUP_INTERVAL: usize = 64;
        let client = self.client.clone();
        let now = (self.now)();
        let key = Arc::clone(&pod.key);
        let before = self.explaining.remove(&key);
        if self.explaining.len().is_multiple_of(CLEANUP_INTERVAL) {
            self.explaining.retain(|_, task| !task.is_finished());
        }
        let task = knarr_supervisor::spawn(async move {
            let key = Arc::clone(&pod.key);
            finished(before).await;
            if let Err(error) = bind::explain(client, pod, reason, message, nomination, now).await
                && !is_not_found(&error)
            {
                tracing::warn!(pod = &*key, %error, "cannot write the pod's condition");
            }
        });
        self.explaining.insert(key, task);
    }

    /// Starts preemption for a pod and returns the node, or why it is not possible.
    async fn preempt(&mut self, pod: &Arc<PodState>, no_fit: &NoFit) -> Preemption {
        if !self.profile_of(pod).is_some_and(|ready| ready.profile.preempts) {
            return Preemption::NotConfigured;
        }
        if let Some(why) = is_ineligible(pod, self.nominations.node_of(&pod.key), no_fit, &self.cluster) {
            return Preemption::NotEligible(why);
        }
        metrics::PREEMPTION_ATTEMPTS.add(&[], 1);
        let budgets: Vec<Budget> = self.budgets.values().map(|budget| Budget::of(budget)).collect();
        let mut candidates = match find_victims(pod, no_fit, &self.cluster, &self.nominations, &budgets) {
            Outcome::Candidates(candidates) => candidates,
            Outcome::Nothing(why) => return Preemption::None(why),
        };
        for extender in self.extenders.iter().filter(|one| one.preempts() && one.is_interested(pod)) {
            // Without the agreement of every extender no pod is preempted.
            candidates = match extender.preempt(pod, candidates, &self.cluster).await {
                Ok(left) => left,
                Err(error) => {
                    tracing::warn!(pod = &*pod.key, %error, "an extender did not respond");
                    return Preemption::None("no candidate node for preemption".to_owned());
                }
            };
        }
        let Some(victims) = best(candidates) else {
            return Preemption::None("no candidate node for preemption".to_owned());
        };
        let node = self.cluster.node(victims.node).name().to_owned();
        let displaced: Vec<Arc<PlacedPod>> =
            victims.pods.into_iter().filter(|victim| !victim.is_terminating()).collect();
        if displaced.is_empty() {
            // All victims are terminating already, for a pod nominated before: nothing changes for it.
            return Preemption::Made(node);
        }
        metrics::PREEMPTION_VICTIMS.observe(&[], displaced.len() as f64);
        self.clear_nominations(&node, pod.priority());
        for victim in displaced {
            self.evict(victim, pod, node.clone());
        }
        Preemption::Made(node)
    }

    /// Removes the nominations of pods with a lower priority, which no longer have the room of this node.
    fn clear_nominations(&mut self, node: &str, priority: i32) {
        for lower in self.nominations.lower_on(node, priority) {
            self.nominations.remove(&lower.key);
            let client = self.client.clone();
            knarr_supervisor::spawn(async move {
                if let Err(error) = bind::clear_nomination(client, lower).await
                    && !is_not_found(&error)
                {
                    tracing::warn!(%error, "cannot clear a nomination");
                }
            });
        }
    }

    /// Deletes a pod to make room for another one.
    fn evict(&self, victim: Arc<PlacedPod>, preemptor: &Arc<PodState>, node: String) {
        let client = self.client.clone();
        let preemptor = Arc::clone(preemptor);
        let recorder = self.recorder(&preemptor);
        let now = (self.now)();
        let messages = self.messages.clone();
        // A panic would leave the pod that needs the room waiting for a deletion.
        knarr_supervisor::spawn_linked("preemption", async move {
            match bind::evict(client, &victim, &preemptor, now).await {
                Ok(()) => {
                    let (object, by) = (format!("pods/{}", victim.key), &*preemptor.key);
                    tracing::info!(target: "journey", step = "preempted", object, by, node);
                    if let Some(recorder) = recorder {
                        let text = format!("Preempted by pod {} on node {node}", preemptor.uid());
                        record(&recorder, &victim, false, "Preempted", "Preempting", text);
                    }
                }
                Err(error) if is_not_found(&error) => {}
                Err(error) => {
                    tracing::warn!(pod = &*victim.key, %error, "cannot preempt a pod");
                    // No deletion will wake the pod that needs the room.
                    let _ = messages.send(Message::NotPreempted(preemptor));
                }
            }
        });
    }
}

/// Whether the pod may need a search for devices, which can take long.
fn asks_for_devices(pod: &PodState) -> bool {
    let claims = pod.object.spec.as_ref().and_then(|spec| spec.resource_claims.as_ref());
    claims.is_some_and(|claims| !claims.is_empty()) || pod.requests.others.keys().any(|name| name.contains('/'))
}

/// Runs work that can take long without keeping other tasks from this thread.
fn blocking<T>(work: impl FnOnce() -> T) -> T {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// A binding in flight.
struct CountedBinding;

impl CountedBinding {
    fn start() -> CountedBinding {
        metrics::TASKS.add(&["binding"], 1.0);
        CountedBinding
    }
}

impl Drop for CountedBinding {
    fn drop(&mut self) {
        metrics::TASKS.add(&["binding"], -1.0);
    }
}

/// Waits for a task, if there is one. A failed one has logged its error.
async fn finished(task: Option<JoinHandle<()>>) {
    if let Some(task) = task {
        let _ = task.await;
    }
}

/// The outcome of preemption for a pod.
enum Preemption {
    Made(String),
    None(String),
    NotEligible(&'static str),
    NotConfigured,
}
