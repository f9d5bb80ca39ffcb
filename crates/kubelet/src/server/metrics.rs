//! Metrics pages in the Prometheus text format.

use std::fmt::Write;
use std::sync::Arc;

use http::{HeaderValue, Response, header};
use k8s_openapi::jiff::Timestamp;

use super::stats::{containers, node_usage, of_running, usage_of_container};
use super::{Body, Server, full};
use crate::cgroup::{Details, Usage};
use crate::counters::{Counters, FAMILIES, Family, Histogram, Kind, Values};
use crate::host::own_process;
use crate::pod;

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

    /// Adds one family of the kubelet's own metrics.
    pub fn counted(&mut self, family: &Family, counters: &Counters) {
        let Some(values) = counters.values(family) else { return };
        let kind = match family.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        };
        self.family(family.name, kind, family.help);
        match values {
            Values::Numbers(values) => {
                for (labels, value) in values {
                    let labels: Vec<(&str, &str)> = labels.iter().map(|(name, own)| (*name, own.as_str())).collect();
                    self.value(family.name, &labels, value, None);
                }
            }
            Values::Histograms(values) => {
                for (labels, histogram) in values {
                    let labels: Vec<(&str, &str)> = labels.iter().map(|(name, own)| (*name, own.as_str())).collect();
                    self.histogram(family, &labels, &histogram);
                }
            }
        }
    }

    /// Bucket counts are cumulative.
    fn histogram(&mut self, family: &Family, labels: &[(&str, &str)], histogram: &Histogram) {
        let Kind::Histogram(bounds) = family.kind else { return };
        let (bucket, mut below) = (format!("{}_bucket", family.name), 0);
        let counts = histogram.counts.iter().copied().chain(std::iter::repeat(0));
        for (bound, count) in bounds.iter().zip(counts) {
            below += count;
            let bound = bound.to_string();
            self.value(&bucket, &[labels, &[("le", bound.as_str())]].concat(), below as f64, None);
        }
        self.value(&bucket, &[labels, &[("le", "+Inf")]].concat(), histogram.count as f64, None);
        self.value(&format!("{}_sum", family.name), labels, histogram.sum, None);
        self.value(&format!("{}_count", family.name), labels, histogram.count as f64, None);
    }

    /// Adds the metrics of the process's components.
    pub fn components(&mut self, components: &knarr_supervisor::Registry) {
        knarr_supervisor::write_metrics(components, &mut self.0);
    }

    /// Adds what the process registered, what every process has, and the number of families.
    pub fn process(&mut self) {
        knarr_metrics::write_registered(&mut self.0);
        knarr_metrics::write_process(knarr_version::reported(), &knarr_version::platform(), &mut self.0);
        knarr_metrics::write_totals(&mut self.0);
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

/// Counts and measures the calls to the container runtime.
pub fn runtime_observer(counters: Arc<Counters>) -> knarr_cri::Observer {
    Arc::new(move |method, duration, succeeded| {
        let labels = [("operation_type", operation(method))];
        counters.count("kubelet_runtime_operations_total", &labels);
        counters.observe("kubelet_runtime_operations_duration_seconds", &labels, duration);
        crate::traces::runtime_called(method, duration, succeeded);
        if !succeeded {
            counters.count("kubelet_runtime_operations_errors_total", &labels);
        }
    })
}

/// The operation labels of CRI methods.
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

pub fn probes(server: &Server) -> Response<Body> {
    let mut page = Page::default();
    for family in FAMILIES.iter().filter(|family| family.name.starts_with("prober_")) {
        page.counted(family, &server.context.metrics);
    }
    if let Some(own) = own_process() {
        page.family("process_start_time_seconds", "gauge", "When the process started, in Unix time.");
        page.value("process_start_time_seconds", &[], own.started, None);
    }
    page.response()
}

/// The results of health checks as service level indicators.
pub fn indicators() -> Response<Body> {
    Page(super::health::INDICATORS.page()).response()
}

/// `/metrics/resource`, which the metrics server reads for autoscaling.
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
            "CPU time used, in core-seconds.",
        ),
        (
            "memory_working_set_bytes",
            |usage| usage.working_set.map(|bytes| bytes as f64),
            "gauge",
            "Memory that cannot be reclaimed easily, in bytes.",
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
    page.family("container_start_time_seconds", "gauge", "When the container started, in Unix time.");
    for sample in &samples {
        if let (Some(container), Some(at)) = (&sample.container, sample.started) {
            let labels = [("container", container.as_str()), ("namespace", &sample.namespace), ("pod", &sample.pod)];
            page.value("container_start_time_seconds", &labels, at.as_millisecond() as f64 / 1e3, Some(now));
        }
    }
    swap(&mut page, server, &samples, now);
    page.family("resource_scrape_error", "gauge", "1 if container metrics could not be collected, else 0.");
    page.value("resource_scrape_error", &[], 0.0, None);
    page.response()
}

/// Adds the swap usage and limits.
fn swap(page: &mut Page, server: &Server, samples: &[UsageSample], now: Timestamp) {
    let Some(cgroups) = &server.context.cgroups else { return };
    let found: Vec<_> = samples.iter().map(|sample| (sample, cgroups.details(&sample.id))).collect();
    let families: [(&str, &str, &str, fn(&Details) -> Option<u64>); 3] = [
        ("container", "swap_limit_bytes", "Swap that the container may use, in bytes.", |d| d.swap_limit),
        ("container", "swap_usage_bytes", "Swap that the container uses, in bytes.", |d| d.swap),
        ("pod", "swap_usage_bytes", "Swap that the pod uses, in bytes.", |d| d.swap),
    ];
    for (scope, suffix, help, read) in families {
        let name = format!("{scope}_{suffix}");
        page.family(&name, "gauge", help);
        for (sample, details) in found.iter().filter(|(s, _)| s.container.is_some() == (scope == "container")) {
            let mut labels = vec![("namespace", sample.namespace.as_str()), ("pod", sample.pod.as_str())];
            if let Some(container) = &sample.container {
                labels.insert(0, ("container", container));
            }
            page.value(&name, &labels, read(details).unwrap_or(0) as f64, Some(now));
        }
    }
    let (total, free) = crate::host::swap();
    page.family("node_swap_usage_bytes", "gauge", "Swap in use on the node, in bytes.");
    page.value("node_swap_usage_bytes", &[], total.saturating_sub(free) as f64, Some(now));
}

/// The usage of one container or of a whole pod.
pub struct UsageSample {
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
    /// Bytes and files of the container's writable layer.
    pub layer: Option<(u64, u64)>,
    /// The path of the kernel's table of the pod's interfaces.
    pub interfaces: Option<String>,
}

pub async fn samples(server: &Server) -> Vec<UsageSample> {
    let mut by_pod = containers(server).await;
    let mut samples = Vec::new();
    for worker in server.pods.all() {
        let pod = worker.pod.lock().clone();
        let (namespace, name) = (pod::namespace(&pod).to_string(), pod::name(&pod).to_string());
        let running = of_running(&worker.runtime.lock(), by_pod.remove(pod::uid(&pod)).unwrap_or_default());
        for stats in running {
            let attributes = stats.attributes.clone().unwrap_or_default();
            let view = worker.runtime.lock().by_id(&attributes.id).cloned().unwrap_or_default();
            samples.push(UsageSample {
                namespace: namespace.clone(),
                pod: name.clone(),
                container: attributes.metadata.map(|metadata| metadata.name),
                id: server.context.container_cgroup(&pod, &attributes.id),
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
            samples.push(UsageSample {
                namespace,
                pod: name,
                container: None,
                id: cgroups.pod_path(&pod),
                image: String::new(),
                name: String::new(),
                usage: cgroups.pod_usage(&pod),
                started: None,
                layer: None,
                interfaces: crate::runtime::network_table(&worker.runtime.lock()).filter(|_| !pod::host_network(&pod)),
            });
        }
    }
    samples
}
