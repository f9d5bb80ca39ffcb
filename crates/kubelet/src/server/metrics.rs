//! Metrics in the text form that Prometheus reads.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use http::{HeaderValue, Response, header};
use k8s_openapi::jiff::Timestamp;

use super::stats::{containers, node_usage, usage_of_container};
use super::{Body, Server, full};
use crate::cgroup::Usage;
use crate::counters::{Counters, FAMILIES, Family, Histogram, Values};
use crate::node::filesystem::{FilesystemUsage, usage_of};
use crate::pod;
use crate::runtime::State;
use crate::worker::Handle;

#[derive(Default)]
pub struct Page(String);

impl Page {
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub fn value(&mut self, name: &str, labels: &[(&str, &str)], value: f64, at: Option<Timestamp>) {
        let escaped = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let at = at.map(|at| format!(" {}", at.as_millisecond())).unwrap_or_default();
        let _ = writeln!(self.0, "{name}{labels} {value}{at}");
    }

    /// Buckets count what fell into them and all below.
    fn histogram(&mut self, family: &Family, labels: &[(&str, &str)], histogram: &Histogram) {
        let (bucket, mut below) = (format!("{}_bucket", family.name), 0);
        for (bound, count) in family.buckets.unwrap_or_default().iter().zip(&histogram.counts) {
            below += count;
            let bound = bound.to_string();
            self.value(&bucket, &[labels, &[("le", bound.as_str())]].concat(), below as f64, None);
        }
        self.value(&bucket, &[labels, &[("le", "+Inf")]].concat(), histogram.count as f64, None);
        self.value(&format!("{}_sum", family.name), labels, histogram.sum, None);
        self.value(&format!("{}_count", family.name), labels, histogram.count as f64, None);
    }

    pub fn response(self) -> Response<Body> {
        let mut response = Response::new(full(self.0));
        let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }
}

pub fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

/// Counts the calls to the container runtime.
pub fn runtime_observer(counters: Arc<Counters>) -> knarr_cri::Observer {
    Arc::new(move |method, duration, succeeded| {
        let labels = [("operation_type", operation(method))];
        counters.count("kubelet_runtime_operations_total", &labels);
        counters.observe("kubelet_runtime_operations_duration_seconds", &labels, duration);
        if !succeeded {
            counters.count("kubelet_runtime_operations_errors_total", &labels);
        }
    })
}

/// The names by which dashboards know the calls.
fn operation(method: &'static str) -> &'static str {
    const NAMES: [(&str, &str); 21] = [
        ("Version", "version"),
        ("Status", "status"),
        ("UpdateRuntimeConfig", "update_runtime_config"),
        ("RunPodSandbox", "run_podsandbox"),
        ("StopPodSandbox", "stop_podsandbox"),
        ("RemovePodSandbox", "remove_podsandbox"),
        ("PodSandboxStatus", "podsandbox_status"),
        ("ListPodSandbox", "list_podsandbox"),
        ("CreateContainer", "create_container"),
        ("StartContainer", "start_container"),
        ("StopContainer", "stop_container"),
        ("RemoveContainer", "remove_container"),
        ("ContainerStatus", "container_status"),
        ("ListContainers", "list_containers"),
        ("UpdateContainerResources", "update_container"),
        ("ExecSync", "exec_sync"),
        ("PullImage", "pull_image"),
        ("ListImages", "list_images"),
        ("ImageStatus", "image_status"),
        ("RemoveImage", "remove_image"),
        ("ImageFsInfo", "image_fs_info"),
    ];
    NAMES.iter().find(|(known, _)| *known == method).map_or(method, |(_, name)| name)
}

/// The node's own life.
pub fn own(server: &Server) -> Response<Body> {
    let mut page = Page::default();
    page.family("kubelet_node_name", "gauge", "The node's name. The count is always 1.");
    page.value("kubelet_node_name", &[("node", &server.context.settings.node_name)], 1.0, None);
    page.family("kubernetes_build_info", "gauge", "Which Kubernetes this node speaks.");
    let labels = [("git_version", "v1.36.4"), ("major", "1"), ("minor", "36"), ("platform", PLATFORM)];
    page.value("kubernetes_build_info", &labels, 1.0, None);
    page.family("kubelet_cgroup_version", "gauge", "cgroup version on the hosts.");
    let unified = server.context.cgroups.as_ref().is_some_and(crate::cgroup::Cgroups::is_unified);
    page.value("kubelet_cgroup_version", &[], if unified { 2.0 } else { 1.0 }, None);
    pods(server, &mut page);
    volumes(server, &mut page);
    certificates(server, &mut page);
    for family in
        FAMILIES.iter().filter(|family| family.name.starts_with("kubelet_") || family.name.starts_with("storage_"))
    {
        counted(&mut page, family, server);
    }
    process(&mut page);
    page.response()
}

const PLATFORM: &str = if cfg!(target_arch = "aarch64") { "linux/arm64" } else { "linux/amd64" };

/// How many pods and containers there are, in which states.
fn pods(server: &Server, page: &mut Page) {
    let workers = server.pods.all();
    page.family("kubelet_running_pods", "gauge", "Number of pods that have a running pod sandbox");
    let sandboxes = workers.iter().filter(|w| w.runtime.lock().current_sandbox().is_some_and(|s| s.ready)).count();
    page.value("kubelet_running_pods", &[], sandboxes as f64, None);
    page.family("kubelet_running_containers", "gauge", "Number of containers currently running");
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
    let is_active = |worker: &Handle| !matches!(worker.status.lock().phase.as_deref(), Some("Succeeded" | "Failed"));
    let gauges: [(&str, &str, &dyn Fn(&Handle) -> bool); 2] = [
        ("kubelet_desired_pods", "The number of pods the kubelet is being instructed to run.", &|_| true),
        ("kubelet_active_pods", "The number of pods that take part of the node's room.", &is_active),
    ];
    for (name, help, wanted) in gauges {
        page.family(name, "gauge", help);
        for (is_static, label) in [(false, ""), (true, "true")] {
            let found = |worker: &&Handle| pod::is_static(&worker.pod.lock()) == is_static && wanted(worker);
            page.value(name, &[("static", label)], workers.iter().filter(found).count() as f64, None);
        }
    }
    page.family("kubelet_managed_ephemeral_containers", "gauge", "Current number of ephemeral containers in pods.");
    let ephemeral = |worker: &Handle| pod::ephemeral_containers(&worker.pod.lock()).count();
    page.value("kubelet_managed_ephemeral_containers", &[], workers.iter().map(ephemeral).sum::<usize>() as f64, None);
}

/// How full the volumes are that pods claimed.
fn volumes(server: &Server, page: &mut Page) {
    let mut found = BTreeMap::new();
    for worker in server.pods.all() {
        let pod = worker.pod.lock().clone();
        let mounted = worker.volumes.lock().clone();
        for volume in pod::spec(&pod).volumes.iter().flatten() {
            let claim = match (&volume.persistent_volume_claim, &volume.ephemeral) {
                (Some(source), _) => source.claim_name.clone(),
                (None, Some(_)) => format!("{}-{}", pod::name(&pod), volume.name),
                (None, None) => continue,
            };
            if let Some(usage) = mounted.volumes.get(&volume.name).and_then(|volume| usage_of(&volume.path)) {
                found.insert((pod::namespace(&pod).to_string(), claim), usage);
            }
        }
    }
    let families: [(&str, &str, fn(&FilesystemUsage) -> u64); 6] = [
        ("capacity_bytes", "Capacity in bytes of the volume", |usage| usage.capacity),
        ("available_bytes", "Number of available bytes in the volume", |usage| usage.available),
        ("used_bytes", "Number of used bytes in the volume", |usage| usage.capacity.saturating_sub(usage.available)),
        ("inodes", "Maximum number of inodes in the volume", |usage| usage.inodes),
        ("inodes_free", "Number of free inodes in the volume", |usage| usage.inodes_free),
        ("inodes_used", "Number of used inodes in the volume", |usage| usage.inodes.saturating_sub(usage.inodes_free)),
    ];
    for (suffix, help, read) in families.iter().filter(|_| !found.is_empty()) {
        let name = format!("kubelet_volume_stats_{suffix}");
        page.family(&name, "gauge", help);
        for ((namespace, claim), usage) in &found {
            let labels = [("namespace", namespace.as_str()), ("persistentvolumeclaim", claim.as_str())];
            page.value(&name, &labels, read(usage) as f64, None);
        }
    }
}

/// How long the node's certificates are still good.
fn certificates(server: &Server, page: &mut Page) {
    let settings = &server.context.settings;
    let folder = settings.root.join("pki");
    let serving = settings.serving_certificate.as_ref().map(|files| files.certificate.clone());
    for (kind, path) in [
        ("client", folder.join("kubelet-client.crt")),
        ("server", serving.unwrap_or_else(|| folder.join("kubelet-server.crt"))),
    ] {
        let Ok(until) = crate::node::certificates::good_until(&path) else { continue };
        let name = format!("kubelet_certificate_manager_{kind}_ttl_seconds");
        page.family(&name, "gauge", "Seconds until the certificate expires; negative when it has.");
        page.value(&name, &[], until.duration_since(Timestamp::now()).as_secs() as f64, None);
    }
}

/// What was counted or measured of one family.
fn counted(page: &mut Page, family: &Family, server: &Server) {
    let Some(values) = server.context.metrics.values(family.name) else { return };
    match values {
        Values::Counters(values) => {
            page.family(family.name, "counter", family.help);
            for (labels, count) in values {
                let labels: Vec<(&str, &str)> = labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
                page.value(family.name, &labels, count as f64, None);
            }
        }
        Values::Histograms(values) => {
            page.family(family.name, "histogram", family.help);
            for (labels, histogram) in values {
                let labels: Vec<(&str, &str)> = labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
                page.histogram(family, &labels, &histogram);
            }
        }
    }
}

/// This process.
fn process(page: &mut Page) {
    let Some(own) = own_process() else { return };
    let descriptors = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count());
    for (name, kind, help, value) in [
        ("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.", own.cpu),
        ("process_open_fds", "gauge", "Number of open file descriptors.", descriptors as f64),
        ("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", own.resident),
        ("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.", own.started),
        ("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", own.virtual_memory),
    ] {
        page.family(name, kind, help);
        page.value(name, &[], value, None);
    }
}

struct Process {
    cpu: f64,
    resident: f64,
    virtual_memory: f64,
    started: f64,
}

fn own_process() -> Option<Process> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let field = |place: usize| fields.get(place)?.parse::<f64>().ok();
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?.split_whitespace().next()?.parse::<f64>().ok()?;
    let booted = Timestamp::now().as_millisecond() as f64 / 1e3 - uptime;
    Some(Process {
        cpu: (field(11)? + field(12)?) / 100.0,
        resident: field(21)? * 4096.0,
        virtual_memory: field(20)?,
        started: booted + field(19)? / 100.0,
    })
}

pub fn probes(server: &Server) -> Response<Body> {
    let mut page = Page::default();
    if let Some(family) = FAMILIES.iter().find(|family| family.name == "prober_probe_total") {
        counted(&mut page, family, server);
    }
    page.response()
}

/// The node's health as a service level indicator.
pub fn indicators() -> Response<Body> {
    let mut page = Page::default();
    page.family("kubernetes_healthcheck", "gauge", "This metric records the result of a single healthcheck.");
    page.value("kubernetes_healthcheck", &[("name", "ping"), ("type", "healthz")], 1.0, None);
    page.response()
}

/// What autoscaling reads.
pub async fn resource(server: &Arc<Server>) -> Response<Body> {
    let now = Timestamp::now();
    let mut page = Page::default();
    let samples = samples(server).await;
    let node = node_usage(server);
    let kinds: [(&str, fn(&Usage) -> Option<f64>, &str, &str); 2] = [
        (
            "cpu_usage_seconds_total",
            |usage| usage.cpu_nanoseconds.map(seconds),
            "counter",
            "Cumulative cpu time consumed in core-seconds",
        ),
        (
            "memory_working_set_bytes",
            |usage| usage.working_set.map(|bytes| bytes as f64),
            "gauge",
            "Current working set in bytes",
        ),
    ];
    for (suffix, read, kind, help) in kinds {
        let name = format!("node_{suffix}");
        page.family(&name, kind, help);
        if let Some(value) = read(&node) {
            page.value(&name, &[], value, Some(now));
        }
        for (scope, wants_container) in [("container", true), ("pod", false)] {
            let name = format!("{scope}_{suffix}");
            page.family(&name, kind, help);
            for sample in samples.iter().filter(|sample| sample.container.is_some() == wants_container) {
                let Some(value) = read(&sample.usage) else { continue };
                let mut labels = vec![("namespace", sample.namespace.as_str()), ("pod", sample.pod.as_str())];
                if let Some(container) = &sample.container {
                    labels.insert(0, ("container", container));
                }
                page.value(&name, &labels, value, Some(now));
            }
        }
    }
    page.family("container_start_time_seconds", "gauge", "Start time of the container since unix epoch in seconds");
    for sample in &samples {
        if let (Some(container), Some(at)) = (&sample.container, sample.started) {
            let labels = [("container", container.as_str()), ("namespace", &sample.namespace), ("pod", &sample.pod)];
            page.value("container_start_time_seconds", &labels, at.as_millisecond() as f64 / 1e3, Some(now));
        }
    }
    swap(&mut page, &samples, now);
    page.family(
        "resource_scrape_error",
        "gauge",
        "1 if there was an error while getting container metrics, 0 otherwise",
    );
    page.value("resource_scrape_error", &[], 0.0, None);
    page.response()
}

/// No container may use swap here, and none does.
fn swap(page: &mut Page, samples: &[Sample], now: Timestamp) {
    for (scope, suffix, help) in [
        ("container", "swap_limit_bytes", "Current amount of the container swap limit in bytes."),
        ("container", "swap_usage_bytes", "Current amount of the container swap usage in bytes."),
        ("pod", "swap_usage_bytes", "Current amount of the pod swap usage in bytes."),
    ] {
        let name = format!("{scope}_{suffix}");
        page.family(&name, "gauge", help);
        for sample in samples.iter().filter(|sample| sample.container.is_some() == (scope == "container")) {
            let mut labels = vec![("namespace", sample.namespace.as_str()), ("pod", sample.pod.as_str())];
            if let Some(container) = &sample.container {
                labels.insert(0, ("container", container));
            }
            page.value(&name, &labels, 0.0, Some(now));
        }
    }
}

/// What one container, or a pod as a whole, uses.
pub struct Sample {
    pub namespace: String,
    pub pod: String,
    /// None for the pod as a whole.
    pub container: Option<String>,
    /// The path of its cgroup.
    pub id: String,
    pub image: String,
    pub name: String,
    pub usage: Usage,
    pub started: Option<Timestamp>,
    /// Bytes and files of the container's own layer.
    pub layer: Option<(u64, u64)>,
    /// The kernel's table of the pod's interfaces.
    pub interfaces: Option<String>,
}

pub async fn samples(server: &Server) -> Vec<Sample> {
    let mut by_pod = containers(server).await;
    let mut samples = Vec::new();
    for worker in server.pods.all() {
        let pod = worker.pod.lock().clone();
        let (namespace, name) = (pod::namespace(&pod).to_string(), pod::name(&pod).to_string());
        for stats in by_pod.remove(pod::uid(&pod)).unwrap_or_default() {
            let attributes = stats.attributes.clone().unwrap_or_default();
            let view = worker.runtime.lock().by_id(&attributes.id).cloned().unwrap_or_default();
            samples.push(Sample {
                namespace: namespace.clone(),
                pod: name.clone(),
                container: attributes.metadata.map(|metadata| metadata.name),
                id: format!("{}/{}", server.context.cgroup_parent(&pod), attributes.id),
                image: view.image.clone(),
                name: attributes.id,
                usage: usage_of_container(&stats),
                started: view.started_at,
                layer: stats.writable_layer.as_ref().map(|layer| {
                    let (bytes, files) = (layer.used_bytes.as_ref(), layer.inodes_used.as_ref());
                    (bytes.map_or(0, |bytes| bytes.value), files.map_or(0, |files| files.value))
                }),
                interfaces: None,
            });
        }
        if let Some(cgroups) = &server.context.cgroups
            && worker.runtime.lock().current_sandbox().is_some_and(|sandbox| sandbox.ready)
        {
            samples.push(Sample {
                namespace,
                pod: name,
                container: None,
                id: cgroups.pod_path(&pod),
                image: String::new(),
                name: String::new(),
                usage: cgroups.pod_usage(&pod),
                started: None,
                layer: None,
                interfaces: crate::runtime::network_table(&worker).filter(|_| !pod::host_network(&pod)),
            });
        }
    }
    samples
}
