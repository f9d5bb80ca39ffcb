//! `/stats/summary`: the usage of the node, its pods and their containers.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::core::v1::{Pod, Volume};
use k8s_openapi::jiff::Timestamp;
use knarr_cri::messages::{ContainerStats, ContainerStatsFilter};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::Server;
use crate::cgroup::Usage;
use crate::cgroup::pressure::{self, PressureStats, Stall};
use crate::csi::VolumeStats;
use crate::filesystem::{directory_usage, usage_of};
use crate::host;
use crate::pod;
use crate::runtime::label;
use crate::worker::Handle;

/// The last CPU samples by key, for rates.
#[derive(Default)]
pub struct Samples(Mutex<HashMap<String, Sample>>);

#[derive(Clone, Copy)]
struct Sample {
    at: Instant,
    nanoseconds: u64,
    rate: Option<u64>,
}

impl Samples {
    /// Billionths of a CPU used since the previous sample. Samples in quick succession share a rate.
    pub fn rate(&self, key: &str, nanoseconds: u64, now: Instant) -> Option<u64> {
        let mut samples = self.0.lock();
        let last = samples.get(key).copied();
        let (rate, replace) = match last {
            Some(last) => {
                let passed = now.saturating_duration_since(last.at).as_nanos();
                if passed < 500_000_000 {
                    (last.rate, false)
                } else {
                    let used = u128::from(nanoseconds.saturating_sub(last.nanoseconds));
                    (u64::try_from(used * 1_000_000_000 / passed).ok(), true)
                }
            }
            None => (None, true),
        };
        if replace {
            samples.insert(key.to_string(), Sample { at: now, nanoseconds, rate });
        }
        rate
    }

    /// Removes samples that are too old.
    pub fn remove_old(&self, now: Instant) {
        self.0.lock().retain(|_, sample| now.saturating_duration_since(sample.at).as_secs() < 600);
    }
}

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

/// The CSI volumes of all pods, as their drivers measure them, by the path at which a pod has them.
pub async fn csi_volumes(server: &Server) -> HashMap<PathBuf, VolumeStats> {
    let uids: Vec<String> = server.pods.all().iter().map(|worker| pod::uid(&worker.pod.lock()).to_string()).collect();
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
            let uid = pod::uid(&worker.pod.lock()).to_string();
            one_pod(server, worker, by_pod.remove(&uid).unwrap_or_default(), &measured, now)
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

/// The usage of the whole node, from the root cgroup if the kernel keeps totals there, otherwise from /proc.
pub fn node_usage(server: &Server) -> Usage {
    let context = &server.context;
    let mut usage = context.cgroups.as_ref().map(|cgroups| cgroups.usage("/")).unwrap_or_default();
    let memory = &context.host.memory;
    let available = host::available_memory();
    usage.working_set = Some(memory.saturating_sub(available));
    usage.memory.get_or_insert(memory.saturating_sub(available));
    if usage.cpu_nanoseconds.is_none() {
        usage.cpu_nanoseconds = cpu_of_host();
    }
    usage
}

/// The first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal, in hundredths of a second.
fn cpu_of_host() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let fields: Vec<u64> = stat.lines().next()?.split_whitespace().skip(1).filter_map(|f| f.parse().ok()).collect();
    let busy: u64 =
        fields.iter().enumerate().filter(|(index, _)| ![3, 4].contains(index)).take(6).map(|(_, v)| v).sum();
    Some(busy * 10_000_000)
}

fn node(server: &Server, now: Timestamp) -> Value {
    let context = &server.context;
    let usage = node_usage(server);
    let mut value = json!({
        "nodeName": context.settings.node_name,
        "startTime": time(Timestamp::from_second(context.host.booted_at).unwrap_or(now)),
        "cpu": cpu(server, "node", usage.cpu_nanoseconds, now),
        "memory": memory(&usage, Some(host::available_memory()), now),
        "io": { "time": time(now) },
        "network": network("/proc/net/dev", now),
        "rlimit": { "time": time(now), "maxpid": number("/proc/sys/kernel/pid_max"), "curproc": processes() },
        "swap": swap(now),
    });
    if let Some(fs) = filesystem(&context.settings.root, now) {
        value["fs"] = fs.clone();
        value["runtime"] = json!({ "imageFs": fs, "containerFs": fs });
    }
    add_pressure(&mut value, &pressure::host());
    value["systemContainers"] = Value::Array(all_pods(server, now).into_iter().collect());
    value
}

/// The usage and the available memory of all pods together.
fn all_pods(server: &Server, now: Timestamp) -> Option<Value> {
    let context = &server.context;
    let cgroups = context.cgroups.as_ref()?;
    let pods = cgroups.pods_usage();
    let whole = crate::node::memory_for_pods(&context.settings, &context.host);
    let available = pods.working_set.map(|used| whole.saturating_sub(used));
    let mut value = json!({
        "name": "pods",
        "startTime": time(Timestamp::from_second(context.host.booted_at).unwrap_or(now)),
        "cpu": cpu(server, "pods", pods.cpu_nanoseconds, now),
        "memory": memory(&pods, available, now),
        "io": { "time": time(now) },
        "swap": { "time": time(now), "swapUsageBytes": cgroups.details(&cgroups.pods_path()).swap.unwrap_or(0) },
    });
    add_pressure(&mut value, &cgroups.waits(&cgroups.pods_path()));
    Some(value)
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

fn swap(now: Timestamp) -> Value {
    let (total, free) = host::swap();
    json!({ "time": time(now), "swapAvailableBytes": free, "swapUsageBytes": total.saturating_sub(free) })
}

fn number(path: &str) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn processes() -> Option<u64> {
    let loadavg = std::fs::read_to_string("/proc/loadavg").ok()?;
    loadavg.split_whitespace().nth(3)?.split('/').nth(1)?.parse().ok()
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

fn one_pod(
    server: &Server,
    worker: &Handle,
    stats: Vec<ContainerStats>,
    measured: &HashMap<PathBuf, VolumeStats>,
    now: Timestamp,
) -> Value {
    let pod = worker.pod.lock().clone();
    let context = &server.context;
    let uid = pod::uid(&pod);
    let usage = context.cgroups.as_ref().map(|cgroups| cgroups.pod_usage(&pod)).unwrap_or_default();
    let containers: Vec<Value> = stats.iter().map(|stats| one_container(server, worker, &pod, stats, now)).collect();
    let settings = &context.settings;
    let directory = directory_usage(&settings.pod_directory(uid));
    let logs = directory_usage(&settings.log_directory(pod::namespace(&pod), pod::name(&pod), uid));
    let layers: u64 = stats.iter().filter_map(|stats| Some(stats.writable_layer.as_ref()?.used_bytes?.value)).sum();
    let started = worker.status.lock().start_time.as_ref().map(|at| time(at.0));
    let mut value = json!({
        "podRef": { "name": pod::name(&pod), "namespace": pod::namespace(&pod), "uid": uid },
        "startTime": started,
        "containers": containers,
        "cpu": cpu(server, &format!("pod-{uid}"), usage.cpu_nanoseconds, now),
        "memory": memory(&usage, None, now),
        "io": { "time": time(now) },
        "volume": volumes(server, worker, &pod, measured, now),
        "process_stats": { "process_count": usage.processes.unwrap_or(0) },
    });
    if let Some(mut fs) = filesystem(&settings.root, now) {
        fs["usedBytes"] = json!(directory.0 + logs.0 + layers);
        fs["inodesUsed"] = json!(directory.1 + logs.1);
        value["ephemeral-storage"] = fs;
    }
    if let Some(cgroups) = &context.cgroups {
        let path = cgroups.pod_path(&pod);
        add_pressure(&mut value, &cgroups.waits(&path));
        value["swap"] = json!({ "time": time(now), "swapUsageBytes": cgroups.details(&path).swap.unwrap_or(0) });
    }
    if let Some(path) = crate::runtime::network_table(worker) {
        value["network"] = network(&path, now);
    }
    value
}

fn volumes(
    server: &Server,
    worker: &Handle,
    pod: &k8s_openapi::api::core::v1::Pod,
    measured: &HashMap<PathBuf, VolumeStats>,
    now: Timestamp,
) -> Vec<Value> {
    let mounted = worker.volumes.lock().clone();
    let settings = &server.context.settings;
    let root = settings.pod_directory(pod::uid(pod)).join("volumes");
    let memory = crate::volumes::memory_directory(settings).join(pod::uid(pod));
    let mut result = Vec::new();
    for volume in pod::spec(pod).volumes.iter().flatten() {
        let path = mounted.volumes.get(&volume.name).map(|mounted| mounted.path.as_path());
        if let Some(stats) = path.and_then(|path| measured.get(path)) {
            result.push(csi_volume(pod, volume, stats, now));
            continue;
        }
        let kinds = ["empty-dir", "configmap", "downward-api"];
        let on_disk = kinds.iter().map(|kind| root.join(format!("kubernetes.io~{kind}")).join(&volume.name));
        let Some(path) = on_disk.chain([memory.join(&volume.name)]).find(|path| path.is_dir()) else { continue };
        let started = Instant::now();
        let (used, inodes) = directory_usage(&path);
        let (name, labels) = ("kubelet_volume_metric_collection_duration_seconds", [("metric_source", "du")]);
        server.context.metrics.observe(name, &labels, started.elapsed());
        if let Some(mut fs) = filesystem(&path, now) {
            fs["usedBytes"] = json!(used);
            fs["inodesUsed"] = json!(inodes);
            fs["name"] = json!(volume.name);
            result.push(fs);
        }
    }
    result
}

fn csi_volume(pod: &Pod, volume: &Volume, stats: &VolumeStats, now: Timestamp) -> Value {
    let mut value = json!({
        "time": time(now),
        "availableBytes": stats.available,
        "capacityBytes": stats.capacity,
        "usedBytes": stats.used,
        "inodesFree": stats.inodes_free,
        "inodes": stats.inodes,
        "inodesUsed": stats.inodes_used,
        "name": volume.name,
    });
    if let Some(claim) = pod::claim_name(pod, volume) {
        value["pvcRef"] = json!({ "name": claim, "namespace": pod::namespace(pod) });
    }
    if let Some(abnormal) = stats.abnormal {
        value["volumeHealthStats"] = json!({ "abnormal": abnormal });
    }
    value
}

fn one_container(
    server: &Server,
    worker: &Handle,
    pod: &k8s_openapi::api::core::v1::Pod,
    stats: &ContainerStats,
    now: Timestamp,
) -> Value {
    let attributes = stats.attributes.clone().unwrap_or_default();
    let name = attributes.metadata.map(|metadata| metadata.name).unwrap_or_default();
    let started = worker.runtime.lock().by_id(&attributes.id).and_then(|view| view.started_at).map(time);
    let usage = usage_of_container(stats);
    let settings = &server.context.settings;
    let logs = settings.log_directory(pod::namespace(pod), pod::name(pod), pod::uid(pod)).join(&name);
    let mut value = json!({
        "name": name,
        "startTime": started,
        "cpu": cpu(server, &attributes.id, usage.cpu_nanoseconds, now),
        "memory": memory(&usage, None, now),
        "io": { "time": time(now) },
    });
    if let Some(cgroups) = &server.context.cgroups {
        let path = server.context.container_cgroup(pod, &attributes.id);
        let details = cgroups.details(&path);
        add_pressure(&mut value, &cgroups.waits(&path));
        if let Some((limit, used)) = details.memory_limit.zip(usage.working_set) {
            value["memory"]["availableBytes"] = json!(limit.saturating_sub(used));
        }
        if let Some(used) = details.swap {
            let room = details.swap_limit.map_or(0, |limit| limit.saturating_sub(used));
            value["swap"] = json!({ "time": time(now), "swapAvailableBytes": room, "swapUsageBytes": used });
        }
    }
    if let Some(mut fs) = filesystem(&settings.root, now) {
        let layer = stats.writable_layer.clone().unwrap_or_default();
        fs["usedBytes"] = json!(layer.used_bytes.map_or(0, |bytes| bytes.value));
        fs["inodesUsed"] = json!(layer.inodes_used.map_or(0, |inodes| inodes.value));
        value["rootfs"] = fs.clone();
        let (used, inodes) = directory_usage(&logs);
        fs["usedBytes"] = json!(used);
        fs["inodesUsed"] = json!(inodes);
        value["logs"] = fs;
    }
    value
}

pub fn usage_of_container(stats: &ContainerStats) -> Usage {
    let memory = stats.memory.unwrap_or_default();
    Usage {
        cpu_nanoseconds: stats.cpu.and_then(|cpu| cpu.usage_core_nano_seconds).map(|value| value.value),
        memory: memory.usage_bytes.map(|value| value.value),
        working_set: memory.working_set_bytes.map(|value| value.value),
        resident: memory.rss_bytes.map(|value| value.value),
        page_faults: memory.page_faults.map(|value| value.value),
        major_page_faults: memory.major_page_faults.map(|value| value.value),
        processes: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_need_two_samples() {
        let samples = Samples::default();
        let start = Instant::now();
        let at = |second| start + std::time::Duration::from_secs(second);
        assert_eq!(samples.rate("a", 1_000_000_000, at(0)), None);
        assert_eq!(samples.rate("a", 3_000_000_000, at(4)), Some(500_000_000));
        assert_eq!(samples.rate("a", 3_000_000_000, at(4)), Some(500_000_000), "the same moment, the same rate");
    }
}
