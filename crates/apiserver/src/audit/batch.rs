//! Batches: events wait in a buffer and are sent in the background, so that no request waits for them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

use super::backend::Sink;
use super::{CLOSE_TIMEOUT, truncate};

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

/// Sends the events that wait; to be run in the background until the backend is dropped or the audit closes.
pub struct BatchSender {
    sink: Arc<dyn Sink>,
    settings: BatchSettings,
    max_batch_bytes: Option<usize>,
    pub(super) queue: mpsc::Receiver<Queued>,
    throttle: Option<Throttle>,
    /// Each batch on its way holds one.
    slots: Arc<Semaphore>,
    /// What was received and is not on its way. It stays here when the audit closes meanwhile.
    batch: Vec<Queued>,
    parts: VecDeque<Part>,
}

/// Events that are sent at once, with the room that their batch takes.
struct Part {
    events: Vec<Value>,
    room: Arc<Vec<OwnedSemaphorePermit>>,
}

impl BatchSender {
    pub(super) fn new(
        sink: Arc<dyn Sink>,
        settings: BatchSettings,
        max_batch_bytes: Option<usize>,
        queue: mpsc::Receiver<Queued>,
    ) -> BatchSender {
        let throttle = settings.throttle.map(|(rate, burst)| Throttle::new(rate, burst));
        let slots = Arc::new(Semaphore::new(settings.concurrent.max(1)));
        BatchSender {
            sink,
            settings,
            max_batch_bytes,
            queue,
            throttle,
            slots,
            batch: Vec::new(),
            parts: VecDeque::new(),
        }
    }

    /// Sends batches until there are no more events, or the audit closes and what waits then is sent.
    pub async fn run(mut self, mut closing: tokio::sync::watch::Receiver<bool>) {
        tokio::select! {
            () = self.send(false) => {}
            _ = closing.wait_for(|closing| *closing) => {}
        }
        self.queue.close();
        // A webhook that does not respond must not hold the end of the server.
        if tokio::time::timeout(CLOSE_TIMEOUT, self.send(true)).await.is_err() {
            let left: usize = self.parts.iter().map(|part| part.events.len()).sum();
            let left = left + self.batch.len() + self.queue.len();
            tracing::error!(left, "audit events could not be sent before the server stopped");
        }
    }

    /// Sends events until there will be no more; `is_closing` waits for none, but for those on their way.
    async fn send(&mut self, is_closing: bool) {
        loop {
            if is_closing {
                self.add_waiting();
            } else {
                collect(&mut self.queue, &self.settings, &mut self.batch).await;
            }
            if !self.batch.is_empty() {
                if let Some(throttle) = &mut self.throttle {
                    throttle.wait().await;
                }
                self.split();
            }
            if self.parts.is_empty() {
                break;
            }
            while !self.parts.is_empty() {
                let Ok(slot) = self.slots.clone().acquire_owned().await else { return };
                let Some(part) = self.parts.pop_front() else { break };
                let sink = self.sink.clone();
                knarr_supervisor::spawn(async move {
                    // The sink logs a failure; nobody waits for the batch.
                    let _ = sink.send(part.events).await;
                    drop((slot, part.room));
                });
            }
        }
        let all = u32::try_from(self.settings.concurrent.max(1)).unwrap_or(u32::MAX);
        // Fails only if the semaphore were closed.
        let _ = self.slots.acquire_many(all).await;
    }

    fn split(&mut self) {
        let (events, room): (Vec<_>, Vec<_>) = self.batch.drain(..).map(|queued| (queued.event, queued.room)).unzip();
        let room = Arc::new(room);
        let parts = truncate::split(events, self.max_batch_bytes).into_iter();
        self.parts.extend(parts.map(|events| Part { events, room: room.clone() }));
    }

    fn add_waiting(&mut self) {
        while self.batch.len() < self.settings.max_batch_size.max(1) {
            match self.queue.try_recv() {
                Ok(event) => self.batch.push(event),
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
