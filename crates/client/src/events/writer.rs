//! Writes events, several at a time, and tries again when the server could not be reached.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::CONCURRENT_WRITES;

const ATTEMPTS: usize = 12;
const PAUSE: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(super) struct Writer {
    places: Arc<Semaphore>,
}

impl Writer {
    pub fn new() -> Self {
        Self { places: Arc::new(Semaphore::new(CONCURRENT_WRITES)) }
    }

    /// Waits for a free place, then writes beside the caller.
    pub async fn spawn<W, F>(&self, write: W)
    where
        W: Fn() -> F + Send + 'static,
        F: Future<Output = Result<(), kube::Error>> + Send,
    {
        // The semaphore is never closed, so a place always comes.
        let Ok(place) = self.places.clone().acquire_owned().await else { return };
        tokio::spawn(async move {
            for _ in 0..ATTEMPTS {
                match write().await {
                    Ok(()) => break,
                    // The server answered: the event is at fault (or its namespace is going away) and stays so.
                    Err(kube::Error::Api(status)) => {
                        tracing::debug!(%status, "the server refused an event");
                        break;
                    }
                    Err(error) => tracing::debug!(%error, "cannot write an event; will try again"),
                }
                tokio::time::sleep(PAUSE.mul_f64(rand::random_range(0.75..1.25))).await;
            }
            drop(place);
        });
    }
}

pub(super) fn is_missing(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

pub(super) fn exists_already(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}
