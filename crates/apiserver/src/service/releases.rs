//! Giving back what was taken, in the background, and waiting for it where it matters.

use std::sync::Arc;

use tokio::sync::RwLock;

/// Releases that are under way. Each holds the lock as a reader, so that a writer gets it when all that began before it have
/// ended.
#[derive(Clone, Default)]
pub struct Releases(Arc<RwLock<()>>);

impl Releases {
    pub fn spawn(&self, release: impl Future<Output = ()> + Send + 'static) {
        // While somebody waits for earlier ones nothing can be held: they do not wait for this one.
        let running = self.0.clone().try_read_owned();
        tokio::spawn(async move {
            release.await;
            drop(running);
        });
    }

    /// Waits for every release that has begun.
    pub async fn settled(&self) {
        drop(self.0.write().await);
    }
}
