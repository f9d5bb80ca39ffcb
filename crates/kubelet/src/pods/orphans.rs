//! Removes what a previous process of the kubelet left behind and no pod needs any more.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Pods;
use crate::context::Context;
use crate::objects::Notify;
use crate::runtime::PodName;
use crate::volumes;
use crate::worker::cleanup;

const INITIAL_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Removes containers, directories and cgroups without a pod. Call this when all desired pods are known.
pub fn clear_leftovers(pods: &Arc<Pods>, names: &HashMap<String, PodName>) {
    let leftovers = std::mem::take(&mut *pods.leftovers.lock());
    for (uid, runtime) in leftovers {
        let name = names.get(&uid).cloned().unwrap_or_default();
        tracing::info!(uid, pod = format!("{}/{}", name.namespace, name.name), "terminating an orphaned pod");
        pods.context.metrics.count("kubelet_orphaned_runtime_pods_total", &[]);
        let pod = placeholder(&uid, &name);
        pods.start(&uid, Arc::new(pod), runtime, None);
        pods.remove(&uid);
    }
    let context = pods.context.clone();
    let mut without_pod = volumes::pods_with_directories(&context.settings);
    without_pod.extend(context.cgroups.iter().flat_map(|cgroups| cgroups.pods()));
    without_pod.extend(context.dra.pods());
    without_pod.sort();
    without_pod.dedup();
    without_pod.retain(|uid| !pods.knows(uid));
    for uid in without_pod {
        knarr_supervisor::spawn(release_with_retry(context.clone(), uid));
    }
}

/// Retries, as a process that was just killed still holds its cgroup briefly.
async fn release_with_retry(context: Arc<Context>, uid: String) {
    let mut backoff = INITIAL_BACKOFF;
    let retry = Arc::new(tokio::sync::Notify::new());
    let notified = retry.clone();
    let notify: Notify = Arc::new(move || notified.notify_one());
    let mut reported = false;
    while let Err(error) = cleanup::release(&context, &uid, Some(notify.clone())).await {
        if backoff > MAX_BACKOFF && !reported {
            tracing::warn!(error, uid, "cannot clean up after an orphaned pod");
            context.metrics.add("kubelet_orphan_pod_cleaned_volumes_errors", &[], 1.0);
            reported = true;
        }
        // Never given up: the driver of a volume may be installed again much later.
        tokio::select! {
            () = tokio::time::sleep(backoff) => {}
            () = retry.notified() => {}
        }
        backoff = (backoff * 2).min(MAX_BACKOFF * 2);
    }
    context.metrics.add("kubelet_orphan_pod_cleaned_volumes", &[], 1.0);
}

fn placeholder(uid: &str, name: &PodName) -> Pod {
    Pod {
        metadata: ObjectMeta {
            name: Some(name.name.clone()),
            namespace: Some(name.namespace.clone()),
            uid: Some(uid.to_string()),
            ..Default::default()
        },
        spec: Some(PodSpec { termination_grace_period_seconds: Some(1), ..Default::default() }),
        status: None,
    }
}
