//! Watches the runtime's events and passes them to the workers of the pods concerned.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use knarr_cri::Runtime;
use knarr_cri::events::{ContainerEvent, EventError, TimedEvent, subscribe};
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;

use super::Heartbeat;
use crate::counters::Counters;
use crate::worker::Message;

/// The worker of each container and sandbox, by id.
#[derive(Clone, Default)]
pub struct Index(Arc<Mutex<HashMap<String, UnboundedSender<Message>>>>);

impl Index {
    pub fn insert(&self, id: &str, worker: UnboundedSender<Message>) {
        self.0.lock().insert(id.to_string(), worker);
    }

    pub fn remove(&self, id: &str) {
        self.0.lock().remove(id);
    }

    fn send(&self, id: &str, message: Message) {
        let worker = self.0.lock().get(id).cloned();
        // The worker may already have stopped.
        worker.map(|worker| worker.send(message));
    }

    /// Makes each worker read all its containers from the runtime.
    fn request_relist(&self, round: &Arc<RelistRound>) {
        let mut notified: Vec<UnboundedSender<Message>> = Vec::new();
        for worker in self.0.lock().values() {
            if !notified.iter().any(|known| known.same_channel(worker)) {
                let _ = worker.send(Message::Relist(Some(round.clone())));
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

/// Runs for as long as the node does.
pub async fn watch_events(runtime: Runtime, index: Index, metrics: Arc<Counters>, heartbeat: Heartbeat) {
    let mut backoff = Duration::from_millis(100);
    let mut last_relist = Instant::now();
    let mut relist = |index: &Index| {
        metrics.observe("kubelet_pleg_relist_interval_seconds", &[], last_relist.elapsed());
        last_relist = Instant::now();
        let (metrics, heartbeat) = (metrics.clone(), heartbeat.clone());
        let round = Arc::new(RelistRound {
            metrics,
            heartbeat,
            started: last_relist,
            runtime_responded: AtomicBool::new(false),
        });
        index.request_relist(&round);
        let runtime = runtime.clone();
        knarr_supervisor::spawn(async move {
            let runtime_responded = runtime.status(false).await.is_ok();
            round.runtime_responded.store(runtime_responded, Ordering::Release);
        });
    };
    loop {
        metrics.count("kubelet_evented_pleg_connection_success_count", &[]);
        let mut stream = subscribe(&runtime);
        // A relist after subscribing finds what happened without a subscription.
        let first = tokio::time::Instant::now() + RELIST_AFTER_SUBSCRIBING;
        let mut relists = tokio::time::interval_at(first, RELIST_WITH_EVENTS);
        let mut has_relisted = false;
        let error = loop {
            let item = tokio::select! {
                item = stream.next() => item,
                _ = relists.tick() => {
                    // A runtime that just started accepts subscriptions before it can list containers.
                    if !has_relisted && runtime.status(false).await.is_err_and(|error| error.is_unavailable()) {
                        relists.reset_after(RELIST_AFTER_SUBSCRIBING);
                        continue;
                    }
                    has_relisted = true;
                    relist(&index);
                    continue;
                }
            };
            match item {
                Some(Ok(TimedEvent { event, at })) => {
                    backoff = Duration::from_millis(100);
                    record_runtime_seen(&metrics);
                    if let Some(at) = at {
                        let late = at.elapsed().unwrap_or_default();
                        metrics.observe("kubelet_evented_pleg_connection_latency_seconds", &[], late);
                    }
                    match event {
                        ContainerEvent::Exited { id } => index.send(&id, Message::Exited(id.clone())),
                        ContainerEvent::Changed { id } => index.send(&id, Message::Changed(id.clone())),
                    }
                }
                Some(Err(error)) => break Some(error),
                None => break None,
            }
        };
        match error {
            Some(EventError::Unsupported) => {
                tracing::warn!("the runtime has no events: listing its containers every second");
                loop {
                    tokio::time::sleep(RELIST_WITHOUT_EVENTS).await;
                    relist(&index);
                }
            }
            Some(error) => tracing::debug!(%error, "the runtime's events stopped"),
            None => {}
        }
        metrics.count("kubelet_evented_pleg_connection_error_count", &[]);
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(Duration::from_secs(2));
    }
}
