//! Choosing the pod that has to go, and ending those that took more disk than they said.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use knarr_client::quantity::{Format, Quantity as Amount, value};
use knarr_cri::messages::ContainerStatsFilter;

use super::Pods;
use crate::cgroup::amounts::requested;
use crate::context::Context;
use crate::node::eviction::{Pressure, Shortage, Signals, shortage};
use crate::node::filesystem::folder_usage;
use crate::pod;
use crate::runtime::label;
use crate::worker::Message;
use crate::worker::memory::Ending;

/// One pod under consideration.
struct Candidate {
    pod: Arc<Pod>,
    used: i64,
    requested: i64,
}

/// What one container uses, as the runtime tells.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ContainerUse {
    name: String,
    /// Of its own layer, in bytes.
    layer: u64,
    working_set: u64,
}

/// By pod uid.
type Uses = HashMap<String, Vec<ContainerUse>>;

/// Ends the pod whose end helps most and hurts least; one at a time, as the next look shows whether it was enough.
pub async fn evict_one(context: &Context, pods: &Pods, pressure: Pressure, signals: &Signals) {
    let Some(short) = shortage(&context.settings.eviction, pressure, signals) else { return };
    let resource = short.resource;
    context.node_event(true, "EvictionThresholdMet", format!("Attempting to reclaim {resource}"));
    let uses = uses(context).await;
    let of_pod = |pod: &Pod| uses.get(pod::uid(pod)).map(Vec::as_slice).unwrap_or_default();
    let active = pods.active().into_iter().map(|(pod, _)| pod);
    let candidates: Vec<Candidate> = active
        .filter(|pod| !pod::is_critical(pod) && pod.metadata.deletion_timestamp.is_none())
        .map(|pod| {
            let used = match resource {
                "memory" => context.cgroups.as_ref().and_then(|cgroups| cgroups.pod_usage(&pod).working_set),
                "pids" => context.cgroups.as_ref().and_then(|cgroups| cgroups.pod_usage(&pod).processes),
                _ => Some(disk_usage(context, &pod, of_pod(&pod))),
            };
            let used = used.and_then(|used| i64::try_from(used).ok()).unwrap_or(0);
            Candidate { requested: requested(&pod, resource, value), pod, used }
        })
        .collect();
    let Some(chosen) = choose(candidates) else {
        tracing::warn!(resource, "the node is under pressure and there is no pod to end");
        return;
    };
    let logs = |name: &str| log_usage(context, &chosen.pod, name);
    let message = low_message(&short, &chosen.pod, of_pod(&chosen.pod), logs);
    let condition = Some(("TerminationByKubelet".to_string(), message.clone()));
    context.metrics.count("kubelet_evictions", &[("eviction_signal", short.signal)]);
    evict(context, pods, &chosen.pod, message, condition);
}

/// What the pod's status says of an eviction for want of something on the node.
fn low_message(short: &Shortage, pod: &Pod, uses: &[ContainerUse], logs: impl Fn(&str) -> u64) -> String {
    let resource = short.resource;
    let mut message = format!("The node was low on resource: {resource}. ");
    if resource != "pids" {
        let (threshold, available) = (bytes(short.threshold), bytes(short.available));
        message.push_str(&format!("Threshold quantity: {threshold}, available: {available}. "));
    }
    for container in uses {
        let Some(found) = pod::find(pod, &container.name) else { continue };
        let used = match resource {
            "memory" => container.working_set,
            "ephemeral-storage" => container.layer + logs(&container.name),
            _ => continue,
        };
        let request = pod::requests(&found.container).as_ref().and_then(|requests| requests.get(resource)).cloned();
        let used = i64::try_from(used).unwrap_or(i64::MAX);
        if used > request.as_ref().map_or(0, value) {
            let request = request.map_or_else(|| "0".to_string(), |request| request.0);
            message.push_str(&format!(
                "Container {} was using {}, request is {request}, has larger consumption of {resource}. ",
                container.name,
                bytes(used)
            ));
        }
    }
    message
}

fn bytes(amount: i64) -> String {
    Amount::new(amount, Format::BinarySi).to_api().0
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

/// `condition` is told where the node, and not the pod itself, is the cause.
fn evict(context: &Context, pods: &Pods, pod: &Arc<Pod>, message: String, condition: Option<(String, String)>) {
    tracing::warn!(pod = pod::title(pod), message, "a pod is evicted");
    context.pod_event(pod, true, "Evicted", message.clone());
    let ending = Ending::Stopped { reason: "Evicted".into(), message, grace: Some(1), condition };
    if let Some(worker) = pods.workers.lock().get(pod::uid(pod)) {
        let _ = worker.sender.send(Message::Stop(ending));
    }
}

async fn uses(context: &Context) -> Uses {
    let stats = match context.runtime.list_container_stats(ContainerStatsFilter::default()).await {
        Ok(stats) => stats,
        Err(error) => {
            tracing::warn!(%error, "what containers use can't be read");
            return Uses::new();
        }
    };
    let mut found = Uses::new();
    for one in stats {
        let attributes = one.attributes.unwrap_or_default();
        let Some(uid) = attributes.labels.get(label::POD_UID).cloned() else { continue };
        found.entry(uid).or_default().push(ContainerUse {
            name: attributes.metadata.map(|metadata| metadata.name).unwrap_or_default(),
            layer: one.writable_layer.and_then(|layer| layer.used_bytes).map_or(0, |bytes| bytes.value),
            working_set: one.memory.and_then(|memory| memory.working_set_bytes).map_or(0, |bytes| bytes.value),
        });
    }
    found
}

/// Volumes on disk, logs, and what containers wrote into their own layers.
fn disk_usage(context: &Context, pod: &Pod, uses: &[ContainerUse]) -> u64 {
    let settings = &context.settings;
    let logs = settings.log_directory(pod::namespace(pod), pod::name(pod), pod::uid(pod));
    let layers: u64 = uses.iter().map(|container| container.layer).sum();
    folder_usage(&settings.pod_directory(pod::uid(pod))).0 + folder_usage(&logs).0 + layers
}

fn log_usage(context: &Context, pod: &Pod, container: &str) -> u64 {
    let folder = context.settings.log_directory(pod::namespace(pod), pod::name(pod), pod::uid(pod));
    folder_usage(&folder.join(container)).0
}

/// Pods that grew beyond the limit of a volume, of a container, or of all their local storage, end.
pub async fn enforce_storage_limits(context: &Context, pods: &Pods) {
    let running = |status: &PodStatus| status.phase.as_deref() == Some("Running");
    let limited: Vec<Arc<Pod>> = pods
        .active()
        .into_iter()
        .filter(|(pod, status)| running(status) && (has_limited_volume(pod) || storage_limit(pod).is_some()))
        .map(|(pod, _)| pod)
        .collect();
    // The runtime is only asked where somebody has a limit for it.
    let uses = match limited.iter().any(|pod| storage_limit(pod).is_some()) {
        true => uses(context).await,
        false => Uses::new(),
    };
    for pod in limited {
        let own = uses.get(pod::uid(&pod)).map(Vec::as_slice).unwrap_or_default();
        if let Some((signal, message)) = exceeded(context, &pod, own) {
            context.metrics.count("kubelet_evictions", &[("eviction_signal", signal)]);
            evict(context, pods, &pod, message, None);
        }
    }
}

fn has_limited_volume(pod: &Pod) -> bool {
    let mut volumes = pod::spec(pod).volumes.iter().flatten();
    volumes.any(|volume| volume.empty_dir.as_ref().is_some_and(|source| source.size_limit.is_some()))
}

/// The local storage that all containers of a pod may use together; none if no container has a limit.
fn storage_limit(pod: &Pod) -> Option<i64> {
    let limits = pod::main_containers(pod)
        .filter_map(|container| pod::limits(container).as_ref()?.get("ephemeral-storage").map(value));
    limits.reduce(|sum, limit| sum + limit).filter(|limit| *limit > 0)
}

/// What was exceeded, by the name metrics know it by, and the words for it.
fn exceeded(context: &Context, pod: &Pod, uses: &[ContainerUse]) -> Option<(&'static str, String)> {
    let beyond = |used: u64, limit: i64| i64::try_from(used).unwrap_or(i64::MAX) > limit;
    let folder = context.settings.pod_directory(pod::uid(pod)).join("volumes/kubernetes.io~empty-dir");
    for volume in pod::spec(pod).volumes.iter().flatten() {
        let Some(source) = &volume.empty_dir else { continue };
        let Some(limit) = source.size_limit.as_ref().filter(|limit| value(limit) > 0) else { continue };
        if beyond(folder_usage(&folder.join(&volume.name)).0, value(limit)) {
            let message = format!("Usage of EmptyDir volume \"{}\" exceeds the limit \"{}\". ", volume.name, limit.0);
            return Some(("emptydirfs.limit", message));
        }
    }
    let limit = storage_limit(pod)?;
    if beyond(disk_usage(context, pod, uses), limit) {
        let limit = bytes(limit);
        let message = format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ");
        return Some(("ephemeralpodfs.limit", message));
    }
    uses.iter().find_map(|container| {
        let found = pod::find(pod, &container.name)?;
        let limit = pod::limits(&found.container).as_ref()?.get("ephemeral-storage").cloned()?;
        let used = container.layer + log_usage(context, pod, &container.name);
        (value(&limit) > 0 && beyond(used, value(&limit))).then(|| {
            let name = &container.name;
            let message = format!("Container {name} exceeded its local ephemeral storage limit \"{}\". ", limit.0);
            ("ephemeralcontainerfs.limit", message)
        })
    })
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

    #[test]
    fn the_message_names_what_was_short_and_who_took_it() {
        let pod: Pod = serde_json::from_value(json!({ "metadata": { "name": "p" }, "spec": { "containers": [
            { "name": "a", "resources": { "requests": { "memory": "64Mi" } } }, { "name": "b" } ] } }))
        .expect("a pod");
        let uses = |name: &str, working_set| ContainerUse { name: name.into(), layer: 0, working_set };
        let short =
            Shortage { resource: "memory", signal: "memory.available", threshold: 100 << 20, available: 90 << 20 };
        let message = low_message(&short, &pod, &[uses("a", 32 << 20), uses("b", 1 << 30)], |_| 0);
        assert_eq!(
            message,
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. \
             Container b was using 1Gi, request is 0, has larger consumption of memory. "
        );
    }
}
