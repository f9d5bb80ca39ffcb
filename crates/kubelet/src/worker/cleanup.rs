//! Removes what a terminated pod leaves behind.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::context::Context;
use crate::log_links;
use crate::objects::Notify;
use crate::pod;
use crate::tree;
use crate::volumes;

/// Removes volumes, cgroups and exclusive resources once nothing of the pod runs. Its containers stay, so that their
/// logs can be read. `notify` is called when another attempt is worthwhile.
pub async fn release(context: &Arc<Context>, uid: &str, notify: Option<Notify>) -> Result<(), String> {
    let (context, uid) = (context.clone(), uid.to_string());
    context.resources.release(&uid);
    context.dra.unprepare(&uid, notify.clone()).await?;
    // Drivers find their mounts busy while parts of them are mounted elsewhere.
    volumes::unmount_sub_paths(&context.settings, &uid).map_err(|error| error.to_string())?;
    context.csi.unmount_pod(&uid, notify).await?;
    volumes::unmount_disks(&context.settings, &uid).await.map_err(|error| error.to_string())?;
    context.csi.set_disks(volumes::recorded_disks(&context.settings));
    let released = context.clone();
    let work = tokio::task::spawn_blocking(move || {
        if let Some(cgroups) = &context.cgroups {
            let started = std::time::Instant::now();
            let removed = cgroups.remove(&uid).map_err(|error| match std::error::Error::source(&error) {
                Some(source) => format!("{error}: {source}"),
                None => error.to_string(),
            });
            let operation = [("operation_type", "destroy")];
            context.metrics.observe("kubelet_cgroup_manager_duration_seconds", &operation, started.elapsed());
            removed?;
        }
        volumes::remove_all(&context.settings, &uid).map_err(|error| error.to_string())
    });
    work.await.map_err(|error| error.to_string())??;
    volumes::unmount_unused_devices(&released.settings).await.map_err(|error| error.to_string())
}

pub async fn remove_from_runtime(context: &Context, id: &str, is_sandbox: bool) -> Result<(), String> {
    let result = if is_sandbox {
        context.runtime.remove_pod_sandbox(id).await
    } else {
        context.runtime.remove_container(id).await
    };
    match result {
        Err(error) if !error.is_not_found() => Err(error.message()),
        _ => Ok(()),
    }
}

pub fn remove_logs(context: &Context, pod: &Pod) {
    let directory = context.settings.log_directory(pod::namespace(pod), pod::name(pod), pod::uid(pod));
    if let Err(error) = tree::remove(&directory) {
        tracing::warn!(%error, directory = %directory.display(), "cannot remove the logs of a pod");
    }
    log_links::remove_dead(&context.settings);
}
