//! Counts requests in flight on a multiplexed connection, so that idle connections can be closed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// The number of requests in flight.
#[derive(Clone)]
pub struct Activity(Arc<watch::Sender<usize>>);

/// A request in flight, until dropped.
pub struct InFlight(Activity);

impl Activity {
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    pub fn start_request(&self) -> InFlight {
        self.0.send_modify(|count| *count += 1);
        InFlight(self.clone())
    }

    /// Completes once no request has been in flight for `limit`.
    pub async fn idle_for(&self, limit: Duration) {
        let mut count = self.0.subscribe();
        loop {
            // The sender lives as long as `self`.
            let _ = count.wait_for(|count| *count == 0).await;
            if tokio::time::timeout(limit, count.changed()).await.is_err() {
                return;
            }
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn requests_in_flight_keep_a_connection_open() {
        let activity = Activity::new();
        let started = Instant::now();
        let request = activity.start_request();
        let ends = async {
            tokio::time::sleep(Duration::from_secs(100)).await;
            drop(request);
        };
        tokio::join!(ends, activity.idle_for(Duration::from_secs(10)));
        assert_eq!(started.elapsed().as_secs(), 110);
    }
}
