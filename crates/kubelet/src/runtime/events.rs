//! Leading what the runtime tells to the pod it concerns.

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

/// Which worker is to hear of which container or sandbox.
#[derive(Clone, Default)]
pub struct Index(Arc<Mutex<HashMap<String, UnboundedSender<Message>>>>);

impl Index {
    pub fn insert(&self, id: &str, worker: UnboundedSender<Message>) {
        self.0.lock().insert(id.to_string(), worker);
    }

    pub fn remove(&self, id: &str) {
        self.0.lock().remove(id);
    }

    fn tell(&self, id: &str, message: Message) {
        let worker = self.0.lock().get(id).cloned();
        // A worker that has ended needs no news.
        worker.map(|worker| worker.send(message));
    }

    /// Each worker looks at all its containers.
    fn tell_all(&self, round: &Arc<RelistRound>) {
        let mut told: Vec<UnboundedSender<Message>> = Vec::new();
        for worker in self.0.lock().values() {
            if !told.iter().any(|known| known.same_channel(worker)) {
                let _ = worker.send(Message::Relist(Some(round.clone())));
                told.push(worker.clone());
            }
        }
    }
}

/// One look at all that the runtime holds. It is over, and measured, when nobody looks any more.
pub struct RelistRound {
    metrics: Arc<Counters>,
    heartbeat: Heartbeat,
    begun: Instant,
    is_answered: AtomicBool,
}

impl Drop for RelistRound {
    fn drop(&mut self) {
        self.metrics.observe("kubelet_pleg_relist_duration_seconds", &[], self.begun.elapsed());
        if self.is_answered.load(Ordering::Acquire) {
            heard(&self.metrics);
            self.heartbeat.beat(Instant::now());
        }
    }
}

/// The runtime lives: it answered, or told something.
fn heard(metrics: &Counters) {
    let now = k8s_openapi::jiff::Timestamp::now();
    metrics.set("kubelet_pleg_last_seen_seconds", &[], now.as_second() as f64);
}

/// Without events, looking is all that is left.
const RELIST_WITHOUT_EVENTS: Duration = Duration::from_secs(1);
const LOOK_AFTER_SUBSCRIBING: Duration = Duration::from_millis(300);
/// With events, a rare look guards against one lost on the way.
const RELIST_WITH_EVENTS: Duration = Duration::from_secs(60);

/// Runs for as long as the node does.
pub async fn follow(runtime: Runtime, index: Index, metrics: Arc<Counters>, heartbeat: Heartbeat) {
    let mut pause = Duration::from_millis(100);
    let mut looked = Instant::now();
    let mut look = |index: &Index| {
        metrics.observe("kubelet_pleg_relist_interval_seconds", &[], looked.elapsed());
        looked = Instant::now();
        let (metrics, heartbeat) = (metrics.clone(), heartbeat.clone());
        let round = Arc::new(RelistRound { metrics, heartbeat, begun: looked, is_answered: AtomicBool::new(false) });
        index.tell_all(&round);
        let runtime = runtime.clone();
        tokio::spawn(async move {
            let is_answered = runtime.status(false).await.is_ok();
            round.is_answered.store(is_answered, Ordering::Release);
        });
    };
    loop {
        metrics.count("kubelet_evented_pleg_connection_success_count", &[]);
        let mut stream = subscribe(&runtime);
        // What happened while nobody listened is found by looking once the subscription stands.
        let first = tokio::time::Instant::now() + LOOK_AFTER_SUBSCRIBING;
        let mut looks = tokio::time::interval_at(first, RELIST_WITH_EVENTS);
        let mut has_looked = false;
        let error = loop {
            let item = tokio::select! {
                item = stream.next() => item,
                _ = looks.tick() => {
                    // One that was started a moment ago takes events before it can be looked at.
                    if !has_looked && runtime.status(false).await.is_err_and(|error| error.is_unavailable()) {
                        looks.reset_after(LOOK_AFTER_SUBSCRIBING);
                        continue;
                    }
                    has_looked = true;
                    look(&index);
                    continue;
                }
            };
            match item {
                Some(Ok(TimedEvent { event, at })) => {
                    pause = Duration::from_millis(100);
                    heard(&metrics);
                    if let Some(at) = at {
                        let late = at.elapsed().unwrap_or_default();
                        metrics.observe("kubelet_evented_pleg_connection_latency_seconds", &[], late);
                    }
                    match event {
                        ContainerEvent::Exited { id } => index.tell(&id, Message::Exited(id.clone())),
                        ContainerEvent::Changed { id } => index.tell(&id, Message::Changed(id.clone())),
                    }
                }
                Some(Err(error)) => break Some(error),
                None => break None,
            }
        };
        match error {
            Some(EventError::Unsupported) => {
                tracing::warn!("the runtime tells no events: its containers are listed every second");
                loop {
                    tokio::time::sleep(RELIST_WITHOUT_EVENTS).await;
                    look(&index);
                }
            }
            Some(error) => tracing::debug!(%error, "the runtime's events stopped"),
            None => {}
        }
        metrics.count("kubelet_evented_pleg_connection_error_count", &[]);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}
