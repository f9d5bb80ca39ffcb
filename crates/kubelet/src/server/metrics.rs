//! Metrics in the text form that Prometheus reads.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use http::{HeaderValue, Response, header};
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;

use super::stats::{containers, node_usage, usage_of_container};
use super::{Body, Server, full};
use crate::cgroup::Usage;
use crate::pod;

/// What the node counts as it works.
#[derive(Default)]
pub struct Counters {
    probes: Mutex<BTreeMap<(&'static str, bool), u64>>,
}

impl Counters {
    pub fn probe(&self, kind: &'static str, success: bool) {
        *self.probes.lock().entry((kind, success)).or_default() += 1;
    }
}

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

/// The node's own life.
pub fn own(server: &Server) -> Response<Body> {
    let mut page = Page::default();
    let workers = server.pods.all();
    page.family("kubelet_node_name", "gauge", "The node's name. The count is always 1.");
    page.value("kubelet_node_name", &[("node", &server.context.settings.node_name)], 1.0, None);
    page.family("kubelet_running_pods", "gauge", "Number of pods that have a running pod sandbox");
    let sandboxes = workers.iter().filter(|w| w.runtime.lock().current_sandbox().is_some_and(|s| s.ready)).count();
    page.value("kubelet_running_pods", &[], sandboxes as f64, None);
    page.family("kubelet_running_containers", "gauge", "Number of containers currently running");
    let running: usize = workers.iter().map(|worker| worker.runtime.lock().running().count()).sum();
    page.value("kubelet_running_containers", &[("container_state", "running")], running as f64, None);
    if let Some((cpu, memory)) = own_process() {
        page.family("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.");
        page.value("process_cpu_seconds_total", &[], cpu, None);
        page.family("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.");
        page.value("process_resident_memory_bytes", &[], memory, None);
    }
    page.response()
}

fn own_process() -> Option<(f64, f64)> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks: f64 = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    let pages: f64 = fields.get(21)?.parse().ok()?;
    Some((ticks / 100.0, pages * 4096.0))
}

pub fn probes(server: &Server) -> Response<Body> {
    let mut page = Page::default();
    page.family(
        "prober_probe_total",
        "counter",
        "Cumulative number of a liveness, readiness or startup probe for a container by result.",
    );
    for ((kind, success), count) in server.context.metrics.probes.lock().iter() {
        let result = if *success { "successful" } else { "failed" };
        page.value("prober_probe_total", &[("probe_type", kind), ("result", result)], *count as f64, None);
    }
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
    page.family(
        "resource_scrape_error",
        "gauge",
        "1 if there was an error while getting container metrics, 0 otherwise",
    );
    page.value("resource_scrape_error", &[], 0.0, None);
    page.response()
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
