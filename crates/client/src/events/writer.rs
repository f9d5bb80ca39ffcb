//! Writes events concurrently, and retries while the server is unreachable.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::CONCURRENT_WRITES;

const MAX_ATTEMPTS: usize = 12;
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(super) struct Writer {
    permits: Arc<Semaphore>,
}

impl Writer {
    /// A writer with the default concurrency.
    pub fn new() -> Self {
        Self { permits: Arc::new(Semaphore::new(CONCURRENT_WRITES)) }
    }

    /// Waits for a permit, then writes in a background task.
    pub async fn spawn<W, F>(&self, write: W)
    where
        W: Fn() -> F + Send + 'static,
        F: Future<Output = Result<(), kube::Error>> + Send,
    {
        // The semaphore is never closed, so a permit is always granted.
        let Ok(permit) = self.permits.clone().acquire_owned().await else { return };
        knarr_supervisor::spawn(async move {
            for _ in 0..MAX_ATTEMPTS {
                match write().await {
                    Ok(()) => break,
                    // The server refused the event, or its namespace is terminating: a retry can't succeed.
                    Err(kube::Error::Api(status)) => {
                        tracing::debug!(%status, "the server refused an event");
                        break;
                    }
                    Err(error) => tracing::debug!(%error, "cannot write an event; retrying"),
                }
                tokio::time::sleep(RETRY_INTERVAL.mul_f64(rand::random_range(0.75..1.25))).await;
            }
            drop(permit);
        });
    }
}
