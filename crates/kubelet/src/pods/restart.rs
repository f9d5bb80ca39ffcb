//! Replaces the worker of a pod that panicked.

use std::sync::Arc;
use std::time::Duration;

use super::{Pods, key};
use crate::pod;
use crate::runtime::{RuntimePod, list_pod};
use crate::worker::{Handle, Message};

/// How long a pod whose worker panicked waits for the next one.
const BACKOFF: Duration = Duration::from_secs(10);
const RUNTIME_RETRY_INTERVAL: Duration = Duration::from_secs(2);

impl Pods {
    /// Starts another worker after a backoff. It finds the pod's containers in the runtime, as after a restart of the
    /// process.
    pub(super) fn replace_worker(self: &Arc<Self>, uid: String, reason: &str) {
        let Some(dead) = self.workers.lock().get(&uid).cloned() else { return };
        let pod = dead.pod.lock().clone();
        tracing::error!(pod = pod::title(&pod), reason, "the worker of a pod panicked; starting another");
        self.context.events.about_pod(
            &pod,
            true,
            "FailedSync",
            format!("error syncing pod: its worker panicked: {reason}"),
        );
        let pods = self.clone();
        knarr_supervisor::spawn(async move {
            tokio::time::sleep(BACKOFF).await;
            let runtime = pods.found_in_runtime(&uid).await;
            pods.start_again(&uid, &dead, runtime);
        });
    }

    async fn found_in_runtime(&self, uid: &str) -> RuntimePod {
        loop {
            match list_pod(&self.context.runtime, uid, |_| true).await {
                Ok(found) => return found,
                Err(error) => tracing::warn!(%error, uid, "cannot list a pod in the runtime; retrying"),
            }
            tokio::time::sleep(RUNTIME_RETRY_INTERVAL).await;
        }
    }

    fn start_again(self: &Arc<Self>, uid: &str, dead: &Handle, runtime: RuntimePod) {
        let pod = dead.pod.lock().clone();
        let worker = self.start(uid, pod.clone(), runtime, None);
        // Messages to the dead worker were lost. The new one may already have stopped.
        let newest = dead.pod.lock().clone();
        if !Arc::ptr_eq(&pod, &newest) {
            *worker.pod.lock() = newest.clone();
            let _ = worker.sender.send(Message::Desired(newest));
        }
        if self.leaving.lock().contains_key(uid) {
            let _ = worker.sender.send(Message::Removed);
        }
        if pod::is_static(&pod) {
            let mirror = self.mirrors.lock().get(&key(&pod)).cloned();
            let _ = worker.sender.send(Message::Mirror(mirror));
        }
    }
}
