//! The pages of metrics of a node with a pod that has a volume, a probe and limits, compared with Kubernetes'.

use knarr_metrics::reference::differences;

use super::harness::{self, Cluster, IMAGE};

/// Families that have no value on this node: each appears with the first event that it counts.
const WITHOUT_EVENTS: [&str; 1] = ["kubelet_evictions"];

const POD: &str = r#"
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 8Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: measured, labels: {app: measured}}
spec:
  nodeSelector: {kubernetes.io/hostname: node-2}
  volumes: [{name: disk, persistentVolumeClaim: {claimName: disk}}]
  containers:
  - name: main
    image: IMAGE
    command: ["/bin/sh", "-c", "echo here > /disk/file; exec busybox sleep 3600"]
    resources: {limits: {cpu: 500m, memory: 64Mi}}
    volumeMounts: [{name: disk, mountPath: /disk}]
    readinessProbe: {exec: {command: ["cat", "/disk/file"]}, periodSeconds: 1}
    livenessProbe: {exec: {command: ["cat", "/disk/file"]}, periodSeconds: 1}
"#;

#[test]
fn every_page_of_a_node_has_the_metrics_of_kubernetes() {
    if !harness::is_possible() {
        return;
    }
    let cluster = Cluster::start(2);
    cluster.apply(&POD.replace("IMAGE", IMAGE));
    cluster.wait_for("the pod to be ready", || cluster.ready_pods("app=measured") == 1);
    // An operation that fails is counted, too.
    let _ = cluster.try_kubectl(&["exec", "measured", "--", "/no-such-program"]);
    let page = |path: &str| cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/node-2/proxy{path}")]);
    cluster.wait_for("the usage of the volume", || page("/metrics").contains("kubelet_volume_stats_used_bytes{"));
    let mut all = Vec::new();
    for (component, path) in [
        ("kubelet", "/metrics"),
        ("kubelet", "/metrics/slis"),
        ("kubelet", "/metrics/resource"),
        ("kubelet", "/metrics/probes"),
        ("cadvisor", "/metrics/cadvisor"),
        ("coredns", "/metrics"),
        ("kube-proxy", "/metrics"),
    ] {
        let found = differences(component, path, &page(path), &[]).into_iter();
        all.extend(found.map(|text| format!("{component} {path}: {text}")));
    }
    let proxied = cluster.nodes[1]
        .host
        .command("busybox")
        .args(["wget", "-q", "-O", "-", "http://127.0.0.1:10249/metrics"])
        .output();
    let proxied = String::from_utf8_lossy(&proxied.expect("busybox").stdout).into_owned();
    all.extend(
        differences("kube-proxy", "/metrics", &proxied, &[]).into_iter().map(|text| format!("kube-proxy: {text}")),
    );
    // The page is that of the process, in which other components have queues.
    all.retain(|text| !(text.contains("workqueue_") && text.contains("left_out.txt has it")));
    all.retain(|text| !WITHOUT_EVENTS.iter().any(|name| text.ends_with(&format!("{name} is missing"))));
    assert_eq!(all, Vec::<String>::new());
}
