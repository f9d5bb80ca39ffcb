//! Batches: events wait in a buffer and are sent in the background, so that no request waits for them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

use super::backend::Sink;
use super::truncate;

/// How long what waits may take while the server stops, per batch.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

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
    pub(super) queue: mpsc::Receiver<Value>,
}

impl BatchSender {
    /// Sends batches until there are no more events.
    pub async fn run(mut self, mut stopping: tokio::sync::watch::Receiver<bool>) {
        let slots = Arc::new(Semaphore::new(self.settings.concurrent.max(1)));
        let mut throttle = self.settings.throttle.map(|(rate, burst)| Throttle::new(rate, burst));
        let mut is_stopping = *stopping.borrow();
        loop {
            let batch = if is_stopping {
                self.waiting()
            } else {
                tokio::select! {
                    batch = collect(&mut self.queue, &self.settings) => batch,
                    _ = stopping.wait_for(|stopping| *stopping) => {
                        is_stopping = true;
                        continue;
                    }
                }
            };
            if batch.is_empty() {
                break;
            }
            if let Some(throttle) = &mut throttle {
                throttle.wait().await;
            }
            for part in truncate::split(batch, self.max_batch_bytes) {
                let sink = self.sink.clone();
                let Ok(slot) = slots.clone().acquire_owned().await else { return };
                let sending = async move {
                    // The sink logs a failure; nobody waits for the batch.
                    let _ = sink.send(part).await;
                    drop(slot);
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

    fn waiting(&mut self) -> Vec<Value> {
        let mut batch = Vec::new();
        while batch.len() < self.settings.max_batch_size.max(1) {
            match self.queue.try_recv() {
                Ok(event) => batch.push(event),
                Err(_) => break,
            }
        }
        batch
    }
}

/// The next batch: full, or as old as it may get. Empty if there will be no more events.
async fn collect(queue: &mut mpsc::Receiver<Value>, settings: &BatchSettings) -> Vec<Value> {
    let mut batch = Vec::new();
    let Some(first) = queue.recv().await else { return batch };
    batch.push(first);
    let deadline = Instant::now() + settings.max_wait;
    while batch.len() < settings.max_batch_size {
        match tokio::time::timeout_at(deadline, queue.recv()).await {
            Ok(Some(event)) => batch.push(event),
            Ok(None) | Err(_) => break,
        }
    }
    batch
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
