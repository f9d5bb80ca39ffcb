//! Choosing the pod that has to go, and ending those that took more disk than they said.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use knarr_client::quantity::value;

use super::Pods;
use crate::cgroup::amounts::requested;
use crate::context::Context;
use crate::node::eviction::{Pressure, Signals};
use crate::node::filesystem::folder_usage;
use crate::pod;
use crate::worker::Message;
use crate::worker::memory::Ending;

/// One pod under consideration.
struct Candidate {
    pod: Arc<Pod>,
    used: i64,
    requested: i64,
}

/// Ends the pod whose end helps most and hurts least; one at a time, as the next look shows whether it was enough.
pub fn evict_one(context: &Context, pods: &Pods, pressure: Pressure, signals: &Signals) {
    let resource = if pressure.memory {
        "memory"
    } else if pressure.disk {
        "ephemeral-storage"
    } else {
        "pids"
    };
    let candidates: Vec<Candidate> = pods
        .active()
        .into_iter()
        .filter(|(pod, _)| !pod::is_critical(pod) && pod.metadata.deletion_timestamp.is_none())
        .map(|(pod, _)| {
            let used = match resource {
                "memory" => context.cgroups.as_ref().and_then(|cgroups| cgroups.pod_usage(&pod).working_set),
                "ephemeral-storage" => Some(disk_usage(context, &pod)),
                _ => context.cgroups.as_ref().and_then(|cgroups| cgroups.pod_usage(&pod).processes),
            };
            let used = used.and_then(|used| i64::try_from(used).ok()).unwrap_or(0);
            Candidate { requested: requested(&pod, resource, value), pod, used }
        })
        .collect();
    let Some(chosen) = choose(candidates) else {
        tracing::warn!(resource, "the node is under pressure and there is no pod to end");
        return;
    };
    let available = match resource {
        "memory" => signals.memory_available,
        _ => signals.nodefs.available,
    };
    let mut message = format!("The node was low on resource: {resource}. ");
    if resource != "pids" {
        message.push_str(&format!("Available quantity: {available}. "));
    }
    evict(context, pods, &chosen.pod, message, Some(1));
}

/// First those that use more than they requested, among them the least important, then the greediest.
fn choose(mut candidates: Vec<Candidate>) -> Option<Candidate> {
    candidates.sort_by_key(|candidate| {
        let excess = candidate.used - candidate.requested;
        let priority = pod::spec(&candidate.pod).priority.unwrap_or(0);
        (excess <= 0, priority, std::cmp::Reverse(excess))
    });
    candidates.into_iter().next()
}

fn evict(context: &Context, pods: &Pods, pod: &Arc<Pod>, message: String, grace: Option<i64>) {
    tracing::warn!(pod = pod::title(pod), message, "a pod is evicted");
    context.pod_event(pod, true, "Evicted", message.clone());
    let ending = Ending::Stopped {
        reason: "Evicted".into(),
        message: message.clone(),
        grace,
        condition: Some(("TerminationByKubelet".into(), message)),
    };
    if let Some(worker) = pods.workers.lock().get(pod::uid(pod)) {
        let _ = worker.sender.send(Message::Stop(ending));
    }
}

fn disk_usage(context: &Context, pod: &Pod) -> u64 {
    let settings = &context.settings;
    let logs = settings.log_directory(pod::namespace(pod), pod::name(pod), pod::uid(pod));
    folder_usage(&settings.pod_directory(pod::uid(pod))).0 + folder_usage(&logs).0
}

/// Pods that grew beyond the limit of a volume, or of all their local storage, end.
pub fn enforce_storage_limits(context: &Context, pods: &Pods) {
    for (pod, status) in pods.active() {
        if let Some(message) = exceeded(context, &pod, &status) {
            evict(context, pods, &pod, message, Some(1));
        }
    }
}

fn exceeded(context: &Context, pod: &Pod, status: &PodStatus) -> Option<String> {
    if status.phase.as_deref() != Some("Running") {
        return None;
    }
    let folder = context.settings.pod_directory(pod::uid(pod)).join("volumes/kubernetes.io~empty-dir");
    for volume in pod::spec(pod).volumes.iter().flatten() {
        let Some(source) = &volume.empty_dir else { continue };
        let Some(limit) = source.size_limit.as_ref().filter(|limit| value(limit) > 0) else { continue };
        let used = folder_usage(&folder.join(&volume.name)).0;
        if i64::try_from(used).unwrap_or(i64::MAX) > value(limit) {
            return Some(format!("Usage of EmptyDir volume \"{}\" exceeds the limit \"{}\". ", volume.name, limit.0));
        }
    }
    let limits: Option<i64> = pod::main_containers(pod)
        .map(|container| pod::limits(container).as_ref()?.get("ephemeral-storage").map(value))
        .sum();
    let limit = limits.filter(|limit| *limit > 0)?;
    let used = disk_usage(context, pod);
    (i64::try_from(used).unwrap_or(i64::MAX) > limit)
        .then(|| format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_greediest_beyond_its_request_goes_first() {
        let candidate = |name: &str, priority: i32, used, requested| Candidate {
            pod: Arc::new(
                serde_json::from_value(json!({ "metadata": { "name": name },
                    "spec": { "priority": priority, "containers": [] } }))
                .expect("a pod"),
            ),
            used,
            requested,
        };
        let chosen = |list: Vec<Candidate>| choose(list).map(|chosen| pod::name(&chosen.pod).to_string());
        let within = || candidate("within", 0, 100, 200);
        let over = || candidate("over", 0, 100, 50);
        let important = || candidate("important", 10, 1000, 50);
        let greedy = || candidate("greedy", 0, 300, 50);
        assert_eq!(chosen(vec![within(), over()]).as_deref(), Some("over"));
        assert_eq!(chosen(vec![important(), over(), greedy()]).as_deref(), Some("greedy"));
        assert_eq!(chosen(vec![within()]).as_deref(), Some("within"));
        assert_eq!(chosen(Vec::new()), None);
    }
}
