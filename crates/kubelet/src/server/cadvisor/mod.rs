//! Usage of containers and pods under cAdvisor's metric names (`/metrics/cadvisor`).

mod devices;
mod disk;
mod processes;

use std::sync::Arc;

use http::Response;
use k8s_openapi::jiff::Timestamp;

use super::metrics::{Page, UsageSample, samples, seconds};
use super::stats::node_usage;
use super::{Body, Server};
use crate::cgroup::pressure::{PressureStats, Stalls};
use crate::cgroup::{Details, Usage};
use crate::filesystem::usage_of;
use disk::Disk;
use processes::Processes;

/// One cgroup that is reported: the whole node, a pod, or a container.
struct Subject {
    /// Container, id, image, name, namespace, pod.
    labels: [String; 6],
    usage: Usage,
    details: Details,
    started: Option<Timestamp>,
    waits: PressureStats,
    /// The open files of a container's processes, and their limits.
    processes: Option<Processes>,
    /// Bytes and files of the container's writable layer.
    layer: Option<(u64, u64)>,
    /// The disk with the node's file system.
    disk: Option<Disk>,
    /// The path of the kernel's table of the pod's interfaces.
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
    Family("container_cpu_usage_seconds_total", "counter", "CPU time used, in seconds.", &[("cpu", "total")], |s| {
        s.usage.cpu_nanoseconds.map(seconds)
    }),
    Family("container_cpu_user_seconds_total", "counter", "CPU time used in user mode, in seconds.", &[], |s| {
        s.details.user_nanoseconds.map(seconds)
    }),
    Family("container_cpu_system_seconds_total", "counter", "CPU time used in kernel mode, in seconds.", &[], |s| {
        s.details.system_nanoseconds.map(seconds)
    }),
    Family(
        "container_cpu_cfs_periods_total",
        "counter",
        "CFS periods in which the CPU limit was enforced.",
        &[],
        |s| s.details.cpu_quota.and(count(s.details.periods)),
    ),
    Family(
        "container_cpu_cfs_throttled_periods_total",
        "counter",
        "CFS periods in which processes were throttled.",
        &[],
        |s| s.details.cpu_quota.and(count(s.details.throttled_periods)),
    ),
    Family(
        "container_cpu_cfs_throttled_seconds_total",
        "counter",
        "Time for which processes were throttled, in seconds.",
        &[],
        |s| s.details.cpu_quota.and(s.details.throttled_nanoseconds.map(seconds)),
    ),
    Family("container_memory_usage_bytes", "gauge", "Memory in use, in bytes, with all of the page cache.", &[], |s| {
        count(s.usage.memory)
    }),
    Family(
        "container_memory_working_set_bytes",
        "gauge",
        "Memory that cannot be reclaimed easily, in bytes.",
        &[],
        |s| count(s.usage.working_set),
    ),
    Family("container_memory_rss", "gauge", "Anonymous memory, in bytes.", &[], |s| count(s.usage.resident)),
    Family("container_memory_cache", "gauge", "Page cache, in bytes.", &[], |s| count(s.details.cache)),
    Family("container_memory_mapped_file", "gauge", "Files mapped into memory, in bytes.", &[], |s| {
        count(s.details.mapped_file)
    }),
    Family(
        "container_memory_kernel_usage",
        "gauge",
        "Memory that the kernel allocated for the cgroup, in bytes.",
        &[],
        |s| count(s.details.kernel),
    ),
    Family("container_memory_total_active_file_bytes", "gauge", "Recently used page cache, in bytes.", &[], |s| {
        count(s.details.active_file)
    }),
    Family(
        "container_memory_total_inactive_file_bytes",
        "gauge",
        "Page cache that has not been used recently, in bytes.",
        &[],
        |s| count(s.details.inactive_file),
    ),
    Family("container_memory_swap", "gauge", "Swap in use, in bytes.", &[], |s| count(s.details.swap)),
    Family("container_memory_max_usage_bytes", "gauge", "Highest memory usage so far, in bytes.", &[], |s| {
        count(s.details.highest_memory)
    }),
    Family("container_memory_failcnt", "counter", "Times that the memory usage reached its limit.", &[], |s| {
        count(s.details.limit_hits)
    }),
    Family("container_oom_events_total", "counter", "Processes that the kernel killed for lack of memory.", &[], |s| {
        count(s.details.killed)
    }),
    Family("container_processes", "gauge", "Processes in the container.", &[], |s| {
        count(s.processes.map(|own| own.count).or(s.usage.processes))
    }),
    Family("container_threads", "gauge", "Threads in the container.", &[], |s| count(s.usage.processes)),
    Family(
        "container_file_descriptors",
        "gauge",
        "File descriptors that the container's processes have open.",
        &[],
        |s| count(s.processes.map(|own| own.files)),
    ),
    Family("container_sockets", "gauge", "Sockets that the container's processes have open.", &[], |s| {
        count(s.processes.map(|own| own.sockets))
    }),
    Family(
        "container_ulimits_soft",
        "gauge",
        "The soft limit of open files of the container's first process; -1 without a limit.",
        &[("ulimit", "max_open_files")],
        |s| s.processes.and_then(|own| own.soft_limit).map(|limit| limit as f64),
    ),
    Family("container_threads_max", "gauge", "The limit of threads in the container.", &[], |s| {
        // No limit is 0, as in cAdvisor.
        count(Some(s.details.processes_limit.unwrap_or(0)))
    }),
    Family("container_spec_cpu_shares", "gauge", "CPU weight in shares.", &[], |s| count(s.details.cpu_shares)),
    Family("container_spec_cpu_period", "gauge", "CFS period, in microseconds.", &[], |s| count(s.details.cpu_period)),
    Family("container_spec_cpu_quota", "gauge", "CPU time allowed per CFS period, in microseconds.", &[], |s| {
        count(s.details.cpu_quota)
    }),
    Family("container_spec_memory_limit_bytes", "gauge", "Memory limit in bytes; zero without a limit.", &[], |s| {
        Some(s.details.memory_limit.unwrap_or(0) as f64)
    }),
    Family(
        "container_spec_memory_reservation_limit_bytes",
        "gauge",
        "Soft memory limit in bytes; always zero.",
        &[],
        |_| Some(0.0),
    ),
    Family("container_spec_memory_swap_limit_bytes", "gauge", "Swap limit in bytes; always zero.", &[], |_| Some(0.0)),
    Family("container_start_time_seconds", "gauge", "When the container started, in Unix time.", &[], |s| {
        s.started.map(|at| at.as_millisecond() as f64 / 1e3)
    }),
    Family("container_fs_usage_bytes", "gauge", "Bytes in the container's writable layer.", &[("device", "")], |s| {
        s.layer.map(|(bytes, _)| bytes as f64)
    }),
    Family("container_fs_inodes_total", "gauge", "Inodes in the container's writable layer.", &[("device", "")], |s| {
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
    devices::traffic(&mut page, &subjects, now);
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
        processes: None,
        disk: None,
        started: None,
        layer: None,
        interfaces: None,
    };
    let plain = |id: &str| [String::new(), id.to_string(), String::new(), String::new(), String::new(), String::new()];
    let mut all = vec![of("/", plain("/"), node_usage(server))];
    all[0].interfaces = Some("/proc/net/dev".to_string());
    all[0].disk = Disk::of(&server.context.settings.root);
    for id in cgroups.class_paths() {
        all.push(of(&id, plain(&id), cgroups.usage(&id)));
    }
    for sample in samples(server).await {
        let UsageSample { namespace, pod, container, id, image, name, started, layer, interfaces, .. } = sample;
        // The container's cgroup, if found, has more details than the runtime.
        let usage = Some(cgroups.usage(&id)).filter(|usage| *usage != Usage::default()).unwrap_or(sample.usage);
        let processes = container.as_ref().map(|_| Processes::of(&cgroups.processes(&id)));
        let labels = [container.unwrap_or_default(), id.clone(), image, name, namespace, pod];
        all.push(Subject { started, layer, interfaces, processes, ..of(&id, labels, usage) });
    }
    all
}

fn last_seen(page: &mut Page, subjects: &[Subject], now: Timestamp) {
    page.family("container_last_seen", "gauge", "When the container was last measured, in Unix time.");
    for subject in subjects {
        page.value("container_last_seen", &subject.with(&[]), now.as_second() as f64, Some(now));
    }
}

/// Pressure stall times in seconds, which only cgroup v2 has.
fn pressure(page: &mut Page, subjects: &[Subject], now: Timestamp) {
    let resources: [(&str, &str, fn(&PressureStats) -> Option<Stalls>); 3] =
        [("cpu", "CPU", |w| w.cpu), ("memory", "memory", |w| w.memory), ("io", "IO", |w| w.io)];
    for (resource, resource_title, read) in resources {
        let found: Vec<_> = subjects.iter().filter_map(|subject| Some((subject, read(&subject.waits)?))).collect();
        let stalled = format!("Seconds in which all tasks of the container waited for {resource_title}.");
        let waiting = format!("Seconds in which some task of the container waited for {resource_title}.");
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

fn faults(page: &mut Page, subjects: &[Subject], now: Timestamp) {
    let name = "container_memory_failures_total";
    page.family(name, "counter", "Page faults, by kind.");
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

fn interfaces(page: &mut Page, subjects: &[Subject], now: Timestamp) {
    const COLUMNS: [(&str, &str, usize); 8] = [
        ("container_network_receive_bytes_total", "Bytes received on the interface.", 0),
        ("container_network_receive_packets_total", "Packets received on the interface.", 1),
        ("container_network_receive_errors_total", "Errors while receiving on the interface.", 2),
        ("container_network_receive_packets_dropped_total", "Received packets that were dropped.", 3),
        ("container_network_transmit_bytes_total", "Bytes sent on the interface.", 8),
        ("container_network_transmit_packets_total", "Packets sent on the interface.", 9),
        ("container_network_transmit_errors_total", "Errors while sending on the interface.", 10),
        ("container_network_transmit_packets_dropped_total", "Packets dropped instead of sent.", 11),
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

/// The number of distinct cores or sockets. Core ids are unique within a socket only.
fn topology_count(file: &str) -> f64 {
    let entries = std::fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    let read = |directory: &std::path::Path, name: &str| {
        std::fs::read_to_string(directory.join("topology").join(name)).ok().map(|text| text.trim().to_string())
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
    page.family("machine_cpu_cores", "gauge", "Logical CPUs of the host.");
    page.value("machine_cpu_cores", &id, f64::from(host.cpus), None);
    let topology = |file: &str| topology_count(file);
    page.family("machine_cpu_physical_cores", "gauge", "Physical cores of the host.");
    page.value("machine_cpu_physical_cores", &id, topology("core_id"), None);
    page.family("machine_cpu_sockets", "gauge", "CPU sockets of the host.");
    page.value("machine_cpu_sockets", &id, topology("physical_package_id"), None);
    page.family("machine_memory_bytes", "gauge", "Memory of the host, in bytes.");
    page.value("machine_memory_bytes", &id, host.memory as f64, None);
    page.family("machine_swap_bytes", "gauge", "Swap space of the host, in bytes.");
    page.value("machine_swap_bytes", &id, host.swap as f64, None);
    if let Some(usage) = usage_of(&server.context.settings.root) {
        page.family("container_fs_limit_bytes", "gauge", "Capacity of the node's file system, in bytes.");
        page.value("container_fs_limit_bytes", &[("id", "/")], usage.capacity as f64, None);
        page.family("container_fs_inodes_free", "gauge", "Free inodes of the node's file system.");
        page.value("container_fs_inodes_free", &[("id", "/")], usage.inodes_free as f64, None);
    }
    page.family(
        "cadvisor_version_info",
        "gauge",
        "Always 1; the labels name the versions of kernel and operating system.",
    );
    let labels = [
        ("cadvisorVersion", ""),
        ("dockerVersion", ""),
        ("kernelVersion", host.kernel.as_str()),
        ("osVersion", host.operating_system.as_str()),
    ];
    page.value("cadvisor_version_info", &labels, 1.0, None);
    page.family("container_scrape_error", "gauge", "1 if container metrics could not be collected, else 0.");
    page.value("container_scrape_error", &[], 0.0, None);
}
