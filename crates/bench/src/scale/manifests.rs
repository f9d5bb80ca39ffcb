//! The objects of the cluster: as large as those of real nodes and workloads.

use bytes::Bytes;
use serde_json::{Value, json};

/// How many Deployments share a namespace.
const DEPLOYMENTS_PER_NAMESPACE: usize = 100;
/// The namespace of single pods whose start is measured.
pub const PROBES: &str = "probes";

pub fn node_name(at: usize) -> String {
    format!("hollow-{at}")
}

pub fn namespace_of(deployment: usize) -> String {
    format!("load-{}", deployment / DEPLOYMENTS_PER_NAMESPACE)
}

pub fn namespaces(deployments: usize) -> impl Iterator<Item = String> {
    (0..deployments).step_by(DEPLOYMENTS_PER_NAMESPACE).map(namespace_of).chain([PROBES.to_owned()])
}

pub fn deployment_name(at: usize) -> String {
    format!("app-{at}")
}

pub fn namespace(name: &str) -> Bytes {
    bytes(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))
}

pub fn lease(node: &str, now: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": node, "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": now},
    })
}

/// A node with the fields that a kubelet reports.
pub fn node(at: usize, now: &str) -> Bytes {
    let name = node_name(at);
    let resources =
        json!({"cpu": "32", "memory": "256Gi", "pods": "110", "ephemeral-storage": "100Gi", "hugepages-2Mi": "0"});
    let images: Vec<Value> = (0..20)
        .map(|image| {
            let digest = format!("{image:064x}");
            json!({"names": [format!("registry.example/app-{image}@sha256:{digest}"), format!("registry.example/app-{image}:1.0")],
                "sizeBytes": 40_000_000 + image})
        })
        .collect();
    bytes(&json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
            "topology.kubernetes.io/zone": format!("zone-{}", at % 3), "topology.kubernetes.io/region": "north",
        }},
        "status": {
            "capacity": resources, "allocatable": resources, "conditions": conditions(now), "images": images,
            "addresses": [
                {"type": "InternalIP", "address": format!("10.240.{}.{}", at / 250, at % 250 + 1)},
                {"type": "Hostname", "address": name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "architecture": "amd64", "operatingSystem": "linux", "kubeletVersion": "v1.36.4", "kubeProxyVersion": "",
                "containerRuntimeVersion": "containerd://2.0.0", "kernelVersion": "6.1.0", "osImage": "Debian 12",
                "machineID": name, "systemUUID": name, "bootID": name,
            },
        },
    }))
}

/// The status that a node reports every few minutes.
pub fn node_status(now: &str) -> Bytes {
    bytes(&json!({"status": {"conditions": conditions(now)}}))
}

fn conditions(now: &str) -> Vec<Value> {
    let condition = |kind: &str, status: &str, reason: &str| json!({"type": kind, "status": status, "reason": reason, "message": reason, "lastHeartbeatTime": now});
    vec![
        condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        condition("PIDPressure", "False", "KubeletHasSufficientPID"),
        condition("Ready", "True", "KubeletReady"),
    ]
}

fn pod_spec() -> Value {
    json!({
        "terminationGracePeriodSeconds": 30,
        "containers": [{
            "name": "main", "image": "registry.example/app-1:1.0", "command": ["serve", "--port=8080"],
            "ports": [{"name": "http", "containerPort": 8080}],
            "env": [
                {"name": "LOG_LEVEL", "value": "info"},
                {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            ],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
            "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}},
        }],
    })
}

pub fn deployment(at: usize, replicas: usize) -> Bytes {
    let labels = json!({"app": deployment_name(at)});
    bytes(&json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": deployment_name(at), "labels": labels},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod_spec()},
        },
    }))
}

pub fn service(at: usize) -> Bytes {
    bytes(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": deployment_name(at)},
        "spec": {"selector": {"app": deployment_name(at)}, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
    }))
}

pub fn probe_pod(name: &str) -> Bytes {
    bytes(
        &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "probe"}}, "spec": pod_spec()}),
    )
}

/// The status of a pod that runs. `address` makes its IP address unique.
pub fn running(address: u32, now: &str) -> Bytes {
    let [_, b, c, d] = address.to_be_bytes();
    let ip = format!("10.{}.{c}.{d}", b & 0x7f);
    let condition =
        |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now, "observedGeneration": 1});
    let conditions: Vec<Value> =
        ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"].map(condition).into();
    bytes(&json!({"status": {
        "phase": "Running", "startTime": now, "podIP": ip, "podIPs": [{"ip": ip}], "hostIP": "10.240.0.1",
        "hostIPs": [{"ip": "10.240.0.1"}], "conditions": conditions, "observedGeneration": 1,
        "containerStatuses": [{
            "name": "main", "image": "registry.example/app-1:1.0", "imageID": format!("registry.example/app-1@sha256:{:064x}", 1),
            "containerID": format!("containerd://{address:064x}"), "ready": true, "started": true, "restartCount": 0,
            "state": {"running": {"startedAt": now}},
        }],
    }}))
}

fn bytes(object: &Value) -> Bytes {
    Bytes::from(object.to_string())
}
