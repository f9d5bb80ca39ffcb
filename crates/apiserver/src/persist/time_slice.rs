//! Lets other tasks run in the middle of long work.

use std::time::{Duration, Instant};

/// How long a task works before others get their turn.
const SLICE: Duration = Duration::from_millis(1);

/// The time since a task last let others run.
pub struct TimeSlice(Instant);

impl TimeSlice {
    pub fn start() -> TimeSlice {
        TimeSlice(Instant::now())
    }

    /// Lets others run if the slice is over.
    pub async fn check(&mut self) {
        if self.0.elapsed() >= SLICE {
            tokio::task::yield_now().await;
            self.0 = Instant::now();
        }
    }
}
