//! Changes the replica count of workloads so that their metrics reach their targets.
//!
//! [`metrics`] fetches metrics, [`reading`] and [`replicas`] compute proposals from them, [`limits`] stabilizes and bounds
//! these. This module syncs each autoscaler periodically and carries decisions out through the target's scale subresource.

mod limits;
mod metrics;
mod reading;
mod replicas;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerStatus, MetricSpec, MetricStatus,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_client::selector::Selector;
use knarr_client::{Change, EventRecorder, Informer, WorkQueue, run_workers, time};
use kube::Api;
use kube::api::{DynamicObject, PostParams};
use parking_lot::Mutex;

use crate::Context;
use crate::common::discovery::{Kind, KnownKinds};
use crate::common::requests::{replace_status, unless_zero};
use crate::common::{Key, journey};
use crate::error::{Error, Result, ignore_not_found, is_conflict, message};
use crate::metrics::{autoscaler_synced, metric_computed, scaling};

use limits::{Bounds, History};
use metrics::Metrics;
use reading::{MetricError, Reader};

type Autoscaler = HorizontalPodAutoscaler;

/// Other writers scale too: a conflicting write is retried.
const CONFLICT_ATTEMPTS: usize = 5;

pub async fn run(context: Context) {
    let autoscalers = context.informers.of::<Autoscaler>();
    let pods = context.informers.of::<Pod>();
    let queue: Arc<WorkQueue<Key>> = WorkQueue::new();
    let on_change = queue.clone();
    let interval = context.settings.autoscaler.sync_period;
    autoscalers.on_change(move |change| {
        let key = Key::of(&**change.latest());
        match change {
            // The target's pods are often as new as the autoscaler: their metrics are first requested after one interval.
            Change::Added(_) => on_change.add_after(key, interval),
            // Its own status writes need no sync; the next one comes after the interval.
            Change::Updated { old, new } if old.spec == new.spec => {}
            Change::Updated { .. } | Change::Deleted(_) => on_change.add(key),
        }
    });
    autoscalers.synced().await;
    pods.synced().await;
    let workers = context.settings.concurrent_syncs.of("concurrent-horizontal-pod-autoscaler-syncs");
    let recorder = context.recorder("horizontal-pod-autoscaler");
    let started = (context.clock.now(), tokio::time::Instant::now());
    let controller = Arc::new(Controller {
        context,
        autoscalers,
        pods,
        queue: queue.clone(),
        recorder,
        histories: Mutex::default(),
        selectors: Mutex::default(),
        kinds: KnownKinds::default(),
        started,
    });
    run_workers(queue, workers, move |key: Key| {
        let controller = controller.clone();
        async move {
            if let Err(error) = controller.reconcile(&key).await {
                tracing::debug!(autoscaler = %key, %error, "cannot sync an autoscaler; retrying in the next interval");
            }
            if controller.autoscalers.get(&key.namespace, &key.name).is_some() {
                controller.queue.add_after(key, interval);
            }
            Ok::<(), Error>(())
        }
    })
    .await;
}

struct Controller {
    context: Context,
    autoscalers: Arc<Informer<Autoscaler>>,
    pods: Arc<Informer<Pod>>,
    queue: Arc<WorkQueue<Key>>,
    recorder: EventRecorder,
    histories: Mutex<HashMap<Key, History>>,
    /// Selector of each autoscaler's target, as last read.
    selectors: Mutex<HashMap<Key, Selector>>,
    kinds: KnownKinds,
    /// When it was started, by the wall clock and by the one that is never stepped.
    started: (Timestamp, tokio::time::Instant),
}

impl Controller {
    async fn reconcile(&self, key: &Key) -> Result<()> {
        let _step = journey::sync_span("autoscaler", "horizontalpodautoscalers", key);
        let Some(autoscaler) = self.autoscalers.get(&key.namespace, &key.name) else {
            self.histories.lock().remove(key);
            self.selectors.lock().remove(key);
            return Ok(());
        };
        let mut status = autoscaler.status.clone().unwrap_or_default();
        status.observed_generation = autoscaler.metadata.generation;
        let (started, mut action) = (Instant::now(), "none");
        let outcome = self.decide(key, &autoscaler, &mut status, &mut action).await;
        if autoscaler.status.as_ref() != Some(&status) {
            let changed = Autoscaler { status: Some(status), ..(*autoscaler).clone() };
            let written = ignore_not_found(replace_status(&self.context.client, &changed).await);
            if let Err(error) = written {
                autoscaler_synced(action, true, started.elapsed());
                return Err(error.into());
            }
        }
        autoscaler_synced(action, outcome.is_err(), started.elapsed());
        outcome
    }

    async fn decide(
        &self,
        key: &Key,
        autoscaler: &Autoscaler,
        status: &mut HorizontalPodAutoscalerStatus,
        action: &mut &'static str,
    ) -> Result<()> {
        let spec = &autoscaler.spec;
        let now = self.context.clock.now();
        let (api, scale) = match self.scale_of(key, autoscaler).await {
            Ok(found) => found,
            Err(text) => {
                self.recorder.warning(autoscaler, "FailedGetScale", text.clone());
                let message = format!("the HPA controller was unable to get the target's current scale: {text}");
                set(status, "AbleToScale", "False", "FailedGetScale", &message, now);
                return Err(Error::Later(text));
            }
        };
        let message = "the HPA controller was able to get the target's current scale";
        set(status, "AbleToScale", "True", "SucceededGetScale", message, now);
        let current = scale.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0);
        let min = spec.min_replicas.unwrap_or(1);
        let steady = self.steady_time();
        self.histories.lock().entry(key.clone()).or_default().start(current, steady);
        let mut failure = None;
        status.current_metrics = None;
        let (desired, reason) = if current == 0 && min != 0 {
            let message = "scaling is disabled since the replica count of the target is zero";
            set(status, "ScalingActive", "False", "ScalingDisabled", message, now);
            (0, String::new())
        } else if current > spec.max_replicas {
            (spec.max_replicas, "Current number of replicas above Spec.MaxReplicas".to_owned())
        } else if current < min {
            (min, "Current number of replicas below Spec.MinReplicas".to_owned())
        } else {
            let (proposed, name) = match self.propose(autoscaler, &scale, status, now, &mut failure).await {
                Some(proposal) => proposal,
                None => {
                    status.current_replicas = unless_zero(current);
                    let text = failure.unwrap_or_else(|| "no metric could be read".to_owned());
                    self.recorder.warning(autoscaler, "FailedComputeMetricsReplicas", text.clone());
                    return Err(Error::Later(text));
                }
            };
            let reason = match proposed.cmp(&current) {
                std::cmp::Ordering::Greater => format!("{name} above target"),
                std::cmp::Ordering::Less => "All metrics below target".to_owned(),
                std::cmp::Ordering::Equal => String::new(),
            };
            let down_window = self.context.settings.autoscaler.downscale_stabilization;
            let bounds = Bounds { current, min, max: spec.max_replicas, behavior: spec.behavior.as_ref(), down_window };
            let limited = self.histories.lock().entry(key.clone()).or_default().limit(proposed, &bounds, steady);
            let (able, limit) = (limited.able_to_scale, limited.scaling_limited);
            set(status, "AbleToScale", able.0, able.1, able.2, now);
            set(status, "ScalingLimited", limit.0, limit.1, limit.2, now);
            (limited.replicas, reason)
        };
        status.current_replicas = unless_zero(current);
        if desired != current {
            self.rescale(autoscaler, &api, scale, desired, &reason, status, now).await?;
            *action = scaling(current, desired);
            self.histories.lock().entry(key.clone()).or_default().note_change(current, desired, steady);
            status.last_scale_time = Some(time::truncated(now));
        }
        status.desired_replicas = desired;
        failure.map_or(Ok(()), |text| Err(Error::Later(text)))
    }

    /// The time for histories, which measure windows: a step of the wall clock must not empty or prolong them.
    fn steady_time(&self) -> Timestamp {
        let (wall, since) = self.started;
        let passed = SignedDuration::try_from(since.elapsed()).unwrap_or(SignedDuration::MAX);
        wall.saturating_add(passed).unwrap_or(Timestamp::MAX)
    }

    async fn scale_of(&self, key: &Key, autoscaler: &Autoscaler) -> Result<(Api<DynamicObject>, Scale), String> {
        let target = &autoscaler.spec.scale_target_ref;
        let group =
            target.api_version.as_deref().and_then(|version| version.split_once('/')).map_or("", |(group, _)| group);
        let is_meant = |kind: &Kind| kind.resource.group == group && kind.resource.kind == target.kind;
        let kind = self.kinds.find(&self.context.client, is_meant).await.map_err(|error| message(&error))?;
        let kind = kind.ok_or_else(|| format!("no matches for kind \"{}\" in group \"{group}\"", target.kind))?;
        let api: Api<DynamicObject> = Api::namespaced_with(self.context.client.clone(), &key.namespace, &kind.resource);
        let scale = api.get_scale(&target.name).await.map_err(|error| message(&error))?;
        Ok((api, scale))
    }

    #[allow(clippy::too_many_arguments)]
    async fn rescale(
        &self,
        autoscaler: &Autoscaler,
        api: &Api<DynamicObject>,
        mut scale: Scale,
        desired: i32,
        reason: &str,
        status: &mut HorizontalPodAutoscalerStatus,
        now: Timestamp,
    ) -> Result<()> {
        scale.spec.get_or_insert_default().replicas = Some(desired);
        let target = scale.metadata.name.clone().unwrap_or_default();
        let mut result = api.replace_scale(&target, &PostParams::default(), &scale).await;
        for _ in 1..CONFLICT_ATTEMPTS {
            if !result.as_ref().is_err_and(is_conflict) {
                break;
            }
            scale = api.get_scale(&target).await?;
            scale.spec.get_or_insert_default().replicas = Some(desired);
            result = api.replace_scale(&target, &PostParams::default(), &scale).await;
        }
        match result {
            Ok(_) => {
                let message = format!("the HPA controller was able to update the target scale to {desired}");
                set(status, "AbleToScale", "True", "SucceededRescale", &message, now);
                self.recorder.normal(autoscaler, "SuccessfulRescale", format!("New size: {desired}; reason: {reason}"));
                Ok(())
            }
            Err(error) => {
                let text = message(&error);
                let message = format!("New size: {desired}; reason: {reason}; error: {text}");
                self.recorder.warning(autoscaler, "FailedRescale", message);
                let message = format!("the HPA controller was unable to update the target scale: {text}");
                set(status, "AbleToScale", "False", "FailedUpdateScale", &message, now);
                Err(error.into())
            }
        }
    }

    /// Autoscalers of the namespace that select any of the pods.
    fn sharing(&self, key: &Key, selector: Selector, pods: &[Arc<Pod>]) -> Vec<String> {
        let mut selectors = self.selectors.lock();
        selectors.insert(key.clone(), selector);
        let governs = |selector: &Selector| pods.iter().any(|pod| selector.matches(pod.metadata.labels.as_ref()));
        let all = selectors.iter().filter(|(other, selector)| other.namespace == key.namespace && governs(selector));
        let mut names: Vec<String> = all.map(|(other, _)| other.to_string()).collect();
        names.sort();
        names
    }

    /// The pods that the target's selector names, unless it is missing or other autoscalers select some of them, too.
    fn selected_pods(
        &self,
        autoscaler: &Autoscaler,
        text: &str,
        status: &mut HorizontalPodAutoscalerStatus,
        now: Timestamp,
    ) -> Result<Vec<Arc<Pod>>, String> {
        let Some(selector) = Selector::parse(text).ok().filter(|_| !text.is_empty()) else {
            self.recorder.warning(autoscaler, "SelectorRequired", "selector is required");
            let message = "the HPA target's scale is missing a selector";
            set(status, "ScalingActive", "False", "InvalidSelector", message, now);
            return Err("selector is required".to_owned());
        };
        let mut pods = self.pods.in_namespace(autoscaler.metadata.namespace.as_deref().unwrap_or(""));
        pods.retain(|pod| selector.matches(pod.metadata.labels.as_ref()));
        let sharing = self.sharing(&Key::of(autoscaler), selector, &pods);
        if sharing.len() > 1 {
            let message = format!("pods by selector {text} are controlled by multiple HPAs: [{}]", sharing.join(" "));
            self.recorder.warning(autoscaler, "AmbiguousSelector", message.clone());
            set(status, "ScalingActive", "False", "AmbiguousSelector", &message, now);
            return Err(message);
        }
        Ok(pods)
    }

    /// The greatest replica count that any metric proposes. With some metrics unavailable, only scaling up is trusted.
    async fn propose(
        &self,
        autoscaler: &Autoscaler,
        scale: &Scale,
        status: &mut HorizontalPodAutoscalerStatus,
        now: Timestamp,
        failure: &mut Option<String>,
    ) -> Option<(i32, String)> {
        let text = scale.status.as_ref().and_then(|status| status.selector.clone()).unwrap_or_default();
        let pods = match self.selected_pods(autoscaler, &text, status, now) {
            Ok(pods) => pods,
            Err(why) => {
                status.current_metrics = None;
                *failure = Some(why);
                return None;
            }
        };
        let specs = autoscaler.spec.metrics.clone().unwrap_or_default();
        let settings = &self.context.settings;
        let namespace = autoscaler.metadata.namespace.as_deref().unwrap_or("");
        let metrics = Metrics { client: &self.context.client, kinds: &self.kinds, namespace };
        let reader = Reader::new(metrics, settings, autoscaler, scale, &text, &pods, now);
        let current = scale.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0);
        let MetricReadings { best, statuses, unreadable } =
            self.read_metrics(autoscaler, &reader, &specs, current).await;
        status.current_metrics = (!statuses.is_empty()).then_some(statuses);
        if let Some(first) = unreadable.first() {
            let (count, all) = (unreadable.len(), specs.len());
            *failure =
                Some(format!("invalid metrics ({count} invalid out of {all}), first error is: {}", first.summary));
            if best.as_ref().is_none_or(|(replicas, _)| *replicas < current) {
                let message = format!("the HPA was unable to compute the replica count: {}", first.message);
                set(status, "ScalingActive", "False", first.reason, &message, now);
                return None;
            }
        }
        let best = best?;
        let message = format!("the HPA was able to successfully calculate a replica count from {}", best.1);
        set(status, "ScalingActive", "True", "ValidMetricFound", &message, now);
        Some(best)
    }

    /// Reads all metrics. Those that cannot be read get an event.
    async fn read_metrics(
        &self,
        autoscaler: &Autoscaler,
        reader: &Reader<'_>,
        specs: &[MetricSpec],
        current: i32,
    ) -> MetricReadings {
        let mut readings = MetricReadings::default();
        for spec in specs {
            let started = Instant::now();
            let read = reader.read(spec).await;
            let action = read.as_ref().map_or("none", |reading| scaling(current, reading.replicas));
            metric_computed(action, read.is_err(), &spec.type_, started.elapsed());
            match read {
                Ok(reading) => {
                    readings.statuses.push(reading.status);
                    if readings.best.as_ref().is_none_or(|(replicas, _)| reading.replicas > *replicas) {
                        readings.best = Some((reading.replicas, reading.name));
                    }
                }
                Err(error) => {
                    // Keeps an empty entry, so that the other metrics keep their position.
                    readings.statuses.push(MetricStatus::default());
                    self.recorder.warning(autoscaler, error.reason, error.message.clone());
                    readings.unreadable.push(error);
                }
            }
        }
        readings
    }
}

/// What the metrics of an autoscaler say.
#[derive(Default)]
struct MetricReadings {
    /// The greatest replica count that a metric proposes, and its name.
    best: Option<(i32, String)>,
    statuses: Vec<MetricStatus>,
    unreadable: Vec<MetricError>,
}

fn set(
    status: &mut HorizontalPodAutoscalerStatus,
    kind: &str,
    condition_status: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let conditions = status.conditions.get_or_insert_default();
    let at = conditions.iter().position(|condition| condition.type_ == kind).unwrap_or_else(|| {
        conditions.push(HorizontalPodAutoscalerCondition { type_: kind.to_owned(), ..Default::default() });
        conditions.len() - 1
    });
    let condition = &mut conditions[at];
    if condition.status != condition_status {
        condition.last_transition_time = Some(time::truncated(now));
    }
    condition.status = condition_status.to_owned();
    condition.reason = Some(reason.to_owned());
    condition.message = Some(message.to_owned());
}
