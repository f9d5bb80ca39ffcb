//! Tasks and threads belong to a component, so that a panic is logged with its name and reaches its supervisor.
//!
//! `knarr_supervisor` has the ways to start them. What is started otherwise is listed here with the reason.

use super::{before_tests, file_name, none, read, root, sources};

/// The owner of a set of tasks counts as one: panics are lost if nobody checks how they ended.
const STARTS: &[&str] =
    &["tokio::spawn(", "thread::spawn(", "thread::Builder::new(", "runtime.spawn(", "JoinSet::new()"];

/// Files that start tasks or threads themselves: how many, and who learns of a panic.
const ALLOWED: &[(&str, usize, &str)] = &[
    ("apiserver/src/encrypt/kms/client.rs", 1, "polls whose panics make the provider unhealthy"),
    ("apiserver/src/fairness/level/mod.rs", 1, "a timer that is started again after a panic"),
    ("apiserver/src/response/encoder_pool.rs", 1, "threads that catch the panics of their jobs"),
    ("apiserver/src/response/held.rs", 1, "a timer that only drops a body"),
    ("bench/src/client.rs", 1, "a benchmark"),
    ("bench/src/flood/load.rs", 1, "a benchmark"),
    ("bench/src/flood/mod.rs", 1, "a benchmark"),
    ("bench/src/flood/probe.rs", 1, "a benchmark"),
    ("bench/src/load.rs", 1, "a benchmark"),
    ("bench/src/scale/fleet.rs", 1, "a benchmark"),
    ("client/src/work_queue/mod.rs", 1, "workers that are joined, and whose panics are failures of their keys"),
    ("cri/src/containerd/process/mod.rs", 1, "a thread that only waits for the end of containerd"),
    ("csi/src/route.rs", 1, "joined: a panic fails the call"),
    ("csi/src/server.rs", 1, "connections, one task each"),
    ("dns/src/server.rs", 1, "joined: a panic fails cluster DNS"),
    ("ingress/src/server.rs", 2, "threads and listeners whose panics fail the ingress component"),
    ("knarr/src/balancer/mod.rs", 1, "connections, one task each"),
    ("knarr/src/balancer/tunnel.rs", 1, "tunnels, which are opened again in the next round"),
    ("knarr/src/check/kernel.rs", 1, "a thread that is joined"),
    ("knarr/src/commands/node.rs", 1, "joined by the kubelet, which fails with it"),
    ("knarr/src/helm/mod.rs", 1, "charts whose panics are failures, and retried"),
    ("knarr/src/local_cluster/ports.rs", 1, "connections, one task each"),
    ("knarr/src/servers/child.rs", 2, "threads that are joined, and whose state is watched"),
    ("knarr/src/servers/mod.rs", 1, "the maintenance of etcd's members, whose end ends the server"),
    ("kubelet/src/csi/registration.rs", 1, "registrations whose panics are failures, and retried"),
    ("kubelet/src/csi/sweep.rs", 1, "operations whose panics are failures, and retried"),
    ("network/src/policy/attached.rs", 1, "calls of the CNI plugin, which fails with them"),
    ("registry/src/server.rs", 1, "connections, one task each"),
    ("store/src/embedded/mod.rs", 1, "threads whose panics fail the store"),
    ("store/src/etcd/mod.rs", 3, "watched by Store::failed, which ends the process"),
    ("supervisor/src/run.rs", 1, "the supervisor itself"),
    ("supervisor/src/supervisor.rs", 1, "the supervisor itself"),
];

#[test]
fn tasks_belong_to_components() {
    let crates = root().join("crates");
    let mut wrong = Vec::new();
    for file in sources(&crates) {
        let path = file.strip_prefix(&crates).unwrap_or(&file).to_string_lossy().into_owned();
        if !path.contains("/src/") || is_test(&path) {
            continue;
        }
        let text = read(&file);
        let found = before_tests(&text).lines().filter(|line| STARTS.iter().any(|start| line.contains(start))).count();
        let allowed = ALLOWED.iter().find(|(name, _, _)| *name == path).map_or(0, |(_, count, _)| *count);
        if found != allowed {
            wrong.push(format!("crates/{path}: {found} tasks or threads outside the supervisor, {allowed} allowed"));
        }
    }
    none(wrong);
}

/// Whether a file is only compiled for tests.
pub fn is_test(path: &str) -> bool {
    let name = file_name(path.as_ref());
    name.contains("test") || name.starts_with("fake_") || path.starts_with("tidy/") || path.contains("/tests/")
}
