//! What an earlier life of the node left behind and nobody wants any more.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Pods;
use crate::context::Context;
use crate::runtime::PodName;
use crate::volumes;
use crate::worker::cleanup;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// To be called when every wanted pod has been seen: containers in the runtime, folders and cgroups without a pod go.
pub fn clear_leftovers(pods: &Arc<Pods>, names: &HashMap<String, PodName>) {
    let leftovers = std::mem::take(&mut *pods.leftovers.lock());
    for (uid, runtime) in leftovers {
        let name = names.get(&uid).cloned().unwrap_or_default();
        tracing::info!(uid, pod = format!("{}/{}", name.namespace, name.name), "a pod nobody wants any more is ended");
        pods.context.metrics.count("kubelet_orphaned_runtime_pods_total", &[]);
        let pod = stand_in(&uid, &name);
        pods.start(&uid, Arc::new(pod), runtime, None);
        pods.remove(&uid);
    }
    let context = pods.context.clone();
    let mut without_pod = volumes::pods_with_folders(&context.settings);
    without_pod.extend(context.cgroups.iter().flat_map(|cgroups| cgroups.pods()));
    without_pod.sort();
    without_pod.dedup();
    without_pod.retain(|uid| !pods.knows(uid));
    for uid in without_pod {
        tokio::spawn(release_surely(context.clone(), uid));
    }
}

/// A process that has just been killed holds its cgroup for a moment.
async fn release_surely(context: Arc<Context>, uid: String) {
    let mut pause = FIRST_PAUSE;
    while let Err(error) = cleanup::release(&context, &uid).await {
        if pause > LONGEST_PAUSE {
            tracing::warn!(error, uid, "what a pod left behind can't be cleared away");
            context.metrics.add("kubelet_orphan_pod_cleaned_volumes_errors", &[], 1.0);
            return;
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    context.metrics.add("kubelet_orphan_pod_cleaned_volumes", &[], 1.0);
}

fn stand_in(uid: &str, name: &PodName) -> Pod {
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
