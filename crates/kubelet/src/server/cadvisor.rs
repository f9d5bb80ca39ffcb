//! What containers and pods use, under the names that dashboards know from cAdvisor.

use std::sync::Arc;

use http::Response;
use k8s_openapi::jiff::Timestamp;

use super::metrics::{Page, Sample, samples, seconds};
use super::stats::node_usage;
use super::{Body, Server};
use crate::cgroup::pressure::{Stalls, Waits};
use crate::cgroup::{Details, Usage};
use crate::filesystem::usage_of;

/// One thing the kernel counts for: the whole node, a pod, or a container.
struct Subject {
    /// Container, id, image, name, namespace, pod.
    labels: [String; 6],
    usage: Usage,
    details: Details,
    started: Option<Timestamp>,
    waits: Waits,
    /// What the processes of a container have open.
    open: Option<Open>,
    /// Bytes and files of the container's own layer.
    layer: Option<(u64, u64)>,
    /// The kernel's table of a pod's interfaces.
    interfaces: Option<String>,
}

const LABELS: [&str; 6] = ["container", "id", "image", "name", "namespace", "pod"];

type Read = fn(&Subject) -> Option<f64>;

/// A family with one value for each subject.
struct Family(&'static str, &'static str, &'static str, &'static [(&'static str, &'static str)], Read);

fn count(value: Option<u64>) -> Option<f64> {
    value.map(|value| value as f64)
}

const FAMILIES: &[Family] = &[
    Family(
        "container_cpu_usage_seconds_total",
        "counter",
        "Cumulative cpu time consumed in seconds.",
        &[("cpu", "total")],
        |s| s.usage.cpu_nanoseconds.map(seconds),
    ),
    Family("container_cpu_user_seconds_total", "counter", "Cumulative user cpu time consumed in seconds.", &[], |s| {
        s.details.user_nanoseconds.map(seconds)
    }),
    Family(
        "container_cpu_system_seconds_total",
        "counter",
        "Cumulative system cpu time consumed in seconds.",
        &[],
        |s| s.details.system_nanoseconds.map(seconds),
    ),
    Family("container_cpu_cfs_periods_total", "counter", "Number of elapsed enforcement period intervals.", &[], |s| {
        s.details.cpu_quota.and(count(s.details.periods))
    }),
    Family("container_cpu_cfs_throttled_periods_total", "counter", "Number of throttled period intervals.", &[], |s| {
        s.details.cpu_quota.and(count(s.details.throttled_periods))
    }),
    Family(
        "container_cpu_cfs_throttled_seconds_total",
        "counter",
        "Total time duration the container has been throttled.",
        &[],
        |s| s.details.cpu_quota.and(s.details.throttled_nanoseconds.map(seconds)),
    ),
    Family(
        "container_memory_usage_bytes",
        "gauge",
        "Current memory usage in bytes, including all memory regardless of when it was accessed",
        &[],
        |s| count(s.usage.memory),
    ),
    Family("container_memory_working_set_bytes", "gauge", "Current working set in bytes.", &[], |s| {
        count(s.usage.working_set)
    }),
    Family("container_memory_rss", "gauge", "Size of RSS in bytes.", &[], |s| count(s.usage.resident)),
    Family("container_memory_cache", "gauge", "Number of bytes of page cache memory.", &[], |s| count(s.details.cache)),
    Family("container_memory_mapped_file", "gauge", "Size of memory mapped files in bytes.", &[], |s| {
        count(s.details.mapped_file)
    }),
    Family("container_memory_kernel_usage", "gauge", "Size of kernel memory allocated in bytes.", &[], |s| {
        count(s.details.kernel)
    }),
    Family("container_memory_total_active_file_bytes", "gauge", "Current total active file in bytes.", &[], |s| {
        count(s.details.active_file)
    }),
    Family("container_memory_total_inactive_file_bytes", "gauge", "Current total inactive file in bytes.", &[], |s| {
        count(s.details.inactive_file)
    }),
    Family("container_memory_swap", "gauge", "Container swap usage in bytes.", &[], |s| count(s.details.swap)),
    Family("container_memory_max_usage_bytes", "gauge", "Maximum memory usage recorded in bytes", &[], |s| {
        count(s.details.highest_memory)
    }),
    Family("container_memory_failcnt", "counter", "Number of memory usage hits limits", &[], |s| {
        count(s.details.limit_hits)
    }),
    Family(
        "container_oom_events_total",
        "counter",
        "Count of out of memory events observed for the container",
        &[],
        |s| count(s.details.killed),
    ),
    Family("container_processes", "gauge", "Number of processes running inside the container.", &[], |s| {
        count(s.open.map(|open| open.processes).or(s.usage.processes))
    }),
    Family("container_threads", "gauge", "Number of threads running inside the container", &[], |s| {
        count(s.usage.processes)
    }),
    Family("container_file_descriptors", "gauge", "Number of open file descriptors for the container.", &[], |s| {
        count(s.open.map(|open| open.files))
    }),
    Family("container_sockets", "gauge", "Number of open sockets for the container.", &[], |s| {
        count(s.open.map(|open| open.sockets))
    }),
    Family("container_threads_max", "gauge", "Maximum number of threads allowed inside the container.", &[], |s| {
        count(s.details.processes_limit)
    }),
    Family("container_spec_cpu_shares", "gauge", "CPU share of the container.", &[], |s| count(s.details.cpu_shares)),
    Family("container_spec_cpu_period", "gauge", "CPU period of the container.", &[], |s| count(s.details.cpu_period)),
    Family("container_spec_cpu_quota", "gauge", "CPU quota of the container.", &[], |s| count(s.details.cpu_quota)),
    Family("container_spec_memory_limit_bytes", "gauge", "Memory limit for the container.", &[], |s| {
        Some(s.details.memory_limit.unwrap_or(0) as f64)
    }),
    Family(
        "container_spec_memory_reservation_limit_bytes",
        "gauge",
        "Memory reservation limit for the container.",
        &[],
        |_| Some(0.0),
    ),
    Family("container_spec_memory_swap_limit_bytes", "gauge", "Memory swap limit for the container.", &[], |_| {
        Some(0.0)
    }),
    Family(
        "container_start_time_seconds",
        "gauge",
        "Start time of the container since unix epoch in seconds.",
        &[],
        |s| s.started.map(|at| at.as_millisecond() as f64 / 1e3),
    ),
    Family(
        "container_fs_usage_bytes",
        "gauge",
        "Number of bytes that are consumed by the container on this filesystem.",
        &[("device", "")],
        |s| s.layer.map(|(bytes, _)| bytes as f64),
    ),
    Family("container_fs_inodes_total", "gauge", "Number of Inodes", &[("device", "")], |s| {
        s.layer.map(|(_, files)| files as f64)
    }),
];

pub async fn page(server: &Arc<Server>) -> Response<Body> {
    let now = Timestamp::now();
    let subjects = subjects(server).await;
    let mut page = Page::default();
    for Family(name, kind, help, more, read) in FAMILIES {
        page.family(name, kind, help);
        for subject in &subjects {
            if let Some(value) = read(subject) {
                page.value(name, &subject.with(more), value, Some(now));
            }
        }
    }
    last_seen(&mut page, &subjects, now);
    pressure(&mut page, &subjects, now);
    faults(&mut page, &subjects, now);
    traffic(&mut page, &subjects, now);
    interfaces(&mut page, &subjects, now);
    host(&mut page, server);
    page.response()
}

impl Subject {
    fn with<'a>(&'a self, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let own = LABELS.iter().zip(&self.labels).map(|(name, value)| (*name, value.as_str()));
        let mut all: Vec<_> = own.chain(more.iter().copied()).collect();
        all.sort_unstable();
        all
    }
}

async fn subjects(server: &Arc<Server>) -> Vec<Subject> {
    let Some(cgroups) = &server.context.cgroups else { return Vec::new() };
    let of = |id: &str, labels: [String; 6], usage: Usage| Subject {
        labels,
        usage,
        details: cgroups.details(id),
        waits: cgroups.waits(id),
        open: None,
        started: None,
        layer: None,
        interfaces: None,
    };
    let plain = |id: &str| [String::new(), id.to_string(), String::new(), String::new(), String::new(), String::new()];
    let mut all = vec![of("/", plain("/"), node_usage(server))];
    all[0].interfaces = Some("/proc/net/dev".to_string());
    for id in cgroups.class_paths() {
        all.push(of(&id, plain(&id), cgroups.usage(&id)));
    }
    for sample in samples(server).await {
        let Sample { namespace, pod, container, id, image, name, started, layer, interfaces, .. } = sample;
        // The runtime tells less of a container than its cgroup, where that can be found.
        let usage = Some(cgroups.usage(&id)).filter(|usage| *usage != Usage::default()).unwrap_or(sample.usage);
        let open = container.as_ref().map(|_| open_in(&cgroups.processes(&id)));
        let labels = [container.unwrap_or_default(), id.clone(), image, name, namespace, pod];
        all.push(Subject { started, layer, interfaces, open, ..of(&id, labels, usage) });
    }
    all
}

fn last_seen(page: &mut Page, subjects: &[Subject], now: Timestamp) {
    page.family("container_last_seen", "gauge", "Last time a container was seen by the exporter");
    for subject in subjects {
        page.value("container_last_seen", &subject.with(&[]), now.as_second() as f64, Some(now));
    }
}

/// How long processes waited, in seconds; only told by kernels with the unified hierarchy.
fn pressure(page: &mut Page, subjects: &[Subject], now: Timestamp) {
    let resources: [(&str, &str, fn(&Waits) -> Option<Stalls>); 3] =
        [("cpu", "CPU", |w| w.cpu), ("memory", "memory", |w| w.memory), ("io", "IO", |w| w.io)];
    for (resource, shown, read) in resources {
        let found: Vec<_> = subjects.iter().filter_map(|subject| Some((subject, read(&subject.waits)?))).collect();
        let stalled =
            format!("Total time duration no tasks in the container could make progress due to {shown} congestion.");
        let waiting = format!("Total time duration tasks in the container have waited due to {shown} congestion.");
        let kinds: [(&str, &str, fn(&Stalls) -> u64); 2] =
            [("stalled", &stalled, |s| s.full.total), ("waiting", &waiting, |s| s.some.total)];
        for (kind, help, total) in kinds.iter().filter(|_| !found.is_empty()) {
            let name = format!("container_pressure_{resource}_{kind}_seconds_total");
            page.family(&name, "counter", help);
            for (subject, stalls) in &found {
                page.value(&name, &subject.with(&[]), total(stalls) as f64 / 1e6, Some(now));
            }
        }
    }
}

/// What processes have open, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Open {
    processes: u64,
    files: u64,
    sockets: u64,
}

fn open_in(processes: &[i32]) -> Open {
    let mut open = Open { processes: processes.len() as u64, ..Open::default() };
    for process in processes {
        for entry in std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten() {
            open.files += 1;
            let target = std::fs::read_link(entry.path()).unwrap_or_default();
            open.sockets += u64::from(target.to_string_lossy().starts_with("socket:"));
        }
    }
    open
}

fn faults(page: &mut Page, subjects: &[Subject], now: Timestamp) {
    let name = "container_memory_failures_total";
    page.family(name, "counter", "Cumulative count of memory allocation failures.");
    for subject in subjects {
        for (kind, value) in [("pgfault", subject.usage.page_faults), ("pgmajfault", subject.usage.major_page_faults)] {
            for scope in ["container", "hierarchy"] {
                if let Some(value) = value {
                    let labels = subject.with(&[("failure_type", kind), ("scope", scope)]);
                    page.value(name, &labels, value as f64, Some(now));
                }
            }
        }
    }
}

fn traffic(page: &mut Page, subjects: &[Subject], now: Timestamp) {
    use crate::cgroup::DeviceTraffic;
    let families: [(&str, &str, fn(&DeviceTraffic) -> u64); 4] = [
        ("container_fs_reads_bytes_total", "Cumulative count of bytes read", |device| device.read_bytes),
        ("container_fs_writes_bytes_total", "Cumulative count of bytes written", |device| device.written_bytes),
        ("container_fs_reads_total", "Cumulative count of reads completed", |device| device.reads),
        ("container_fs_writes_total", "Cumulative count of writes completed", |device| device.writes),
    ];
    for (name, help, read) in families {
        page.family(name, "counter", help);
        for subject in subjects {
            for device in &subject.details.devices {
                let label = device_name(&device.device);
                page.value(name, &subject.with(&[("device", &label)]), read(device) as f64, Some(now));
            }
        }
    }
}

/// `/dev/sda` for `8:0`.
fn device_name(numbers: &str) -> String {
    let link = std::fs::read_link(format!("/sys/dev/block/{numbers}")).unwrap_or_default();
    let name = link.file_name().map(|name| format!("/dev/{}", name.to_string_lossy()));
    name.unwrap_or_else(|| numbers.to_string())
}

fn interfaces(page: &mut Page, subjects: &[Subject], now: Timestamp) {
    const COLUMNS: [(&str, &str, usize); 8] = [
        ("container_network_receive_bytes_total", "Cumulative count of bytes received", 0),
        ("container_network_receive_packets_total", "Cumulative count of packets received", 1),
        ("container_network_receive_errors_total", "Cumulative count of errors encountered while receiving", 2),
        ("container_network_receive_packets_dropped_total", "Cumulative count of packets dropped while receiving", 3),
        ("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted", 8),
        ("container_network_transmit_packets_total", "Cumulative count of packets transmitted", 9),
        ("container_network_transmit_errors_total", "Cumulative count of errors encountered while transmitting", 10),
        (
            "container_network_transmit_packets_dropped_total",
            "Cumulative count of packets dropped while transmitting",
            11,
        ),
    ];
    let tables: Vec<_> =
        subjects.iter().filter_map(|subject| Some((subject, table(subject.interfaces.as_deref()?)))).collect();
    for (name, help, column) in COLUMNS {
        page.family(name, "counter", help);
        for (subject, table) in &tables {
            for (interface, counters) in table {
                if let Some(value) = counters.get(column) {
                    page.value(name, &subject.with(&[("interface", interface)]), *value as f64, Some(now));
                }
            }
        }
    }
}

fn table(path: &str) -> Vec<(String, Vec<u64>)> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let one = |line: &str| {
        let (name, counters) = line.split_once(':')?;
        let counters = counters.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        (name.trim() != "lo").then(|| (name.trim().to_string(), counters))
    };
    text.lines().filter_map(one).collect()
}

/// How many different cores or sockets the CPUs belong to. Cores are numbered anew in each socket.
fn topology_count(file: &str) -> f64 {
    let entries = std::fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    let read = |folder: &std::path::Path, name: &str| {
        std::fs::read_to_string(folder.join("topology").join(name)).ok().map(|text| text.trim().to_string())
    };
    let found: std::collections::BTreeSet<(String, String)> = entries
        .filter_map(|entry| Some((read(&entry.path(), "physical_package_id")?, read(&entry.path(), file)?)))
        .collect();
    found.len() as f64
}

fn host(page: &mut Page, server: &Server) {
    let host = &server.context.host;
    let id = [
        ("boot_id", host.boot_id.as_str()),
        ("machine_id", host.machine_id.as_str()),
        ("system_uuid", host.system_uuid.as_str()),
    ];
    page.family("machine_cpu_cores", "gauge", "Number of logical CPU cores.");
    page.value("machine_cpu_cores", &id, f64::from(host.cpus), None);
    let topology = |file: &str| topology_count(file);
    page.family("machine_cpu_physical_cores", "gauge", "Number of physical CPU cores.");
    page.value("machine_cpu_physical_cores", &id, topology("core_id"), None);
    page.family("machine_cpu_sockets", "gauge", "Number of CPU sockets.");
    page.value("machine_cpu_sockets", &id, topology("physical_package_id"), None);
    page.family("machine_memory_bytes", "gauge", "Amount of memory installed on the host.");
    page.value("machine_memory_bytes", &id, host.memory as f64, None);
    page.family("machine_swap_bytes", "gauge", "Amount of swap memory available on the host.");
    page.value("machine_swap_bytes", &id, host.swap as f64, None);
    if let Some(usage) = usage_of(&server.context.settings.root) {
        page.family(
            "container_fs_limit_bytes",
            "gauge",
            "Number of bytes that can be consumed by the container on this filesystem.",
        );
        page.value("container_fs_limit_bytes", &[("id", "/")], usage.capacity as f64, None);
        page.family("container_fs_inodes_free", "gauge", "Number of available Inodes");
        page.value("container_fs_inodes_free", &[("id", "/")], usage.inodes_free as f64, None);
    }
    page.family(
        "cadvisor_version_info",
        "gauge",
        "A metric with a constant '1' value labeled by kernel version, OS version and kubelet version.",
    );
    let labels = [
        ("cadvisorVersion", ""),
        ("dockerVersion", ""),
        ("kernelVersion", host.kernel.as_str()),
        ("osVersion", host.operating_system.as_str()),
    ];
    page.value("cadvisor_version_info", &labels, 1.0, None);
    page.family(
        "container_scrape_error",
        "gauge",
        "1 if there was an error while getting container metrics, 0 otherwise",
    );
    page.value("container_scrape_error", &[], 0.0, None);
}
