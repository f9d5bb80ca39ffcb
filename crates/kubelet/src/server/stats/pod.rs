//! The usage of a pod, its containers and its volumes.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Instant;

use k8s_openapi::api::core::v1::{Pod, Volume};
use k8s_openapi::jiff::Timestamp;
use knarr_cri::messages::ContainerStats;
use serde_json::{Value, json};

use super::{Server, add_pressure, cpu, filesystem, memory, network, time};
use crate::cgroup::Usage;
use crate::csi::VolumeStats;
use crate::filesystem::directory_usage;
use crate::pod;
use crate::worker::Handle;

pub fn one_pod(
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
    if let Some(path) = crate::runtime::network_table(&worker.runtime.lock()) {
        value["network"] = network(&path, now);
    }
    value
}

fn volumes(
    server: &Server,
    worker: &Handle,
    pod: &Pod,
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

fn one_container(server: &Server, worker: &Handle, pod: &Pod, stats: &ContainerStats, now: Timestamp) -> Value {
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
