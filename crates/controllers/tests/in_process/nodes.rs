//! Nodes: health by heartbeats, steps of the wall clock, taints, evictions and lost pods.

use std::time::Duration;

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::support::kubelet::Kubelet;
use super::support::{Cluster, condition, name_of, names, path, text};

const CONTROLLERS: &[&str] =
    &["node-lifecycle-controller", "taint-eviction-controller", "pod-garbage-collector-controller"];
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

async fn add_node(cluster: &Cluster, name: &str) {
    cluster.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})).await;
    let now = cluster.now().to_string();
    let ready = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now,
        "lastTransitionTime": now}]);
    cluster.patch_status("Node", name, json!({"conditions": ready})).await;
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease"}, "spec": {"holderIdentity": name, "leaseDurationSeconds": 40}});
    cluster.create(lease).await;
    beat(cluster, &[name]).await;
}

/// The nodes renew their leases.
async fn beat(cluster: &Cluster, nodes: &[&str]) {
    let now = cluster.now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    for node in nodes {
        let at = format!("{}/{node}", path("Lease", "kube-node-lease"));
        cluster.patch_at(&at, json!({"spec": {"renewTime": now}})).await;
    }
}

/// Time passes while these nodes report.
async fn pass(cluster: &Cluster, seconds: u64, alive: &[&str]) {
    for _ in 0..seconds.div_ceil(10) {
        beat(cluster, alive).await;
        cluster.advance(Duration::from_secs(10)).await;
    }
}

async fn with_nodes(nodes: &[&str]) -> Cluster {
    let cluster = Cluster::start(CONTROLLERS).await;
    for node in nodes {
        add_node(&cluster, node).await;
    }
    cluster.until_list("Node", |nodes| nodes.iter().all(|node| taints(node).is_empty())).await;
    pass(&cluster, 20, nodes).await;
    cluster
}

fn taints(node: &Value) -> Vec<(&str, &str)> {
    let taints = node["spec"]["taints"].as_array();
    taints.into_iter().flatten().map(|taint| (text(&taint["key"]), text(&taint["effect"]))).collect()
}

fn readiness(node: &Value) -> &str {
    text(&condition(node, "Ready")["status"])
}

fn pod_on(node: &str, name: &str, tolerated: Option<u32>) -> Value {
    let tolerations = match tolerated {
        Some(seconds) => json!([{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}]),
        None => json!([{"operator": "Exists"}]),
    };
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"nodeName": node,
        "tolerations": tolerations, "containers": [{"name": "c", "image": "image:1"}]}})
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_is_unknown_tainted_and_loses_its_pods() {
    let cluster = with_nodes(&["a", "b"]).await;
    cluster.create(pod_on("b", "patient", Some(60))).await;
    cluster.create(pod_on("b", "loyal", None)).await;
    cluster.until("Pod", "loyal", |pod| condition(pod, "Ready")["status"] == "True").await;
    cluster.set_kubelet(Kubelet::absent());
    pass(&cluster, 40, &["a"]).await;
    assert_eq!(readiness(&cluster.get("Node", "b").await.unwrap()), "True", "the grace period is 50 s");
    pass(&cluster, 30, &["a"]).await;
    let silent = cluster.until("Node", "b", |node| readiness(node) == "Unknown").await;
    assert_eq!(condition(&silent, "Ready")["reason"], "NodeStatusUnknown");
    let tainted = cluster.until("Node", "b", |node| taints(node).len() == 2).await;
    assert_eq!(taints(&tainted), [(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")]);
    cluster.until("Pod", "loyal", |pod| condition(pod, "Ready")["status"] == "False").await;
    assert!(cluster.get("Pod", "patient").await.unwrap()["metadata"]["deletionTimestamp"].is_null());
    pass(&cluster, 70, &["a"]).await;
    let evicted = cluster.until("Pod", "patient", |pod| pod["metadata"]["deletionTimestamp"].is_string()).await;
    assert_eq!(condition(&evicted, "DisruptionTarget")["reason"], "DeletionByTaintManager");
    assert!(cluster.get("Pod", "loyal").await.unwrap()["metadata"]["deletionTimestamp"].is_null());
    assert_eq!(readiness(&cluster.get("Node", "a").await.unwrap()), "True");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_returns_in_time_keeps_its_pods() {
    let cluster = with_nodes(&["a", "b"]).await;
    cluster.create(pod_on("b", "patient", Some(120))).await;
    pass(&cluster, 70, &["a"]).await;
    cluster.until("Node", "b", |node| taints(node).len() == 2).await;
    let now = cluster.now().to_string();
    let ready = json!([{"type": "Ready", "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now}]);
    cluster.patch_status("Node", "b", json!({"conditions": ready})).await;
    pass(&cluster, 10, &["a", "b"]).await;
    cluster.until("Node", "b", |node| taints(node).is_empty()).await;
    pass(&cluster, 180, &["a", "b"]).await;
    assert!(cluster.get("Pod", "patient").await.unwrap()["metadata"]["deletionTimestamp"].is_null());
}

/// A step of the wall clock is no silence: nodes stay ready, and pods are not evicted early.
#[tokio::test(start_paused = true)]
async fn a_step_of_the_wall_clock_makes_no_node_unknown() {
    for step in [SignedDuration::from_mins(2), SignedDuration::from_mins(-2)] {
        let cluster = with_nodes(&["a", "b"]).await;
        cluster.step_wall_clock(step);
        cluster.advance(Duration::from_secs(15)).await;
        for node in cluster.list("Node").await {
            assert_eq!(readiness(&node), "True", "{} after {step}", name_of(&node));
            assert!(taints(&node).is_empty());
        }
        // A node that is silent is noticed as soon as with a clock that runs evenly.
        pass(&cluster, 60, &["a"]).await;
        cluster.until("Node", "b", |node| readiness(node) == "Unknown").await;
        assert_eq!(readiness(&cluster.get("Node", "a").await.unwrap()), "True");
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_of_the_wall_clock_neither_hurries_nor_delays_an_eviction() {
    for step in [SignedDuration::from_mins(2), SignedDuration::from_mins(-2)] {
        let cluster = with_nodes(&["a"]).await;
        cluster.create(pod_on("a", "patient", Some(60))).await;
        cluster.until_quiet().await;
        let taint = |value: &str| json!({"spec": {"taints": [{"key": "k", "value": value, "effect": "NoExecute"}]}});
        cluster.patch("Node", "a", taint("1")).await;
        cluster.until_quiet().await;
        cluster.step_wall_clock(step);
        // The pod is reconciled again when the taints change.
        cluster.patch("Node", "a", taint("2")).await;
        pass(&cluster, 30, &["a"]).await;
        assert!(cluster.get("Pod", "patient").await.is_some(), "{step}");
        pass(&cluster, 40, &["a"]).await;
        cluster.until_gone("Pod", "patient").await;
    }
}

#[tokio::test(start_paused = true)]
async fn pods_without_toleration_are_evicted_at_once_and_others_stay() {
    let cluster = with_nodes(&["a"]).await;
    let mut fragile = pod_on("a", "fragile", None);
    fragile["spec"]["tolerations"] = json!([]);
    cluster.create(fragile).await;
    cluster.create(pod_on("a", "loyal", None)).await;
    cluster.until_quiet().await;
    cluster.patch("Node", "a", json!({"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}})).await;
    cluster.until_list("Pod", |pods| names(pods) == ["loyal"]).await;
}

/// If all nodes fall silent at once, the fault is more likely here: nothing is evicted.
#[tokio::test(start_paused = true)]
async fn nothing_is_evicted_while_all_nodes_are_silent() {
    let cluster = with_nodes(&["a", "b", "c"]).await;
    cluster.create(pod_on("a", "p", Some(0))).await;
    pass(&cluster, 200, &[]).await;
    let nodes = cluster.until_list("Node", |nodes| nodes.iter().all(|node| readiness(node) == "Unknown")).await;
    for node in nodes {
        assert!(!taints(&node).contains(&(UNREACHABLE, "NoExecute")), "{node}");
    }
    assert!(cluster.get("Pod", "p").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_node_that_is_gone_are_deleted() {
    let cluster = with_nodes(&["a", "b"]).await;
    cluster.create(pod_on("b", "lost", None)).await;
    cluster.create(pod_on("a", "fine", None)).await;
    cluster.until_quiet().await;
    cluster.set_kubelet(Kubelet::absent());
    cluster.delete("Node", "b", "Background").await;
    pass(&cluster, 120, &["a"]).await;
    cluster.until_list("Pod", |pods| names(pods) == ["fine"]).await;
}
