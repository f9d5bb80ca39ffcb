//! `/metrics` of the kubelet: updated as it works, or computed on request.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use http::Response;
use k8s_openapi::jiff::Timestamp;

use super::metrics::Page;
use super::{Body, Server};
use crate::counters::FAMILIES;
use crate::csi::VolumeStats;
use crate::filesystem::{directory_usage, usage_of};
use crate::pod;
use crate::runtime::State;
use crate::worker::Handle;

/// The `/metrics` page.
pub fn own(server: &Server, csi: &HashMap<PathBuf, VolumeStats>) -> Response<Body> {
    let mut page = Page::default();
    page.family("kubelet_node_name", "gauge", "Always 1; the label is the node's name.");
    page.value("kubelet_node_name", &[("node", &server.context.settings.node_name)], 1.0, None);
    page.family("kubelet_cgroup_version", "gauge", "The host's cgroup version, 1 or 2.");
    let unified = server.context.cgroups.as_ref().is_some_and(crate::cgroup::Cgroups::is_unified);
    page.value("kubelet_cgroup_version", &[], if unified { 2.0 } else { 1.0 }, None);
    pods(server, &mut page);
    volumes(server, csi, &mut page);
    certificates(server, &mut page);
    assigned_resources(server, &mut page);
    logs(server, &mut page);
    for family in FAMILIES.iter().filter(|family| !family.name.starts_with("prober_")) {
        page.counted(family, &server.context.metrics);
    }
    page.components(&server.components);
    network_traffic(&mut page);
    page.process();
    page.response()
}

/// Numbers of pods and containers by state.
fn pods(server: &Server, page: &mut Page) {
    let workers = server.pods.all();
    page.family("kubelet_running_pods", "gauge", "Pods whose sandbox is ready.");
    let sandboxes = workers.iter().filter(|w| w.runtime.lock().current_sandbox().is_some_and(|s| s.ready)).count();
    page.value("kubelet_running_pods", &[], sandboxes as f64, None);
    page.family("kubelet_running_containers", "gauge", "Containers in the runtime, by state.");
    for (state, name) in [
        (State::Created, "created"),
        (State::Exited, "exited"),
        (State::Running, "running"),
        (State::Unknown, "unknown"),
    ] {
        let count = |worker: &Handle| worker.runtime.lock().containers.iter().filter(|c| c.state == state).count();
        let count: usize = workers.iter().map(count).sum();
        page.value("kubelet_running_containers", &[("container_state", name)], count as f64, None);
    }
    let is_active = |worker: &Handle| !is_finished(worker);
    let gauges: [(&str, &str, &dyn Fn(&Handle) -> bool); 2] = [
        ("kubelet_desired_pods", "Pods that this node should run.", &|_| true),
        ("kubelet_active_pods", "Pods that use resources of the node.", &is_active),
    ];
    for (name, help, selected) in gauges {
        page.family(name, "gauge", help);
        for (is_static, label) in [(false, ""), (true, "true")] {
            let found = |worker: &&Handle| pod::is_static(&worker.pod.lock()) == is_static && selected(worker);
            page.value(name, &[("static", label)], workers.iter().filter(found).count() as f64, None);
        }
    }
    states(server, &workers, page);
    page.family("kubelet_managed_ephemeral_containers", "gauge", "Ephemeral containers in this node's pods.");
    let ephemeral = |worker: &Handle| pod::ephemeral_containers(&worker.pod.lock()).count();
    page.value("kubelet_managed_ephemeral_containers", &[], workers.iter().map(ephemeral).sum::<usize>() as f64, None);
}

/// Numbers of mirror pods, of pods by lifecycle phase, and of pod resizes.
fn states(server: &Server, workers: &[Handle], page: &mut Page) {
    page.family("kubelet_mirror_pods", "gauge", "Mirror pods in the API.");
    page.value("kubelet_mirror_pods", &[], server.pods.mirror_count() as f64, None);
    let lifecycle =
        |worker: &Handle| match (worker.pod.lock().metadata.deletion_timestamp.is_some(), is_finished(worker)) {
            (_, true) => "terminated",
            (true, false) => "terminating",
            (false, false) => "sync",
        };
    let name = "kubelet_working_pods";
    page.family(name, "gauge", "Pods with a worker, by phase of their lifecycle.");
    for (is_static, label) in [(false, ""), (true, "true")] {
        for selected in ["sync", "terminating", "terminated"] {
            let fits = |w: &&Handle| lifecycle(w) == selected && pod::is_static(&w.pod.lock()) == is_static;
            let count = workers.iter().filter(fits).count() as f64;
            page.value(name, &[("config", "desired"), ("lifecycle", selected), ("static", label)], count, None);
        }
    }
    let conditions = |kind: &'static str| {
        workers.iter().filter_map(move |worker| {
            let status = worker.status.lock();
            let found = status.conditions.iter().flatten().find(|condition| condition.type_ == kind)?;
            Some(found.reason.clone().unwrap_or_default())
        })
    };
    let name = "kubelet_pod_in_progress_resizes";
    page.family(name, "gauge", "Pods whose resize is being applied.");
    page.value(name, &[], conditions("PodResizeInProgress").count() as f64, None);
    let mut pending: BTreeMap<String, usize> = BTreeMap::new();
    for reason in conditions("PodResizePending") {
        *pending.entry(reason.to_lowercase()).or_default() += 1;
    }
    if !pending.is_empty() {
        page.family("kubelet_pod_pending_resizes", "gauge", "Pods whose resize is not granted yet, by reason.");
    }
    for (reason, count) in pending {
        page.value("kubelet_pod_pending_resizes", &[("reason", &reason)], count as f64, None);
    }
}

fn is_finished(worker: &Handle) -> bool {
    matches!(worker.status.lock().phase.as_deref(), Some("Succeeded" | "Failed"))
}

/// Exclusive CPUs and numbers of volumes.
fn assigned_resources(server: &Server, page: &mut Page) {
    let (exclusive, shared) = server.context.resources.cpu_counts();
    let name = "kubelet_cpu_manager_exclusive_cpu_allocation_count";
    page.family(name, "gauge", "CPUs that are assigned exclusively to containers.");
    page.value(name, &[], exclusive as f64, None);
    let name = "kubelet_cpu_manager_shared_pool_size_millicores";
    page.family(name, "gauge", "CPUs shared by containers without exclusive ones, in thousandths.");
    page.value(name, &[], (shared * 1000) as f64, None);
    let mut volumes: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for worker in server.pods.all().iter().filter(|worker| !is_finished(worker)) {
        let (pod, mounted) = (worker.pod.lock().clone(), worker.volumes.lock().clone());
        for volume in pod::spec(&pod).volumes.iter().flatten() {
            let plugin = crate::volumes::plugin_name(volume);
            *volumes.entry((plugin, "desired_state_of_world")).or_default() += 1;
            if mounted.volumes.contains_key(&volume.name) {
                *volumes.entry((plugin, "actual_state_of_world")).or_default() += 1;
            }
        }
    }
    if !volumes.is_empty() {
        page.family(
            "volume_manager_total_volumes",
            "gauge",
            "Volumes of this node's pods, by plugin; desired and mounted.",
        );
    }
    for ((plugin, state), count) in volumes {
        page.value("volume_manager_total_volumes", &[("plugin_name", plugin), ("state", state)], count as f64, None);
    }
}

/// Disk usage of containers' logs.
fn logs(server: &Server, page: &mut Page) {
    let name = "kubelet_container_log_filesystem_used_bytes";
    page.family(name, "gauge", "Bytes that the container's logs use on disk.");
    for worker in server.pods.all() {
        let pod = worker.pod.lock().clone();
        let (namespace, own, uid) = (pod::namespace(&pod), pod::name(&pod), pod::uid(&pod));
        let directory = server.context.settings.log_directory(namespace, own, uid);
        let running: Vec<String> = worker.runtime.lock().running().map(|view| view.name.clone()).collect();
        for container in running {
            let (used, _) = directory_usage(&directory.join(&container));
            let labels = [("container", container.as_str()), ("namespace", namespace), ("pod", own), ("uid", uid)];
            page.value(name, &labels, used as f64, None);
        }
    }
}

/// Usage of persistent volume claims.
fn volumes(server: &Server, csi: &HashMap<PathBuf, VolumeStats>, page: &mut Page) {
    let mut found: BTreeMap<(String, String), VolumeStats> = BTreeMap::new();
    for worker in server.pods.all() {
        let pod = worker.pod.lock().clone();
        let mounted = worker.volumes.lock().clone();
        for volume in pod::spec(&pod).volumes.iter().flatten() {
            let Some(claim) = pod::claim_name(&pod, volume) else { continue };
            let Some(path) = mounted.volumes.get(&volume.name).map(|volume| volume.path.as_path()) else { continue };
            let stats = match server.context.csi.is_own(path) {
                true => csi.get(path).cloned(),
                false => usage_of(path).map(VolumeStats::from),
            };
            if let Some(stats) = stats {
                found.insert((pod::namespace(&pod).to_string(), claim), stats);
            }
        }
    }
    let families: [(&str, &str, fn(&VolumeStats) -> u64); 6] = [
        ("capacity_bytes", "Size of the volume, in bytes.", |usage| usage.capacity),
        ("available_bytes", "Free space of the volume, in bytes.", |usage| usage.available),
        ("used_bytes", "Used space of the volume, in bytes.", |usage| usage.used),
        ("inodes", "Total inodes of the volume.", |usage| usage.inodes),
        ("inodes_free", "Free inodes of the volume.", |usage| usage.inodes_free),
        ("inodes_used", "Used inodes of the volume.", |usage| usage.inodes_used),
    ];
    for (suffix, help, read) in families.iter().filter(|_| !found.is_empty()) {
        let name = format!("kubelet_volume_stats_{suffix}");
        page.family(&name, "gauge", help);
        // A device has no free space or inodes that the host could know.
        for ((namespace, claim), usage) in
            found.iter().filter(|(_, usage)| !usage.is_block || *suffix == "capacity_bytes")
        {
            let labels = [("namespace", namespace.as_str()), ("persistentvolumeclaim", claim.as_str())];
            page.value(&name, &labels, read(usage) as f64, None);
        }
    }
    let name = "kubelet_volume_stats_health_status_abnormal";
    let mut reported = found.iter().filter_map(|(key, usage)| Some((key, usage.abnormal?))).peekable();
    if reported.peek().is_some() {
        page.family(name, "gauge", "Whether the volume's driver reports it as unhealthy: 1 if so.");
    }
    for ((namespace, claim), abnormal) in reported {
        let labels = [("namespace", namespace.as_str()), ("persistentvolumeclaim", claim.as_str())];
        page.value(name, &labels, if abnormal { 1.0 } else { 0.0 }, None);
    }
}

/// Remaining lifetimes of the node's certificates.
fn certificates(server: &Server, page: &mut Page) {
    let settings = &server.context.settings;
    let directory = settings.root.join("pki");
    let serving = settings.serving_certificate.as_ref().map(|files| files.certificate.clone());
    for (kind, path) in [
        ("client", directory.join("kubelet-client.crt")),
        ("server", serving.unwrap_or_else(|| directory.join("kubelet-server.crt"))),
    ] {
        let Ok(until) = crate::node::certificates::good_until(&path) else { continue };
        let name = format!("kubelet_certificate_manager_{kind}_ttl_seconds");
        page.family(&name, "gauge", "Seconds until the certificate expires; negative when it has.");
        page.value(&name, &[], until.duration_since(Timestamp::now()).as_secs() as f64, None);
    }
}

/// Bytes that the process' network namespace carried.
fn network_traffic(page: &mut Page) {
    let (received, sent) = traffic(&std::fs::read_to_string("/proc/self/net/dev").unwrap_or_default());
    for (name, help, value) in [
        ("process_network_receive_bytes_total", "Bytes received on the process' network interfaces.", received),
        ("process_network_transmit_bytes_total", "Bytes sent on the process' network interfaces.", sent),
    ] {
        page.family(name, "counter", help);
        page.value(name, &[], value, None);
    }
}

/// Bytes received and sent over all interfaces.
fn traffic(table: &str) -> (f64, f64) {
    let rows = table.lines().filter_map(|line| line.split_once(':')).map(|(_, counters)| {
        let of = |place: usize| counters.split_whitespace().nth(place).and_then(|field| field.parse::<f64>().ok());
        (of(0).unwrap_or(0.0), of(8).unwrap_or(0.0))
    });
    rows.fold((0.0, 0.0), |sum, row| (sum.0 + row.0, sum.1 + row.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_are_read() {
        let table = "Inter-| Receive | Transmit\n lo: 10 1 0 0 0 0 0 0 10 1 0\n eth0: 5 1 0 0 0 0 0 0 7 1 0\n";
        assert_eq!(traffic(table), (15.0, 17.0));
    }
}
