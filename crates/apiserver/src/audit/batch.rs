//! Batches: events wait in a buffer and are sent in the background, so that no request waits for them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

use super::backend::Sink;
use super::truncate;

/// How long what waits may take while the server stops, per batch.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// How much memory the events that wait may take, roughly. Those without bodies never need that much.
pub(super) const MAX_BUFFERED_BYTES: usize = 128 << 20;

/// An event that waits, with the room that it takes until it is sent.
pub(super) struct Queued {
    pub event: Value,
    pub room: OwnedSemaphorePermit,
}

/// How much memory an event takes, roughly.
pub(super) fn weight(event: &Value) -> u32 {
    fn bytes(value: &Value) -> usize {
        const NODE: usize = 64;
        let inner = match value {
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(bytes).sum(),
            Value::Object(fields) => fields.iter().map(|(key, value)| key.len() + bytes(value)).sum(),
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        };
        NODE + inner
    }
    u32::try_from(bytes(event)).unwrap_or(u32::MAX)
}

/// How events are collected and sent.
#[derive(Clone, Debug)]
pub struct BatchSettings {
    /// Events that are waiting beyond this number are dropped.
    pub buffer_size: usize,
    pub max_batch_size: usize,
    /// A batch that is not full is sent after this time; zero waits for nothing.
    pub max_wait: Duration,
    /// Batches per second, and how many at once; `None` for no limit.
    pub throttle: Option<(f64, u32)>,
    /// How many batches are on their way at once; one keeps them in order.
    pub concurrent: usize,
}

impl BatchSettings {
    /// Kubernetes' defaults for a log.
    pub const LOG: Self = BatchSettings {
        buffer_size: 10_000,
        max_batch_size: 1,
        max_wait: Duration::ZERO,
        throttle: None,
        concurrent: 1,
    };

    /// Kubernetes' defaults for a webhook.
    pub const WEBHOOK: Self = BatchSettings {
        buffer_size: 10_000,
        max_batch_size: 400,
        max_wait: Duration::from_secs(30),
        throttle: Some((10.0, 15)),
        concurrent: 16,
    };
}

/// Sends the events that wait; to be run in the background until the backend is dropped or the server stops.
pub struct BatchSender {
    pub(super) sink: Arc<dyn Sink>,
    pub(super) settings: BatchSettings,
    pub(super) max_batch_bytes: Option<usize>,
    pub(super) queue: mpsc::Receiver<Queued>,
}

impl BatchSender {
    /// Sends batches until there are no more events.
    pub async fn run(mut self, mut stopping: tokio::sync::watch::Receiver<bool>) {
        let slots = Arc::new(Semaphore::new(self.settings.concurrent.max(1)));
        let mut throttle = self.settings.throttle.map(|(rate, burst)| Throttle::new(rate, burst));
        let mut is_stopping = *stopping.borrow();
        let mut batch = Vec::new();
        loop {
            if is_stopping {
                self.add_waiting(&mut batch);
            } else {
                tokio::select! {
                    () = collect(&mut self.queue, &self.settings, &mut batch) => {}
                    _ = stopping.wait_for(|stopping| *stopping) => {
                        is_stopping = true;
                        continue;
                    }
                }
            }
            if batch.is_empty() {
                break;
            }
            if let Some(throttle) = &mut throttle {
                throttle.wait().await;
            }
            let (events, room): (Vec<_>, Vec<_>) = batch.drain(..).map(|queued| (queued.event, queued.room)).unzip();
            let room = Arc::new(room);
            for part in truncate::split(events, self.max_batch_bytes) {
                let (sink, room) = (self.sink.clone(), room.clone());
                let Ok(slot) = slots.clone().acquire_owned().await else { return };
                let sending = async move {
                    // The sink logs a failure; nobody waits for the batch.
                    let _ = sink.send(part).await;
                    drop((slot, room));
                };
                if is_stopping {
                    // A webhook that does not respond must not hold the end of the server.
                    if tokio::time::timeout(STOP_TIMEOUT, sending).await.is_err() {
                        tracing::error!("audit events could not be sent before the server stopped");
                    }
                } else {
                    knarr_supervisor::spawn(sending);
                }
            }
        }
    }

    fn add_waiting(&mut self, batch: &mut Vec<Queued>) {
        while batch.len() < self.settings.max_batch_size.max(1) {
            match self.queue.try_recv() {
                Ok(event) => batch.push(event),
                Err(_) => break,
            }
        }
    }
}

/// Fills the next batch until it is full, or as old as it may get. It stays empty if there will be no more events. What was
/// collected is kept when this is dropped.
async fn collect(queue: &mut mpsc::Receiver<Queued>, settings: &BatchSettings, batch: &mut Vec<Queued>) {
    let Some(first) = queue.recv().await else { return };
    batch.push(first);
    let deadline = Instant::now() + settings.max_wait;
    while batch.len() < settings.max_batch_size {
        match tokio::time::timeout_at(deadline, queue.recv()).await {
            Ok(Some(event)) => batch.push(event),
            Ok(None) | Err(_) => break,
        }
    }
}

/// A token bucket.
struct Throttle {
    rate: f64,
    burst: f64,
    tokens: f64,
    filled: Instant,
}

impl Throttle {
    fn new(rate: f64, burst: u32) -> Self {
        let burst = f64::from(burst.max(1));
        Throttle { rate: rate.max(0.001), burst, tokens: burst, filled: Instant::now() }
    }

    async fn wait(&mut self) {
        let now = Instant::now();
        self.tokens = self.burst.min(self.tokens + (now - self.filled).as_secs_f64() * self.rate);
        self.filled = now;
        if self.tokens < 1.0 {
            let missing = Duration::from_secs_f64((1.0 - self.tokens) / self.rate);
            tokio::time::sleep(missing).await;
            self.filled = Instant::now();
            self.tokens = 1.0;
        }
        self.tokens -= 1.0;
    }
}
