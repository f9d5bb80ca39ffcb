//! Watches the runtime's events and passes them to the workers of the pods concerned.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use knarr_cri::Runtime;
use knarr_cri::events::{ContainerEvent, EventError, TimedEvent, subscribe};
use parking_lot::Mutex;

use super::Heartbeat;
use crate::counters::Counters;

/// What happened in the runtime, for the worker of a pod.
pub enum RuntimeEvent {
    /// The container or sandbox of this id exited.
    Exited(String),
    /// The container or sandbox of this id changed.
    Changed(String),
    /// Read all containers again: events may have been missed.
    Relist(Arc<RelistRound>),
}

/// Passes an event to a worker; one worker has one of these, of which it makes clones.
pub type EventHandler = Arc<dyn Fn(RuntimeEvent) + Send + Sync>;

/// The worker of each container and sandbox, by id.
#[derive(Clone, Default)]
pub struct Index(Arc<Mutex<HashMap<String, EventHandler>>>);

impl Index {
    pub fn insert(&self, id: &str, worker: EventHandler) {
        self.0.lock().insert(id.to_string(), worker);
    }

    pub fn remove(&self, id: &str) {
        self.0.lock().remove(id);
    }

    fn send(&self, id: &str, event: RuntimeEvent) {
        let worker = self.0.lock().get(id).cloned();
        if let Some(worker) = worker {
            worker(event);
        }
    }

    /// Makes each worker read all its containers from the runtime.
    fn request_relist(&self, round: &Arc<RelistRound>) {
        let mut notified: Vec<EventHandler> = Vec::new();
        for worker in self.0.lock().values() {
            if !notified.iter().any(|known| Arc::ptr_eq(known, worker)) {
                worker(RuntimeEvent::Relist(round.clone()));
                notified.push(worker.clone());
            }
        }
    }
}

/// One relist of all containers. It is finished, and measured, when the last worker drops it.
pub struct RelistRound {
    metrics: Arc<Counters>,
    heartbeat: Heartbeat,
    started: Instant,
    runtime_responded: AtomicBool,
}

impl Drop for RelistRound {
    fn drop(&mut self) {
        self.metrics.observe("kubelet_pleg_relist_duration_seconds", &[], self.started.elapsed());
        if self.runtime_responded.load(Ordering::Acquire) {
            record_runtime_seen(&self.metrics);
            self.heartbeat.beat(Instant::now());
        }
    }
}

/// Records that the runtime responded or sent an event.
fn record_runtime_seen(metrics: &Counters) {
    let now = k8s_openapi::jiff::Timestamp::now();
    metrics.set("kubelet_pleg_last_seen_seconds", &[], now.as_second() as f64);
}

/// The interval for runtimes without events.
const RELIST_WITHOUT_EVENTS: Duration = Duration::from_secs(1);
const RELIST_AFTER_SUBSCRIBING: Duration = Duration::from_millis(300);
/// With events, a rare relist finds lost ones.
const RELIST_WITH_EVENTS: Duration = Duration::from_secs(60);
/// Between subscriptions that stop.
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// Runs for as long as the node does.
pub async fn watch_events(runtime: Runtime, index: Index, metrics: Arc<Counters>, heartbeat: Heartbeat) {
    let mut relister = Relister { runtime, index, metrics, heartbeat, last_relist: Instant::now() };
    let mut backoff = INITIAL_BACKOFF;
    loop {
        relister.metrics.count("kubelet_evented_pleg_connection_success_count", &[]);
        match relister.pass_events(&mut backoff).await {
            Some(EventError::Unsupported) => {
                tracing::warn!("the runtime has no events: listing its containers every second");
                loop {
                    tokio::time::sleep(RELIST_WITHOUT_EVENTS).await;
                    relister.relist();
                }
            }
            Some(error) => tracing::debug!(%error, "the runtime's events stopped"),
            None => {}
        }
        relister.metrics.count("kubelet_evented_pleg_connection_error_count", &[]);
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(MAX_BACKOFF);
    }
}

struct Relister {
    runtime: Runtime,
    index: Index,
    metrics: Arc<Counters>,
    heartbeat: Heartbeat,
    last_relist: Instant,
}

impl Relister {
    /// Subscribes to the runtime's events and passes them to workers until they stop, and returns why. Each event resets
    /// the backoff.
    async fn pass_events(&mut self, backoff: &mut Duration) -> Option<EventError> {
        let mut stream = subscribe(&self.runtime);
        // A relist after subscribing finds what happened without a subscription.
        let first = tokio::time::Instant::now() + RELIST_AFTER_SUBSCRIBING;
        let mut relists = tokio::time::interval_at(first, RELIST_WITH_EVENTS);
        let mut has_relisted = false;
        loop {
            let item = tokio::select! {
                item = stream.next() => item,
                _ = relists.tick() => {
                    // A runtime that just started accepts subscriptions before it can list containers.
                    if !has_relisted && self.runtime.status(false).await.is_err_and(|error| error.is_unavailable()) {
                        relists.reset_after(RELIST_AFTER_SUBSCRIBING);
                        continue;
                    }
                    has_relisted = true;
                    self.relist();
                    continue;
                }
            };
            match item {
                Some(Ok(event)) => {
                    *backoff = INITIAL_BACKOFF;
                    self.pass(event);
                }
                Some(Err(error)) => return Some(error),
                None => return None,
            }
        }
    }

    fn pass(&self, TimedEvent { event, at }: TimedEvent) {
        record_runtime_seen(&self.metrics);
        if let Some(at) = at {
            let late = at.elapsed().unwrap_or_default();
            self.metrics.observe("kubelet_evented_pleg_connection_latency_seconds", &[], late);
        }
        match event {
            ContainerEvent::Exited { id } => self.index.send(&id, RuntimeEvent::Exited(id.clone())),
            ContainerEvent::Changed { id } => self.index.send(&id, RuntimeEvent::Changed(id.clone())),
        }
    }

    fn relist(&mut self) {
        self.metrics.observe("kubelet_pleg_relist_interval_seconds", &[], self.last_relist.elapsed());
        self.last_relist = Instant::now();
        let round = Arc::new(RelistRound {
            metrics: self.metrics.clone(),
            heartbeat: self.heartbeat.clone(),
            started: self.last_relist,
            runtime_responded: AtomicBool::new(false),
        });
        self.index.request_relist(&round);
        let runtime = self.runtime.clone();
        knarr_supervisor::spawn(async move {
            let runtime_responded = runtime.status(false).await.is_ok();
            round.runtime_responded.store(runtime_responded, Ordering::Release);
        });
    }
}
