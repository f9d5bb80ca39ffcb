//! Pods created, scheduled and bound per second through an API server: the workloads of Kubernetes' scheduler benchmarks, with
//! increasing numbers of nodes. API server, scheduler and this client share the host.
//!
//! `cargo bench -p knarr --bench scheduler -- [workload …] [nodes …]` prints one line per combination.

#[path = "../tests/control_plane/support/mod.rs"]
#[allow(dead_code)]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use knarr_client::k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use knarr_client::kube::api::PostParams;
use knarr_client::kube::{Api, Client};
use knarr_client::{Change, Informers};
use serde_json::{Value, json};
use support::ControlPlane;
use tokio::sync::Notify;

/// Concurrent creations, as in Kubernetes' benchmark.
const CREATORS: usize = 30;
const ZONES: [&str; 3] = ["moon-1", "moon-2", "moon-3"];

struct Workload {
    name: &'static str,
    /// At 5,000 nodes: initial pods, and measured pods.
    before: usize,
    measured: usize,
    /// Kubernetes' own threshold at 5,000 nodes on six cores, in pods per second.
    floor: usize,
    first_spec: fn(Value) -> Value,
    spec: fn(Value) -> Value,
    labels: &'static str,
    zones: &'static [&'static str],
}

const WORKLOADS: [Workload; 4] = [
    Workload {
        name: "basic",
        before: 1000,
        measured: 10_000,
        floor: 680,
        first_spec: plain,
        spec: plain,
        labels: "",
        zones: &[],
    },
    Workload {
        name: "spread",
        before: 5000,
        measured: 5000,
        floor: 460,
        first_spec: plain,
        spec: spread,
        labels: "blue",
        zones: &ZONES,
    },
    Workload {
        name: "anti-affinity",
        before: 1000,
        measured: 2000,
        floor: 180,
        first_spec: apart,
        spec: apart,
        labels: "green",
        zones: &[],
    },
    Workload {
        name: "affinity",
        before: 5000,
        measured: 5000,
        floor: 70,
        first_spec: near,
        spec: near,
        labels: "blue",
        zones: &["zone1"],
    },
];

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let sizes: Vec<usize> = arguments.iter().filter_map(|argument| argument.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![100, 500, 1000, 5000] } else { sizes };
    let is_named = |workload: &&Workload| arguments.iter().any(|argument| argument == workload.name);
    let all_are = !WORKLOADS.iter().any(|workload| is_named(&workload));
    println!("{:<14} {:>6} {:>7} {:>9} {:>8}  Kubernetes' floor", "workload", "nodes", "before", "measured", "pods/s");
    for workload in WORKLOADS.iter().filter(|workload| all_are || is_named(workload)) {
        for nodes in &sizes {
            measure(workload, *nodes).await;
        }
    }
}

async fn measure(workload: &Workload, nodes: usize) {
    let scaled = |at_most: usize| (at_most * nodes / 5000).max(20);
    let (before, measured) = (scaled(workload.before), scaled(workload.measured));
    let mut plane = ControlPlane::api_server();
    let client = plane.client().await;
    make_nodes(&client, nodes, workload.zones).await;
    for namespace in ["sched-0", "sched-1"] {
        make_namespace(&client, namespace).await;
    }
    plane.add("scheduler", &["scheduler"]);
    let bound = Bound::watch(&client).await;
    create(&client, "sched-0", before, &pod(workload.first_spec, workload.labels)).await;
    bound.reaches(before).await;
    let started = Instant::now();
    create(&client, "sched-1", measured, &pod(workload.spec, workload.labels)).await;
    bound.reaches(before + measured).await;
    let a_second = measured as f64 / started.elapsed().as_secs_f64();
    let floor = if nodes == 5000 { workload.floor.to_string() } else { String::new() };
    println!("{:<14} {nodes:>6} {before:>7} {measured:>9} {a_second:>8.0}  {floor}", workload.name);
}

async fn make_nodes(client: &Client, count: usize, zones: &[&str]) {
    let register = |number: usize| async move {
        let zone = if zones.is_empty() { "" } else { zones[number % zones.len()] };
        let room = json!({"cpu": "4", "memory": "32Gi", "pods": "110"});
        support::hollow::register(client, &format!("node-{number}"), zone, &room).await;
    };
    futures::stream::iter(0..count).for_each_concurrent(CREATORS, register).await;
}

async fn make_namespace(client: &Client, name: &str) {
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}})).expect("a namespace");
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.expect("a namespace is created");
    let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "default"}})).expect("an account");
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), name);
    accounts.create(&PostParams::default(), &account).await.expect("an account is created");
}

async fn create(client: &Client, namespace: &str, count: usize, pod: &Pod) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let parameters = PostParams::default();
    let create = |_| async { pods.create(&parameters, pod).await.map(drop).expect("a pod is created") };
    futures::stream::iter(0..count).for_each_concurrent(CREATORS, create).await;
}

/// The number of bound pods.
struct Bound {
    count: Arc<AtomicUsize>,
    changed: Arc<Notify>,
    _informers: Informers,
}

impl Bound {
    async fn watch(client: &Client) -> Self {
        let informers = Informers::new(client.clone());
        let pods = informers.selected::<Pod>("spec.nodeName!=", "");
        let (count, changed) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let (counts, notifies) = (count.clone(), changed.clone());
        pods.on_change(move |change| {
            if matches!(change, Change::Added(_)) {
                counts.fetch_add(1, Ordering::SeqCst);
                notifies.notify_one();
            }
        });
        pods.synced().await;
        Bound { count, changed, _informers: informers }
    }

    async fn reaches(&self, wanted: usize) {
        while self.count.load(Ordering::SeqCst) < wanted {
            let news = tokio::time::timeout(Duration::from_secs(60), self.changed.notified()).await;
            assert!(news.is_ok(), "no pod was bound for a minute; {} are", self.count.load(Ordering::SeqCst));
        }
    }
}

fn pod(spec: fn(Value) -> Value, color: &str) -> Pod {
    let resources = json!({"cpu": "100m", "memory": "500Mi"});
    let containers = json!({"containers": [{"name": "pause", "image": "registry.k8s.io/pause:3.10.2",
        "ports": [{"containerPort": 80}], "resources": {"requests": resources, "limits": resources}}]});
    let metadata = match color {
        "" => json!({"generateName": "pod-"}),
        color => json!({"generateName": "pod-", "labels": {"color": color}}),
    };
    serde_json::from_value(json!({"metadata": metadata, "spec": spec(containers)})).expect("a pod")
}

fn plain(spec: Value) -> Value {
    spec
}

fn spread(mut spec: Value) -> Value {
    spec["topologySpreadConstraints"] = json!([{"maxSkew": 5, "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"color": "blue"}}}]);
    spec
}

fn term(color: &str, key: &str) -> Value {
    json!({"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {"matchLabels": {"color": color}},
        "topologyKey": key, "namespaces": ["sched-1", "sched-0"]}]})
}

fn apart(mut spec: Value) -> Value {
    spec["affinity"] = json!({"podAntiAffinity": term("green", "kubernetes.io/hostname")});
    spec
}

fn near(mut spec: Value) -> Value {
    spec["affinity"] = json!({"podAffinity": term("blue", "topology.kubernetes.io/zone")});
    spec
}
