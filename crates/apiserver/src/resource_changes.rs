//! Wakes the reconcilers inside the server when a resource changes.

use std::time::Duration;

use knarr_store::{Notice, Watch};
use tokio::sync::watch;

use crate::state::ApiServer;

/// The delay before a watch that could not be opened is opened again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A watch of all objects of a resource for a reconciler, which reads their state itself: it only learns that something changed.
/// Reconcile after [`ResourceChanges::open`], and again each time that [`ResourceChanges::next`] returns true.
pub struct ResourceChanges<'s> {
    server: &'s ApiServer,
    range: String,
    plural: &'static str,
    watch: Box<dyn Watch>,
    stopping: watch::Receiver<bool>,
}

impl<'s> ResourceChanges<'s> {
    /// Watches the keys that start with `range`; `None` if the server stops. Open it before the first reconciliation, so that no
    /// change is missed.
    pub async fn open(server: &'s ApiServer, range: String, plural: &'static str) -> Option<ResourceChanges<'s>> {
        let mut stopping = server.backend.stopping.clone();
        let watch = opened(server, &range, plural, &mut stopping).await?;
        Some(ResourceChanges { server, range, plural, watch, stopping })
    }

    /// Waits for a change, or until a retry is due; false if the server stops.
    pub async fn next(&mut self, retry: Option<Duration>) -> bool {
        let due = async {
            match retry {
                Some(delay) => tokio::time::sleep(delay).await,
                None => std::future::pending().await,
            }
        };
        let notice = tokio::select! {
            notice = self.watch.next() => notice,
            () = due => return true,
            _ = self.stopping.wait_for(|stopping| *stopping) => return false,
        };
        match notice {
            Some(Notice::Events(_) | Notice::Progress(_)) => true,
            // The changes were compacted away: what they led to is read by the next reconciliation.
            Some(Notice::Compacted) => match opened(self.server, &self.range, self.plural, &mut self.stopping).await {
                Some(watch) => {
                    self.watch = watch;
                    true
                }
                None => false,
            },
            None => false,
        }
    }
}

async fn opened(
    server: &ApiServer,
    range: &str,
    plural: &'static str,
    stopping: &mut watch::Receiver<bool>,
) -> Option<Box<dyn Watch>> {
    loop {
        match server.backend.store.watch(range, server.backend.store.revision()) {
            Ok(watch) => return Some(watch),
            Err(error) => tracing::warn!(%error, plural, "cannot watch a resource"),
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY_INTERVAL) => {}
            _ = stopping.wait_for(|stopping| *stopping) => return None,
        }
    }
}
