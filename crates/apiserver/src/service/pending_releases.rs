//! Background releases of addresses and ports, which an allocation can wait for.

use std::sync::Arc;

use tokio::sync::RwLock;

/// Running releases. Each holds the lock as a reader, so that a writer gets it once all earlier ones are done.
#[derive(Clone, Default)]
pub struct PendingReleases(Arc<RwLock<()>>);

impl PendingReleases {
    /// Runs a release in the background.
    pub fn spawn(&self, release: impl Future<Output = ()> + Send + 'static) {
        // Fails while an allocation waits for earlier releases; it need not wait for this one.
        let running = self.0.clone().try_read_owned();
        knarr_supervisor::spawn(async move {
            release.await;
            drop(running);
        });
    }

    /// Waits for all running releases.
    pub async fn wait(&self) {
        drop(self.0.write().await);
    }
}
