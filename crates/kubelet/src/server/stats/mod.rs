//! `/stats/summary`: the usage of the node, its pods and their containers.

mod node;
mod pod;
mod samples;

pub use node::node_usage;
pub use pod::usage_of_container;
pub use samples::Samples;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::jiff::Timestamp;
use knarr_cri::messages::{ContainerStats, ContainerStatsFilter};
use serde_json::{Map, Value, json};

use super::Server;
use crate::cgroup::Usage;
use crate::cgroup::pressure::{PressureStats, Stall};
use crate::csi::VolumeStats;
use crate::filesystem::usage_of;
use crate::pod::uid;
use crate::runtime::{ContainerView, RuntimePod, label};
use node::node;
use pod::one_pod;

pub async fn containers(server: &Server) -> HashMap<String, Vec<ContainerStats>> {
    let all = server.context.runtime.list_container_stats(ContainerStatsFilter::default()).await;
    let mut by_pod: HashMap<String, Vec<ContainerStats>> = HashMap::new();
    for stats in all.unwrap_or_default() {
        let uid = stats.attributes.as_ref().and_then(|attributes| attributes.labels.get(label::POD_UID)).cloned();
        if let Some(uid) = uid {
            by_pod.entry(uid).or_default().push(stats);
        }
    }
    by_pod
}

/// The containers that run. The runtime also reports those that exited, which use nothing any more.
pub fn of_running(runtime: &RuntimePod, mut stats: Vec<ContainerStats>) -> Vec<ContainerStats> {
    let runs = |id: &str| runtime.by_id(id).is_some_and(ContainerView::is_running);
    stats.retain(|stats| stats.attributes.as_ref().is_some_and(|attributes| runs(&attributes.id)));
    stats
}

/// The CSI volumes of all pods, as their drivers measure them, by the path at which a pod has them.
pub async fn csi_volumes(server: &Server) -> HashMap<PathBuf, VolumeStats> {
    let uids: Vec<String> = server.pods.all().iter().map(|worker| uid(&worker.pod.lock()).to_string()).collect();
    let found = futures::future::join_all(uids.iter().map(|uid| server.context.csi.stats_of(uid))).await;
    found.into_iter().flatten().collect()
}

pub async fn summary(server: &Arc<Server>) -> Value {
    let now = Timestamp::now();
    let measured = csi_volumes(server).await;
    server.samples.remove_old(Instant::now());
    let mut by_pod = containers(server).await;
    let workers = server.pods.all();
    let pods: Vec<Value> = workers
        .iter()
        .filter(|worker| worker.runtime.lock().running().next().is_some())
        .map(|worker| {
            let key = uid(&worker.pod.lock()).to_string();
            let stats = of_running(&worker.runtime.lock(), by_pod.remove(&key).unwrap_or_default());
            one_pod(server, worker, stats, &measured, now)
        })
        .collect();
    let mut node = node(server, now);
    if let Ok(info) = server.context.runtime.image_fs_info().await
        && let Some(images) = info.image_filesystems.first()
        && let Some(used) = images.used_bytes
    {
        node["runtime"]["imageFs"]["usedBytes"] = json!(used.value);
    }
    json!({ "node": node, "pods": pods })
}

fn time(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

/// Adds pressure stall information, if the kernel reports it.
fn add_pressure(value: &mut Value, waits: &PressureStats) {
    let one = |stall: &Stall| json!({ "total": stall.total, "avg10": stall.average_10, "avg60": stall.average_60, "avg300": stall.average_300 });
    for (resource, stalls) in [("cpu", &waits.cpu), ("memory", &waits.memory), ("io", &waits.io)] {
        if let Some(stalls) = stalls {
            value[resource]["psi"] = json!({ "full": one(&stalls.full), "some": one(&stalls.some) });
        }
    }
}

fn filesystem(path: &std::path::Path, now: Timestamp) -> Option<Value> {
    let usage = usage_of(path)?;
    Some(json!({
        "time": time(now),
        "availableBytes": usage.available,
        "capacityBytes": usage.capacity,
        "usedBytes": usage.capacity.saturating_sub(usage.available),
        "inodesFree": usage.inodes_free,
        "inodes": usage.inodes,
        "inodesUsed": usage.inodes.saturating_sub(usage.inodes_free),
    }))
}

fn cpu(server: &Server, key: &str, nanoseconds: Option<u64>, now: Timestamp) -> Value {
    let mut value = Map::from_iter([("time".to_string(), json!(time(now)))]);
    if let Some(nanoseconds) = nanoseconds {
        let rate = server.samples.rate(key, nanoseconds, Instant::now());
        value.insert("usageNanoCores".into(), json!(rate.unwrap_or(0)));
        value.insert("usageCoreNanoSeconds".into(), json!(nanoseconds));
    }
    Value::Object(value)
}

fn memory(usage: &Usage, available: Option<u64>, now: Timestamp) -> Value {
    let mut value = Map::from_iter([("time".to_string(), json!(time(now)))]);
    for (name, amount) in [
        ("availableBytes", available),
        ("usageBytes", usage.memory),
        ("workingSetBytes", usage.working_set),
        ("rssBytes", usage.resident),
        ("pageFaults", usage.page_faults),
        ("majorPageFaults", usage.major_page_faults),
    ] {
        if let Some(amount) = amount {
            value.insert(name.into(), json!(amount));
        }
    }
    Value::Object(value)
}

/// Traffic and errors of each interface but the loopback. The first one is also shown at the top level.
fn network(path: &str, now: Timestamp) -> Value {
    let table = std::fs::read_to_string(path).unwrap_or_default();
    let mut interfaces: Vec<Value> = table
        .lines()
        .filter_map(|line| {
            let (name, counters) = line.split_once(':')?;
            let counters: Vec<u64> = counters.split_whitespace().filter_map(|field| field.parse().ok()).collect();
            let name = name.trim();
            if name == "lo" || counters.len() < 11 {
                return None;
            }
            Some(json!({ "name": name, "rxBytes": counters[0], "rxErrors": counters[2], "txBytes": counters[8],
                "txErrors": counters[10] }))
        })
        .collect();
    interfaces.sort_by_key(|interface| interface["name"] != "eth0");
    let mut value = json!({ "time": time(now), "interfaces": interfaces });
    if let (Some(first), Some(map)) = (interfaces.first().and_then(Value::as_object).cloned(), value.as_object_mut()) {
        map.extend(first);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::State;
    use knarr_cri::messages::ContainerAttributes;

    #[test]
    fn exited_containers_are_left_out() {
        let view = |id: &str, state| ContainerView { id: id.into(), name: "c".into(), state, ..Default::default() };
        let containers = vec![view("old", State::Exited), view("new", State::Running)];
        let runtime = RuntimePod { containers, ..Default::default() };
        let stats = ["old", "new", "unknown"].map(|id| {
            let attributes = Some(ContainerAttributes { id: id.into(), ..Default::default() });
            ContainerStats { attributes, ..Default::default() }
        });
        let kept = of_running(&runtime, stats.to_vec());
        let ids: Vec<String> = kept.into_iter().filter_map(|stats| Some(stats.attributes?.id)).collect();
        assert_eq!(ids, ["new"]);
    }
}
