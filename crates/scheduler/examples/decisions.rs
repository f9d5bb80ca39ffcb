//! Measures scheduling decisions per second without an API: the workloads that Kubernetes measures its scheduler by
//! (plain pods, spread over zones, anti-affinity, affinity), over growing numbers of nodes.
//!
//! `decisions [workload] [nodes …]` prints a line for each. Time is CPU time of this process, so that a busy host
//! does not distort it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, Pod};
use knarr_scheduler::cluster::Cluster;
use knarr_scheduler::cluster::pod::PodState;
use knarr_scheduler::cycle::{ProfilePlugins, Rotation};
use knarr_scheduler::nominations::Nominations;
use knarr_scheduler::profile::Profile;
use serde_json::{Value, json};

const WORKLOADS: [&str; 6] = ["basic", "spread", "preferred-spread", "anti-affinity", "affinity", "preferred-affinity"];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let sizes: Vec<usize> = arguments.iter().filter_map(|argument| argument.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![100, 500, 1000, 5000] } else { sizes };
    let named: Vec<&str> =
        WORKLOADS.into_iter().filter(|name| arguments.iter().any(|argument| argument == name)).collect();
    let workloads = if named.is_empty() { WORKLOADS.to_vec() } else { named };
    println!("{:<20} {:>6} {:>8} {:>8} {:>12} {:>12}", "workload", "nodes", "before", "pods", "pods/s", "µs a pod");
    for workload in workloads {
        for nodes in &sizes {
            measure(workload, *nodes);
        }
    }
}

fn measure(workload: &str, nodes: usize) {
    // As many pods before and during the measurement as Kubernetes uses for 5,000 nodes, fewer on fewer nodes.
    let (before, measured) = match workload {
        "anti-affinity" => (nodes / 5, nodes / 5),
        _ => (nodes, nodes.clamp(500, 2000)),
    };
    let mut bench = Bench::new(nodes);
    for number in 0..before {
        // The spread and preferred workloads start among plain pods.
        let kind = if matches!(workload, "anti-affinity" | "affinity") { workload } else { "basic" };
        bench.schedule(&pod(kind, number, "before"));
    }
    let pods: Vec<Arc<Pod>> = (0..measured).map(|number| pod(workload, number, "measured")).collect();
    let (wall, cpu) = (Instant::now(), processor_time());
    for pod in &pods {
        bench.schedule(pod);
    }
    let spent = match processor_time().saturating_sub(cpu) {
        Duration::ZERO => wall.elapsed(),
        spent => spent,
    };
    let a_second = measured as f64 / spent.as_secs_f64();
    println!(
        "{workload:<20} {nodes:>6} {before:>8} {measured:>8} {a_second:>12.0} {:>12.1}",
        spent.as_secs_f64() * 1e6 / measured as f64
    );
}

struct Bench {
    ready: ProfilePlugins,
    cluster: Cluster,
    nominations: Nominations,
    rotation: Rotation,
}

impl Bench {
    fn new(nodes: usize) -> Self {
        let mut cluster = Cluster::default();
        for number in 0..nodes {
            cluster.set_node(node(number));
        }
        let ready = ProfilePlugins::new(Profile::named("default-scheduler"), 0);
        Bench { ready, cluster, nominations: Nominations::default(), rotation: Rotation::default() }
    }

    /// All work for a pod except API requests: adding it, deciding, assuming it, and confirming it.
    fn schedule(&mut self, object: &Arc<Pod>) {
        let pod = Arc::new(PodState::new(Arc::clone(object)));
        match self.ready.decide(&pod, &mut self.cluster, &self.nominations, &mut self.rotation) {
            Ok(chosen) => {
                let node = self.cluster.node(chosen.node).name().to_owned();
                self.cluster.assume(Arc::clone(&pod.placed), &node);
                self.cluster.set_pod(object, &node);
            }
            Err(no_fit) => panic!("{} fits nowhere: {}", pod.key, no_fit.diagnosis.message()),
        }
    }
}

fn node(number: usize) -> Arc<Node> {
    let name = format!("node-{number}");
    let node = json!({
        "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
            "topology.kubernetes.io/zone": format!("zone-{}", number % 3), "topology.kubernetes.io/region": "region-1",
        }},
        "status": {"allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"}},
    });
    Arc::new(serde_json::from_value(node).expect("a node"))
}

fn pod(kind: &str, number: usize, stage: &str) -> Arc<Pod> {
    let term = |key: &str| json!({"topologyKey": key, "labelSelector": {"matchLabels": {"color": kind}}});
    let spread = |unsatisfiable: &str| {
        json!([{"maxSkew": 5, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": unsatisfiable,
            "labelSelector": {"matchLabels": {"color": kind}}}])
    };
    let mut spec = json!({"containers": [{"name": "pause", "image": "registry.k8s.io/pause:3.10",
        "resources": {"requests": {"cpu": "100m", "memory": "500Mi"}}}]});
    match kind {
        "spread" => spec["topologySpreadConstraints"] = spread("DoNotSchedule"),
        "preferred-spread" => spec["topologySpreadConstraints"] = spread("ScheduleAnyway"),
        "anti-affinity" => {
            spec["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term("kubernetes.io/hostname")]}});
        }
        "affinity" => {
            spec["affinity"] = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term("topology.kubernetes.io/region")]}});
        }
        "preferred-affinity" => {
            spec["affinity"] = json!({"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution":
                [{"weight": 1, "podAffinityTerm": term("kubernetes.io/hostname")}]}});
        }
        _ => {}
    }
    let labels: Value = json!({"color": kind});
    let pod = json!({"metadata": {"namespace": "bench", "name": format!("{stage}-{kind}-{number}"),
        "uid": format!("{stage}-{number}"), "labels": labels}, "spec": spec});
    Arc::new(serde_json::from_value(pod).expect("a pod"))
}

/// CPU time of this process so far, if the system reports it.
fn processor_time() -> Duration {
    let spent = std::fs::read_to_string("/proc/self/schedstat").ok();
    let nanoseconds = spent.and_then(|text| text.split(' ').next()?.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}
