//! Keeps containers without exclusive CPUs off the exclusive CPUs of others.

use std::sync::Arc;
use std::time::Duration;

use knarr_cri::messages::LinuxContainerResources;

use super::Pods;
use crate::context::Context;
use crate::pod;

/// Failed and missed changes are retried after this time.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Runs for as long as the node does.
pub async fn keep_shared_cpus(context: Arc<Context>, pods: Arc<Pods>) {
    loop {
        tokio::select! {
            () = context.resources.shared_changed.notified() => {}
            () = tokio::time::sleep(RETRY_INTERVAL) => {}
        }
        for worker in pods.all() {
            let uid = pod::uid(&worker.pod.lock()).to_string();
            let running: Vec<(String, String)> =
                worker.runtime.lock().running().map(|view| (view.id.clone(), view.name.clone())).collect();
            for (id, name) in running {
                let cpuset_cpus = context.resources.cpus_of(&uid, &name);
                let resources = LinuxContainerResources { cpuset_cpus, ..Default::default() };
                if let Err(error) = context.runtime.update_container_resources(&id, resources).await
                    && !error.is_not_found()
                {
                    tracing::warn!(%error, container = name, "cannot move a container to other CPUs");
                }
            }
        }
    }
}
