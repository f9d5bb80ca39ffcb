//! Chooses pods to evict for a shortage, and evicts pods that exceed their storage limits.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use knarr_client::quantity::value;
use knarr_cri::messages::ContainerStatsFilter;

use super::Pods;
use crate::cgroup::amounts::requested;
use crate::context::Context;
use crate::eviction::{Shortage, Signal, bytes};
use crate::filesystem::directory_usage;
use crate::pod;
use crate::runtime::label;
use crate::worker::Message;
use crate::worker::state::Termination;

/// The grace period in seconds of a pod that is evicted at once.
const IMMEDIATE: i64 = 1;

/// One pod under consideration.
struct Candidate {
    pod: Arc<Pod>,
    used: i64,
    requested: i64,
}

/// The usage of one container, from the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ContainerUse {
    name: String,
    /// Bytes and files of its writable layer.
    layer: u64,
    layer_files: u64,
    working_set: u64,
}

/// By pod uid.
type Uses = HashMap<String, Vec<ContainerUse>>;

/// Evicts the best candidate; one at a time, as the next evaluation shows whether that was enough. `has_image_disk`
/// says that images and writable layers are on a separate disk.
pub async fn evict_one(context: &Context, pods: &Pods, short: &Shortage, has_image_disk: bool) {
    let resource = short.signal.resource();
    let uses = uses(context).await;
    let of_pod = |pod: &Pod| uses.get(pod::uid(pod)).map(Vec::as_slice).unwrap_or_default();
    let of_cgroup = |pod: &Pod| context.cgroups.as_ref().map(|cgroups| cgroups.pod_usage(pod)).unwrap_or_default();
    let scope = DiskScope::of(short.signal, has_image_disk);
    let active = pods.active().into_iter().map(|(pod, _)| pod);
    let candidates: Vec<Candidate> = active
        .filter(|pod| !pod::is_critical(pod) && pod.metadata.deletion_timestamp.is_none())
        .map(|pod| {
            let used = match resource {
                "memory" => of_cgroup(&pod).working_set.unwrap_or(0),
                "pids" => of_cgroup(&pod).processes.unwrap_or(0),
                "inodes" => disk_usage(context, &pod, of_pod(&pod), scope).1,
                _ => disk_usage(context, &pod, of_pod(&pod), scope).0,
            };
            let used = i64::try_from(used).unwrap_or(i64::MAX);
            Candidate { requested: requested(&pod, resource, value), pod, used }
        })
        .collect();
    let Some(chosen) = choose(candidates) else {
        tracing::warn!(resource, "the node is under pressure and no pod can be evicted");
        return;
    };
    let logs = |name: &str| log_usage(context, &chosen.pod, name);
    let message = shortage_message(short, &chosen, of_pod(&chosen.pod), logs);
    let condition = Some(("TerminationByKubelet".to_string(), message.clone()));
    context.metrics.count("kubelet_evictions", &[("eviction_signal", short.signal.name())]);
    let grace = grace(&chosen.pod, short.is_soft.then_some(context.settings.eviction.max_pod_grace));
    evict(context, pods, &chosen.pod, message, grace, condition);
}

/// The grace period in seconds: minimal for a hard limit, capped at `max_grace` for a soft one.
fn grace(pod: &Pod, max_grace: Option<u64>) -> i64 {
    let max_grace = max_grace
        .map_or(IMMEDIATE, |max_grace| i64::try_from(max_grace).unwrap_or(i64::MAX).min(pod::grace_seconds(pod)));
    max_grace.max(IMMEDIATE)
}

/// The scope of a pod's disk usage that is on the disk that is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DiskScope {
    All,
    Layers,
    VolumesAndLogs,
}

impl DiskScope {
    fn of(signal: Signal, has_image_disk: bool) -> Self {
        match signal {
            _ if !has_image_disk => Self::All,
            Signal::ImageDisk | Signal::ImageInodes => Self::Layers,
            _ => Self::VolumesAndLogs,
        }
    }
}

/// The status message of a pod that is evicted for a shortage of the node.
fn shortage_message(short: &Shortage, chosen: &Candidate, uses: &[ContainerUse], logs: impl Fn(&str) -> u64) -> String {
    let (resource, pod) = (short.signal.resource(), &chosen.pod);
    let mut message = format!("The node was low on resource: {resource}. ");
    let rendered = |amount: i64| {
        if matches!(resource, "memory" | "ephemeral-storage") { bytes(amount) } else { amount.to_string() }
    };
    let (threshold, available) = (rendered(short.threshold), rendered(short.available));
    message.push_str(&format!("Threshold quantity: {threshold}, available: {available}. "));
    let whole = pod::spec(pod).resources.as_ref().and_then(|resources| resources.requests.as_ref()?.get(resource));
    if let Some(request) = whole.filter(|_| resource == "memory") {
        let (name, used) = (pod::name(pod), bytes(chosen.used));
        message.push_str(&format!(
            "Pod {name} was using {used}, request is {}, has larger consumption of {resource}. ",
            request.0
        ));
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

/// Pods that exceed their requests first; among them by lowest priority, then by largest excess.
fn choose(mut candidates: Vec<Candidate>) -> Option<Candidate> {
    candidates.sort_by_key(|candidate| {
        let excess = candidate.used.saturating_sub(candidate.requested);
        let priority = pod::spec(&candidate.pod).priority.unwrap_or(0);
        (excess <= 0, priority, std::cmp::Reverse(excess))
    });
    candidates.into_iter().next()
}

/// `condition` is set if the node, and not the pod itself, is the cause.
fn evict(
    context: &Context,
    pods: &Pods,
    pod: &Arc<Pod>,
    message: String,
    grace: i64,
    condition: Option<(String, String)>,
) {
    tracing::warn!(pod = pod::title(pod), message, "evicting a pod");
    context.events.about_pod(pod, true, "Evicted", message.clone());
    let termination = Termination::Stopped { reason: "Evicted".into(), message, grace: Some(grace), condition };
    if let Some(worker) = pods.workers.lock().get(pod::uid(pod)) {
        let _ = worker.sender.send(Message::Stop(Box::new(termination)));
    }
}

async fn uses(context: &Context) -> Uses {
    let stats = match context.runtime.list_container_stats(ContainerStatsFilter::default()).await {
        Ok(stats) => stats,
        Err(error) => {
            tracing::warn!(%error, "cannot read the usage of containers");
            return Uses::new();
        }
    };
    let mut found = Uses::new();
    for one in stats {
        let attributes = one.attributes.unwrap_or_default();
        let Some(uid) = attributes.labels.get(label::POD_UID).cloned() else { continue };
        let layer = one.writable_layer.unwrap_or_default();
        found.entry(uid).or_default().push(ContainerUse {
            name: attributes.metadata.map(|metadata| metadata.name).unwrap_or_default(),
            layer: layer.used_bytes.map_or(0, |bytes| bytes.value),
            layer_files: layer.inodes_used.map_or(0, |files| files.value),
            working_set: one.memory.and_then(|memory| memory.working_set_bytes).map_or(0, |bytes| bytes.value),
        });
    }
    found
}

/// Bytes and files of volumes on disk, logs, and writable layers.
fn disk_usage(context: &Context, pod: &Pod, uses: &[ContainerUse], scope: DiskScope) -> (u64, u64) {
    let settings = &context.settings;
    let logs = settings.log_directory(pod::namespace(pod), pod::name(pod), pod::uid(pod));
    let layers = || uses.iter().map(|container| (container.layer, container.layer_files));
    let directories = || [settings.pod_directory(pod::uid(pod)), logs].map(|directory| directory_usage(&directory));
    let usages: Vec<(u64, u64)> = match scope {
        DiskScope::All => layers().chain(directories()).collect(),
        DiskScope::Layers => layers().collect(),
        DiskScope::VolumesAndLogs => directories().to_vec(),
    };
    usages.into_iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

fn log_usage(context: &Context, pod: &Pod, container: &str) -> u64 {
    let directory = context.settings.log_directory(pod::namespace(pod), pod::name(pod), pod::uid(pod));
    directory_usage(&directory.join(container)).0
}

/// Evicts pods that exceed the limit of a volume, of a container, or of their local storage.
pub async fn enforce_storage_limits(context: &Context, pods: &Pods) {
    let running = |status: &PodStatus| status.phase.as_deref() == Some("Running");
    let limited: Vec<Arc<Pod>> = pods
        .active()
        .into_iter()
        .filter(|(pod, status)| running(status) && (has_limited_volume(pod) || storage_limit(pod).is_some()))
        .map(|(pod, _)| pod)
        .collect();
    // The runtime is only queried if a pod has such a limit.
    let uses = match limited.iter().any(|pod| storage_limit(pod).is_some()) {
        true => uses(context).await,
        false => Uses::new(),
    };
    for pod in limited {
        let own = uses.get(pod::uid(&pod)).map(Vec::as_slice).unwrap_or_default();
        if let Some((signal, message)) = exceeded(context, &pod, own) {
            context.metrics.count("kubelet_evictions", &[("eviction_signal", signal)]);
            evict(context, pods, &pod, message, IMMEDIATE, None);
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
    limits.reduce(i64::saturating_add).filter(|limit| *limit > 0)
}

/// The exceeded limit as its metric label, and the status message.
fn exceeded(context: &Context, pod: &Pod, uses: &[ContainerUse]) -> Option<(&'static str, String)> {
    let beyond = |used: u64, limit: i64| i64::try_from(used).unwrap_or(i64::MAX) > limit;
    let directory = context.settings.pod_directory(pod::uid(pod)).join("volumes/kubernetes.io~empty-dir");
    for volume in pod::spec(pod).volumes.iter().flatten() {
        let Some(source) = &volume.empty_dir else { continue };
        let Some(limit) = source.size_limit.as_ref().filter(|limit| value(limit) > 0) else { continue };
        if beyond(directory_usage(&directory.join(&volume.name)).0, value(limit)) {
            let message = format!("Usage of EmptyDir volume \"{}\" exceeds the limit \"{}\". ", volume.name, limit.0);
            return Some(("emptydirfs.limit", message));
        }
    }
    let limit = storage_limit(pod)?;
    if beyond(disk_usage(context, pod, uses, DiskScope::All).0, limit) {
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
        let uses = |name: &str, working_set| ContainerUse { name: name.into(), layer: 0, layer_files: 0, working_set };
        let short = Shortage { signal: Signal::Memory, threshold: 100 << 20, available: 90 << 20, is_soft: false };
        let chosen = Candidate { pod: Arc::new(pod), used: 0, requested: 0 };
        let message = shortage_message(&short, &chosen, &[uses("a", 32 << 20), uses("b", 1 << 30)], |_| 0);
        assert_eq!(
            message,
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. \
             Container b was using 1Gi, request is 0, has larger consumption of memory. "
        );
    }

    #[test]
    fn pods_get_time_where_the_node_has_some() {
        let pod: Pod = serde_json::from_value(json!({ "metadata": {}, "spec": { "containers": [],
            "terminationGracePeriodSeconds": 20 } }))
        .expect("a pod");
        let graces = [None, Some(0), Some(10), Some(60)].map(|max_grace| grace(&pod, max_grace));
        assert_eq!(graces, [1, 1, 10, 20]);
    }
}
