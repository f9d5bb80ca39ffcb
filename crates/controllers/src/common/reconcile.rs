//! The run loop of controllers.

use std::future::Future;
use std::sync::Arc;

use knarr_client::work_queue::Key;
use knarr_client::{WorkQueue, run_workers};

use crate::error::Result;

/// A controller that handles keys of this type.
pub trait Reconcile<K>: Send + Sync + 'static {
    /// Compares what the key's object asks for with what there is, and takes the next steps.
    fn reconcile(self: &Arc<Self>, key: K) -> impl Future<Output = Result<()>> + Send;
}

/// Reconciles the keys of a queue until it is shut down. A key that fails is retried after its backoff.
pub async fn run_controller<C: Reconcile<K>, K: Key + Sync>(
    controller: &Arc<C>,
    queue: &Arc<WorkQueue<K>>,
    workers: usize,
) {
    let controller = controller.clone();
    run_workers(queue.clone(), workers, move |key| {
        let controller = controller.clone();
        async move { controller.reconcile(key).await }
    })
    .await;
}
