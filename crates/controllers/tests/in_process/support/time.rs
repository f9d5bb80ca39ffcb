//! Time that passes only when a test says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use knarr_controllers::Clock;
use tokio::time::Instant;

/// How long tasks and the store's threads may run between two steps of time.
const REAL_STEP: Duration = Duration::from_millis(1);

pub struct Time {
    started: Instant,
    start: Timestamp,
    /// By how many milliseconds the wall clock was stepped.
    stepped: Arc<AtomicI64>,
    /// Dropped at the end of the test.
    _hold: std::sync::mpsc::Sender<()>,
}

impl Time {
    /// Stops time, in a test with `start_paused`.
    pub fn stopped() -> Self {
        let (hold, held) = std::sync::mpsc::channel::<()>();
        // A paused clock moves on by itself when all tasks wait, also when they wait for a thread of the store. It does not
        // while a blocking task runs.
        tokio::task::spawn_blocking(move || {
            let _ = held.recv();
        });
        Self { started: Instant::now(), start: Timestamp::now(), stepped: Arc::default(), _hold: hold }
    }

    pub async fn advance(&self, duration: Duration) {
        tokio::task::spawn_blocking(|| std::thread::sleep(REAL_STEP)).await.expect("a pause");
        tokio::time::advance(duration).await;
    }

    pub fn step(&self, step: SignedDuration) {
        self.stepped.fetch_add(step.as_millis() as i64, Ordering::Relaxed);
    }

    pub fn now(&self) -> Timestamp {
        shown(self.start, self.started, &self.stepped)
    }

    /// The wall clock of the controllers.
    pub fn clock(&self) -> Clock {
        let (start, started, stepped) = (self.start, self.started, self.stepped.clone());
        Clock::showing(move || shown(start, started, &stepped))
    }
}

fn shown(start: Timestamp, started: Instant, stepped: &AtomicI64) -> Timestamp {
    let passed = SignedDuration::try_from(started.elapsed()).expect("a short time");
    start + passed + SignedDuration::from_millis(stepped.load(Ordering::Relaxed))
}
