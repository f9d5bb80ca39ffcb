//! Stopping keeps pods; draining evicts them; uninstalling leaves nothing.

use std::path::{Path, PathBuf};

use super::harness::{self, Cluster, IMAGE, Node};

fn manifest(replicas: usize) -> String {
    format!(
        r#"
apiVersion: apps/v1
kind: Deployment
metadata: {{name: stay}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: stay}}}}
  template:
    metadata: {{labels: {{app: stay}}}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {{name: stay, image: "{IMAGE}", command: [sleep, infinity]}}
"#
    )
}

/// What can be found of a node on the host.
#[derive(Debug, Default, PartialEq)]
struct Traces {
    processes: Vec<String>,
    mounts: Vec<String>,
    links: Vec<String>,
    addresses: Vec<String>,
    tables: String,
    routes: String,
    cgroups: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

impl Traces {
    fn of(node: &Node) -> Self {
        let data = node.data.to_string_lossy().into_owned();
        let lines = |text: String| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let ip = |words: &[&str]| node.host.run(&[&["ip", "-o"], words].concat());
        Traces {
            processes: processes(&data, &node.cgroup_root),
            mounts: lines(std::fs::read_to_string("/proc/mounts").unwrap())
                .into_iter()
                .filter(|line| line.contains(&data))
                .collect(),
            links: lines(ip(&["link"])).iter().filter_map(|line| Some(line.split(": ").nth(1)?.to_owned())).collect(),
            addresses: lines(ip(&["address"]))
                .iter()
                .filter_map(|l| Some(l.split_whitespace().nth(3)?.to_owned()))
                .collect(),
            tables: node.host.run(&["nft", "list", "tables"]),
            routes: node.host.run(&["ip", "route"]),
            cgroups: cgroups(&node.cgroup_root),
            files: [node.data.clone()].into_iter().filter(|path| path.exists()).collect(),
        }
    }
}

fn processes(data: &str, cgroup_root: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let found = entries.filter_map(|path| {
        let command = String::from_utf8_lossy(&std::fs::read(path.join("cmdline")).ok()?).replace('\0', " ");
        let cgroups = std::fs::read_to_string(path.join("cgroup")).ok()?;
        // A zombie has no command line.
        let is_ours = command.contains(data) || cgroups.contains(&format!("{cgroup_root}/"));
        (is_ours && !command.is_empty()).then_some(command)
    });
    found.collect()
}

fn cgroups(root: &str) -> Vec<PathBuf> {
    let name = root.trim_start_matches('/');
    let hierarchies = std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten().map(|entry| entry.path());
    let places = hierarchies.chain([PathBuf::from("/sys/fs/cgroup")]).map(|hierarchy| hierarchy.join(name));
    places.filter(|path| path.exists()).collect()
}

/// The network namespaces of the node's pods, and the runtime's files elsewhere.
fn outside(node: &Node) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(node.data.join("network/leases/knarr")).into_iter().flatten().flatten() {
        let Ok(lease) = std::fs::read(entry.path()) else { continue };
        let Ok(lease) = serde_json::from_slice::<serde_json::Value>(&lease) else { continue };
        found.extend(lease["namespace"].as_str().map(PathBuf::from));
    }
    let tasks = node.data.join("containerd/state/io.containerd.runtime.v2.task/k8s.io");
    for entry in std::fs::read_dir(tasks).into_iter().flatten().flatten() {
        found.push(Path::new("/run/containerd/runc/k8s.io").join(entry.file_name()));
    }
    found
}

#[test]
fn stopping_keeps_pods_and_removing_leaves_nothing() {
    if !harness::is_possible() {
        return;
    }
    let host = harness::Switch::new();
    let clean_host = host.plug(99);
    let clean_links = clean_host.run(&["ip", "-o", "link"]).lines().count();
    drop(clean_host);
    drop(host);

    let mut cluster = Cluster::start(1);
    cluster.apply(&manifest(3));
    cluster.wait_for("three pods", || cluster.ready_pods("app=stay") == 3);

    let data = cluster.nodes[0].data.to_string_lossy().into_owned();
    let root = cluster.nodes[0].cgroup_root.clone();
    let sleeping = || processes(&data, &root).iter().filter(|command| command.starts_with("sleep infinity")).count();
    assert_eq!(sleeping(), 3);
    let stopped = cluster.nodes[0].knarr(&["stop", "--data-dir", &data]).output().expect("knarr runs");
    assert!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
    harness::wait_for("the process to be gone", || !cluster.nodes[0].is_running());
    assert_eq!(sleeping(), 3, "pods were ended with Knarr");

    let outside = outside(&cluster.nodes[0]);
    assert!(
        outside.iter().any(|path| path.starts_with("/run/netns") || path.starts_with("/var/run/netns")),
        "{outside:?}"
    );
    let words = ["uninstall", "--yes", "--data-dir", &data, "--cgroup-root", &root];
    let removed = cluster.nodes[0].knarr(&words).output().expect("knarr runs");
    assert!(removed.status.success(), "{}", String::from_utf8_lossy(&removed.stderr));
    let left = Traces::of(&cluster.nodes[0]);
    let own = |address: &str| {
        address.starts_with("127.")
            || address.starts_with("::1")
            || address.starts_with("fe80")
            || address.starts_with("10.77.")
            || address.starts_with("fd77:")
    };
    assert_eq!(left.links.len(), clean_links, "{:?}", left.links);
    assert!(left.addresses.iter().all(|address| own(address)), "{:?}", left.addresses);
    assert_eq!(left.routes.lines().filter(|line| !line.contains("eth0")).count(), 0, "{}", left.routes);
    let rest = Traces { links: Vec::new(), addresses: Vec::new(), routes: String::new(), ..left };
    assert_eq!(rest, Traces::default());
    let still: Vec<&PathBuf> = outside.iter().filter(|path| path.exists()).collect();
    assert!(still.is_empty(), "{still:?}");
}

#[test]
fn draining_moves_pods_to_another_node() {
    if !harness::is_possible() {
        return;
    }
    let mut cluster = Cluster::start(2);
    cluster.apply(&manifest(4));
    cluster.wait_for("four pods", || cluster.ready_pods("app=stay") == 4);
    let server = format!("https://{}:6443", cluster.nodes[0].host.address);
    let data = cluster.nodes[1].data.to_string_lossy().into_owned();
    let words = ["drain-and-stop", "--data-dir", &data, "--node-name", "node-2", "--server", &server];
    let drained = cluster.nodes[1].knarr(&words).output().expect("knarr runs");
    assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stderr));
    harness::wait_for("the process to be gone", || !cluster.nodes[1].is_running());
    cluster.wait_for("all pods on the first node", || {
        let nodes = cluster.kubectl(&["get", "pods", "-l", "app=stay", "-o", "jsonpath={.items[*].spec.nodeName}"]);
        cluster.ready_pods("app=stay") == 4 && nodes.split_whitespace().all(|node| node == "node-1")
    });
}
