//! The node's usage, that of the kubelet, and that of all pods together.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{Server, add_pressure, cpu, filesystem, memory, network, time};
use crate::cgroup::{Cgroups, Usage, pressure};
use crate::host;

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

pub fn node(server: &Server, now: Timestamp) -> Value {
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
    value["systemContainers"] = Value::Array(system_containers(server, now));
    value
}

/// The cgroups of the kubelet itself, of the runtime if it is known, and of all pods together. Only the pods have a limit.
fn system_containers(server: &Server, now: Timestamp) -> Vec<Value> {
    let context = &server.context;
    let Some(cgroups) = &context.cgroups else { return Vec::new() };
    let age = context.started_at.elapsed();
    let started = now.checked_sub(SignedDuration::try_from(age).unwrap_or_default()).unwrap_or(now);
    let own = cgroups.own_path().map(|path| system_container(server, cgroups, "kubelet", &path, None, (started, now)));
    let booted = Timestamp::from_second(context.host.booted_at).unwrap_or(now);
    let whole = crate::node::memory_for_pods(&context.settings, &context.host);
    let runtime = context.settings.runtime_cgroup.as_ref().filter(|path| cgroups.exists(path));
    let runtime = runtime.map(|path| system_container(server, cgroups, "runtime", path, None, (booted, now)));
    let pods = system_container(server, cgroups, "pods", &cgroups.pods_path(), Some(whole), (booted, now));
    own.into_iter().chain(runtime).chain([pods]).collect()
}

fn system_container(
    server: &Server,
    cgroups: &Cgroups,
    name: &str,
    path: &str,
    limit: Option<u64>,
    (started, now): (Timestamp, Timestamp),
) -> Value {
    let usage = cgroups.usage(path);
    let available = limit.zip(usage.working_set).map(|(whole, used)| whole.saturating_sub(used));
    let mut value = json!({
        "name": name,
        "startTime": time(started),
        "cpu": cpu(server, name, usage.cpu_nanoseconds, now),
        "memory": memory(&usage, available, now),
        "io": { "time": time(now) },
        "swap": { "time": time(now), "swapUsageBytes": cgroups.details(path).swap.unwrap_or(0) },
    });
    add_pressure(&mut value, &cgroups.waits(path));
    value
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
